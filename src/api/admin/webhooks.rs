//! The webhooks of a tenant: the addresses that receive its events.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};

use super::{
    super::{
        extract::{NoParameters, Path, Query, created},
        once::make_once,
        paging::{check_limit, default_limit, split_page},
        problem::Problem,
        request_key::Keyed,
    },
    Admin,
};
use crate::app::{
    self, App,
    platform::{request_answers::RequestOwner, webhooks::PingOutcome},
};
use domain::{
    ids::{DeliveryId, WebhookId},
    webhook::{Delivery, Webhook},
};

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WebhookRequest)]
pub(in crate::api) struct NewWebhook {
    /// An `https` URL with a public address.
    #[schema(max_length = 2048, pattern = r"^https?://\S+$")]
    url: String,
    /// Names of events, as `approval.requested`; `approval.*` stands for all that begin so, `*` for all.
    #[schema(schema_with = events)]
    events: Vec<String>,
}

fn events() -> Array {
    let event = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(r"^(\*|[a-z_]+(\.[a-z_]+)*(\.\*)?)$"))
        .max_length(Some(64));
    ArrayBuilder::new()
        .items(event)
        .min_items(Some(1))
        .max_items(Some(20))
        .build()
}

/// A webhook that was just made.
#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct MadeWebhook {
    #[serde(flatten)]
    webhook: Webhook,
    /// What messages are signed with, as Standard Webhooks has it. It is not shown again.
    secret: String,
}

/// Make a webhook, to be told what happens.
///
/// For admins. Messages are `POST`ed as JSON (`type`, `timestamp`, `data`) and signed as Standard Webhooks says
/// (`webhook-id`, `webhook-timestamp`, `webhook-signature`). One that is not answered with 2xx within ten seconds
/// is sent again, ten times in all over about fourteen hours, always with the same id; 410 ends the webhook. At
/// most twenty of a tenant.
#[utoipa::path(post, path = "/v1/admin/webhooks", operation_id = "createWebhook", tag = "webhooks",
    request_body = NewWebhook,
    responses((status = 201, body = MadeWebhook), (status = 409, description = "limit_reached, answer_not_kept")))]
pub(in crate::api) async fn create(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    OriginalUri(uri): OriginalUri,
    Keyed(new, key): Keyed<NewWebhook>,
) -> Result<Response, Problem> {
    let (maker, owner) = (app.clone(), RequestOwner::from(&admin));
    let make = async move {
        let (webhook, secret) =
            app::platform::webhooks::create(&maker, &admin, &new.url, &new.events).await?;
        // The only response that holds the secret; it goes to its owner.
        let secret = secret.expose().to_owned();
        let id = webhook.id;
        Ok(created(&uri, id, MadeWebhook { webhook, secret }))
    };
    make_once(&app, owner, key, make).await
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct Webhooks {
    items: Vec<Webhook>,
}

/// The tenant's webhooks, the oldest first.
///
/// For admins. The secrets are shown when a webhook is made, and never again.
#[utoipa::path(get, path = "/v1/admin/webhooks", operation_id = "listWebhooks", tag = "webhooks",
    responses((status = 200, body = Webhooks)))]
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    _: Query<NoParameters>,
) -> Result<axum::Json<Webhooks>, Problem> {
    Ok(axum::Json(Webhooks {
        items: app::platform::webhooks::list(&app, &admin).await?,
    }))
}

/// Remove a webhook, with the messages that wait for it.
///
/// For admins. Its secret ends with it.
#[utoipa::path(delete, path = "/v1/admin/webhooks/{id}", operation_id = "removeWebhook", tag = "webhooks",
    params(("id" = WebhookId, Path)), responses((status = 204)))]
pub(in crate::api) async fn remove(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(id): Path<WebhookId>,
) -> Result<StatusCode, Problem> {
    app::platform::webhooks::remove(&app, &admin, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send the event `ping` now, once, and say how that went.
///
/// For admins. A receiver that does not answer is an outcome (`delivered: false`), not an error.
#[utoipa::path(post, path = "/v1/admin/webhooks/{id}/test", operation_id = "testWebhook", tag = "webhooks",
    params(("id" = WebhookId, Path)),
    responses((status = 200, body = PingOutcome), (status = 409, description = "webhook_disabled")))]
pub(in crate::api) async fn test(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(id): Path<WebhookId>,
) -> Result<axum::Json<PingOutcome>, Problem> {
    Ok(axum::Json(
        app::platform::webhooks::test(&app, &admin, id).await?,
    ))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct DeliveriesQuery {
    /// Only those before this one: the `next` of the page before.
    #[serde(alias = "before")]
    cursor: Option<DeliveryId>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct DeliveryPage {
    items: Vec<Delivery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<DeliveryId>,
}

/// The messages to a webhook of the last seven days, the newest first.
///
/// For admins. Each says how often it was sent, and how the last attempt went.
#[utoipa::path(get, path = "/v1/admin/webhooks/{id}/deliveries", operation_id = "listDeliveries", tag = "webhooks",
    params(("id" = WebhookId, Path), DeliveriesQuery), responses((status = 200, body = DeliveryPage)))]
pub(in crate::api) async fn deliveries(
    State(app): State<Arc<App>>,
    Admin(admin): Admin,
    Path(id): Path<WebhookId>,
    Query(which): Query<DeliveriesQuery>,
) -> Result<axum::Json<DeliveryPage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    let items =
        app::platform::webhooks::deliveries(&app, &admin, id, which.cursor, limit + 1).await?;
    let (items, next) = split_page(items, limit, |delivery| delivery.id);
    Ok(axum::Json(DeliveryPage { items, next }))
}
