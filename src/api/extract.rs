//! Extractors: the caller of a request, and its input in the right type. Input that cannot be used becomes a
//! [`Problem`] that names the field and the reason.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::{FromRequest, FromRequestParts, Request};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts};
use ipnet::IpNet;
use serde::de::DeserializeOwned;

use super::{ApiState, body::read_json_body, layers, limits::RequestPermit, problem::Problem};
use crate::app::accounts;
use domain::error::ErrorCode;
use domain::principal::{Principal, Scope};

/// A caller with a valid credential whose principal is within its rate.
pub(super) struct Authenticated(pub accounts::Caller);

impl FromRequestParts<ApiState> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        Self::at(parts, state, None).await
    }
}

impl Authenticated {
    /// The caller at the MCP endpoint of an agent, or, without one, anywhere else.
    async fn at(
        parts: &mut Parts,
        state: &ApiState,
        endpoint: Option<&str>,
    ) -> Result<Self, Problem> {
        let address = parts.extensions.get::<Peer>().map(|peer| peer.0);
        let accounts = &state.app.accounts;
        let mut caller = accounts
            .authenticate(&values_of(&parts.headers), address, endpoint)
            .await?;
        if caller.principal.locale.is_none() {
            caller.principal.locale = first_language(&parts.headers).map(str::to_owned);
        }
        layers::name_caller(&caller.principal);
        let permit = parts.extensions.get::<RequestPermit>();
        let left = state.limits.count(&caller.principal).inspect_err(|_| {
            if let Some(permit) = permit {
                permit.set_left(0);
            }
        })?;
        if let Some(permit) = permit {
            permit.set_left(left);
            permit.count_for(&caller.principal)?;
        }
        Ok(Self(caller))
    }
}

/// A caller who opens an event stream: with a credential, or with a ticket in the address.
pub(super) struct Listener {
    pub principal: Principal,
    /// Whether the credential has the scope `admin`; a ticket has no scope.
    pub is_admin: bool,
}

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
            return Ok(Self {
                is_admin: caller.admin().is_ok(),
                principal: caller.principal,
            });
        };
        Anonymous::from_request_parts(parts, state).await?;
        let principal = accounts::tickets::redeem(&state.app, &ticket).await?;
        layers::name_caller(&principal);
        Ok(Self {
            principal,
            is_admin: false,
        })
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

/// A caller whose credential has the scope `chat`.
pub(super) struct Caller(pub accounts::Caller);

impl Caller {
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }
}

impl FromRequestParts<ApiState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        Self::at(parts, state, None).await
    }
}

impl Caller {
    /// Like [`Authenticated::at`], with the scope `chat`.
    pub async fn at(
        parts: &mut Parts,
        state: &ApiState,
        endpoint: Option<&str>,
    ) -> Result<Self, Problem> {
        let Authenticated(caller) = Authenticated::at(parts, state, endpoint).await?;
        caller.require(Scope::Chat)?;
        Ok(Self(caller))
    }
}

/// The address that a request comes from. An IPv6 address is cut to its network, because one customer has a whole
/// network.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub IpAddr);

impl Peer {
    /// Reads the address. Behind trusted proxies it is the last one in `X-Forwarded-For` that is not a proxy's.
    pub fn new(address: IpAddr, headers: &HeaderMap, trusted_proxies: &[IpNet]) -> Self {
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

/// An IPv4 address as it is; the first 64 bits of an IPv6 address.
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

/// A caller with or without a credential: [`Caller`], or [`Anonymous`] and `None`.
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

/// The ids in the path. A malformed id is answered with 404.
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<ApiState> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0))
            .map_err(|_| Problem::not_found("what this path names"))
    }
}

/// The query of a request, parsed into a type.
pub(super) struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<ApiState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|rejection| {
            // The source reads `<parameter>: <reason>`, or only the reason when it concerns no single parameter.
            let text = std::error::Error::source(&rejection)
                .map_or_else(|| rejection.to_string(), ToString::to_string);
            match text.split_once(": ") {
                Some((field, reason)) if !field.contains(' ') => problem_of_serde(field, reason),
                _ => problem_of_serde("query", &text),
            }
        })
    }
}

/// The query of a route without parameters. Any parameter is refused.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParameters {}

/// The JSON body of a request, parsed into a type.
pub(super) struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        parse(&read_json_body(request, state).await?).map(Self)
    }
}

/// Parses a body as JSON of a type.
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
            problem_of_serde(&path, &inner.to_string())
        } else {
            malformed(&inner)
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// Makes a problem of serde's message about a wrong value: a code for the case, and a clause that continues the name of
/// the field. The value is left out, because it may be a secret in the wrong field.
fn problem_of_serde(path: &str, message: &str) -> Problem {
    let message = message
        .split_once(" at line ")
        .map_or(message, |(message, _line)| message);
    let below = |name: &str| match path {
        "." => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    let quoted = message.split('`').nth(1).unwrap_or_default();
    let (code, field, reason) = if message.starts_with("missing field") {
        (
            ErrorCode::MissingField,
            below(quoted),
            "is missing".to_owned(),
        )
    } else if let Some((_, known)) = message
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
        (ErrorCode::WrongType, path.to_owned(), clause_of(message))
    };
    let field = if field == "." { "body" } else { &field };
    Problem::unfit(code, field, reason)
}

/// A clause for a wrong value: `must be an object` for `invalid type: string, expected a map`.
fn clause_of(message: &str) -> String {
    if let Some((_, wanted)) = message.rsplit_once(", expected ") {
        // The names of Rust types mean nothing to a client.
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
    let clause = known.iter().find(|(sign, _)| message.contains(sign));
    clause.map_or(message, |(_, clause)| clause).to_owned()
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

/// An answer with the address of the resource that was made, in `Location`.
pub(super) type Located<T> = (StatusCode, [(header::HeaderName, String); 1], axum::Json<T>);

/// Answers 201 with the address of the new resource: its id below the path of the request.
pub(super) fn created<T>(uri: &Uri, id: impl std::fmt::Display, body: T) -> Located<T> {
    let location = format!("{}/{id}", uri.path().trim_end_matches('/'));
    located(StatusCode::CREATED, location, body)
}

/// Answers with a status and the address of the resource.
pub(super) fn located<T>(status: StatusCode, location: String, body: T) -> Located<T> {
    (status, [(header::LOCATION, location)], axum::Json(body))
}

/// The most characters of a user's id: 255 at its issuer or frontend, after the longest prefix.
pub(super) const MAX_USER: usize = 330;
/// The most characters of one message.
pub(super) const MAX_TEXT: usize = 32_768;

/// Checks text from a client: not blank, not too long, and without the one character that Postgres cannot store.
pub(super) fn check_text(field: &str, text: &str, max: usize) -> Result<(), Problem> {
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
