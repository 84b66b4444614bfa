//! Version 0.3 of the protocol: the same things in another spelling. `kind` says what a part is, roles and states are
//! lower case, files stand in an object of their own, and `blocking` is the opposite of `returnImmediately`.

use ::a2a::methods;
use serde_json::{Map, Value, json};

use super::ProtocolVersion;

/// Its methods, and what they are called now.
const METHODS: [(&str, &str); 10] = [
    ("message/send", methods::SEND_MESSAGE),
    ("message/stream", methods::SEND_STREAMING_MESSAGE),
    ("tasks/get", methods::GET_TASK),
    ("tasks/cancel", methods::CANCEL_TASK),
    ("tasks/resubscribe", methods::SUBSCRIBE_TO_TASK),
    (
        "tasks/pushNotificationConfig/set",
        methods::CREATE_PUSH_CONFIG,
    ),
    ("tasks/pushNotificationConfig/get", methods::GET_PUSH_CONFIG),
    (
        "tasks/pushNotificationConfig/list",
        methods::LIST_PUSH_CONFIGS,
    ),
    (
        "tasks/pushNotificationConfig/delete",
        methods::DELETE_PUSH_CONFIG,
    ),
    (
        "agent/getAuthenticatedExtendedCard",
        methods::GET_EXTENDED_AGENT_CARD,
    ),
];

pub(super) fn is_method(name: &str) -> Option<ProtocolVersion> {
    METHODS
        .iter()
        .any(|(old, _)| *old == name)
        .then_some(ProtocolVersion::Legacy)
}

/// The current name of a method.
pub(super) fn method(name: &str) -> &str {
    METHODS
        .iter()
        .find(|(old, _)| *old == name)
        .map_or(name, |(_, new)| new)
}

/// Parameters in the current spelling. A value that 0.3 does not have is left as it is; the reader of the
/// parameters refuses it.
pub(super) fn params(mut params: Value) -> Value {
    if let Some(message) = params.get_mut("message").and_then(Value::as_object_mut) {
        message.remove("kind");
        if let Some(role) = message.get_mut("role") {
            match role.as_str() {
                Some("user") => *role = json!("ROLE_USER"),
                Some("agent") => *role = json!("ROLE_AGENT"),
                _ => {}
            }
        }
        for part in message
            .get_mut("parts")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(part) = part.as_object_mut() {
                part.remove("kind");
                if let Some(Value::Object(file)) = part.remove("file") {
                    part.extend(unfolded(file));
                }
            }
        }
    }
    if let Some(configuration) = params
        .get_mut("configuration")
        .and_then(Value::as_object_mut)
        && let Some(Value::Bool(blocking)) = configuration.remove("blocking")
    {
        configuration.insert("returnImmediately".to_owned(), json!(!blocking));
    }
    params
}

fn unfolded(file: Map<String, Value>) -> Map<String, Value> {
    let spellings = [
        ("uri", "url"),
        ("bytes", "raw"),
        ("name", "filename"),
        ("mimeType", "mediaType"),
    ];
    let renamed = |(name, value): (String, Value)| {
        let new = spellings
            .iter()
            .find(|(old, _)| *old == name)
            .map(|(_, new)| (*new).to_owned());
        (new.unwrap_or(name), value)
    };
    file.into_iter().map(renamed).collect()
}

/// A task in the spelling of 0.3.
pub(super) fn task(mut task: Value) -> Value {
    task["kind"] = json!("task");
    if let Some(state) = task["status"]["state"].as_str() {
        let state = state
            .trim_start_matches("TASK_STATE_")
            .to_lowercase()
            .replace('_', "-");
        task["status"]["state"] = json!(state);
    }
    if let Some(message) = task["status"].get_mut("message") {
        message["kind"] = json!("message");
        message["role"] = json!("agent");
        parts(message);
    }
    for artifact in task
        .get_mut("artifacts")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        parts(artifact);
    }
    task
}

/// Adds its `kind` to each part.
fn parts(of: &mut Value) {
    for part in of
        .get_mut("parts")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let kind = if part.get("text").is_some() {
            "text"
        } else {
            "data"
        };
        part["kind"] = json!(kind);
    }
}
