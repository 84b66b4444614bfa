//! Layer 4: every route. HTTP in, one call to `app`, JSON out.
//!
//! From the outside in, a request passes `layers` (request id, span, security headers, CORS, panics, the rendering of
//! problems), `limits` (how many requests are worked on at once), the extractor of its caller (credential, rate), and
//! then a handler of a few lines. Handlers know neither SQL nor servers nor models.
//!
//! Every route is declared with its OpenAPI operation through `routes!`, so the document has them all.
//! `tests/it/access.rs` calls every route of the document with every wrong caller.

mod a2a;
mod admin;
mod agents;
mod agui;
mod aisdk;
mod answer_text;
mod approvals;
mod attachments;
mod body;
mod branches;
mod connect;
mod connections;
mod conversations;
mod demo;
mod document;
mod events;
mod export;
mod extract;
mod feedback;
mod guests;
mod layers;
mod limits;
mod mcp;
mod metrics;
mod oauth;
mod oauth_clients;
mod once;
mod openai;
mod operations;
mod page;
mod paging;
mod problem;
mod registry;
mod request_key;
mod resources;
mod runs;
mod secrets;
mod server;
mod sign_in;
mod skills;
mod sockets;
mod starting;
mod turn;
mod unions;
mod user_data;
mod web;

use std::{
    ops::Deref,
    sync::{Arc, LazyLock},
};

use axum::{Router, extract::FromRef, middleware};
use bytes::Bytes;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt as _},
    routes,
};

pub use demo::{Demo, DemoPeople};
pub use extract::values_of;
pub use server::{Listeners, answer_while_starting, serve};

use self::limits::Limits;
use crate::app::App;

/// The OpenAPI document as text, made for the first request, and the one for users.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi().to_string().into());
static DOCUMENT_FOR_USERS: LazyLock<Bytes> =
    LazyLock::new(|| openapi_for_users().to_string().into());

/// The state that handlers and extractors receive. Each request clones it a dozen times, so it is one pointer.
#[derive(Clone)]
struct ApiState(Arc<ApiParts>);

struct ApiParts {
    app: Arc<App>,
    limits: Arc<Limits>,
    demo: Option<Arc<Demo>>,
    measured: operations::LastMetrics,
}

impl Deref for ApiState {
    type Target = ApiParts;

    fn deref(&self) -> &ApiParts {
        &self.0
    }
}

impl FromRef<ApiState> for Arc<App> {
    fn from_ref(state: &ApiState) -> Self {
        Arc::clone(&state.app)
    }
}

/// The routes, for each of the two addresses that may be listened on.
struct Routers {
    /// The whole API. A demo adds the route of its people.
    api: Router,
    /// Health and metrics only, where they have an address of their own.
    monitoring: Router,
}

/// Collects metrics from now on. What was measured before is lost.
pub fn collect_metrics() {
    metrics::recorder();
}

fn build_routers(app: Arc<App>, demo: Option<Arc<Demo>>) -> Routers {
    let limits = Arc::new(Limits::new(&app.config));
    let state = ApiState(Arc::new(ApiParts {
        app,
        limits,
        demo,
        measured: operations::LastMetrics::default(),
    }));
    let v1 = Router::from(v1())
        .route_layer(middleware::from_fn_with_state(state.clone(), limits::admit));
    let mut routes = v1.merge(Router::from(operations().merge(health())));
    if state.app.config.metrics_listen.is_none() {
        routes = routes.merge(Router::from(metrics()));
    }
    if state.demo.is_some() {
        let people = OpenApiRouter::default().routes(routes!(demo::people));
        routes = routes.merge(Router::from(people));
    }
    let wrap = |routes| layers::wrap_routes(routes, &state.app.config).with_state(state.clone());
    Routers {
        api: wrap(routes),
        monitoring: wrap(Router::from(health().merge(metrics()))),
    }
}

/// The OpenAPI document of the API.
pub fn openapi() -> serde_json::Value {
    document::complete(
        OpenApiRouter::with_openapi(Document::openapi())
            .merge(v1())
            .merge(operations())
            .merge(health())
            .merge(metrics())
            .into_openapi(),
    )
}

/// The OpenAPI document of what the frontends of users call.
pub fn openapi_for_users() -> serde_json::Value {
    document::keep_for_users(openapi())
}

/// The routes that people and their frontends use.
fn v1() -> OpenApiRouter<ApiState> {
    agents()
        .merge(conversations())
        .merge(work())
        .merge(model_apis())
        .routes(routes!(oauth_clients::list))
        .routes(routes!(oauth_clients::forget))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::put, secrets::remove))
        .merge(administration())
        .nest("/v1", registry())
        .merge(registry())
}

/// The caller, and the agents that the caller may talk to.
fn agents() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(guests::me))
        .routes(routes!(guests::create_guest))
        .routes(routes!(sign_in::providers))
        .routes(routes!(user_data::export_own))
        .routes(routes!(user_data::delete_own))
        .routes(routes!(agents::list))
        .routes(routes!(agents::get))
        .routes(routes!(agents::tools))
        .routes(routes!(agents::prompts))
        .routes(routes!(agents::connections))
        .routes(routes!(agents::servers))
        .routes(routes!(agents::menu))
        .routes(routes!(skills::list))
        .routes(routes!(skills::run))
        .routes(routes!(skills::get))
        .routes(routes!(a2a::card))
        .routes(routes!(a2a::card_of_all))
        .routes(routes!(a2a::card_beside_agents))
        .routes(routes!(a2a::call))
        .routes(routes!(a2a::call_any))
        .routes(routes!(
            connections::get,
            connections::put,
            connections::remove
        ))
        .routes(routes!(mcp::post, mcp::listen))
        .routes(routes!(mcp::access::metadata))
        .routes(routes!(connections::test))
        .routes(routes!(connect::form, connect::send))
        .routes(routes!(oauth::begin))
        .routes(routes!(oauth::callback))
        .routes(routes!(oauth::client_metadata))
}

fn conversations() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(conversations::list, conversations::create))
        .routes(routes!(
            conversations::get,
            conversations::change,
            conversations::delete
        ))
        .routes(routes!(conversations::messages, conversations::post))
        .routes(routes!(branches::list))
        .routes(routes!(attachments::create))
        .routes(routes!(attachments::get))
        .routes(routes!(export::export))
        .routes(routes!(feedback::get, feedback::put, feedback::remove))
        .routes(routes!(events::create_ticket))
        .routes(routes!(resources::resources))
        .routes(routes!(events::listen))
}

/// Runs and approvals.
fn work() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(runs::list, runs::create))
        .routes(routes!(runs::check))
        .routes(routes!(runs::get))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get))
        .routes(routes!(approvals::decide))
        .routes(routes!(approvals::cancel))
        .routes(routes!(approvals::record))
        .routes(routes!(approvals::listen))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::plain::create))
        .routes(routes!(runs::plain::get))
        .routes(routes!(runs::plain::cancel))
}

/// Protocols of other products: OpenAI, the AI SDK, AG-UI.
fn model_apis() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(openai::models))
        .routes(routes!(openai::model))
        .routes(routes!(openai::chat))
        .routes(routes!(openai::responses::create))
        .routes(routes!(openai::responses::get, openai::responses::delete))
        .routes(routes!(openai::responses::input_items))
        .routes(routes!(openai::responses::cancel))
        .routes(
            routes!(openai::responses::items::list)
                .map(|methods| methods.fallback(openai::responses::items::refuse_new)),
        )
        .routes(
            routes!(openai::responses::items::get)
                .map(|methods| methods.fallback(openai::responses::items::refuse_deletion)),
        )
        .routes(routes!(aisdk::chat))
        .routes(routes!(aisdk::resume))
        .routes(routes!(agui::run))
}

/// Administration by the admins of a tenant and by the operator.
fn administration() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(admin::audit::list))
        .routes(routes!(admin::usage::list))
        .routes(routes!(admin::usage::list_days))
        .routes(routes!(admin::tenants::own))
        .routes(routes!(admin::webhooks::list, admin::webhooks::create))
        .routes(routes!(admin::webhooks::remove))
        .routes(routes!(admin::webhooks::test))
        .routes(routes!(admin::webhooks::deliveries))
        .routes(routes!(admin::access::matrix))
        .routes(routes!(admin::changed_tools::list))
        .routes(routes!(admin::changed_tools::get))
        .routes(routes!(admin::changed_tools::accept))
        .routes(routes!(admin::policies::try_policy))
        .routes(routes!(admin::servers::capabilities))
        .routes(routes!(admin::servers::list_of_agent))
        .routes(routes!(
            admin::servers::get_of_agent,
            admin::servers::put_of_agent,
            admin::servers::remove_of_agent
        ))
        .routes(routes!(admin::servers::list_of_capability))
        .routes(routes!(
            admin::servers::get_of_capability,
            admin::servers::put_of_capability,
            admin::servers::remove_of_capability
        ))
        .routes(routes!(admin::users::list))
        .routes(routes!(admin::users::get, user_data::delete))
        .routes(routes!(user_data::export))
        .routes(routes!(admin::users::sign_out))
        .routes(routes!(admin::users::block, admin::users::unblock))
        .routes(routes!(admin::users::remove_credentials))
        .routes(routes!(admin::tenants::list, admin::tenants::create))
        .routes(routes!(
            admin::tenants::get,
            admin::tenants::change,
            admin::tenants::remove
        ))
        .nest("/v1/admin", access())
        .nest(FOR_TENANT, access())
}

/// The prefix of the routes on which the operator administers a tenant as its admins do.
const FOR_TENANT: &str = "/v1/admin/tenants/{tenant}";

/// Keys and issuers of a tenant, and the replicas that serve it: for its admins, and below [`FOR_TENANT`] for the operator.
fn access() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(admin::replicas::list))
        .routes(routes!(admin::replicas::settle_policy))
        .routes(routes!(admin::keys::list, admin::keys::create))
        .routes(routes!(admin::keys::revoke))
        .routes(routes!(admin::issuers::list, admin::issuers::add))
        .routes(routes!(admin::issuers::remove))
}

/// The registry of servers. The public document that describes it has no version in its paths, so the routes exist with
/// and without `/v1`.
fn registry() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(registry::list, registry::create))
        .routes(routes!(registry::get, registry::update, registry::remove))
}

/// The web client and the document. These routes have no limit, so they answer however busy the others are.
fn operations() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(web::root))
        .routes(routes!(web::file))
        .routes(routes!(operations::openapi))
}

fn health() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default()
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
}

fn metrics() -> OpenApiRouter<ApiState> {
    OpenApiRouter::default().routes(routes!(operations::metrics))
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Chatelaine", description = "A chat backend that keeps the keys of its users' MCP servers."),
    components(schemas(problem::ProblemDocument, problem::OpenAiError, domain::event::Transient,
        domain::event::StreamEnd, events::EndOfStream, crate::app::tools::approvals::notices::ApprovalNotice)),
    modifiers(&Bearer),
    security(("bearer" = [])),
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        openapi
            .components
            .get_or_insert_default()
            .add_security_scheme("bearer", scheme);
    }
}
