//! The texts of `locales/` are built into the program.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script its folders by the environment"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs, io,
    path::Path,
};

/// The languages of the program's own texts. The first one is complete by definition.
const LANGUAGES: [&str; 3] = ["en", "es", "fr"];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=../../locales");
    let out = env::var("OUT_DIR").expect("cargo names the folder of what is generated");
    fs::write(Path::new(&out).join("texts.rs"), texts()?)
}

/// The keys of the texts as an enum, and the texts as a table: a row for each key, a column for each language.
fn texts() -> io::Result<String> {
    let languages = LANGUAGES
        .iter()
        .map(|language| read_texts(language))
        .collect::<io::Result<Vec<_>>>()?;
    for (language, texts) in LANGUAGES.iter().zip(&languages) {
        check_same_texts(language, &languages[0], texts);
    }
    let (mut keys, mut rows, mut all) = (String::new(), String::new(), String::new());
    for name in languages[0].keys() {
        let columns: Vec<_> = languages.iter().map(|texts| &texts[name]).collect();
        let line = writeln!(
            keys,
            "    /// `{:?}`\n    {},",
            columns[0],
            camel_case(name)
        );
        line.expect("a string can be written to");
        let _ = write!(all, "Key::{}, ", camel_case(name));
        let row = writeln!(rows, "    ({name:?}, {columns:?}),");
        row.expect("a string can be written to");
    }
    Ok(format!(
        "/// A text of the program's own.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         pub enum Key {{\n{keys}}}\n\
         pub const LANGUAGES: [&str; {columns}] = {LANGUAGES:?};\n\
         /// The name of a text and the text in each language. The order is the order of the keys.\n\
         const TEXTS: &[(&str, [&str; {columns}])] = &[\n{rows}];\n\
         /// All keys, in their order.\n\
         const KEYS: &[Key] = &[{all}];\n",
        columns = LANGUAGES.len(),
    ))
}

/// The texts of one language by their names.
fn read_texts(language: &str) -> io::Result<BTreeMap<String, String>> {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    let path = Path::new(&root).join(format!("../../locales/{language}.toml"));
    toml::from_str(&fs::read_to_string(&path)?)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

/// Stops the build when a language lacks a text, has one too many, or names other values in braces.
fn check_same_texts(
    language: &str,
    english: &BTreeMap<String, String>,
    texts: &BTreeMap<String, String>,
) {
    let file = format!("locales/{language}.toml");
    for name in english.keys() {
        assert!(texts.contains_key(name), "{file} lacks {name}");
    }
    for (name, text) in texts {
        let Some(other) = english.get(name) else {
            panic!("{file} has {name}, which locales/en.toml lacks");
        };
        assert_eq!(
            placeholders(text),
            placeholders(other),
            "{file}: {name} names other values than in locales/en.toml"
        );
    }
}

/// The names in braces.
fn placeholders(text: &str) -> BTreeSet<&str> {
    text.split('{')
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .map(|(name, _)| name)
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase()))
        .collect()
}

/// `APPROVAL_USAGE` as `ApprovalUsage`.
fn camel_case(name: &str) -> String {
    let mut camel = String::new();
    for word in name.split('_') {
        camel.push_str(&word[..1]);
        camel.push_str(&word[1..].to_ascii_lowercase());
    }
    camel
}
