//! Who the agent of a pack is: its id, its names, and its texts in each language.

use std::collections::BTreeMap;

use super::ENGLISH;
use crate::{field::Field, object::Object};
use domain::{
    ids::AgentId,
    pack::{Language, Metadata},
};

/// `metadata`, as far as it could be read.
#[derive(Default)]
pub(super) struct Head {
    pub(super) id: Option<AgentId>,
    display_name: Option<String>,
    pub(super) description: String,
    tags: Vec<String>,
    /// The default language. There are texts for it, or an error was recorded.
    pub(super) language: String,
    language_shown: String,
}

impl Head {
    pub(super) fn metadata(self, id: AgentId) -> Metadata {
        Metadata {
            display_name: self.display_name.unwrap_or_else(|| id.to_string()),
            id,
            description: self.description,
            tags: self.tags,
            default_language: self.language,
        }
    }
}

/// `metadata` and `languages`, which check each other. The languages hold the default one.
/// `greeting` is the text that greets, where another key than the usual one holds it.
pub(super) fn words<'a>(
    top: &mut Object<'a>,
    greeting: Option<&'a str>,
) -> (BTreeMap<String, Language>, Head) {
    let metadata = top.required("metadata", "write `metadata: { id: … }`");
    let field = top.required(
        "languages",
        "write `languages: { en: { systemPrompt: … } }`",
    );
    let mut languages = field
        .as_ref()
        .and_then(|field| languages_of(field, greeting))
        .unwrap_or_default();
    let mut head = metadata.and_then(|field| head(&field)).unwrap_or_default();
    if head.language.is_empty() {
        let only = languages.keys().next().filter(|_| languages.len() == 1);
        head.language = only.cloned().unwrap_or_else(|| ENGLISH.to_owned());
        head.language_shown = format!("{:?}", head.language);
    }
    if !languages.contains_key(&head.language) {
        if let Some(field) = field.filter(|_| !languages.is_empty()) {
            let known: Vec<_> = languages.keys().map(String::as_str).collect();
            let hint = format!(
                "add them, or set `metadata.defaultLanguage` to {}",
                known.join(" or ")
            );
            field.error(
                format!(
                    "there are no texts for the default language {}",
                    head.language_shown
                ),
                &hint,
            );
        }
        languages.insert(head.language.clone(), Language::default());
    }
    (languages, head)
}

fn head(field: &Field) -> Option<Head> {
    let mut object = field.object()?;
    let id = object.required("id", "write an id such as `id: wise`");
    let language = object.optional("defaultLanguage");
    let head = Head {
        id: id.and_then(|field| field.parsed(AgentId::parse)),
        display_name: object
            .optional("displayName")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        description: object
            .optional("description")
            .and_then(|f| f.text())
            .map(|text| text.value)
            .unwrap_or_default(),
        tags: object
            .optional("tags")
            .map(|field| field.words())
            .unwrap_or_default(),
        language: language
            .as_ref()
            .and_then(|field| field.parsed(tag))
            .unwrap_or_default(),
        language_shown: language
            .and_then(|field| field.text())
            .map(|text| text.shown)
            .unwrap_or_default(),
    };
    object.finish();
    Some(head)
}

/// A language tag such as `en` or `pt-BR`.
pub(crate) fn tag(text: &str) -> Result<String, String> {
    let mut parts = text.split('-');
    let primary = parts.next().is_some_and(|part| {
        (2..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphabetic())
    });
    let others = parts.all(|part| {
        (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    if primary && others {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a language tag; write one such as `en` or `pt-BR`"
        ))
    }
}

fn languages_of<'a>(
    field: &Field<'a>,
    greeting: Option<&'a str>,
) -> Option<BTreeMap<String, Language>> {
    let mut languages = BTreeMap::<String, Language>::new();
    for (name, texts) in field.entries()? {
        if let Err(reason) = tag(name) {
            texts.error(reason, "");
        } else if let Some(other) = languages
            .keys()
            .find(|other| other.eq_ignore_ascii_case(name))
        {
            texts.error(
                format!("the language {other:?} is there already"),
                "write each language once",
            );
        }
        let language = language(&texts, greeting).unwrap_or_default();
        languages.insert(name.to_owned(), language);
    }
    if languages.is_empty() {
        field.error(
            "there are no languages",
            "write `languages: { en: { systemPrompt: … } }`",
        );
    }
    Some(languages)
}

fn language<'a>(field: &Field<'a>, greeting: Option<&'a str>) -> Option<Language> {
    let mut object = field.object()?;
    let mut language = Language {
        greeting_message: object
            .optional_or("greetingMessage", "welcomeMessage")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        system_prompt: object
            .optional("systemPrompt")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        strings: object
            .optional("strings")
            .map(|field| strings(&field))
            .unwrap_or_default(),
    };
    let other = greeting.filter(|key| !object.is_known(key) && !object.is_absent(key));
    if let Some(key) = other {
        let text = object
            .optional(key)
            .and_then(|field| field.non_blank_text());
        let text = text.map(|text| (key.to_owned(), text.value));
        language.strings.extend(text);
    }
    object.finish();
    Some(language)
}

fn strings(field: &Field) -> BTreeMap<String, String> {
    let entries = field.entries().unwrap_or_default();
    entries
        .iter()
        .filter_map(|(key, field)| Some(((*key).to_owned(), field.text()?.value)))
        .collect()
}
