//! Why a request of A2A was not done: in the protocol's own words where it has some, else in HTTP's.

use std::collections::HashMap;

use ::a2a::{A2AError, BAD_REQUEST_TYPE, FieldViolation, TypedDetail};
use serde::Serialize;
use serde_json::Value;

use crate::{api::problem::Problem, domain::error::Error};

pub(super) enum RequestError {
    Said(A2AError),
    Http(Problem),
}

impl From<A2AError> for RequestError {
    fn from(error: A2AError) -> Self {
        Self::Said(error)
    }
}

impl From<Problem> for RequestError {
    fn from(problem: Problem) -> Self {
        Self::Http(problem)
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { field, reason, .. } => invalid(&field, &reason.into_text()),
            Error::Conflict(_, why) => Self::Said(A2AError::unsupported_operation(why)),
            other => Self::Http(other.into()),
        }
    }
}

/// A parameter that cannot be used.
pub(super) fn invalid(field: &str, reason: &str) -> RequestError {
    let violation = FieldViolation {
        field: field.to_owned(),
        description: reason.to_owned(),
    };
    let violations = serde_json::to_value([violation]).unwrap_or_default();
    let detail = TypedDetail::new(
        BAD_REQUEST_TYPE,
        HashMap::from([("fieldViolations".to_owned(), violations)]),
    );
    RequestError::Said(
        A2AError::invalid_params(format!("{field}: {reason}")).with_details(vec![detail]),
    )
}

/// As JSON.
pub(super) fn to_json(what: &impl Serialize) -> Result<Value, RequestError> {
    serde_json::to_value(what).map_err(|error| RequestError::Http(Error::internal(error).into()))
}
