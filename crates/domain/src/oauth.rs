//! OAuth 2.1 as this program uses it at the servers' sign-ins: as whom it comes, and what a user has let it do.
//!
//! Tokens and verifiers are secrets. They become text only to be sealed ([`to_sealable`]).

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use url::Url;

use super::secret::Secret;

/// The most scopes that are asked for at once.
pub const MAX_SCOPES: usize = 64;

/// What a pack says of the sign-in of a personal server's users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OAuthConfig {
    /// What is asked for; empty: what the server itself names.
    pub scopes: Vec<String>,
    /// A client that was registered by hand.
    pub client_id: Option<String>,
    pub client_secret: Option<Secret>,
    /// The address of a metadata document other than the program's own.
    pub client_metadata_url: Option<Url>,
    /// The operator knows that the authorization server checks PKCE although its metadata does not say so.
    pub assumes_pkce: bool,
}

/// How the program proves who it is at a token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ClientAuthMethod {
    None,
    ClientSecretBasic,
    ClientSecretPost,
    PrivateKeyJwt,
}

/// What only the client knows. A key is the pack's and is never kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientProof {
    Secret(#[serde(with = "exposed")] Secret),
    /// A private key in PEM, and the algorithm to sign with (`ES256`, `RS256`, …).
    #[serde(skip)]
    Key {
        pem: Secret,
        algorithm: String,
    },
}

/// As whom the program comes to an authorization server. Serialised only to be sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OAuthClient {
    pub id: String,
    pub proof: Option<ClientProof>,
    pub method: ClientAuthMethod,
    /// Its id is in the pack, and so is its secret.
    pub is_of_pack: bool,
    /// When its secret ends; absent: never, or nobody knows.
    #[serde(default, with = "time::serde::timestamp::option")]
    pub secret_ends_at: Option<OffsetDateTime>,
}

/// Where tokens for one server are got, and as whom. Serialised only to be sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenService {
    pub issuer: String,
    pub token_endpoint: Url,
    pub revocation_endpoint: Option<Url>,
    /// The resource indicator (RFC 8707), as the server publishes it.
    pub resource: String,
    pub client: OAuthClient,
}

/// A user who was sent to sign in and has not come back yet. Serialised only to be sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingSignIn {
    pub service: TokenService,
    pub scopes: Vec<String>,
    pub redirect_uri: String,
    /// The answer must name the issuer (RFC 9207).
    pub names_issuer: bool,
    /// Of PKCE (RFC 7636).
    #[serde(with = "exposed")]
    pub verifier: Secret,
}

/// What a user let the program do at a server: the tokens, and all that is needed to refresh and to revoke them.
/// Serialised only to be sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorization {
    pub service: TokenService,
    pub scopes: Vec<String>,
    #[serde(with = "exposed")]
    pub access_token: Secret,
    #[serde(with = "exposed::option")]
    pub refresh_token: Option<Secret>,
    /// Absent: the authorization server does not say.
    #[serde(with = "time::serde::timestamp::option")]
    pub expires_at: Option<OffsetDateTime>,
}

/// The text to seal.
pub fn to_sealable(value: &impl Serialize) -> Secret {
    Secret::new(serde_json::to_string(value).expect("texts and a time are JSON"))
}

/// Back from [`to_sealable`]. What a user entered in fields is no [`Authorization`]: its values are texts.
pub fn from_sealable<T: for<'de> Deserialize<'de>>(text: &Secret) -> serde_json::Result<T> {
    serde_json::from_str(text.expose())
}

/// Secrets inside of what is sealed.
mod exposed {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Secret;

    pub fn serialize<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(secret.expose())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        String::deserialize(from).map(Secret::new)
    }

    pub mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        use super::Secret;

        #[expect(clippy::ref_option, reason = "serde gives it so")]
        pub fn serialize<S: Serializer>(secret: &Option<Secret>, to: S) -> Result<S::Ok, S::Error> {
            secret.as_ref().map(Secret::expose).serialize(to)
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Secret>, D::Error> {
            Ok(Option::<String>::deserialize(from)?.map(Secret::new))
        }
    }
}

/// The scopes of a text with blanks between them, each once, in order.
pub fn scopes_of(text: &str) -> Vec<String> {
    let mut scopes = Vec::new();
    add_scopes(&mut scopes, text.split_ascii_whitespace());
    scopes
}

/// Adds scopes that are not there yet.
pub fn add_scopes<'a>(scopes: &mut Vec<String>, more: impl IntoIterator<Item = &'a str>) {
    for scope in more {
        if scopes.len() < MAX_SCOPES && !scopes.iter().any(|known| known == scope) {
            scopes.push(scope.to_owned());
        }
    }
}
