//! A tenant's API keys, for the tenant's admins and for the operator.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};

use super::{
    super::{
        extract::{Path, Query, created},
        once::make_once,
        paging::{check_limit, default_limit, split_page},
        problem::Problem,
        request_key::Keyed,
    },
    Admin,
};
use crate::app::{App, accounts, platform::request_answers::RequestOwner, runs::sign_outs};
use domain::{
    account::{ApiKey, ChatSettings, FrontendHeaders, FrontendSettings, KeyKind},
    clock::in_microseconds,
    ids::ApiKeyId,
    principal::Scopes,
};

/// A key, without what opens.
#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct KeyView {
    id: ApiKeyId,
    name: String,
    /// The part of the key that is no secret: `chk_<prefix>_…`.
    prefix: String,
    scopes: Vec<&'static str>,
    /// `service`: it speaks for itself; `frontend`: for the users that its requests name.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frontend: Option<FrontendHeaders>,
    /// Of a frontend: what the ids of its users begin with; empty for the first source of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_prefix: Option<String>,
    /// Of a frontend: whether the e-mail address that it sends counts as verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    trust_email: Option<bool>,
    chat: ChatSettings,
    /// `live`, `expired` or `revoked`.
    state: &'static str,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    expires_at: Option<OffsetDateTime>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    revoked_at: Option<OffsetDateTime>,
}

impl KeyView {
    fn new(key: ApiKey, now: OffsetDateTime) -> Self {
        let kind = key.speaker.kind();
        let state = match key.revoked_at {
            Some(_) => "revoked",
            None if key.is_live(now) => "live",
            None => "expired",
        };
        let (claims, frontend) = match key.speaker {
            KeyKind::Service(claims) => (Some(claims), None),
            KeyKind::Frontend(headers) => (None, Some(headers)),
            KeyKind::Guest => (None, None),
        };
        let source = frontend.is_some().then_some(key.source);
        Self {
            id: key.id,
            name: key.name,
            prefix: key.prefix,
            scopes: key.scopes.names(),
            kind,
            claims,
            frontend,
            user_prefix: source.as_ref().map(|source| source.prefix.clone()),
            trust_email: source.map(|source| source.trust_email),
            chat: key.chat,
            state,
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
        }
    }
}

/// A key that was just made.
#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct MadeKey {
    #[serde(flatten)]
    view: KeyView,
    /// The key. It is not shown again.
    key: String,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyRequest)]
pub(in crate::api) struct NewKey {
    /// 1 to 63 lower-case letters, digits, `-`, `_` or `.`.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    name: String,
    /// `chat`, `admin` or both; not `admin` with `frontend`.
    #[serde(default = "chat")]
    #[schema(schema_with = scopes)]
    scopes: Vec<String>,
    /// Of a key that speaks for itself.
    claims: Option<Map<String, Value>>,
    /// The key speaks for the users of this frontend.
    frontend: Option<FrontendSettings>,
    /// How OpenAI clients that use the key are answered.
    #[serde(default)]
    chat: ChatSettings,
    #[serde(default, with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
}

fn scopes() -> Array {
    let scope = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(["chat", "admin"]));
    ArrayBuilder::new()
        .items(scope)
        .min_items(Some(1))
        .default(Some(json!(chat())))
        .build()
}

fn chat() -> Vec<String> {
    vec!["chat".to_owned()]
}

impl NewKey {
    fn read(self) -> Result<accounts::NewKey, Problem> {
        let scopes =
            Scopes::parse(&self.scopes).map_err(|reason| Problem::invalid("scopes", reason))?;
        let source = self.frontend.as_ref().map(FrontendSettings::source);
        let speaker = match (self.frontend, self.claims) {
            (None, claims) => KeyKind::Service(claims.unwrap_or_default()),
            (Some(_), Some(_)) => {
                return Err(Problem::invalid(
                    "claims",
                    "a frontend's users have their own; leave this out",
                ));
            }
            (Some(settings), None) => KeyKind::Frontend(settings.headers().ok_or_else(|| {
                let why =
                    "must say who the user is: give a `preset`, or the header's name as `user_id`";
                Problem::invalid("frontend", why)
            })?),
        };
        Ok(accounts::NewKey {
            name: self.name,
            scopes,
            speaker,
            source: source.unwrap_or_default(),
            chat: self.chat,
            expires_at: self.expires_at.map(in_microseconds),
        })
    }
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct KeysQuery {
    /// Only those before this one: the `next` of the page before.
    #[serde(alias = "before")]
    cursor: Option<ApiKeyId>,
    /// 1 to 200.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 200)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct KeyPage {
    items: Vec<KeyView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<ApiKeyId>,
}

/// The id in the path. It is read by name, because the path may also have the parameter `tenant`.
#[derive(Deserialize)]
pub(in crate::api) struct KeyPath {
    id: ApiKeyId,
}

/// The tenant's keys, those that ended too, the newest first.
///
/// For admins. The keys themselves are known to their holders only.
#[utoipa::path(get, path = "/keys", operation_id = "listKeys", tag = "keys", params(KeysQuery),
    responses((status = 200, body = KeyPage)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Query(which): Query<KeysQuery>,
) -> Result<axum::Json<KeyPage>, Problem> {
    let limit = check_limit(which.limit, 200)?;
    let keys = app.accounts.keys(&admin, which.cursor, limit + 1).await?;
    let (keys, next) = split_page(keys, limit, |key| key.id);
    let now = app.clock.now();
    Ok(axum::Json(KeyPage {
        items: keys.into_iter().map(|key| KeyView::new(key, now)).collect(),
        next,
    }))
}

/// Make a key; it is shown this once.
///
/// For admins. Two live keys of a tenant do not share a name.
#[utoipa::path(post, path = "/keys", operation_id = "createKey", tag = "keys", request_body = NewKey,
    responses((status = 201, body = MadeKey), (status = 409, description = "duplicate_name, answer_not_kept")))]
pub(in crate::api) async fn create(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    OriginalUri(uri): OriginalUri,
    Keyed(new, request_key): Keyed<NewKey>,
) -> Result<Response, Problem> {
    let (maker, owner) = (app.clone(), RequestOwner::from(&admin));
    let make = async move {
        let issued = maker.accounts.create_key(&admin, new.read()?).await?;
        // The only response that holds the key; it goes to its owner.
        let key = issued.secret.expose().to_owned();
        let view = KeyView::new(issued.key, maker.clock.now());
        Ok(created(&uri, view.id, MadeKey { view, key }))
    };
    make_once(&app, owner, request_key, make).await
}

/// End a key, on every replica within seconds.
///
/// For admins. A key that was revoked before is refused, with the time of that.
#[utoipa::path(delete, path = "/keys/{id}", operation_id = "revokeKey", tag = "keys",
    params(("id" = ApiKeyId, Path)), responses((status = 204), (status = 409, description = "already_revoked")))]
pub(in crate::api) async fn revoke(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(one): Path<KeyPath>,
) -> Result<StatusCode, Problem> {
    sign_outs::revoke_key(&app, &admin, one.id).await?;
    Ok(StatusCode::NO_CONTENT)
}
