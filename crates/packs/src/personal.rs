//! Reads `userConfig`: the fields that a user of a personal server fills in, and where each value goes.
//!
//! Every value goes somewhere: into a header, a variable, a query parameter, or another field's template.

use std::collections::BTreeMap;

use super::{endpoint::Transport, field::Field, native::check_language_tag, object::Object};
use domain::{
    header,
    server::{Choice, CredentialTest, FieldKind, UserField, UserHeader},
    template::{Template, is_variable_name},
};

const KINDS: [(&str, FieldKind); 5] = [
    ("text", FieldKind::Text),
    ("secret", FieldKind::Secret),
    ("url", FieldKind::Url),
    ("boolean", FieldKind::Boolean),
    ("select", FieldKind::Select),
];

/// A field, with the places that are checked again when all fields are known.
struct UncheckedField<'a> {
    field: UserField,
    at: Field<'a>,
    template: Option<Field<'a>>,
    /// Whether the author named a place for the value, even a wrong one.
    has_destination: bool,
}

/// The fields that a user fills in, and how the values are tested.
#[derive(Default)]
pub(super) struct UserConfig<'a> {
    pub(super) fields: Vec<UserField>,
    pub(super) test: Option<PlacedTest<'a>>,
}

/// A test of credentials, and its place in the document.
pub(super) struct PlacedTest<'a> {
    pub(super) at: Field<'a>,
    pub(super) test: CredentialTest,
}

/// Reads one `userConfig`. `language` is the default language of the pack.
pub(super) fn read<'a>(
    field: &Field<'a>,
    transport: Option<Transport>,
    language: &str,
) -> Option<UserConfig<'a>> {
    let mut object = field.object()?;
    let list = object.required(
        "fields",
        "write `fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }]`",
    );
    let test = object.optional("test");
    let test = test.and_then(|at| {
        let test = read_credential_test(&at)?;
        Some(PlacedTest { at, test })
    });
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
        .filter_map(|item| read_user_field(item, transport, language))
        .collect();
    check_together(&drafts, transport);
    Some(UserConfig {
        fields: drafts.into_iter().map(|draft| draft.field).collect(),
        test,
    })
}

/// Reads `test`, such as `test: whoami` or `test: { tool: search, arguments: { query: x } }`.
fn read_credential_test(field: &Field) -> Option<CredentialTest> {
    if !field.is_map() {
        let tool = field.non_blank_text()?.value;
        let arguments = serde_json::Map::new();
        return Some(CredentialTest { tool, arguments });
    }
    let mut object = field.object()?;
    let tool = object.required("tool", "write the name of a tool that only reads");
    let arguments = object.optional("arguments");
    object.finish();
    let arguments = match arguments.map(|field| (field.to_json(), field)) {
        None => serde_json::Map::new(),
        Some((serde_json::Value::Object(arguments), _)) => arguments,
        Some((_, field)) => {
            field.error("expected a map", "write one `name: value` a line");
            return None;
        }
    };
    Some(CredentialTest {
        tool: tool?.non_blank_text()?.value,
        arguments,
    })
}

/// Reads the template of a header. A variable in it is refused: its value would be searched for `{…}`, and the value
/// of a variable is never searched for references.
fn read_template(field: &Field) -> Option<String> {
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

/// Checks the fields together: names, headers, and whether every value goes somewhere.
fn check_together(drafts: &[UncheckedField], transport: Option<Transport>) {
    let names: Vec<&str> = drafts
        .iter()
        .map(|draft| draft.field.name.as_str())
        .collect();
    let used: Vec<String> = drafts
        .iter()
        .flat_map(|draft| check_template(draft, &names))
        .collect();
    for (index, draft) in drafts.iter().enumerate() {
        let UncheckedField { field, at, .. } = draft;
        if names[..index].contains(&field.name.as_str()) {
            at.error(
                "another field has the same name",
                "give every field a name of its own",
            );
        }
        if drafts[..index]
            .iter()
            .any(|earlier| fills_same_header(earlier, draft))
        {
            let hint =
                "name both fields in one `headerTemplate`, such as `Basic {base64(user:token)}`";
            at.error("another field fills the same header", hint);
        }
        if !draft.has_destination && !used.contains(&field.name) {
            let hint = if transport == Some(Transport::Stdio) {
                "write `envName: …`"
            } else {
                "write `headerTemplate: \"Bearer {value}\"`"
            };
            at.error("what the user enters here goes nowhere", hint);
        }
    }
}

/// Checks the template of a header and returns the names of the fields in it.
fn check_template(draft: &UncheckedField, names: &[&str]) -> Vec<String> {
    let (Some(header), Some(at)) = (&draft.field.header, &draft.template) else {
        return Vec::new();
    };
    let template = match Template::parse_user(&header.template, &draft.field.name) {
        Ok(template) => template,
        Err(reason) => {
            at.error(
                reason.to_string(),
                "write `{value}`, `{fieldName}` or `{base64(user:token)}`",
            );
            return Vec::new();
        }
    };
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
    found
}

fn fills_same_header(one: &UncheckedField, other: &UncheckedField) -> bool {
    let headers = one.field.header.as_ref().zip(other.field.header.as_ref());
    headers.is_some_and(|(one, other)| one.name.eq_ignore_ascii_case(&other.name))
}

/// Reads one field that a user fills in.
fn read_user_field<'a>(
    item: &Field<'a>,
    transport: Option<Transport>,
    language: &str,
) -> Option<UncheckedField<'a>> {
    let mut object = item.object()?;
    let name = object
        .required("name", "write a name such as `name: token`")
        .and_then(|field| field.parse_with(check_name));
    let kind = object
        .optional("type")
        .map_or(Some(FieldKind::default()), |field| field.one_of(&KINDS));
    let label = object
        .optional("label")
        .and_then(|field| read_label(&field, language));
    let required = object
        .optional("required")
        .is_none_or(|field| field.boolean().unwrap_or(true));
    let options = read_options(&mut object, kind, language);
    let destinations = ["headerName", "headerTemplate", "envName", "queryName"];
    let has_destination = destinations.iter().any(|name| !object.is_absent(name));
    let (header, template) = read_header(&mut object, transport);
    let env_name = read_env_name(&mut object, transport);
    let query_name = read_query_name(&mut object, transport);
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
    Some(UncheckedField {
        field,
        at: item.clone(),
        template,
        has_destination,
    })
}

/// Reads `envName`, the variable that gets the value.
fn read_env_name(object: &mut Object, transport: Option<Transport>) -> Option<String> {
    let field = object.optional("envName")?;
    if matches!(transport, Some(Transport::Remote(_))) {
        field.error(
            "only a stdio server has variables",
            "write `headerTemplate: \"Bearer {value}\"`",
        );
    }
    field.parse_with(|text| {
        if is_variable_name(text) {
            Ok(text.to_owned())
        } else {
            Err(format!(
                "{text:?} is not the name of a variable; use letters, digits and `_`"
            ))
        }
    })
}

/// Reads `queryName`, the query parameter that gets the value.
fn read_query_name(object: &mut Object, transport: Option<Transport>) -> Option<String> {
    let field = object.optional("queryName")?;
    if transport == Some(Transport::Stdio) {
        field.error("a stdio server has no address", "write `envName: …`");
    }
    field.non_blank_text().map(|text| text.value)
}

/// Checks the name of a field: letters, digits and `_`, so that a template can name it.
fn check_name(text: &str) -> Result<String, String> {
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

/// Reads a label: one text, which is in the default language, or a text for each language.
pub(super) fn read_label(field: &Field, language: &str) -> Option<BTreeMap<String, String>> {
    if !field.is_map() {
        return Some(BTreeMap::from([(
            language.to_owned(),
            field.non_blank_text()?.value,
        )]));
    }
    let mut label = BTreeMap::new();
    for (name, text) in field.entries()? {
        if let Err(reason) = check_language_tag(name) {
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

/// Reads `options` of a select: plain values, or values with labels.
fn read_options(object: &mut Object, kind: Option<FieldKind>, language: &str) -> Vec<Choice> {
    let field = object.optional("options");
    let select = kind == Some(FieldKind::Select);
    match &field {
        Some(field) if !select && kind.is_some() => {
            field.error("only a select has options", "write `type: select`");
        }
        None if select && object.is_absent("options") => {
            object.report_missing("options", "write `options: [a, b]`");
        }
        _ => {}
    }
    let items = field.as_ref().and_then(Field::list).unwrap_or_default();
    let mut choices: Vec<Choice> = Vec::new();
    for item in &items {
        let Some(choice) = read_choice(item, language) else {
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

fn read_choice(item: &Field, language: &str) -> Option<Choice> {
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
        .and_then(|field| read_label(&field, language));
    object.finish();
    let value = value?.value;
    Some(Choice {
        label: label_field
            .unwrap_or_else(|| BTreeMap::from([(language.to_owned(), value.clone())])),
        value,
    })
}

/// Reads `headerName` and `headerTemplate`. Each has a default if the other is present. Also returns the field of the
/// template.
fn read_header<'a>(
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
        |field| field.parse_with(checked),
    );
    let template = match &template_field {
        Some(field) => read_template(field),
        None => Some("{value}".to_owned()),
    };
    (
        name.zip(template)
            .map(|(name, template)| UserHeader { name, template }),
        template_field,
    )
}
