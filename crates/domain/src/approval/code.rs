//! The short code of a request, which people type.

/// Digits and letters without those that people mistake for one another.
const ALPHABET: &[u8; 30] = b"23456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Characters of a code at first; longer ones come when those are taken.
const SHORTEST: usize = 4;

const LONGEST: usize = 8;

/// A random code for the `attempt`th try, from 0.
pub fn code(attempt: usize) -> String {
    let length = (SHORTEST + attempt / 2).min(LONGEST);
    (0..length)
        .map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]))
        .collect()
}

/// A code as somebody typed it; `None` when it cannot be one.
pub fn parse_code(text: &str) -> Option<String> {
    let code = text.trim().trim_start_matches('#').to_ascii_uppercase();
    let fits = (SHORTEST..=LONGEST).contains(&code.len())
        && code.bytes().all(|byte| ALPHABET.contains(&byte));
    fits.then_some(code)
}
