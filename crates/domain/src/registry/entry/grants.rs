//! What a tenant's own entries may do.

use crate::{
    config::{Environment, OWN_SECRETS, is_own},
    policy::ToolPattern,
};

/// The variables of the environment that the operator lets the registry use, each with the host that it may be sent
/// to. Names may hold `*`; the host `*` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(Vec<(ToolPattern, String)>);

/// The owner of an entry, which decides the variables that it may refer to.
#[derive(Clone, Copy)]
pub enum Rules<'a> {
    /// The operator's own, from a file.
    Operator,
    /// A tenant's: the variables that were granted, and no others.
    Tenant {
        grants: &'a Grants,
        /// Where the values are sent; `None`: not known.
        host: Option<&'a str>,
    },
}

impl Grants {
    /// Of `NAME@host`; what names no host grants nothing.
    pub fn new(grants: &[String]) -> Self {
        let grants = grants.iter().filter_map(|grant| grant.split_once('@'));
        Self(
            grants
                .map(|(name, host)| (ToolPattern(name.to_owned()), host.to_ascii_lowercase()))
                .collect(),
        )
    }

    fn cover(&self, variable: &str, to: Option<&str>) -> bool {
        !is_own(variable)
            && self.0.iter().any(|(name, host)| {
                name.matches(variable) && (host == "*" || to.is_some_and(|to| to == host))
            })
    }
}

impl<'a> Rules<'a> {
    pub fn of_tenant(grants: &'a Grants) -> Self {
        Self::Tenant { grants, host: None }
    }

    /// The same for values that are sent to this host.
    #[must_use]
    pub fn to(self, host: Option<&'a str>) -> Self {
        match self {
            Self::Operator => Self::Operator,
            Self::Tenant { grants, .. } => Self::Tenant { grants, host },
        }
    }

    pub fn is_tenants(self) -> bool {
        matches!(self, Self::Tenant { .. })
    }

    pub fn allow(self, variable: &str) -> bool {
        match self {
            Self::Operator => !OWN_SECRETS.contains(&variable),
            Self::Tenant { grants, host } => grants.cover(variable, host),
        }
    }

    /// The value of a variable, if it may be used.
    pub fn variable<'e>(self, env: &'e Environment, name: &str) -> Option<&'e str> {
        env.get(name).filter(|_| self.allow(name))
    }
}

/// What is said of a variable that was not granted.
pub fn not_granted(variable: &str) -> String {
    format!(
        "the variable {variable} is not granted to the registry for this host; ask the operator to add `{variable}@host` \
         to CHATELAINE_REGISTRY_ENV"
    )
}
