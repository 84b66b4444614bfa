//! How a question of a server reads in the chat: one step of its form, in the user's language.

use std::time::Duration;

use serde_json::Value;

use super::{AnswerError, Elicitation, Field, Format, Kind, Mode, Request, Step, steps};
use crate::{
    decimal::{two_readings, write_ungrouped_for},
    hidden::one_line,
    message::{Asking, Choice, Part, Prompt},
    server::FieldKind,
    texts::{Key, Texts},
};

/// Characters of an answer that are said again.
const SAID: usize = 64;

/// The prompt for the step that is asked now; the user has `time_limit` for the answer.
pub fn prompt(
    texts: &Texts<'_>,
    elicitation: &Elicitation,
    request: &Request,
    time_limit: Duration,
) -> Part {
    let steps = steps(&request.questions);
    let Some(step) = steps.get(elicitation.step) else {
        return Part::text(String::new());
    };
    let question = step.question();
    let mut lines = Vec::new();
    let is_first =
        elicitation.step == 0 || steps[elicitation.step - 1].question().key != question.key;
    let command = elicitation.is_of_command().then_some(question.key.as_str());
    if let Some(command) = command {
        let intro = texts.render(Key::SkillAsk, &[("command", command)]);
        lines.extend(is_first.then_some(intro));
    } else if is_first {
        // Every line of the server's is marked as its own.
        let message = question.message.replace('\n', "\n> ");
        let values = [
            ("server", elicitation.server.as_str()),
            ("tool", &elicitation.tool),
            ("what", message.as_str()),
        ];
        lines.push(texts.render(Key::AskIntro, &values));
    }
    let (mut kind, mut options, mut url, mut schema) = (FieldKind::Boolean, Vec::new(), None, None);
    match step {
        Step::Field(_, field) => {
            lines.extend(field_lines(texts, field));
            (kind, options) = input_of(field);
            schema = Some(field.schema.clone());
        }
        Step::Confirm(_) => {
            if let Mode::Url { address, host } = &question.mode {
                lines.push(texts.render(Key::AskAddress, &[("host", host)]));
                url = Some(address.to_string());
            }
            lines.push(texts.render(Key::McpConfigNotABoolean, &[]));
        }
    }
    let minutes = time_limit.as_secs().div_ceil(60).to_string();
    let how = match command {
        Some(_) => Key::SkillAskHow,
        None => Key::AskHow,
    };
    lines.push(texts.render(how, &[("minutes", &minutes)]));
    Part::Prompt(Prompt {
        text: lines.join("\n"),
        field: step.name().to_owned(),
        label: match step {
            Step::Field(_, field) => Some(field.label().to_owned()),
            Step::Confirm(_) => None,
        },
        kind,
        secret: false,
        url,
        options,
        asking: Some(Box::new(Asking {
            server: elicitation.server.to_string(),
            tool: elicitation.tool.clone(),
            schema,
            live: elicitation.live,
            command: command.map(str::to_owned),
        })),
        closed: false,
    })
}

/// Why the last answer, what was `said`, could not be used.
pub fn fault_notice(texts: &Texts<'_>, fault: AnswerError, said: &str, step: &Step<'_>) -> Part {
    let limits = match step {
        Step::Field(_, field) => field.limits(),
        Step::Confirm(_) => String::new(),
    };
    let key = match fault {
        AnswerError::Missing => Key::McpConfigMissing,
        AnswerError::NotABoolean => Key::McpConfigNotABoolean,
        AnswerError::NotAnOption => Key::McpConfigNotAnOption,
        AnswerError::NotANumber => Key::AskNotANumber,
        AnswerError::AmbiguousNumber => Key::AskAmbiguousNumber,
        AnswerError::OutsideLimits => Key::AskUnfit,
    };
    let readings = two_readings(said).unwrap_or_default();
    let [first, second] = readings.map(|digits| write_ungrouped_for(texts.locale(), &digits));
    let values = [
        ("limits", limits.as_str()),
        ("said", &one_line(said, SAID)),
        ("first", &first),
        ("second", &second),
    ];
    Part::Notice {
        code: "bad_answer".to_owned(),
        text: texts.render(key, &values).trim_end().to_owned(),
    }
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
        Kind::One(choices) => {
            lines.push(texts.render(Key::McpConfigOptions, &[("options", &labels(choices))]));
        }
        Kind::Many { choices, .. } => {
            lines.push(texts.render(Key::AskSeveral, &[("options", &labels(choices))]));
        }
        Kind::Boolean => lines.push(texts.render(Key::McpConfigNotABoolean, &[])),
        Kind::Text { .. } | Kind::Number { .. } => {}
    }
    match &field.default {
        Some(default) => {
            lines.push(texts.render(Key::AskDefault, &[("value", &plain_text(default))]));
        }
        None if !field.required => lines.push(texts.render(Key::McpConfigOptional, &[])),
        None => {}
    }
    lines
}

fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain_text).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}

fn input_of(field: &Field) -> (FieldKind, Vec<Choice>) {
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
