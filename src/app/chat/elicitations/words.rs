//! How a question of a server reads in the chat.

use super::LIFE;
use crate::{
    domain::{
        elicitation::{Ask, Asked, Fault, Field, Format, Kind, Pending, Step, steps},
        message::{Asking, Choice, Part, Prompt},
        server::FieldKind,
        texts::{Key, Texts},
    },
    mcp::LIVE_PATIENCE,
};

/// What is asked at a step.
pub(super) fn prompt(texts: &Texts<'_>, pending: &Pending, asked: &Asked) -> Part {
    let steps = steps(&asked.questions);
    let Some(step) = steps.get(pending.step) else {
        return Part::text(String::new());
    };
    let question = step.question();
    let mut lines = Vec::new();
    let begins = pending.step == 0 || steps[pending.step - 1].question().key != question.key;
    if begins {
        let said = [
            ("server", pending.server.as_str()),
            ("tool", &pending.tool),
            ("what", question.message.as_str()),
        ];
        lines.push(texts.say(Key::AskIntro, &said));
    }
    let (mut kind, mut options, mut url, mut schema) = (FieldKind::Boolean, Vec::new(), None, None);
    match step {
        Step::Field(_, field) => {
            lines.extend(field_lines(texts, field));
            (kind, options) = shape(field);
            schema = Some(field.schema.clone());
        }
        Step::Confirm(_) => {
            if let Ask::Url { address, host } = &question.ask {
                lines.push(texts.say(Key::AskAddress, &[("host", host)]));
                url = Some(address.to_string());
            }
            lines.push(texts.say(Key::NotABoolean, &[]));
        }
    }
    let life = if pending.live { LIVE_PATIENCE } else { LIFE };
    let minutes = (life.as_secs() / 60).to_string();
    lines.push(texts.say(Key::AskHow, &[("minutes", &minutes)]));
    Part::Prompt(Prompt {
        text: lines.join("\n"),
        field: step.name().to_owned(),
        kind,
        secret: false,
        url,
        options,
        asking: Some(Asking {
            server: pending.server.to_string(),
            tool: pending.tool.clone(),
            schema,
            live: pending.live,
        }),
    })
}

fn field_lines(texts: &Texts<'_>, field: &Field) -> Vec<String> {
    let what = field
        .description
        .as_ref()
        .map(|what| format!(" – {what}"))
        .unwrap_or_default();
    let limits = Some(field.limits()).filter(|limits| !limits.is_empty());
    let limits = limits
        .map(|limits| format!(" ({limits})"))
        .unwrap_or_default();
    let mut lines = vec![format!("{}{what}{limits}", field.label())];
    let labels = |choices: &[Choice]| {
        choices
            .iter()
            .map(|one| one.label.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    match &field.kind {
        Kind::One(choices) => lines.push(texts.say(Key::Options, &[("options", &labels(choices))])),
        Kind::Many { choices, .. } => {
            lines.push(texts.say(Key::AskSeveral, &[("options", &labels(choices))]));
        }
        Kind::Boolean => lines.push(texts.say(Key::NotABoolean, &[])),
        Kind::Text { .. } | Kind::Number { .. } => {}
    }
    match &field.default {
        Some(default) => lines.push(texts.say(Key::AskDefault, &[("value", &plain(default))])),
        None if !field.required => lines.push(texts.say(Key::Optional, &[])),
        None => {}
    }
    lines
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}

fn shape(field: &Field) -> (FieldKind, Vec<Choice>) {
    match &field.kind {
        Kind::Text {
            format: Some(Format::Uri),
            ..
        } => (FieldKind::Url, Vec::new()),
        Kind::Text { .. } | Kind::Number { .. } => (FieldKind::Text, Vec::new()),
        Kind::Boolean => (FieldKind::Boolean, Vec::new()),
        Kind::One(choices) | Kind::Many { choices, .. } => (FieldKind::Select, choices.clone()),
    }
}

/// Why an answer could not be used.
pub(super) fn fault(texts: &Texts<'_>, fault: Fault, step: &Step<'_>) -> Part {
    let limits = match step {
        Step::Field(_, field) => field.limits(),
        Step::Confirm(_) => String::new(),
    };
    let key = match fault {
        Fault::Missing => Key::Missing,
        Fault::NotABoolean => Key::NotABoolean,
        Fault::NotAnOption => Key::NotAnOption,
        Fault::NotANumber => Key::AskNotANumber,
        Fault::Unfit => Key::AskUnfit,
    };
    Part::Notice {
        code: "bad_answer".to_owned(),
        text: texts.say(key, &[("limits", &limits)]),
    }
}
