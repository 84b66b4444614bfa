//! Which of the installed servers is started.

use chatelaine::cli::private_postgres::binaries::{Binaries, choose};

fn of(major: u32) -> Binaries {
    Binaries {
        folder: format!("/pg/{major}").into(),
        major,
    }
}

#[test]
fn new_data_takes_the_first_and_old_data_its_own_version() {
    assert_eq!(
        choose([of(17), of(15)].into_iter(), None).expect("one"),
        of(17)
    );
    assert_eq!(
        choose([of(17), of(15)].into_iter(), Some(15)).expect("one"),
        of(15)
    );
}

#[test]
fn a_missing_version_is_named() {
    let error = choose([of(17), of(15)].into_iter(), Some(14))
        .expect_err("none fits")
        .to_string();
    assert!(
        error.contains("made by Postgres 14, and this machine has 17, 15"),
        "{error}"
    );
    assert!(error.contains("apt-get install postgresql-14"), "{error}");
}

#[test]
fn a_machine_without_postgres_is_told_what_to_install() {
    let error = choose(std::iter::empty(), None)
        .expect_err("none")
        .to_string();
    assert!(
        error.contains("`apt-get install postgresql`")
            && error.contains("`brew install postgresql`"),
        "{error}"
    );
}
