//! Texts that look alike although they are different: `paypal` and `p\u{430}ypal`, `Ivan` and `lvan`.

use std::fmt::Write as _;

use super::hidden::fold;

/// What a text looks like, by the table of confusable characters of Unicode (UTS 39): two texts with the same skeleton
/// are read as the same. Characters that nobody sees are left out, and white space counts as one blank.
///
/// A skeleton is for comparison, never for display: `m` becomes `rn`, `1` becomes `l`, `0` becomes `O`. Case is kept, so
/// whoever ignores case lowers the text first: `I` looks like `l`, and `i` does not.
pub fn skeleton(text: &str) -> String {
    let letters: String = unicode_security::skeleton(&fold(text)).collect();
    let words: Vec<&str> = letters.split_whitespace().collect();
    words.join(" ")
}

/// Whether two texts are different and look the same, or differ only in their case.
pub fn are_lookalikes(one: &str, other: &str) -> bool {
    let lowered = |text: &str| skeleton(&text.to_lowercase());
    one != other && (skeleton(one) == skeleton(other) || lowered(one) == lowered(other))
}

/// The text with each character that is not ASCII beside its number, so that a reader tells it from its lookalike:
/// `p\u{430}ypal` becomes `p\u{430}(U+0430)ypal`.
pub fn spell_out(text: &str) -> String {
    let mut spelled = String::with_capacity(text.len());
    for c in text.chars() {
        spelled.push(c);
        if !c.is_ascii() {
            let _ = write!(spelled, "(U+{:04X})", u32::from(c));
        }
    }
    spelled
}
