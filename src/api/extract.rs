//! What handlers take from a request: the caller, and input that already has the right type. Input that
//! cannot be used becomes a [`Problem`] that names the field and the reason.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use axum::extract::{FromRequest, FromRequestParts, Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts};
use http_body_util::BodyExt;
use ipnet::IpNet;
use serde::de::DeserializeOwned;

use super::{ApiState, layers, limits::RequestPermit, problem::Problem, sockets::Socket};
use crate::{
    app::accounts,
    domain::principal::{Principal, Scope},
};

/// A caller with a valid credential that is within its rate.
pub(super) struct Authenticated(pub accounts::Caller);

impl FromRequestParts<ApiState> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let address = parts.extensions.get::<Peer>().map(|peer| peer.0);
        let caller = state
            .app
            .accounts
            .authenticate(&values_of(&parts.headers), address)
            .await?;
        layers::name_caller(&caller.principal);
        let place = parts.extensions.get::<RequestPermit>();
        let left = state.limits.count(&caller.principal).inspect_err(|_| {
            if let Some(place) = place {
                place.set_left(0);
            }
        })?;
        if let Some(place) = place {
            place.set_left(left);
            place.count_for(&caller.principal)?;
        }
        Ok(Self(caller))
    }
}

/// A caller who listens to events: with a credential like any other, or with a ticket in the address.
pub(super) struct Listener(pub Principal);

#[derive(serde::Deserialize)]
struct Ticket {
    ticket: Option<String>,
}

impl FromRequestParts<ApiState> for Listener {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let Query(Ticket { ticket }) = Query::from_request_parts(parts, state).await?;
        let Some(ticket) = ticket.filter(|_| !parts.headers.contains_key(header::AUTHORIZATION))
        else {
            let Caller(caller) = Caller::from_request_parts(parts, state).await?;
            return Ok(Self(caller.principal));
        };
        Anonymous::from_request_parts(parts, state).await?;
        let principal = accounts::tickets::redeem(&state.app, &ticket).await?;
        layers::name_caller(&principal);
        Ok(Self(principal))
    }
}

/// The values of a request's headers, by name, for code that does not know HTTP.
pub fn values_of<'a>(headers: &'a HeaderMap) -> impl Fn(&str) -> Vec<&'a [u8]> + Sync + 'a {
    |name| {
        let sent = headers.get_all(name).iter();
        sent.map(HeaderValue::as_bytes).collect()
    }
}

/// A caller whose credential is for talking to agents.
pub(super) struct Caller(pub accounts::Caller);

impl Caller {
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }
}

impl FromRequestParts<ApiState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, state).await?;
        caller.require(Scope::Chat)?;
        Ok(Self(caller))
    }
}

/// The address that a request comes from. Of an IPv6 address only the network, since one customer has a whole
/// network.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub IpAddr);

impl Peer {
    /// Behind trusted proxies it is the last address in `X-Forwarded-For` that is not one of them.
    pub fn of(address: IpAddr, headers: &HeaderMap, trusted_proxies: &[IpNet]) -> Self {
        let is_trusted = |address: &IpAddr| trusted_proxies.iter().any(|net| net.contains(address));
        let address = address.to_canonical();
        if !is_trusted(&address) {
            return Self(network(address));
        }
        let lines = headers.get_all("x-forwarded-for").iter().rev();
        let forwarded = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.rsplit(','))
            .map_while(|text| text.trim().parse::<IpAddr>().ok())
            .map(|address| address.to_canonical())
            .find(|address| !is_trusted(address));
        Self(network(forwarded.unwrap_or(address)))
    }
}

/// An IPv4 address, or the first 64 bits of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// A caller without a credential, whose address is within its rate.
pub(super) struct Anonymous;

impl FromRequestParts<ApiState> for Anonymous {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        state
            .limits
            .count_address(parts.extensions.get::<Peer>().map(|peer| peer.0))?;
        Ok(Self)
    }
}

/// Somebody who may say who they are: with a credential a [`Caller`], without one [`Anonymous`].
pub(super) struct MaybeAuthenticated(pub Option<accounts::Caller>);

impl FromRequestParts<ApiState> for MaybeAuthenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        if parts.headers.contains_key(header::AUTHORIZATION) {
            return Caller::from_request_parts(parts, state)
                .await
                .map(|caller| Self(Some(caller.0)));
        }
        Anonymous::from_request_parts(parts, state)
            .await
            .map(|_| Self(None))
    }
}

/// A path's ids. One that is malformed names nothing, so it is not found.
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<ApiState> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0))
            .map_err(|_| Problem::not_found("what this path names"))
    }
}

/// The query, typed.
pub(super) struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<ApiState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|rejection| {
            // The source reads `<parameter>: <reason>`, or just the reason when no one parameter is to blame.
            let text = std::error::Error::source(&rejection)
                .map_or_else(|| rejection.to_string(), ToString::to_string);
            match text.split_once(": ") {
                Some((field, reason)) if !field.contains(' ') => Problem::invalid(field, reason),
                _ => Problem::invalid("query", text),
            }
        })
    }
}

/// A JSON body, typed.
pub(super) struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        parse(&body(request, state).await?).map(Self)
    }
}

/// The whole body of a request that says that it is JSON.
pub(super) async fn body(request: Request, state: &ApiState) -> Result<Bytes, Problem> {
    if !is_json(request.headers()) {
        let detail = "the body must be JSON; send `content-type: application/json`";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            detail,
        ));
    }
    let ordinary = state.app.config.max_body_bytes;
    let holds_images = IMAGE_PATHS
        .iter()
        .any(|path| request.uri().path().starts_with(path));
    let limit = if holds_images {
        ordinary.max(MAX_IMAGE_BODY)
    } else {
        ordinary
    };
    read_body(request, ordinary, limit).await
}

/// Clients of these routes send all images of a chat in each request.
const IMAGE_PATHS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/ui/chat",
    "/v1/agui/",
];
const MAX_IMAGE_BODY: usize = 32 << 20;

/// A body has to arrive within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The body of a caller without a credential has to arrive within this time.
const UNKNOWN_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The whole body of a request, of at most `limit` bytes. While it arrives, the request does not count among
/// those in progress, and its connection may be closed when there are too many. Of those that are larger than
/// `ordinary` only some are read at once.
pub(super) async fn read_body(
    request: Request,
    ordinary: usize,
    limit: usize,
) -> Result<Bytes, Problem> {
    let place = request.extensions().get::<RequestPermit>().cloned();
    let socket = request.extensions().get::<Arc<Socket>>().cloned();
    let known = place
        .as_ref()
        .is_some_and(RequestPermit::is_principal_known);
    let time = if known {
        BODY_TIMEOUT
    } else {
        UNKNOWN_BODY_TIMEOUT
    };
    if let Some(place) = &place {
        place.release();
    }
    let waiting = socket.as_ref().map(Socket::wait);
    let large = async || match &place {
        Some(place) => place.hold_large_body().await,
        None => Ok(()),
    };
    let body = tokio::time::timeout(time, read(request, ordinary, limit, large)).await;
    drop(waiting);
    let body = body.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} seconds", time.as_secs());
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(Problem::new(status, "request_timeout", detail))
    })?;
    if let Some(place) = &place {
        place.reacquire()?;
    }
    Ok(body)
}

fn is_json(headers: &HeaderMap) -> bool {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media = media
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"))
}

/// The whole body. The rest of a body that is too large is read and dropped for a while: a client that is cut
/// off while writing never reads why.
async fn read(
    request: Request,
    ordinary: usize,
    limit: usize,
    large: impl AsyncFn() -> Result<(), Problem>,
) -> Result<Bytes, Problem> {
    let mut body = request.into_body();
    let (mut bytes, mut size) = (BytesMut::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let broken = |_| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "broken_body",
                "the body could not be read to its end",
            )
        };
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        let before = size;
        size = size.saturating_add(data.len());
        if before <= ordinary && size > ordinary && limit > ordinary {
            large().await?;
        }
        if size <= limit {
            bytes.extend_from_slice(&data);
        } else if size > limit.saturating_mul(8) {
            break;
        }
    }
    if size > limit {
        let detail = format!("the body is larger than {limit} bytes");
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            detail,
        ));
    }
    Ok(bytes.freeze())
}

/// A typed body of JSON.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde would read a list as the fields in their order, which no client intends.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("body", "must be an object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() {
            Problem::invalid(
                if path == "." { "body".to_owned() } else { path },
                unquoted(&inner.to_string()),
            )
        } else {
            malformed(&inner)
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// serde's message about a wrong value, without the value, which may be a secret in the wrong field, and
/// without the names of Rust types.
fn unquoted(said: &str) -> String {
    let Some((wrong, wanted)) = said.rsplit_once(", expected ") else {
        return said.to_owned();
    };
    let wrong = [
        "invalid type: string",
        "invalid value: string",
        "unknown variant",
    ]
    .into_iter()
    .find(|kind| wrong.starts_with(kind))
    .unwrap_or(wrong);
    let wanted = match wanted
        .strip_prefix("struct ")
        .and_then(|wanted| wanted.split_once(' '))
    {
        Some((_, place)) => format!("an object {place}"),
        None => wanted.to_owned(),
    };
    format!("{wrong}, expected {wanted}")
}

fn malformed(error: &serde_json::Error) -> Problem {
    let mut problem = Problem::new(
        StatusCode::BAD_REQUEST,
        "malformed_json",
        format!("not JSON: {error}"),
    );
    problem.field = Some("body".to_owned());
    problem
}

/// An answer that says where the thing is that was made or begun.
pub(super) type Located<T> = (StatusCode, [(header::HeaderName, String); 1], axum::Json<T>);

/// 201 with the address of the new thing: its id below the path of the request.
pub(super) fn created<T>(uri: &Uri, id: impl std::fmt::Display, body: T) -> Located<T> {
    let location = format!("{}/{id}", uri.path().trim_end_matches('/'));
    located(StatusCode::CREATED, location, body)
}

/// The same with another status or address.
pub(super) fn located<T>(status: StatusCode, location: String, body: T) -> Located<T> {
    (status, [(header::LOCATION, location)], axum::Json(body))
}

/// The most characters of one message.
pub(super) const MAX_TEXT: usize = 32_768;

/// Text that can be kept and read: not blank, not too long, and without the one character that Postgres
/// cannot store.
pub(super) fn readable(field: &str, text: &str, max: usize) -> Result<(), Problem> {
    if text.trim().is_empty() {
        return Err(Problem::invalid(field, "must not be blank"));
    }
    if text.contains('\0') {
        return Err(Problem::invalid(
            field,
            "must not contain the character U+0000",
        ));
    }
    if text.len() > max && text.chars().count() > max {
        return Err(Problem::invalid(
            field,
            format!("must have at most {max} characters"),
        ));
    }
    Ok(())
}
