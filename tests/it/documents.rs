//! The five public documents. Every YAML and JSON snippet of them is a file below `documents/`, in the
//! document's order and its own words, indented as YAML needs it. Each has a test that uses it unchanged. The table in
//! `documents/promises.rs` names the test of each promise.

mod agent_pack;
mod aos;
mod holaos;
mod holodeck;
mod live; // in runs
mod promises; // which test each has
mod published_packs; // agent packs as that program's users have written them
mod registry;

use std::{fs, path::Path};

/// How many snippets each document has.
const DOCUMENTS: [(&str, usize); 5] = [
    ("agent-pack", 5),
    ("aos", 2),
    ("holaos", 4),
    ("holodeck", 13),
    ("registry", 32),
];

/// The text of a snippet, by its number in the document.
fn snippet(document: &str, number: usize) -> String {
    let extension = if document == "registry" {
        "json"
    } else {
        "yaml"
    };
    let file = format!("tests/it/documents/{document}/{number:02}.{extension}");
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn no_snippet_of_the_documents_is_forgotten() {
    let folder = Path::new("tests/it/documents");
    let sources: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let sources = sources
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let tests: String = sources
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for (document, count) in DOCUMENTS {
        assert_eq!(
            fs::read_dir(folder.join(document)).unwrap().count(),
            count,
            "{document}"
        );
        for number in 1..=count {
            assert!(!snippet(document, number).is_empty());
            let used = format!("snippet(\"{document}\", {number})");
            assert!(tests.contains(&used), "no test says {used}");
        }
    }
}
