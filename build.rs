//! What is built into the program besides its source: the migrations, the texts of `locales/`, and the web client.
//!
//! `sqlx::migrate!` alone would not see a new migration. The web client is built by `make web` and may be absent,
//! because a build must work without Node.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script its folders by the environment"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

/// The languages of the program's own texts. The first one is complete by definition.
const LANGUAGES: [&str; 3] = ["en", "es", "fr"];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=web/dist");
    let out = env::var("OUT_DIR").expect("cargo names the folder of what is generated");
    println!("cargo:rerun-if-changed=locales");
    fs::write(Path::new(&out).join("texts.rs"), texts()?)?;
    fs::write(Path::new(&out).join("web.rs"), embedded()?)
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
    let path = Path::new(&root).join(format!("locales/{language}.toml"));
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

/// The list of the files of `web/dist` as an expression: name, content, and the content compressed in two ways.
fn embedded() -> io::Result<String> {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    let folder = PathBuf::from(root).join("web/dist");
    let mut files: Vec<PathBuf> = match fs::read_dir(&folder) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    files.sort();
    let mut list = "&[\n".to_owned();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let gzip = folder.join(format!("{name}.gz"));
        let brotli = folder.join(format!("{name}.br"));
        if gzip.exists() && brotli.exists() {
            let [body, gzip, brotli] =
                [&file, &gzip, &brotli].map(|path| path.display().to_string());
            writeln!(
                list,
                "    File {{ name: {name:?}, body: include_bytes!({body:?}), gzip: include_bytes!({gzip:?}), \
                 brotli: include_bytes!({brotli:?}) }},",
            )
            .expect("a string can be written to");
        }
    }
    list.push_str("]\n");
    Ok(list)
}
