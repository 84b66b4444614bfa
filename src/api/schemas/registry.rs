//! Schemas of the registry: entries, their definitions and their keys.

use time::OffsetDateTime;

use crate::app::servers::registry as servers_registry;
use domain::{registry::Definition, schemas};

schemas! {
    /// An entry as its admins see it.
    struct EntryView for servers_registry::EntryView {
        #[serde(flatten)]
        definition: Definition,
        updated_at: OffsetDateTime,
        /// The version, for `If-Match`.
        #[serde(skip)]
        etag: String,
    }
    /// All that is told of a secret.
    struct SecretView for servers_registry::SecretView {
        name: String,
        updated_at: OffsetDateTime,
    }
}
