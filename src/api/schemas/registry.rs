//! Schemas of the registry: entries, their definitions and their keys.

use std::collections::BTreeMap;

use serde_json::Value;
use time::OffsetDateTime;

use super::schemas;
use crate::app::servers::registry as servers_registry;
use domain::{
    registry as domain_registry,
    registry::{Auth, AuthKind, Definition, KeySchema, Kind, ScopeKey},
    server::{self},
};

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

    #[serde(rename_all = "lowercase")]
    #[schema(as = ScopeKind)]
    enum Kind for domain_registry::Kind {
        String,
        Json,
        Boolean,
        Number,
    }

    /// What a server says of one key that it takes.
    #[serde(deny_unknown_fields)]
    struct KeySchema for domain_registry::KeySchema {
        #[serde(rename = "type")]
        kind: Kind,
        #[schema(required = false)]
        description: String,
        /// A value must be there when a run begins. One that is not required is left out then.
        #[schema(required = false)]
        required: bool,
        /// The value is never shown, and never comes back.
        #[schema(required = false)]
        sensitive: bool,
        /// The program fills it in.
        #[schema(required = false)]
        internal: bool,
        /// For people who fill it in.
        example: Option<String>,
        /// The header that carries it; absent: made from the key, `X-Context-Id` for `context_id`.
        header: Option<String>,
    }

    /// Values may be secret: no `Debug`.
    #[serde(deny_unknown_fields)]
    struct Definition for domain_registry::Definition {
        /// 2 to 60 lower-case letters, digits, `_` or `-`, starting with a letter. It never changes.
        #[schema(required = false)]
        id: String,
        /// Absent: the id.
        #[schema(required = false)]
        name: String,
        #[schema(required = false)]
        description: String,
        /// Where the server is; may hold placeholders such as `${env.NAME}` and, in path and query, `${scope.name}`.
        url: String,
        /// The keys that the server takes.
        #[schema(required = false)]
        config_schema: BTreeMap<String, KeySchema>,
        /// Values of keys, unless a capability or an agent sets others. A sensitive one reads as `••••`; one that is
        /// left out or sent back like that stays as it is, and `null` takes it away.
        #[schema(required = false)]
        #[schema(value_type = Object)]
        default_config: BTreeMap<String, Value>,
        /// The keys of a run's scope that the server is about, for whoever starts runs. A scope is not checked against it:
        /// what the server cannot do without is a `required` key of `config_schema`.
        #[schema(required = false)]
        scope_schema: BTreeMap<String, ScopeKey>,
        /// How the program gets a token for the server.
        auth: Option<Auth>,
        /// What a reading has; it may be sent back, and has no effect.
        #[serde(rename = "updated_at")]
        #[schema(required = false, value_type = OffsetDateTime)]
        sent_back: domain_registry::SentBack,
    }

    /// A key that a run's scope may have.
    #[serde(deny_unknown_fields)]
    struct ScopeKey for domain_registry::ScopeKey {
        #[serde(rename = "type")]
        kind: Kind,
        #[schema(required = false)]
        description: String,
    }

    /// Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4).
    #[serde(deny_unknown_fields)]
    struct Auth for domain_registry::Auth {
        #[serde(rename = "type")]
        kind: AuthKind,
        token_url: String,
        /// Text, or `{"$secret": "name"}`.
        #[schema(value_type = Value)]
        client_id: Value,
        /// The same; text reads as `••••`.
        #[schema(required = false)]
        #[schema(value_type = Value)]
        client_secret: Value,
        scope: Option<String>,
    }

    enum AuthKind for domain_registry::AuthKind {
        #[serde(rename = "oauth2_client_credentials")]
        ClientCredentials,
    }

    #[serde(rename_all = "lowercase")]
    enum FieldKind for server::FieldKind {
        Text,
        Secret,
        Url,
        Boolean,
        Select,
    }
}
