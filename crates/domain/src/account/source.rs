//! What vouches for users: an issuer, or a frontend by its key. Two sources may know different people by one id, so each
//! has users of its own, except where the admin lets one share the users of another.

use std::fmt;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::super::ids::UserId;

/// What the ids of users begin with whose source was not the first of its tenant.
pub const ISSUER_USER: &str = "issuer:";
/// The same of the users of a frontend.
pub const FRONTEND_USER: &str = "frontend:";

/// A source by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceName<'a> {
    /// The claim `iss` of its tokens. Its audiences are one source.
    Issuer(&'a str),
    /// The name of its key. A key that replaces another of its name speaks for the same users.
    Frontend(&'a str),
}

impl<'a> SourceName<'a> {
    pub fn kind(self) -> &'static str {
        match self {
            Self::Issuer(_) => "issuer",
            Self::Frontend(_) => "frontend",
        }
    }

    pub fn name(self) -> &'a str {
        match self {
            Self::Issuer(name) | Self::Frontend(name) => name,
        }
    }

    /// What the ids of users of its own begin with. The same source gets the same prefix every time.
    pub fn prefix(self) -> String {
        match self {
            Self::Issuer(issuer) => {
                let digest = hex::encode(Sha256::digest(issuer));
                format!("{ISSUER_USER}{}:", &digest[..16])
            }
            Self::Frontend(key) => format!("{FRONTEND_USER}{key}:"),
        }
    }
}

/// How the users of a source are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserSource {
    /// Comes before the id that the source gives; empty for the first source of a tenant.
    pub prefix: String,
    /// An e-mail address counts without `email_verified`.
    pub trust_email: bool,
}

impl UserSource {
    /// The id of the user whom the source calls `subject`.
    pub fn user(&self, subject: &UserId) -> UserId {
        if self.prefix.is_empty() {
            subject.clone()
        } else {
            UserId(format!("{}{subject}", self.prefix).into())
        }
    }

    /// Says of an e-mail address that it is verified, where the source is trusted with that and says nothing itself.
    pub fn vouch(&self, claims: &mut Map<String, Value>) {
        if self.trust_email && claims.contains_key("email") {
            claims.entry("email_verified").or_insert(true.into());
        }
    }
}

/// For the end of a line that names the source: what differs from a source on its own whose addresses are not trusted.
impl fmt::Display for UserSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.prefix.is_empty() {
            write!(f, ", users {}<id>", self.prefix)?;
        }
        f.write_str(if self.trust_email {
            ", e-mail trusted"
        } else {
            ""
        })
    }
}

/// What an admin says about the users of a source. What is absent stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceSettings {
    pub trust_email: Option<bool>,
    /// The issuer, or the name of the frontend's key, whose users are its users, too.
    pub shares_users_with: Option<String>,
}
