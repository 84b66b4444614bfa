//! Translates version 0.3 of the protocol, which differs in spelling: `kind` names the type of a part, roles and states
//! are lower case, files stand in an object of their own, and `blocking` is the opposite of `returnImmediately`.

use ::a2a::methods;
use serde_json::{Map, Value, json};

use super::ProtocolVersion;

/// The methods of 0.3, and their current names.
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

/// The version that has a method of this name, if it is 0.3.
pub(super) fn version_of(name: &str) -> Option<ProtocolVersion> {
    METHODS
        .iter()
        .any(|(old, _)| *old == name)
        .then_some(ProtocolVersion::Legacy)
}

/// The current name of a method.
pub(super) fn current_method(name: &str) -> &str {
    METHODS
        .iter()
        .find(|(old, _)| *old == name)
        .map_or(name, |(_, new)| new)
}

/// Translates parameters into the current spelling. A value that 0.3 does not have stays, and the reader of the
/// parameters refuses it.
pub(super) fn current_params(mut params: Value) -> Value {
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
                    part.extend(current_file(file));
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

fn current_file(file: Map<String, Value>) -> Map<String, Value> {
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

/// Translates a task into the spelling of 0.3.
pub(super) fn legacy_task(mut task: Value) -> Value {
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
        add_kinds(message);
    }
    for artifact in task
        .get_mut("artifacts")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        add_kinds(artifact);
    }
    task
}

/// Adds `kind` to each part of a message or an artifact.
fn add_kinds(owner: &mut Value) {
    for part in owner
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
