//! Completes the OpenAPI document that the handlers declare with what holds for all of them: the statuses of refusals,
//! the shape of an error, that an object without named members may have any, and the events of a stream.

use serde_json::{Map, Value, json};
use utoipa::{
    PartialSchema,
    openapi::{
        OpenApi, Required,
        path::{ParameterBuilder, ParameterIn},
    },
};

use super::{
    FOR_TENANT,
    problem::ErrorFormat,
    unions::{self, camel},
};
use domain::error::ErrorCode;

/// The statuses of refusals, and their meaning.
const REFUSALS: [(&str, &str); 16] = [
    ("400", "The input cannot be used; `field` names it"),
    ("401", "No credential, or one that is not good any more"),
    ("403", "Known, and not allowed"),
    (
        "404",
        "There is no such thing, or the caller may not see it",
    ),
    ("405", "This path does not answer to that method"),
    ("408", "The body did not arrive in time"),
    (
        "409",
        "The thing is in a state in which this cannot be done",
    ),
    ("412", "The thing was changed since `If-Match` was read"),
    ("413", "The body is too large"),
    ("415", "The body is not JSON"),
    (
        "422",
        "What was sent does not work, or its `Idempotency-Key` belongs to another request",
    ),
    ("429", "Too much; wait as long as `Retry-After` says"),
    (
        "500",
        "An error of the service; its log has the `request_id`",
    ),
    ("502", "A model or a server does not work"),
    (
        "503",
        "Too much at once, or stopping; wait as long as `Retry-After` says",
    ),
    ("504", "A server did not answer in time"),
];
/// The refusals of any request.
const OF_ALL: [&str; 8] = ["400", "401", "403", "404", "405", "429", "500", "503"];
/// The further refusals of requests with a body.
const OF_BODIES: [&str; 7] = ["408", "409", "412", "413", "415", "422", "502"];

/// The ends of the paths whose `POST` takes an `Idempotency-Key`, because it makes or begins something.
const KEYED: [&str; 16] = [
    "/guests",
    "/conversations",
    "/messages",
    "/attachments",
    "/ticket",
    "/skills/{skill}",
    "/runs",
    "/chat/completions",
    "/responses",
    "/ui/chat",
    "/agui/{agent}",
    "/webhooks",
    "/tenants",
    "/mcp-servers",
    "/keys",
    "/issuers",
];

/// The events of a conversation: the name, and the schema and variant of its data.
const EVENTS: [(&str, &str, usize); 10] = [
    ("message", "EventKind", 0),
    ("run", "EventKind", 1),
    ("delta", "Transient", 0),
    ("reset", "Transient", 1),
    ("tool_started", "Transient", 2),
    ("tool_progress", "Transient", 3),
    ("tool_finished", "Transient", 4),
    ("title", "Transient", 5),
    ("server_started", "Transient", 6),
    ("server_unavailable", "Transient", 7),
];

/// Completes the document that the handlers declare.
pub(super) fn complete(openapi: OpenApi) -> Value {
    let mut document = serde_json::to_value(name_operations(openapi))
        .expect("a document of plain data can be written");
    document["servers"] = json!([{ "url": "/", "description": "Where this document was read" }]);
    type_events(&mut document);
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        unions::write_out(schemas);
    }
    type_files(&mut document);
    document["components"]["schemas"]["ProblemDocument"]["properties"]["code"]["enum"] =
        json!(ErrorCode::ALL);
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            add_refusals(path, method, operation);
            if method == "post" && KEYED.iter().any(|end| path.ends_with(end)) {
                // The key alone tells callers without a credential apart, so it must be longer.
                add_key(operation, if path.ends_with("/guests") { 16 } else { 1 });
            }
        }
    }
    open_objects(&mut document);
    document
}

/// Describes files as bytes; the derive takes `Vec<u8>` for a list of numbers.
fn type_files(part: &mut Value) {
    const FILE: &str = "application/octet-stream";
    match part {
        Value::Object(fields) => {
            // Inserted last, after a form where both are taken: generators of clients use the first one.
            if fields.shift_remove(FILE).is_some() {
                let file = json!({ "schema": { "type": "string", "format": "binary" } });
                fields.insert(FILE.to_owned(), file);
            }
            fields.values_mut().for_each(type_files);
        }
        Value::Array(items) => items.iter_mut().for_each(type_files),
        _ => {}
    }
}

/// Declares the header with which a client marks a repeated request.
fn add_key(operation: &mut Value, shortest: usize) {
    let description = "Sent again with the same key within a day, the request makes nothing new and is answered as the \
                       first one was";
    let key = json!({
        "name": "Idempotency-Key", "in": "header", "required": false, "description": description,
        "schema": { "type": "string", "minLength": shortest, "maxLength": 255 },
    });
    match operation["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(key),
        None => operation["parameters"] = json!([key]),
    }
}

/// Describes each status of an operation, and declares the refusals.
fn add_refusals(path: &str, method: &str, operation: &mut Value) {
    let is_public = operation["security"] == json!([{}]);
    let has_body =
        operation.get("requestBody").is_some() || ["post", "put", "patch"].contains(&method);
    let schema =
        |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
    let problem = || schema("ProblemDocument");
    let content = match ErrorFormat::for_path(path) {
        ErrorFormat::Problem | ErrorFormat::Registry => {
            json!({ "application/problem+json": problem() })
        }
        ErrorFormat::OpenAi => json!({ "application/json": schema("OpenAiError") }),
        ErrorFormat::Sentence => json!({
            "text/plain": { "schema": { "type": "string" } },
            "application/problem+json": problem(),
        }),
    };
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    for (status, response) in responses.iter_mut() {
        let description = match status.as_str() {
            "200" => "Done",
            "201" => "Made",
            "202" => "Begun",
            "204" => "Done; there is nothing to say",
            "303" => "The answer is elsewhere",
            _ => "An answer",
        };
        let begins_run =
            method == "post" && (path.ends_with("/messages") || path.ends_with("/runs"));
        if status == "201" || status == "202" && begins_run {
            response["headers"]["Location"] =
                json!({ "schema": { "type": "string" }, "description": "Where it is." });
        }
        let given = response["description"].as_str().unwrap_or_default();
        if given.is_empty() {
            response["description"] = json!(description);
        }
    }
    for (status, description) in REFUSALS {
        let applies = match status {
            "401" | "403" if is_public => false,
            status if OF_BODIES.contains(&status) => {
                has_body || method == "delete" && status == "409"
            }
            status => OF_ALL.contains(&status),
        };
        if applies && !responses.contains_key(status) {
            let refusal = json!({ "description": description, "content": content });
            responses.insert(status.to_owned(), refusal);
        }
    }
    let other = json!({ "description": "Not done, and why", "content": content });
    responses.insert("default".to_owned(), other);
}

/// Says that an object that names no members may have any. Without this, typed clients take it for an empty one.
fn open_objects(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            let is_object = match fields.get("type") {
                Some(Value::String(kind)) => kind == "object",
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
                _ => false,
            };
            let member_keys = [
                "properties",
                "additionalProperties",
                "oneOf",
                "anyOf",
                "allOf",
            ];
            if is_object && !member_keys.iter().any(|key| fields.contains_key(*key)) {
                fields.insert("additionalProperties".to_owned(), json!(true));
            }
            fields.values_mut().for_each(open_objects);
        }
        Value::Array(items) => items.iter_mut().for_each(open_objects),
        _ => {}
    }
}

/// Makes a schema of each event, with its name and its data, and one of all events of a stream.
fn type_events(document: &mut Value) {
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else {
        return;
    };
    let mut all = Vec::new();
    for (name, kind, variant) in EVENTS {
        let data = schemas[kind]["oneOf"][variant].clone();
        let schema = format!("{}Event", camel(name));
        all.push(json!({ "$ref": format!("#/components/schemas/{schema}") }));
        schemas.insert(schema, event(name, data, kind == "EventKind"));
    }
    for kind in ["EventKind", "Transient"] {
        schemas.remove(kind);
    }
    let notice = json!({ "$ref": "#/components/schemas/ApprovalNotice" });
    all.push(json!({ "$ref": "#/components/schemas/NoticeEvent" }));
    schemas.insert("NoticeEvent".to_owned(), event("notice", notice, false));
    let end = json!({ "$ref": "#/components/schemas/EndOfStream" });
    all.push(json!({ "$ref": "#/components/schemas/EndEvent" }));
    schemas.insert("EndEvent".to_owned(), event("end", end, false));
    schemas.insert(
        "ConversationEvent".to_owned(),
        json!({ "oneOf": all, "description": "An event of a conversation, by its name." }),
    );
    let badge = json!({ "$ref": "#/components/schemas/Badge" });
    schemas.insert("BadgeEvent".to_owned(), event("badge", badge, true));
    let approval = json!({ "$ref": "#/components/schemas/ApprovalView" });
    schemas.insert(
        "ApprovalEvent".to_owned(),
        event("approval", approval, true),
    );
    let of_user = ["BadgeEvent", "ApprovalEvent", "EndEvent"]
        .map(|schema| json!({ "$ref": format!("#/components/schemas/{schema}") }));
    schemas.insert(
        "UserEvent".to_owned(),
        json!({ "oneOf": of_user, "description": "An event of a user, by its name." }),
    );
    for (path, schema) in [
        ("/v1/conversations/{id}/events", "ConversationEvent"),
        ("/v1/events", "UserEvent"),
    ] {
        let stream = &mut document["paths"][path]["get"]["responses"]["200"]["content"];
        stream["text/event-stream"]["schema"] =
            json!({ "$ref": format!("#/components/schemas/{schema}") });
    }
}

/// The schema of one event.
fn event(name: &str, data: Value, is_durable: bool) -> Value {
    let description = data["description"].clone();
    let mut properties = Map::new();
    properties.insert(
        "event".to_owned(),
        json!({ "type": "string", "enum": [name] }),
    );
    properties.insert("data".to_owned(), data);
    if is_durable {
        let id = json!({ "type": "string", "description": "For `Last-Event-ID`." });
        properties.insert("id".to_owned(), id);
    }
    let mut schema = json!({
        "type": "object", "required": ["event", "data"], "properties": properties,
    });
    if !description.is_null() {
        schema["description"] = description;
    }
    schema
}

/// Gives every operation a unique name.
fn name_operations(mut openapi: OpenApi) -> OpenApi {
    let paths = &openapi.paths.paths;
    let twice: Vec<String> = paths
        .keys()
        .filter(|path| paths.contains_key(&format!("/v1{path}")))
        .cloned()
        .collect();
    for (path, item) in &mut openapi.paths.paths {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.patch,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            let tag = operation.tags.iter().flatten().next();
            let alias = if twice.contains(path) {
                "_unversioned"
            } else if path.starts_with(FOR_TENANT) && path != FOR_TENANT {
                let tenant = ParameterBuilder::new()
                    .name("tenant")
                    .parameter_in(ParameterIn::Path)
                    .required(Required::True)
                    .schema(Some(String::schema()))
                    .build();
                operation
                    .parameters
                    .get_or_insert_default()
                    .insert(0, tenant.into());
                if let Some(summary) = &mut operation.summary {
                    summary.insert_str(0, "For the operator: ");
                }
                "_for_tenant"
            } else {
                ""
            };
            operation.operation_id = tag
                .zip(operation.operation_id.as_ref())
                .map(|(tag, id)| format!("{tag}_{id}{alias}"));
        }
    }
    openapi
}
