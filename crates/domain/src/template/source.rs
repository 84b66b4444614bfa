//! The sources that a reference names (`user`, `params`, `env`, …).

use super::{Reference, TemplateError, is_variable_name};

/// Where a referenced value comes from.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::EnumString,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Source {
    /// The environment of the process: `${NAME}` in a native pack.
    Env,
    /// A field that a user of a personal server fills in: `{name}` in a header of the pack.
    User,
    /// What a run was started with, visible to the model.
    Params,
    /// The same, invisible to the model.
    Scope,
    /// What the program knows of a run: `session_id`, `run_id`.
    Runtime,
    /// What only the process that works on the run knows: `orchestrator_mcp_url`.
    Runner,
    /// A file that the operator gave.
    File,
}

impl Source {
    /// The keys of a source that has a fixed set of them.
    fn keys(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Runtime => Some(&["session_id", "run_id"]),
            Self::Runner => Some(&["orchestrator_mcp_url"]),
            _ => None,
        }
    }

    /// Whether the values exist only within a run and differ from run to run.
    pub fn is_of_run(self) -> bool {
        matches!(
            self,
            Self::Params | Self::Scope | Self::Runtime | Self::Runner
        )
    }

    /// Whether text with a value from here must not be shown.
    pub fn is_sensitive(self) -> bool {
        matches!(self, Self::Env | Self::User | Self::Scope | Self::File)
    }
}

/// `source.key`, where the source is one of these.
pub(super) fn sourced(name: &str, sources: &[Source]) -> Result<Reference, TemplateError> {
    let shown = || name.chars().take(40).collect::<String>();
    let names = |of: &[Source]| {
        of.iter()
            .map(Source::into_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let Some((source, key)) = name.split_once('.') else {
        return Err(if is_variable_name(name) {
            TemplateError::NoSource(shown())
        } else {
            TemplateError::BadName(shown())
        });
    };
    let Ok(source) = source.parse::<Source>() else {
        return Err(TemplateError::StrangeSource(
            source.chars().take(40).collect(),
            names(sources),
        ));
    };
    if !sources.contains(&source) {
        return Err(TemplateError::Elsewhere(shown(), names(sources)));
    }
    let is_key = |key: &str| {
        (1..=128).contains(&key.len())
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    if !is_key(key) || (source == Source::Env && !is_variable_name(key)) {
        return Err(TemplateError::BadName(shown()));
    }
    match source.keys() {
        Some(keys) if !keys.contains(&key) => Err(TemplateError::StrangeKey(
            source.into_str(),
            key.to_owned(),
            keys.join(", "),
        )),
        _ => Ok(Reference {
            source,
            key: key.to_owned(),
        }),
    }
}
