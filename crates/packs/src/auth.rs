//! Reads `auth` of a server: each user signs in with OAuth (`oauth`), or the program itself does
//! (`oauth_client_credentials`).

use url::Url;

use super::{endpoint::Transport, field::Field, object::Object};
use domain::{
    oauth::{ClientProof, OAuthConfig},
    secret::Secret,
    server::{AccessMode, ClientCredentials, Endpoint, ServerAuth, TokenIssuer},
};

/// The algorithms with which the program may sign an assertion. The first one is the default.
const ALGORITHMS: [&str; 6] = ["ES256", "ES384", "RS256", "RS384", "RS512", "EdDSA"];

/// How a server is signed in to. At most one field is set.
#[derive(Default)]
pub(super) struct AuthFields {
    /// The program signs in.
    pub(super) auth: Option<ServerAuth>,
    /// Each user signs in.
    pub(super) oauth: Option<OAuthConfig>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AuthType {
    User,
    Client,
}

/// Reads `auth: oauth`, or an object with a `type`.
pub(super) fn read(
    object: &mut Object,
    mode: Option<AccessMode>,
    transport: Option<Transport>,
    endpoint: Option<&Endpoint>,
) -> AuthFields {
    let Some(field) = object.optional("auth") else {
        return AuthFields::default();
    };
    if transport == Some(Transport::Stdio) {
        field.error("nobody signs in at a stdio server", "remove it");
    }
    if !field.is_map() {
        let kind = read_type(&field, mode);
        if kind == Some(AuthType::Client) {
            field.error(
                "the program needs an id and a secret to sign in with",
                "write `auth: { type: oauth_client_credentials, clientId: …, clientSecret: ${NAME} }`",
            );
        }
        return for_users(kind, OAuthConfig::default());
    }
    let Some(mut object) = field.object() else {
        return AuthFields::default();
    };
    let kind = object
        .required(
            "type",
            "write `type: oauth` or `type: oauth_client_credentials`",
        )
        .and_then(|field| read_type(&field, mode));
    let read = match kind {
        Some(AuthType::Client) => AuthFields {
            auth: read_client_credentials(&mut object, endpoint).map(ServerAuth::Client),
            oauth: None,
        },
        kind => for_users(kind, read_user_fields(&mut object)),
    };
    if kind.is_some() {
        object.finish();
    }
    read
}

fn for_users(kind: Option<AuthType>, config: OAuthConfig) -> AuthFields {
    AuthFields {
        auth: None,
        oauth: (kind == Some(AuthType::User)).then_some(config),
    }
}

/// Reads the type of sign-in. Users sign in at personal servers only, the program at shared servers only.
fn read_type(field: &Field, mode: Option<AccessMode>) -> Option<AuthType> {
    let kind = field.one_of(&[
        ("oauth", AuthType::User),
        ("oauth_client_credentials", AuthType::Client),
    ])?;
    match (kind, mode) {
        (AuthType::User, Some(AccessMode::AdminControlled)) => field.error(
            "users sign in at personal servers only",
            "write `accessMode: user-controlled`, or `oauth_client_credentials`",
        ),
        (AuthType::Client, Some(AccessMode::UserControlled)) => field.error(
            "the program signs in at shared servers only",
            "write `auth: oauth`, with which each user signs in",
        ),
        _ => {}
    }
    Some(kind)
}

fn read_user_fields(object: &mut Object) -> OAuthConfig {
    let client_id = object
        .optional("clientId")
        .and_then(|field| field.non_blank_text())
        .map(|text| text.value);
    let secret = object.optional("clientSecret");
    if let (Some(secret), None) = (&secret, &client_id) {
        secret.error("there is no `clientId` that it belongs to", "write one");
    }
    let document = object.optional("clientMetadataUrl");
    let pkce = object.optional("pkce");
    if let (Some(pkce), None) = (&pkce, &client_id) {
        pkce.error(
            "PKCE is assumed only for a client that was registered by hand",
            "write its `clientId`, or remove this",
        );
    }
    let pkce = pkce.and_then(|field| field.one_of(&[("assumed", true)]));
    OAuthConfig {
        scopes: read_scopes(object),
        client_id,
        client_secret: secret.and_then(|field| read_secret(&field)),
        client_metadata_url: document.and_then(|field| field.parse_with(parse_document_url)),
        assumes_pkce: pkce.unwrap_or(false),
    }
}

fn read_client_credentials(
    object: &mut Object,
    endpoint: Option<&Endpoint>,
) -> Option<ClientCredentials> {
    let id = object.required("clientId", "write the id of the client");
    let id = id.and_then(|field| read_secret(&field));
    let secret = object.optional("clientSecret");
    let key = object.optional("privateKey");
    let algorithm = object
        .optional("algorithm")
        .and_then(|field| field.one_of(&ALGORITHMS.map(|name| (name, name))))
        .unwrap_or(ALGORITHMS[0]);
    let proof = match (&secret, &key) {
        (Some(secret), None) => read_secret(secret).map(ClientProof::Secret),
        (None, Some(key)) => read_secret(key).map(|pem| ClientProof::Key {
            pem,
            algorithm: algorithm.to_owned(),
        }),
        (Some(_), Some(key)) => {
            key.error(
                "a client has either a secret or a key",
                "remove one of the two",
            );
            None
        }
        (None, None) => {
            object.report_missing(
                "clientSecret",
                "write `clientSecret: ${NAME}`, or a `privateKey`",
            );
            None
        }
    };
    let token_url = object.optional("tokenUrl");
    let token_url = token_url.and_then(|field| field.url_with_schemes(["http", "https"]));
    let scopes = read_scopes(object);
    let Some(Endpoint::Remote { url, .. }) = endpoint else {
        return None;
    };
    Some(ClientCredentials {
        issued_by: match token_url {
            Some(url) => TokenIssuer::Endpoint(url),
            None => TokenIssuer::OfServer(url.clone()),
        },
        client_id: id?,
        proof: proof?,
        scope: (!scopes.is_empty()).then(|| scopes.join(" ")),
        of_tenant: false,
    })
}

fn read_scopes(object: &mut Object) -> Vec<String> {
    let field = object.optional("scopes");
    field.map(|field| field.text_values()).unwrap_or_default()
}

fn read_secret(field: &Field) -> Option<Secret> {
    field.secret().map(|(secret, _)| secret)
}

/// Parses the address of a client metadata document: https, with a path.
fn parse_document_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok();
    url.filter(|url| url.scheme() == "https" && url.path() != "/")
        .ok_or_else(|| "write an address such as https://example.org/client.json".to_owned())
}
