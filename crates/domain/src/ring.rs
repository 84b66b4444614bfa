//! The key ring: the operator's own keys (KEKs), given by the environment and never stored.
//!
//! A key of the ring wraps tenants' keys and nothing else. The first key seals; the others open what they
//! sealed before. An entry that cannot be read stops the start. The message names the position of the entry
//! and never repeats its text, because a slip may have put a key where its id belongs.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::ids::KekId;

/// Length of every symmetric key of the program.
pub const KEY_BYTES: usize = 32;
/// The id of the key in `MCP_CONFIG_ENCRYPTION_KEY`.
const FIRST_ID: &str = "k1";
const WANTED: &str = "64 hex digits; `openssl rand -hex 32` makes a key";

/// A key of the ring. Zeroed on drop; neither printed nor serialised.
pub struct Kek {
    pub id: KekId,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

/// At least one key, each id and each value once. Cheap to clone.
#[derive(Clone)]
pub struct KeyRing(Arc<[Arc<Kek>]>);

impl Kek {
    /// The key itself, for the vault only.
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    fn parse(id: KekId, text: &str) -> Result<Self, ()> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        hex::decode_to_slice(text, &mut *bytes).map_err(|_| ())?;
        Ok(Self { id, bytes })
    }
}

impl KeyRing {
    /// One key, which becomes `k1`.
    pub fn parse_one(text: &str) -> Result<Self, String> {
        let id = KekId::parse(FIRST_ID).expect("k1 is an id");
        let kek = Kek::parse(id, text.trim()).map_err(|()| format!("is not {WANTED}"))?;
        Ok(Self(Arc::new([Arc::new(kek)])))
    }

    /// `id:hex,id:hex,…`; the first one seals.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keks = Vec::new();
        for (position, entry) in text.split(',').enumerate() {
            let position = position + 1;
            let (id, key) = entry.split_once(':').ok_or_else(|| {
                format!("entry {position} is not `id:key`, such as `k1:` before {WANTED}")
            })?;
            let id = KekId::parse(id.trim()).map_err(|_| {
                format!("entry {position} has no id before its `:`; write a short name, such as `k{position}`")
            })?;
            if id.as_str().len() > 32 {
                return Err(format!(
                    "entry {position} has more than 32 characters before its `:`; write the id first"
                ));
            }
            let kek = Kek::parse(id.clone(), key.trim())
                .map_err(|()| format!("the key `{id}` is not {WANTED}"))?;
            keks.push(Arc::new(kek));
        }
        Self::from_keks(keks)
    }

    /// This ring with the keys of another behind it.
    pub fn and(&self, other: &Self) -> Result<Self, String> {
        let same = |new: &&Arc<Kek>| {
            !self
                .keks()
                .any(|kek| kek.id == new.id && kek.bytes == new.bytes)
        };
        Self::from_keks(
            self.0
                .iter()
                .chain(other.0.iter().filter(same))
                .cloned()
                .collect(),
        )
    }

    fn from_keks(keks: Vec<Arc<Kek>>) -> Result<Self, String> {
        for (at, kek) in keks.iter().enumerate() {
            for earlier in &keks[..at] {
                if earlier.id == kek.id {
                    return Err(format!("there are two different keys `{}`", kek.id));
                }
                if earlier.bytes == kek.bytes {
                    return Err(format!(
                        "`{}` and `{}` are the same key",
                        earlier.id, kek.id
                    ));
                }
            }
        }
        Ok(Self(keks.into()))
    }

    /// The key that seals, as far as the ring has a say.
    pub fn first(&self) -> &Kek {
        &self.0[0]
    }

    pub fn get(&self, id: &KekId) -> Option<&Kek> {
        self.keks().find(|kek| kek.id == *id)
    }

    /// In the order given.
    pub fn keks(&self) -> impl Iterator<Item = &Kek> {
        self.0.iter().map(AsRef::as_ref)
    }
}
