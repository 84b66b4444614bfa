//! Completes the OpenAPI document that the handlers declare with what holds for all of them: the statuses of refusals,
//! the shape of an error, the headers, that an object without named members may have any, the events of a stream, and
//! the examples. A handler declares the codes of errors that are its own as the description of a status, separated by
//! commas.

use std::collections::BTreeSet;

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

/// A status of refusals: its meaning, and the codes that any request may get with it.
struct Refusal {
    status: &'static str,
    meaning: &'static str,
    codes: &'static [ErrorCode],
}

const fn refusal(
    status: &'static str,
    meaning: &'static str,
    codes: &'static [ErrorCode],
) -> Refusal {
    Refusal {
        status,
        meaning,
        codes,
    }
}

const REFUSALS: [Refusal; 16] = [
    refusal(
        "400",
        "The input cannot be used; `field` names it",
        &[
            ErrorCode::MissingField,
            ErrorCode::UnknownField,
            ErrorCode::WrongType,
            ErrorCode::TooLong,
            ErrorCode::Invalid,
            ErrorCode::MalformedJson,
            ErrorCode::BrokenBody,
        ],
    ),
    refusal(
        "401",
        "No credential, or one that is not good any more",
        &[ErrorCode::Unauthenticated],
    ),
    refusal(
        "403",
        "Known, and not allowed",
        &[
            ErrorCode::Forbidden,
            ErrorCode::TenantSuspended,
            ErrorCode::UserBlocked,
        ],
    ),
    refusal(
        "404",
        "There is no such thing, or the caller may not see it",
        &[ErrorCode::NotFound, ErrorCode::UnknownPath],
    ),
    refusal(
        "405",
        "This path does not answer to that method",
        &[ErrorCode::MethodNotAllowed],
    ),
    refusal("406", "The client does not take the answer's format", &[]),
    refusal(
        "408",
        "The body did not arrive in time",
        &[ErrorCode::RequestTimeout],
    ),
    refusal(
        "409",
        "The thing is in a state in which this cannot be done",
        &[ErrorCode::Conflict],
    ),
    refusal(
        "412",
        "The thing was changed since `If-Match` was read",
        &[],
    ),
    refusal("413", "The body is too large", &[ErrorCode::BodyTooLarge]),
    refusal(
        "415",
        "The body is not of a type that is taken here",
        &[ErrorCode::UnsupportedMediaType],
    ),
    refusal(
        "422",
        "What was sent does not work, or its `Idempotency-Key` belongs to another request",
        &[],
    ),
    refusal(
        "429",
        "Too much; wait as long as `Retry-After` says",
        &[ErrorCode::RateLimited, ErrorCode::TooManyAtOnce],
    ),
    refusal(
        "500",
        "An error of the service; its log has the `request_id`",
        &[ErrorCode::Internal],
    ),
    refusal(
        "502",
        "A model or a server does not work",
        &[ErrorCode::Unavailable],
    ),
    refusal(
        "503",
        "Too much at once, or stopping; wait as long as `Retry-After` says",
        &[
            ErrorCode::Overloaded,
            ErrorCode::Busy,
            ErrorCode::KeysUnreadable,
        ],
    ),
];
/// The refusals of any request.
const OF_ALL: [&str; 8] = ["400", "401", "403", "404", "405", "429", "500", "503"];
/// The further refusals of requests with a body.
const OF_BODIES: [&str; 5] = ["408", "409", "413", "415", "502"];

/// The headers of answers, by the name of their component.
const HEADERS: [(&str, &str, &str); 12] = [
    ("Allow", "string", "The methods that the path takes."),
    ("ETag", "string", "For `If-Match` of a change."),
    ("Location", "string", "Where it is."),
    (
        "RateLimit",
        "string",
        "How many requests are left: `\"requests\";r=599;t=1`, and one more after `t` seconds.",
    ),
    (
        "RateLimit-Policy",
        "string",
        "How many requests a minute has: `\"requests\";q=600;w=60`.",
    ),
    (
        "Retry-After",
        "integer",
        "After how many seconds the same request may be sent again.",
    ),
    (
        "WWW-Authenticate",
        "string",
        "How to authenticate (RFC 6750).",
    ),
    (
        "x-conversation-id",
        "string",
        "The conversation in which the run is.",
    ),
    (
        "x-ignored-parameters",
        "string",
        "The parameters that have no effect here, separated by commas.",
    ),
    (
        "x-request-id",
        "string",
        "The id of the request, which the log has, too.",
    ),
    ("x-run-id", "string", "The run that answers."),
    (
        "x-should-retry",
        "string",
        "`false`: the request has begun something, so a client must not send it again by itself.",
    ),
];
/// The ends of the paths that begin a run and answer with what it says: their answers name the run.
const ANSWERED: [&str; 5] = [
    "/chat/completions",
    "/responses",
    "/ui/chat",
    "/agui/{agent}",
    "/skills/{skill}",
];

/// The paths that only admins call, among those of version 1.
const OF_ADMINS: [&str; 4] = [
    "/v1/admin/",
    "/v1/mcp-servers",
    "/v1/secrets",
    "/v1/oauth-clients",
];
const SCHEMAS: &str = "#/components/schemas/";
/// Real answers, which `.ci/examples` has collected.
const EXAMPLES: &str = include_str!("examples.json");

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
    let mut document =
        serde_json::to_value(tell_apart(openapi)).expect("a document of plain data can be written");
    document["servers"] = json!([{ "url": "/", "description": "Where this document was read" }]);
    type_events(&mut document);
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        unions::write_out(schemas);
    }
    type_files(&mut document);
    document["components"]["schemas"]["ProblemDocument"]["properties"]["code"]["enum"] =
        json!(ErrorCode::ALL);
    for (name, kind, description) in HEADERS {
        document["components"]["headers"][name] =
            json!({ "schema": { "type": kind }, "description": description });
    }
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        // What can be changed on a condition says which state it has.
        let takes_etag = parameters(&item["put"]).any(|one| one["name"] == "If-Match")
            || path.ends_with("/mcp-servers");
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let is_keyed = method == "post" && KEYED.iter().any(|end| path.ends_with(end));
            add_refusals(path, method, is_keyed, operation);
            add_headers(path, method, takes_etag, operation);
            if is_keyed {
                // The key alone tells callers without a credential apart, so it must be longer.
                add_key(operation, if path.ends_with("/guests") { 16 } else { 1 });
            }
        }
    }
    open_objects(&mut document);
    add_examples(&mut document);
    document
}

/// Adds the examples: of bodies and answers by operation and status, and of schemas.
fn add_examples(document: &mut Value) {
    let examples: Value = serde_json::from_str(EXAMPLES).expect("the file is JSON");
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let operations = paths.flat_map(|(_, item)| item.as_object_mut().into_iter().flatten());
    for (_, operation) in operations {
        let id = operation["operationId"].as_str().unwrap_or_default();
        for (of, example) in examples["operations"][id].as_object().into_iter().flatten() {
            let described = match of.as_str() {
                "request" => &mut operation["requestBody"],
                status => &mut operation["responses"][status],
            };
            described["content"]["application/json"]["example"] = example.clone();
        }
    }
    for (name, of_schema) in examples["schemas"].as_object().into_iter().flatten() {
        document["components"]["schemas"][name]["examples"] = of_schema.clone();
    }
}

fn parameters(operation: &Value) -> impl Iterator<Item = &Value> {
    operation["parameters"].as_array().into_iter().flatten()
}

/// Leaves of a document what the frontends of users call: version 1 without administration, and the schemas that are
/// used there.
pub(super) fn keep_for_users(mut document: Value) -> Value {
    let is_for_users = |path: &str| {
        path.starts_with("/v1/") && !OF_ADMINS.iter().any(|prefix| path.starts_with(prefix))
    };
    if let Some(paths) = document["paths"].as_object_mut() {
        paths.retain(|path, _| is_for_users(path));
    }
    let mut used = BTreeSet::new();
    add_used(
        &document["paths"],
        &document["components"]["schemas"],
        &mut used,
    );
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.retain(|name, _| used.contains(name));
    }
    document
}

/// Adds the names of the schemas to which a part of the document refers, and of those to which they do.
fn add_used(part: &Value, schemas: &Value, used: &mut BTreeSet<String>) {
    match part {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str);
            if let Some(name) = name.and_then(|to| to.strip_prefix(SCHEMAS))
                && used.insert(name.to_owned())
            {
                add_used(&schemas[name], schemas, used);
            }
            fields
                .values()
                .for_each(|field| add_used(field, schemas, used));
        }
        Value::Array(items) => items.iter().for_each(|item| add_used(item, schemas, used)),
        _ => {}
    }
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
fn add_refusals(path: &str, method: &str, is_keyed: bool, operation: &mut Value) {
    let is_public = operation["security"] == json!([{}]);
    let has_body =
        operation.get("requestBody").is_some() || ["post", "put", "patch"].contains(&method);
    let content = content_of_refusals(path);
    let Some(responses) = operation["responses"].as_object_mut() else {
        return;
    };
    for Refusal {
        status,
        meaning,
        codes,
    } in REFUSALS
    {
        let declared = responses.get(status);
        // An answer with a body of its own, such as what is missing of 503.
        if declared.is_some_and(|response| response.get("content").is_some()) {
            continue;
        }
        let declared = declared.and_then(|response| response["description"].as_str());
        let mut own: Vec<&str> = declared.map_or_else(Vec::new, |own| own.split(", ").collect());
        match status {
            "409" if is_keyed => own.push(ErrorCode::RepeatedRequest.as_str()),
            "422" if is_keyed => own.push(ErrorCode::IdempotencyKeyReused.as_str()),
            _ => {}
        }
        let applies = match status {
            "401" | "403" if is_public => false,
            status if OF_BODIES.contains(&status) => {
                has_body || method == "delete" && status == "409"
            }
            status => OF_ALL.contains(&status),
        };
        if !applies && own.is_empty() {
            continue;
        }
        let mut description = meaning.to_owned();
        if !own.is_empty() {
            let quoted: Vec<_> = own.iter().map(|code| format!("`{code}`")).collect();
            description = format!("{meaning}. Of this operation: {}", quoted.join(", "));
        }
        own.extend(codes.iter().map(|code| code.as_str()));
        match (ErrorFormat::for_path(path), status) {
            (ErrorFormat::OpenAi, "401") => own = vec!["invalid_api_key"],
            (ErrorFormat::OpenAi, "429") => own = vec!["rate_limit_exceeded"],
            _ => {}
        }
        let refusal =
            json!({ "description": description, "x-error-codes": own, "content": content });
        responses.insert(status.to_owned(), refusal);
    }
    let other = json!({ "description": "Not done, and why", "content": content });
    responses.insert("default".to_owned(), other);
}

/// The body of the refusals at a path.
fn content_of_refusals(path: &str) -> Value {
    let schema = |name: &str| json!({ "schema": { "$ref": format!("{SCHEMAS}{name}") } });
    let problem = || schema("ProblemDocument");
    match ErrorFormat::for_path(path) {
        ErrorFormat::Problem | ErrorFormat::Registry => {
            json!({ "application/problem+json": problem() })
        }
        ErrorFormat::OpenAi => json!({ "application/json": schema("OpenAiError") }),
        ErrorFormat::Sentence => json!({
            "text/plain": { "schema": { "type": "string" } },
            "application/problem+json": problem(),
        }),
    }
}

/// Describes the answers of an operation, and declares the headers of all its responses.
fn add_headers(path: &str, method: &str, takes_etag: bool, operation: &mut Value) {
    let is_public = operation["security"] == json!([{}]);
    let is_counted = !is_public && !path.starts_with("/.well-known");
    let is_answered = method == "post" && ANSWERED.iter().any(|end| path.ends_with(end));
    let is_streamed_again = path == "/v1/ui/chat/{id}/stream";
    let begins_run = method == "post" && (path.ends_with("/messages") || path.ends_with("/runs"));
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        let (meaning, is_done) = match status.as_str() {
            "200" => ("Done", true),
            "201" => ("Made", true),
            "202" => ("Begun", true),
            "204" => ("Done; there is nothing to say", true),
            _ => ("An answer", false),
        };
        if response["description"].as_str().is_none_or(str::is_empty) {
            response["description"] = json!(meaning);
        }
        let is_refused_at_work =
            is_answered && ["400", "409", "502", "503"].contains(&status.as_str());
        let ignores = is_answered && !path.contains("/ui/") && !path.contains("/skills/");
        let is_counted_answer = is_counted && !["401", "405"].contains(&status.as_str());
        let names_run =
            is_answered && is_done || is_refused_at_work || is_streamed_again && status == "200";
        let asks_to_wait =
            response.get("x-error-codes").is_some() && ["429", "503"].contains(&status.as_str());
        let sent = [
            ("x-request-id", true),
            ("Location", status == "201" || status == "202" && begins_run),
            ("ETag", takes_etag && method != "delete" && is_done),
            ("RateLimit", is_counted_answer),
            ("RateLimit-Policy", is_counted_answer),
            ("Retry-After", asks_to_wait),
            ("WWW-Authenticate", status == "401"),
            ("Allow", status == "405"),
            ("x-conversation-id", names_run),
            ("x-run-id", names_run),
            ("x-ignored-parameters", ignores && is_done),
            ("x-should-retry", is_refused_at_work),
        ];
        for (name, _) in sent.into_iter().filter(|(_, is_sent)| *is_sent) {
            response["headers"][name] = json!({ "$ref": format!("#/components/headers/{name}") });
        }
    }
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
        all.push(json!({ "$ref": format!("{SCHEMAS}{schema}") }));
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
        .map(|schema| json!({ "$ref": format!("{SCHEMAS}{schema}") }));
    schemas.insert(
        "UserEvent".to_owned(),
        json!({ "oneOf": of_user, "description": "An event of a user, by its name." }),
    );
    for (path, schema) in [
        ("/v1/conversations/{id}/events", "ConversationEvent"),
        ("/v1/events", "UserEvent"),
    ] {
        let stream = &mut document["paths"][path]["get"]["responses"]["200"]["content"];
        stream["text/event-stream"]["schema"] = json!({ "$ref": format!("{SCHEMAS}{schema}") });
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

/// Tells apart the operations that are mounted at two paths, and describes those of the operator.
fn tell_apart(mut openapi: OpenApi) -> OpenApi {
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
            let Some(id) = &mut operation.operation_id else {
                continue;
            };
            if twice.contains(path) && !id.contains("Registry") {
                let verb = id.find(char::is_uppercase).unwrap_or(id.len());
                id.insert_str(verb, "Registry");
            } else if path.starts_with(FOR_TENANT) && path != FOR_TENANT {
                id.push_str("ForTenant");
                let tenant = ParameterBuilder::new()
                    .name("tenant")
                    .parameter_in(ParameterIn::Path)
                    .required(Required::True)
                    .schema(Some(String::schema()))
                    .build();
                let parameters = operation.parameters.get_or_insert_default();
                parameters.insert(0, tenant.into());
                let description = operation.description.take().unwrap_or_default();
                operation.description =
                    Some(description.replacen("For admins", "For the operator", 1));
            }
        }
    }
    openapi
}
