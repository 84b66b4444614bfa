//! A hash as hexadecimal text.

use std::fmt;

use serde::{Deserialize, Deserializer, de::Error as _};

use super::Hash;

/// A hash as 64 hex digits, in either case.
pub fn parse_hash(text: &str) -> Option<Hash> {
    hex::decode(text.trim()).ok()?.try_into().ok()
}

/// Only for rows, which hold what [`hash`](super::hash) made.
pub fn hash_of_row(bytes: Vec<u8>) -> Result<Hash, String> {
    bytes
        .try_into()
        .map_err(|_| "a hash of another length".to_owned())
}

/// For serde: a hash as hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub Hash);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl serde::Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_hash(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom("must be 64 hex digits"))
    }
}
