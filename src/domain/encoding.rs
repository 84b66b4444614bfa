//! Labels of text encodings, as packs write them and as Python and the web platform spell them.

use encoding_rs::Encoding;

/// The encoding of a label such as `utf-8`, `latin-1`, `cp1252` or `utf-16-le`; the error says what to write.
pub fn parse_label(label: &str) -> Result<&'static Encoding, String> {
    let plain = label.trim().to_ascii_lowercase().replace('_', "-");
    let spellings = [
        plain.clone(),
        plain.replacen('-', "", 1),
        plain.replacen("-le", "le", 1).replacen("-be", "be", 1),
    ];
    let found = spellings
        .iter()
        .find_map(|label| Encoding::for_label_no_replacement(label.as_bytes()));
    found.ok_or_else(|| {
        format!("unknown encoding {label:?}; write a label such as utf-8, windows-1252 or utf-16le")
    })
}
