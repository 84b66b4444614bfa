//! The page about the doctor, and its codes.

use domain::finding::{Code, Severity};

#[test]
fn the_page_explains_every_code_and_no_other() {
    let page = include_str!("../../../docs/doctor.md");
    let rows: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(code, rest)| {
            let (severity, rest) = rest.split_once(" | ").unwrap();
            assert_eq!(rest.matches(" | ").count(), 1, "{code}: meaning and remedy");
            (code.to_owned(), severity.to_owned())
        })
        .collect();
    let known: Vec<_> = Code::ALL
        .iter()
        .map(|code| {
            let severity: Severity = code.severity();
            (code.as_str().to_owned(), severity.to_string())
        })
        .collect();
    assert_eq!(rows, known);
}
