//! The values that templates of a server refer to, and where each comes from.

use std::collections::BTreeMap;

use crate::{
    config::Environment,
    json::{Json, Members},
    registry::{Origin, Rules, SecretName, entry::not_granted},
    secret::Secret,
    template::{Reference, Source},
};

/// What a run was started with and what is known of it. Empty outside of runs.
#[derive(Clone, Default)]
pub struct ReferenceValues(BTreeMap<Reference, Secret>);

impl ReferenceValues {
    /// Visible to the model.
    #[must_use]
    pub fn params(self, params: &Members) -> Self {
        self.all(Source::Params, params)
    }

    /// Invisible to it.
    #[must_use]
    pub fn scope(self, scope: &Members) -> Self {
        self.all(Source::Scope, scope)
    }

    #[must_use]
    pub fn runtime(self, session_id: &str, run_id: &str) -> Self {
        self.with(Source::Runtime, "session_id", session_id)
            .with(Source::Runtime, "run_id", run_id)
    }

    #[must_use]
    pub fn runner(self, orchestrator_mcp_url: &str) -> Self {
        self.with(Source::Runner, "orchestrator_mcp_url", orchestrator_mcp_url)
    }

    /// Strings as they are, any other value as JSON. `null` sets nothing.
    fn all(self, source: Source, values: &Members) -> Self {
        values.iter().fold(self, |known, (key, value)| match value {
            Json::Null => known,
            Json::Text(text) => known.with(source, key, text),
            other => known.with(source, key, &other.to_string()),
        })
    }

    fn with(mut self, source: Source, key: &str, value: &str) -> Self {
        self.0.insert(
            Reference {
                source,
                key: key.to_owned(),
            },
            Secret::new(value),
        );
        self
    }
}

/// Where values come from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub env: &'a Environment,
    /// Which variables may be used.
    pub rules: Rules<'a>,
    /// The same for what the tenant's admins set, whoever wrote the entry.
    pub of_admins: Rules<'a>,
    /// The tenant's own.
    pub secrets: &'a BTreeMap<String, Secret>,
    pub run: &'a ReferenceValues,
}

impl<'a> Sources<'a> {
    /// The same for values that are sent to this host.
    pub(super) fn to(self, host: Option<&'a str>) -> Self {
        Self {
            rules: self.rules.to(host),
            of_admins: self.of_admins.to(host),
            ..self
        }
    }

    /// The same for a value that this level gave.
    pub(super) fn at(self, origin: &Origin) -> Self {
        Self {
            rules: if origin.is_of_admin() {
                self.of_admins
            } else {
                self.rules
            },
            ..self
        }
    }

    pub(super) fn get(&self, reference: &Reference) -> Option<&'a str> {
        match reference.source {
            Source::Env => self.rules.variable(self.env, &reference.key),
            _ => self.run.0.get(reference).map(Secret::expose),
        }
    }

    pub(super) fn secret(&self, name: &SecretName) -> Option<&'a Secret> {
        self.secrets.get(name.as_str())
    }

    /// The variable that is used although the operator did not grant it.
    pub(super) fn refused(&self, references: &[Reference]) -> Option<String> {
        let refused = |reference: &&Reference| {
            reference.source == Source::Env && !self.rules.allow(&reference.key)
        };
        references
            .iter()
            .find(refused)
            .map(|reference| not_granted(&reference.key))
    }
}
