//! `userConfig`: what a user of a personal server enters, and where each value goes.
//!
//! Every value goes somewhere: into a header, a variable, a query parameter, or another field's
//! template.

use std::collections::BTreeMap;

use super::{endpoint::Transport, field::Field, native::tag, object::Object};
use crate::domain::{
    header,
    server::{Choice, FieldKind, UserField, UserHeader},
    template::{Template, is_variable_name},
};

/// What was read, with the places that are looked at again when all fields are known.
struct UnroutedField<'a> {
    field: UserField,
    at: Field<'a>,
    template: Option<Field<'a>>,
    /// Whether the author said where the value goes, rightly or not.
    placed: bool,
}

pub(super) fn read(
    field: &Field,
    transport: Option<Transport>,
    language: &str,
) -> Option<Vec<UserField>> {
    let mut object = field.object()?;
    let list = object.required(
        "fields",
        "write `fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }]`",
    );
    object.finish();
    let list = list?;
    let items = list.list()?;
    if items.is_empty() {
        list.error(
            "a personal server needs at least one field",
            "write one such as `{ name: token, type: secret }`",
        );
    }
    let drafts: Vec<_> = items
        .iter()
        .filter_map(|item| user_field(item, transport, language))
        .collect();
    check_together(&drafts, transport);
    Some(drafts.into_iter().map(|draft| draft.field).collect())
}

fn user_field<'a>(
    item: &Field<'a>,
    transport: Option<Transport>,
    language: &str,
) -> Option<UnroutedField<'a>> {
    let mut object = item.object()?;
    let name = object
        .required("name", "write a name such as `name: token`")
        .and_then(|field| field.parsed(name));
    let kind = object
        .optional("type")
        .map_or(Some(FieldKind::default()), |field| {
            field.one_of(&[
                ("text", FieldKind::Text),
                ("secret", FieldKind::Secret),
                ("url", FieldKind::Url),
                ("boolean", FieldKind::Boolean),
                ("select", FieldKind::Select),
            ])
        });
    let label = object
        .optional("label")
        .and_then(|field| label(&field, language));
    let required = object
        .optional("required")
        .is_none_or(|field| field.boolean().unwrap_or(true));
    let options = options(&mut object, kind, language);
    let destinations = ["headerName", "headerTemplate", "envName", "queryName"];
    let placed = destinations.iter().any(|name| !object.is_absent(name));
    let (header, template) = header(&mut object, transport);
    let env_name = object.optional("envName").and_then(|field| {
        if matches!(transport, Some(Transport::Remote(_))) {
            field.error(
                "only a stdio server has variables",
                "write `headerTemplate: \"Bearer {value}\"`",
            );
        }
        field.parsed(|text| {
            let wrong =
                || format!("{text:?} is not the name of a variable; use letters, digits and `_`");
            if is_variable_name(text) {
                Ok(text.to_owned())
            } else {
                Err(wrong())
            }
        })
    });
    let query_name = object.optional("queryName").and_then(|field| {
        if transport == Some(Transport::Stdio) {
            field.error("a stdio server has no address", "write `envName: …`");
        }
        field.non_blank_text().map(|text| text.value)
    });
    object.finish();
    let name = name?;
    let label = label.unwrap_or_else(|| BTreeMap::from([(language.to_owned(), name.clone())]));
    let kind = kind?;
    let field = UserField {
        name,
        kind,
        label,
        required,
        options,
        header,
        env_name,
        query_name,
    };
    Some(UnroutedField {
        field,
        at: item.clone(),
        template,
        placed,
    })
}

/// Letters, digits and `_`, so that a template can name it.
fn name(text: &str) -> Result<String, String> {
    if text == "value" {
        Err("`{value}` stands for the field itself; choose another name".to_owned())
    } else if is_variable_name(text) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a name; use letters, digits and `_`"
        ))
    }
}

/// Text for every language, or for the pack's default one.
pub(super) fn label(field: &Field, language: &str) -> Option<BTreeMap<String, String>> {
    if !field.is_map() {
        return Some(BTreeMap::from([(
            language.to_owned(),
            field.non_blank_text()?.value,
        )]));
    }
    let mut label = BTreeMap::new();
    for (name, text) in field.entries()? {
        if let Err(reason) = tag(name) {
            text.error(reason, "");
        }
        label.extend(
            text.non_blank_text()
                .map(|text| (name.to_owned(), text.value)),
        );
    }
    if !label.keys().any(|name| name.eq_ignore_ascii_case(language)) {
        field.warn(
            "there is no label in the pack's default language",
            "add one",
        );
    }
    (!label.is_empty()).then_some(label)
}

/// What a `select` offers: plain values, or values with labels.
fn options(object: &mut Object, kind: Option<FieldKind>, language: &str) -> Vec<Choice> {
    let field = object.optional("options");
    let select = kind == Some(FieldKind::Select);
    match &field {
        Some(field) if !select && kind.is_some() => {
            field.error("only a select has options", "write `type: select`");
        }
        None if select && object.is_absent("options") => {
            object.missing("options", "write `options: [a, b]`");
        }
        _ => {}
    }
    let items = field.as_ref().and_then(Field::list).unwrap_or_default();
    let mut choices: Vec<Choice> = Vec::new();
    for item in &items {
        let Some(choice) = choice(item, language) else {
            continue;
        };
        if choices.iter().any(|other| other.value == choice.value) {
            item.error("this option is there already", "write each option once");
        }
        choices.push(choice);
    }
    if let Some(field) = field.filter(|_| select && items.is_empty()) {
        field.error("a select needs options", "write `options: [a, b]`");
    }
    choices
}

fn choice(item: &Field, language: &str) -> Option<Choice> {
    if !item.is_map() {
        let value = item.non_blank_text()?.value;
        return Some(Choice {
            label: BTreeMap::from([(language.to_owned(), value.clone())]),
            value,
        });
    }
    let mut object = item.object()?;
    let value = object
        .required("value", "write `{ value: …, label: … }`")
        .and_then(|field| field.non_blank_text());
    let label_field = object
        .optional("label")
        .and_then(|field| label(&field, language));
    object.finish();
    let value = value?.value;
    Some(Choice {
        label: label_field
            .unwrap_or_else(|| BTreeMap::from([(language.to_owned(), value.clone())])),
        value,
    })
}

/// `headerName` and `headerTemplate`, of which either may be left out.
fn header<'a>(
    object: &mut Object<'a>,
    transport: Option<Transport>,
) -> (Option<UserHeader>, Option<Field<'a>>) {
    let name_field = object.optional("headerName");
    let template_field = object.optional("headerTemplate");
    for field in [&name_field, &template_field].into_iter().flatten() {
        if transport == Some(Transport::Stdio) {
            field.error("a stdio server has no headers", "write `envName: …`");
        }
    }
    if name_field.is_none() && template_field.is_none() {
        return (None, None);
    }
    let checked = |text: &str| header::check_name(text).map(|()| text.to_owned());
    let name = name_field.map_or_else(
        || Some("Authorization".to_owned()),
        |field| field.parsed(checked),
    );
    let template = match &template_field {
        Some(field) => template(field),
        None => Some("{value}".to_owned()),
    };
    (
        name.zip(template)
            .map(|(name, template)| UserHeader { name, template }),
        template_field,
    )
}

/// A variable's value would be scanned for `{…}`, and resolved text is never scanned again: refused.
fn template(field: &Field) -> Option<String> {
    let text = field.non_blank_text()?;
    if text.from_env {
        field.error("a template cannot hold a variable", "write the text itself");
    } else if text.value.bytes().any(|b| b.is_ascii_control()) {
        field.error(
            "holds a line break or another character that a header cannot carry",
            "remove it",
        );
    } else {
        return Some(text.value);
    }
    None
}

/// What can be judged only when all fields are known.
fn check_together(drafts: &[UnroutedField], transport: Option<Transport>) {
    let names: Vec<&str> = drafts
        .iter()
        .map(|draft| draft.field.name.as_str())
        .collect();
    let mut used: Vec<String> = Vec::new();
    for draft in drafts {
        let (Some(header), Some(at)) = (&draft.field.header, &draft.template) else {
            continue;
        };
        match Template::parse_user(&header.template, &draft.field.name) {
            Ok(template) => {
                let found: Vec<_> = template
                    .references()
                    .map(|reference| reference.key.clone())
                    .collect();
                if found.is_empty() {
                    at.error("does not use what the user enters", "write `{value}` in it");
                }
                for name in found.iter().filter(|name| !names.contains(&name.as_str())) {
                    at.error(
                        format!("there is no field {name:?}"),
                        "write `{value}`, or the name of a field of this server",
                    );
                }
                used.extend(found);
            }
            Err(reason) => at.error(
                reason.to_string(),
                "write `{value}`, `{fieldName}` or `{base64(user:token)}`",
            ),
        }
    }
    for (
        index,
        UnroutedField {
            field, at, placed, ..
        },
    ) in drafts.iter().enumerate()
    {
        let earlier = &drafts[..index];
        if names[..index].contains(&field.name.as_str()) {
            at.error(
                "another field has the same name",
                "give every field a name of its own",
            );
        }
        let same_header = |other: &&UserHeader| {
            field
                .header
                .as_ref()
                .is_some_and(|header| header.name.eq_ignore_ascii_case(&other.name))
        };
        if earlier
            .iter()
            .filter_map(|draft| draft.field.header.as_ref())
            .any(|header| same_header(&header))
        {
            let hint =
                "name both fields in one `headerTemplate`, such as `Basic {base64(user:token)}`";
            at.error("another field fills the same header", hint);
        }
        if !placed && !used.contains(&field.name) {
            let stdio = transport == Some(Transport::Stdio);
            let hint = if stdio {
                "write `envName: …`"
            } else {
                "write `headerTemplate: \"Bearer {value}\"`"
            };
            at.error("what the user enters here goes nowhere", hint);
        }
    }
}
