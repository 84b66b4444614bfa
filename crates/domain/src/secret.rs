//! Text that must never be printed, logged or serialised.
//!
//! It is exposed in a handful of places only: building a header or a child's environment for the
//! server it belongs to, sealing, and hashing a token. Search for `expose` to review them.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A secret string: zeroed on drop, `Debug` prints `[secret]`, and there is no `Display` or `Serialize`.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// The text itself. Only for building a header, a child's environment, a seal or a hash.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Secret {}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}
