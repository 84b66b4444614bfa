//! `userConfig`: what a user of a personal server enters, and where each value goes.
//!
//! Every value goes somewhere: into a header, a variable, a query parameter, or another field's
//! template.

mod field;

pub(super) use self::field::label;
use self::field::user_field;
use super::{endpoint::Transport, field::Field};
use domain::{
    server::{CredentialTest, UserField},
    template::Template,
};

/// What was read, with the places that are looked at again when all fields are known.
struct UnroutedField<'a> {
    field: UserField,
    at: Field<'a>,
    template: Option<Field<'a>>,
    /// Whether the author said where the value goes, rightly or not.
    placed: bool,
}

/// What a user enters, and how it is tested.
#[derive(Default)]
pub(super) struct UserConfig<'a> {
    pub(super) fields: Vec<UserField>,
    pub(super) test: Option<PlacedTest<'a>>,
}

/// A test of credentials, with the place where it stands.
pub(super) struct PlacedTest<'a> {
    pub(super) at: Field<'a>,
    pub(super) test: CredentialTest,
}

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
        let test = credential_test(&at)?;
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
        .filter_map(|item| user_field(item, transport, language))
        .collect();
    check_together(&drafts, transport);
    Some(UserConfig {
        fields: drafts.into_iter().map(|draft| draft.field).collect(),
        test,
    })
}

/// `test: whoami`, or `test: { tool: search, arguments: { query: x } }`.
fn credential_test(field: &Field) -> Option<CredentialTest> {
    if !field.is_map() {
        let tool = field.non_blank_text()?.value;
        let arguments = serde_json::Map::new();
        return Some(CredentialTest { tool, arguments });
    }
    let mut object = field.object()?;
    let tool = object.required("tool", "write the name of a tool that only reads");
    let arguments = object.optional("arguments");
    object.finish();
    let arguments = match arguments.map(|field| (field.json(), field)) {
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
    let used: Vec<String> = drafts
        .iter()
        .flat_map(|draft| check_template(draft, &names))
        .collect();
    for (index, draft) in drafts.iter().enumerate() {
        let UnroutedField { field, at, .. } = draft;
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
        if !draft.placed && !used.contains(&field.name) {
            let hint = if transport == Some(Transport::Stdio) {
                "write `envName: …`"
            } else {
                "write `headerTemplate: \"Bearer {value}\"`"
            };
            at.error("what the user enters here goes nowhere", hint);
        }
    }
}

/// The fields that the template of a header names.
fn check_template(draft: &UnroutedField, names: &[&str]) -> Vec<String> {
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

fn fills_same_header(one: &UnroutedField, other: &UnroutedField) -> bool {
    let headers = one.field.header.as_ref().zip(other.field.header.as_ref());
    headers.is_some_and(|(one, other)| one.name.eq_ignore_ascii_case(&other.name))
}
