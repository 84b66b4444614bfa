//! What handlers take from a request: the caller, and input that already has the right type. Input that
//! cannot be used becomes a [`Problem`] that names the field and the reason.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::{FromRequest, FromRequestParts, Request};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts};
use ipnet::IpNet;
use serde::de::DeserializeOwned;

use super::{ApiState, body::body, layers, limits::RequestPermit, problem::Problem};
use crate::domain::error::ErrorCode;
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
        let mut caller = state
            .app
            .accounts
            .authenticate(&values_of(&parts.headers), address)
            .await?;
        if caller.principal.locale.is_none() {
            caller.principal.locale = first_language(&parts.headers).map(str::to_owned);
        }
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

/// The language that the sender of a request asks for first.
pub(super) fn first_language(headers: &HeaderMap) -> Option<&str> {
    let wanted = headers.get(header::ACCEPT_LANGUAGE)?.to_str().ok()?;
    let tag = wanted.split([',', ';']).next()?.trim();
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ((2..=35).contains(&tag.len()) && tag.bytes().all(is_letter)).then_some(tag)
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
pub(super) struct Anonymous(pub Option<IpAddr>);

impl FromRequestParts<ApiState> for Anonymous {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let address = parts.extensions.get::<Peer>().map(|peer| peer.0);
        state.limits.count_address(address)?;
        Ok(Self(address))
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
                Some((field, reason)) if !field.contains(' ') => unfit(field, reason),
                _ => unfit("query", &text),
            }
        })
    }
}

/// The query of a list without parameters: any that is there is a mistake.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParameters {}

/// A JSON body, typed.
pub(super) struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        parse(&body(request, state).await?).map(Self)
    }
}

/// A typed body of JSON.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde would read a list as the fields in their order, which no client intends.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::unfit(
            ErrorCode::WrongType,
            "body",
            "must be an object",
        ));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() {
            unfit(&path, &inner.to_string())
        } else {
            malformed(&inner)
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// serde's message about a wrong value: its own code, a clause that reads on from the field, and not the value, which may
/// be a secret in the wrong field.
fn unfit(path: &str, said: &str) -> Problem {
    let said = said
        .split_once(" at line ")
        .map_or(said, |(said, _place)| said);
    let below = |name: &str| match path {
        "." => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    let quoted = said.split('`').nth(1).unwrap_or_default();
    let (code, field, reason) = if said.starts_with("missing field") {
        (
            ErrorCode::MissingField,
            below(quoted),
            "is missing".to_owned(),
        )
    } else if let Some((_, known)) = said
        .split_once("unknown field")
        .and_then(|(_, rest)| rest.split_once(", "))
    {
        let known = known
            .replace("expected one of", "expected")
            .replace("expected ", "");
        let reason = if known == "there are no fields" {
            "is not known here; leave it out".to_owned()
        } else {
            format!("is not known here; there is {known}")
        };
        (ErrorCode::UnknownField, path.to_owned(), reason)
    } else {
        (ErrorCode::WrongType, path.to_owned(), must_be(said))
    };
    let field = if field == "." { "body" } else { &field };
    Problem::unfit(code, field, reason)
}

/// `invalid type: string, expected a map` as a clause.
fn must_be(said: &str) -> String {
    if let Some((_, wanted)) = said.rsplit_once(", expected ") {
        // The names of Rust types are nobody's business.
        let is_type = wanted.starts_with("struct ") || wanted == "a map";
        let wanted = match wanted {
            _ if is_type => "an object",
            "a sequence" => "a list",
            wanted => wanted,
        };
        return format!("must be {wanted}");
    }
    let known = [
        ("digit", "must be a whole number"),
        ("too large", "must be a smaller number"),
        ("UUID", "must be a UUID"),
        ("`true` or `false`", "must be `true` or `false`"),
        ("component", "must be a time such as 2026-01-31T12:00:00Z"),
        (
            "OffsetDateTime",
            "must be a time such as 2026-01-31T12:00:00Z",
        ),
    ];
    let clause = known.iter().find(|(sign, _)| said.contains(sign));
    clause.map_or(said, |(_, clause)| clause).to_owned()
}

fn malformed(error: &serde_json::Error) -> Problem {
    let mut problem = Problem::new(
        StatusCode::BAD_REQUEST,
        ErrorCode::MalformedJson,
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

/// The most characters of a user's id: 255 of the source, after the longest prefix.
pub(super) const MAX_USER: usize = 330;
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
        return Err(Problem::unfit(
            ErrorCode::TooLong,
            field,
            format!("must have at most {max} characters"),
        ));
    }
    Ok(())
}
