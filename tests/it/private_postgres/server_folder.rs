//! Which user can reach the folder of a server.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use chatelaine::cli::private_postgres::server_folder::{Owner, can_reach};

#[test]
fn a_closed_folder_above_is_noticed_and_the_owner_passes() {
    let above = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(above.path(), fs::Permissions::from_mode(0o700)).expect("ours");
    let folder = fs::canonicalize(above.path())
        .expect("exists")
        .join("postgres");
    let owner = Owner {
        uid: fs::metadata(above.path()).expect("exists").uid(),
        gid: 0,
    };
    let stranger = Owner {
        uid: 65_534,
        gid: 65_534,
    };
    assert!(can_reach(&folder, owner).expect("readable"));
    assert!(!can_reach(&folder, stranger).expect("readable"));
    fs::set_permissions(above.path(), fs::Permissions::from_mode(0o711)).expect("ours");
    assert!(can_reach(&folder, stranger).expect("readable"));
}
