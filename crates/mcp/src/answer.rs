//! Reads the answers of a server in its messages.
//!
//! Only an error with a JSON-RPC code means that a request was refused; everything else that is no result is a lost answer.

use serde_json::value::RawValue;

use super::{
    error::Failure,
    redaction::{Redactor, clip},
};
use domain::{
    encoding::replace_lone_surrogates,
    jsonrpc::{self, ErrorObject, Message, UNSUPPORTED_VERSION},
};

/// The result of a request, or why there is none.
pub(super) type Answer = Result<Box<RawValue>, Failure>;

/// The most revisions of a server that are named in an error.
const MAX_REVISIONS: usize = 8;

/// The answer in a response.
pub(super) fn read(message: &Message<'_>, redactor: &Redactor) -> Answer {
    match (message.is_jsonrpc(), message.result, message.error) {
        (true, Some(result), None) => Ok(result.to_owned()),
        (true, None, Some(error)) => Err(read_error(error, redactor)),
        _ => Err(Failure::Lost(
            "the answer of the server is not a JSON-RPC answer".to_owned(),
        )),
    }
}

/// Reads a body as the answer to the request with this id; `None` when it is no answer to it. `takes_any_error`: an error
/// with another id is an answer, too, since nothing else is open at the server.
pub(super) fn read_body(
    body: &[u8],
    id: i64,
    takes_any_error: bool,
    redactor: &Redactor,
) -> Option<Answer> {
    let text = String::from_utf8_lossy(body);
    let text = replace_lone_surrogates(&text);
    let message = Message::parse(&text).ok()?;
    let is_answer = match message.known_id() {
        Some(found) if number(found) == Some(id) => true,
        Some(_) => takes_any_error && message.error.is_some(),
        // The server could not read the id.
        None => message.error.is_some(),
    };
    (is_answer && message.method.is_none() && message.is_jsonrpc())
        .then(|| read(&message, redactor))
}

fn read_error(error: &RawValue, redactor: &Redactor) -> Failure {
    let Ok(error) = jsonrpc::object::<ErrorObject>(error.get()) else {
        return Failure::Lost(format!(
            "the server answered with an error that has no JSON-RPC code: {}",
            redactor.excerpt(error.get())
        ));
    };
    let code = error.code;
    let message = error.message.filter(|message| !message.trim().is_empty());
    let message = message.map_or_else(
        || format!("the server answered with error {code} and no words"),
        |message| redactor.excerpt(&message),
    );
    if code == UNSUPPORTED_VERSION {
        return Failure::OtherRevision {
            supported: error.data.map(read_revisions).unwrap_or_default(),
            message,
        };
    }
    Failure::Refused {
        code: Some(code),
        message,
    }
}

/// The revisions that a server names in the data of an error.
fn read_revisions(data: &RawValue) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let named = jsonrpc::object::<Data>(data.get()).map(|data| data.supported);
    let named = named.unwrap_or_default().into_iter().take(MAX_REVISIONS);
    named.map(|revision| clip(&revision)).collect()
}

/// The id of a request of ours: a number, which some servers send back as a text.
pub(super) fn number(id: &RawValue) -> Option<i64> {
    id.get().trim_matches('"').parse().ok()
}
