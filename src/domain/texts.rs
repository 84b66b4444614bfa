//! The program's own words in a conversation, in English, Spanish and French: the files of `locales/`, which `build.rs`
//! checks. A pack overrides any of them, in any language, by its name in `languages.*.strings`.

use super::{pack::Pack, principal::Principal};

include!(concat!(env!("OUT_DIR"), "/texts.rs"));

/// The texts for one user of one pack.
pub struct Texts<'a> {
    pack: Option<&'a Pack>,
    locale: Option<&'a str>,
}

/// The texts in the language of a principal.
pub fn of<'a>(pack: &'a Pack, principal: &'a Principal) -> Texts<'a> {
    Texts {
        pack: Some(pack),
        locale: principal.locale.as_deref(),
    }
}

/// The texts for a user whose language is not known: those of the pack's own language.
pub fn default_texts(pack: Option<&Pack>) -> Texts<'_> {
    Texts { pack, locale: None }
}

/// The texts in a language, without a pack.
pub fn in_language(language: &str) -> Texts<'_> {
    Texts {
        pack: None,
        locale: Some(language),
    }
}

/// The texts about an agent whose pack may be gone.
pub fn for_optional_pack<'a>(pack: Option<&'a Pack>, principal: &'a Principal) -> Texts<'a> {
    Texts {
        pack,
        locale: principal.locale.as_deref(),
    }
}

impl Texts<'_> {
    /// The text with `{name}` replaced, once and literally. In the user's language by the pack, else by us,
    /// then in the pack's default language, then in English.
    pub fn render(&self, key: Key, values: &[(&str, &str)]) -> String {
        let (name, built_in) = TEXTS[key as usize];
        let default = self
            .pack
            .map(|pack| pack.metadata.default_language.as_str());
        let tags = self.locale.into_iter().chain(default).chain(["en"]);
        let found = tags
            .flat_map(|tag| [tag, tag.split(['-', '_']).next().unwrap_or(tag)])
            .find_map(|tag| {
                let languages = self.pack.map(|pack| &pack.languages);
                let own = languages
                    .into_iter()
                    .flatten()
                    .find(|(language, _)| language.eq_ignore_ascii_case(tag));
                let own = own
                    .and_then(|(_, language)| language.strings.get(name))
                    .map(String::as_str);
                own.or_else(|| {
                    let at = LANGUAGES
                        .iter()
                        .position(|language| language.eq_ignore_ascii_case(tag))?;
                    Some(built_in[at])
                })
            });
        fill(found.unwrap_or(built_in[0]), values)
    }
}

/// Replaces in one pass: a value that was filled in is not scanned again.
fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let value = values.iter().find_map(|(name, value)| {
            let after = rest[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((*value, after))
        });
        match value {
            Some((value, after)) => {
                filled.push_str(value);
                rest = after;
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}
