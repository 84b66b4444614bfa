//! Reads `metadata` and `languages`: the id of an agent, its names, and its texts in each language.

use std::collections::BTreeMap;

use super::ENGLISH;
use crate::{
    field::{Field, nearest},
    object::Object,
};
use domain::{
    ids::AgentId,
    menu::Label,
    pack::{Flows, Language, Metadata},
    texts::{UNSAID, named, names},
};

/// `metadata`, as far as it could be read.
#[derive(Default)]
pub(super) struct PartialMetadata {
    pub(super) id: Option<AgentId>,
    display_name: Option<String>,
    pub(super) description: String,
    tags: Vec<String>,
    /// The default language. There are texts for it, or an error was recorded.
    pub(super) language: String,
    language_shown: String,
}

impl PartialMetadata {
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

/// Reads `metadata` and `languages`, which depend on each other. The result always has the default language.
/// `greeting` is the `templateKey` of the welcome, if the pack has one.
pub(super) fn read_head<'a>(
    top: &mut Object<'a>,
    greeting: Option<&'a str>,
) -> (BTreeMap<String, Language>, PartialMetadata) {
    let metadata = top.required("metadata", "write `metadata: { id: … }`");
    let field = top.required(
        "languages",
        "write `languages: { en: { systemPrompt: … } }`",
    );
    let mut languages = field
        .as_ref()
        .and_then(|field| read_languages(field, greeting))
        .unwrap_or_default();
    let mut head = metadata
        .and_then(|field| read_metadata(&field))
        .unwrap_or_default();
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

fn read_metadata(field: &Field) -> Option<PartialMetadata> {
    let mut object = field.object()?;
    let id = object.required("id", "write an id such as `id: wise`");
    let language = object.optional("defaultLanguage");
    let head = PartialMetadata {
        id: id.and_then(|field| field.parse_with(AgentId::parse)),
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
            .map(|field| field.text_values())
            .unwrap_or_default(),
        language: language
            .as_ref()
            .and_then(|field| field.parse_with(check_language_tag))
            .unwrap_or_default(),
        language_shown: language
            .and_then(|field| field.text())
            .map(|text| text.shown)
            .unwrap_or_default(),
    };
    object.finish();
    Some(head)
}

/// Checks a language tag such as `en` or `pt-BR`.
pub(crate) fn check_language_tag(text: &str) -> Result<String, String> {
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

fn read_languages<'a>(
    field: &Field<'a>,
    greeting: Option<&'a str>,
) -> Option<BTreeMap<String, Language>> {
    let mut languages = BTreeMap::<String, Language>::new();
    for (name, texts) in field.entries()? {
        if let Err(reason) = check_language_tag(name) {
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
        let language = read_language(&texts, greeting).unwrap_or_default();
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

fn read_language<'a>(field: &Field<'a>, greeting: Option<&'a str>) -> Option<Language> {
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
            .map(|field| read_strings(&field))
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

fn read_strings(field: &Field) -> BTreeMap<String, String> {
    let entries = field.entries().unwrap_or_default();
    entries
        .iter()
        .filter_map(|(key, field)| Some(((*key).to_owned(), field.text()?.value)))
        .collect()
}

/// Warns of each key of `strings` that no text of the program has, with the nearest name, and once of all texts of
/// published packs that this program never uses.
pub(super) fn check_strings(document: &Field, flows: &Flows) {
    let labels = flows.menu.iter().filter_map(|item| match &item.label {
        Label::Key(key) => Some(key.as_str()),
        Label::BuiltIn | Label::Texts(_) => None,
    });
    let mut used: Vec<&str> = labels.collect();
    if flows.welcome.enabled {
        used.push(&flows.welcome.template_key);
    }
    let mut known: Vec<&str> = names().collect();
    known.extend(&used);
    let languages = document.get_path(&["languages"]).filter(Field::is_map);
    let languages = languages.and_then(|field| field.entries());
    let mut unsaid: Option<Field> = None;
    let mut unsaid_names: Vec<&str> = Vec::new();
    for (_, language) in languages.iter().flatten() {
        let strings = language.get_path(&["strings"]).filter(Field::is_map);
        for (name, text) in strings
            .and_then(|field| field.entries())
            .unwrap_or_default()
        {
            if used.contains(&name) || named(name).is_some() {
                continue;
            }
            if UNSAID.contains(&name) {
                if !unsaid_names.contains(&name) {
                    unsaid_names.push(name);
                }
                unsaid.get_or_insert(text);
                continue;
            }
            let near = nearest(name, &known);
            let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            text.warn(
                "has no effect: no text has this name",
                &format!("{near}locales/en.toml has all names"),
            );
        }
    }
    if let Some(first) = unsaid {
        let listed = unsaid_names.join(", ");
        first.warn(
            format!("these texts have no effect here: {listed}"),
            "this program says nothing of the kind",
        );
    }
}
