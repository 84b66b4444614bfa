//! The issuers whose tokens a tenant accepts, for the tenant's admins and for the operator.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use super::{
    super::{
        extract::{NoParameters, Path, Query, located},
        once::make_once,
        problem::Problem,
        request_key::Keyed,
    },
    Admin,
};
use crate::app::{App, platform::request_answers::RequestOwner};
use domain::{
    account::{Issuer, IssuerKeys, SourceSettings, UserSource},
    ids::IssuerId,
    principal,
};

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct IssuerView {
    id: IssuerId,
    /// The claim `iss` of its tokens.
    issuer: String,
    /// The claim `aud` of tokens for this tenant.
    audience: String,
    algorithm: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwks_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    /// The name of the variable with its HMAC secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_env: Option<String>,
    /// What the ids of its users begin with, before the claim `sub`; empty for the first source of the tenant.
    user_prefix: String,
    /// Whether the claim `email` counts without `email_verified`.
    trust_email: bool,
}

impl From<Issuer> for IssuerView {
    fn from(from: Issuer) -> Self {
        let Issuer {
            id,
            issuer,
            audience,
            algorithm,
            keys,
            source,
            ..
        } = from;
        let (jwks_url, public_key, secret_env) = match keys {
            IssuerKeys::Jwks(url) => (Some(url), None, None),
            IssuerKeys::PublicKey(pem) => (None, Some(pem), None),
            IssuerKeys::SecretEnv(name) => (None, None, Some(name)),
        };
        Self {
            id,
            issuer,
            audience,
            algorithm,
            jwks_url,
            public_key,
            secret_env,
            user_prefix: source.prefix,
            trust_email: source.trust_email,
        }
    }
}

/// An issuer, with exactly one place where its keys are.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = IssuerRequest)]
pub(in crate::api) struct NewIssuer {
    /// The claim `iss` of its tokens.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"
    )]
    issuer: String,
    /// The claim `aud` of tokens for this tenant.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"
    )]
    audience: String,
    /// The only algorithm it may sign with: `HS…` with `secret_env`, one of the others without.
    #[serde(default = "rs256")]
    #[schema(schema_with = algorithm)]
    algorithm: String,
    /// Its JSON Web Key Set, at an `https` URL with a public address.
    #[schema(max_length = 8192, pattern = r"^https?://\S+$")]
    jwks_url: Option<String>,
    /// Its public key in PEM.
    #[schema(max_length = 8192, pattern = "-----BEGIN [A-Z ]*PUBLIC KEY-----")]
    public_key: Option<String>,
    /// The name of the variable of this process with its HMAC secret; for the operator only.
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")]
    secret_env: Option<String>,
    /// The claim `email` counts without `email_verified`. Absent: as before, at first `false`.
    trust_email: Option<bool>,
    /// Another issuer, or the name of a frontend's key, whose users are the users of this issuer, too. Absent: as before,
    /// at first the issuer has users of its own.
    shares_users_with: Option<String>,
}

/// The algorithms with which an issuer may sign.
const ALGORITHMS: [&str; 12] = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "HS256",
    "HS384", "HS512",
];

fn algorithm() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(ALGORITHMS))
        .default(Some(rs256().into()))
        .build()
}

fn rs256() -> String {
    "RS256".to_owned()
}

impl NewIssuer {
    fn read(self, admin: &principal::Admin) -> Result<(Issuer, SourceSettings), Problem> {
        let keys = match (self.jwks_url, self.public_key, self.secret_env) {
            (Some(url), None, None) => IssuerKeys::Jwks(url),
            (None, Some(pem), None) => IssuerKeys::PublicKey(pem),
            (None, None, Some(name)) => IssuerKeys::SecretEnv(name),
            _ => {
                return Err(Problem::invalid(
                    "jwks_url",
                    "give one of `jwks_url`, `public_key` and `secret_env`",
                ));
            }
        };
        let (issuer, audience, algorithm) = (self.issuer, self.audience, self.algorithm);
        let settings = SourceSettings {
            trust_email: self.trust_email,
            shares_users_with: self.shares_users_with,
        };
        let issuer = Issuer {
            id: IssuerId::new(),
            tenant: admin.tenant(),
            issuer,
            audience,
            algorithm,
            keys,
            source: UserSource::default(),
            of_tenant: None,
        };
        Ok((issuer, settings))
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct Issuers {
    items: Vec<IssuerView>,
}

/// The id in the path. It is read by name, because the path may also have the parameter `tenant`.
#[derive(Deserialize)]
pub(in crate::api) struct IssuerPath {
    id: IssuerId,
}

/// Who may vouch for the tenant's users.
///
/// For admins. There are at most fifty, so there are no pages.
#[utoipa::path(get, path = "/issuers", operation_id = "listIssuers", tag = "issuers",
    responses((status = 200, body = Issuers)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    _: Query<NoParameters>,
) -> Result<axum::Json<Issuers>, Problem> {
    let issuers = app.accounts.issuers(&admin).await?;
    Ok(axum::Json(Issuers {
        items: issuers.into_iter().map(Into::into).collect(),
    }))
}

/// Trust an issuer, or replace the algorithm and keys of one that is trusted (200).
///
/// For admins. An issuer that is new to the installation, or that vouches for another tenant, too, is for the
/// operator to add.
#[utoipa::path(post, path = "/issuers", operation_id = "addIssuer", tag = "issuers", request_body = NewIssuer,
    responses((status = 201, body = IssuerView), (status = 200, body = IssuerView),
        (status = 409, description = "issuer_not_allowed, limit_reached, answer_not_kept")))]
pub(in crate::api) async fn add(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    OriginalUri(uri): OriginalUri,
    Keyed(new, key): Keyed<NewIssuer>,
) -> Result<Response, Problem> {
    let (maker, owner) = (app.clone(), RequestOwner::from(&admin));
    let make = async move {
        let (issuer, settings) = new.read(&admin)?;
        let (issuer, is_new) = maker.accounts.trust(&admin, issuer, &settings).await?;
        let status = if is_new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let location = format!("{}/{}", uri.path(), issuer.id);
        Ok(located(status, location, IssuerView::from(issuer)))
    };
    make_once(&app, owner, key, make).await
}

/// Trust an issuer no longer.
///
/// For admins. Its tokens and its users' event streams stop within seconds. Only the operator may remove the last
/// one.
#[utoipa::path(delete, path = "/issuers/{id}", operation_id = "removeIssuer", tag = "issuers",
    params(("id" = IssuerId, Path)), responses((status = 204), (status = 409, description = "last_issuer")))]
pub(in crate::api) async fn remove(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(one): Path<IssuerPath>,
) -> Result<StatusCode, Problem> {
    app.accounts.distrust(&admin, one.id).await?;
    Ok(StatusCode::NO_CONTENT)
}
