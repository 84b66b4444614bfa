//! One field that a user fills in.

use std::collections::BTreeMap;

use super::{UnroutedField, template};
use crate::{endpoint::Transport, field::Field, native::tag, object::Object};
use domain::{
    header,
    server::{Choice, FieldKind, UserField, UserHeader},
    template::is_variable_name,
};

const KINDS: [(&str, FieldKind); 5] = [
    ("text", FieldKind::Text),
    ("secret", FieldKind::Secret),
    ("url", FieldKind::Url),
    ("boolean", FieldKind::Boolean),
    ("select", FieldKind::Select),
];

pub(super) fn user_field<'a>(
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
        .map_or(Some(FieldKind::default()), |field| field.one_of(&KINDS));
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
    let env_name = env_name(&mut object, transport);
    let query_name = query_name(&mut object, transport);
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

/// The variable that carries the value.
fn env_name(object: &mut Object, transport: Option<Transport>) -> Option<String> {
    let field = object.optional("envName")?;
    if matches!(transport, Some(Transport::Remote(_))) {
        field.error(
            "only a stdio server has variables",
            "write `headerTemplate: \"Bearer {value}\"`",
        );
    }
    field.parsed(|text| {
        if is_variable_name(text) {
            Ok(text.to_owned())
        } else {
            Err(format!(
                "{text:?} is not the name of a variable; use letters, digits and `_`"
            ))
        }
    })
}

/// The query parameter that carries the value.
fn query_name(object: &mut Object, transport: Option<Transport>) -> Option<String> {
    let field = object.optional("queryName")?;
    if transport == Some(Transport::Stdio) {
        field.error("a stdio server has no address", "write `envName: …`");
    }
    field.non_blank_text().map(|text| text.value)
}

/// Letters, digits and `_`, so that a template can name it.
pub(super) fn name(text: &str) -> Result<String, String> {
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
pub(crate) fn label(field: &Field, language: &str) -> Option<BTreeMap<String, String>> {
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
pub(super) fn header<'a>(
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
