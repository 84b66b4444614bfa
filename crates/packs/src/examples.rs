//! Reads a file of examples for `chatelaine policy test`: calls, and what should become of each.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Map, Value};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    field::Field,
    native::read_vars,
    object::Object,
    parse_context::{ParseContext, UnsetPolicy},
    report::{Position, Report},
};
use domain::{
    config::Environment,
    ids::{AgentId, ServerId, UserId},
    json::{Json, Members},
    policy::{Origin, Vars},
};

/// The most examples of a file.
const MAX_EXAMPLES: usize = 10_000;

/// The ways on which a call comes.
pub const ORIGINS: [(&str, Origin); 5] = [
    ("chat", Origin::Chat),
    ("run", Origin::Run),
    ("command", Origin::Command),
    ("skill", Origin::Skill),
    ("mcp", Origin::Mcp),
];

/// A call, and what should become of it.
#[derive(Clone, Debug)]
pub struct Example {
    pub at: Position,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    pub arguments: Json,
    pub user: UserId,
    /// Roles that the person has beside those in `claims`.
    pub roles: Vec<String>,
    pub claims: Map<String, Value>,
    pub is_guest: bool,
    pub origin: Origin,
    /// Absent: now.
    pub time: Option<OffsetDateTime>,
    /// In place of the pack's.
    pub vars: Option<Vars>,
    /// The arguments of calls of the same tool that the person has made before, at the same time.
    pub earlier: Vec<Json>,
    pub expected: Expected,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Allow,
    /// Whom it waits for, and for how many of them, where that is said.
    Approve {
        roles: Option<BTreeSet<String>>,
        votes: Option<u32>,
    },
    /// The person who calls is asked.
    Confirm,
    /// The call is not made, for this reason if one is said.
    Deny {
        reason: Option<String>,
    },
}

/// Reads the text of a file of this name. Examples that name no agent are about `agent`. The report has every problem.
pub fn read_examples(
    file: &str,
    text: &str,
    agent: Option<&AgentId>,
) -> Result<Vec<Example>, Report> {
    let env = Environment::default();
    let context = ParseContext::new(file, text, &env, UnsetPolicy::Refused);
    let root = context.parse();
    let examples = root
        .as_ref()
        .and_then(|root| read_all(&Field::new(&context, root, ""), agent));
    let (problems, _) = context.finish();
    let mut report = Report::default();
    report.add(problems);
    match examples {
        Some(examples) if report.is_ok() => Ok(examples),
        _ => Err(report),
    }
}

fn read_all(field: &Field, agent: Option<&AgentId>) -> Option<Vec<Example>> {
    let mut object = field.object()?;
    let own = object
        .optional("agent")
        .and_then(|field| read_agent(&field));
    let agent = own.or_else(|| agent.cloned());
    let server = object
        .optional("server")
        .and_then(|field| read_server(&field));
    let hint = "write one `- { tool: send_money, args: {…}, expect: allow }` a line";
    let items = object.required("examples", hint)?.list()?;
    if items.len() > MAX_EXAMPLES {
        field.error(
            format!("has more than {MAX_EXAMPLES} examples"),
            "split the file",
        );
        return None;
    }
    let read = |field: &Field| read_one(field, agent.as_ref(), server.as_ref());
    let examples = items.iter().filter_map(read).collect();
    object.finish();
    Some(examples)
}

fn read_one(field: &Field, agent: Option<&AgentId>, server: Option<&ServerId>) -> Option<Example> {
    let mut object = field.object()?;
    let own = object
        .optional("agent")
        .and_then(|field| read_agent(&field));
    let agent = or_of_file(&object, "agent", own, agent);
    let own = object
        .optional("server")
        .and_then(|field| read_server(&field));
    let server = or_of_file(&object, "server", own, server);
    let tool = object.required("tool", "name the tool: `tool: send_money`");
    let tool = tool.and_then(|field| field.non_blank_text());
    let arguments = object
        .optional("args")
        .and_then(|field| read_arguments(&field));
    let earlier = object.optional("earlier").and_then(|field| field.list());
    let earlier = earlier.unwrap_or_default();
    let user = object
        .optional("user")
        .and_then(|field| field.non_blank_text());
    let roles = object.optional("roles").map(|field| field.text_values());
    let claims = object.optional("claims").and_then(|field| read_map(&field));
    let guest = object.optional("guest").and_then(|field| field.boolean());
    let origin = object
        .optional("origin")
        .and_then(|field| field.one_of(&ORIGINS));
    let time = object.optional("time").and_then(|field| read_time(&field));
    let vars = read_vars(&mut object);
    let expected = object.required("expect", EXPECT);
    let expected = expected.and_then(|field| read_expected(&field));
    object.finish();
    Some(Example {
        at: field.at,
        agent: agent?,
        server: server?,
        tool: tool?.value,
        arguments: arguments.unwrap_or_else(|| Json::Object(Members::default())),
        user: UserId(user.map_or_else(|| "somebody".into(), |user| Arc::from(user.value))),
        roles: roles.unwrap_or_default(),
        claims: claims.unwrap_or_default(),
        is_guest: guest.unwrap_or_default(),
        origin: origin.unwrap_or_default(),
        time,
        vars,
        earlier: earlier.iter().filter_map(read_arguments).collect(),
        expected: expected?,
    })
}

/// What an example says, else what its file says.
fn or_of_file<T: Clone>(
    object: &Object,
    name: &str,
    own: Option<T>,
    of_file: Option<&T>,
) -> Option<T> {
    if object.is_absent(name) && of_file.is_none() {
        object.report_missing(
            name,
            &format!("write `{name}: …` here, or above `examples`"),
        );
    }
    own.or_else(|| of_file.cloned())
}

fn read_agent(field: &Field) -> Option<AgentId> {
    let agent = AgentId::parse(&field.non_blank_text()?.value);
    agent
        .map_err(|problem| field.error(problem, "write the id of a pack"))
        .ok()
}

fn read_server(field: &Field) -> Option<ServerId> {
    let server = ServerId::parse(&field.non_blank_text()?.value);
    server
        .map_err(|problem| field.error(problem, "write the name of a server of the pack"))
        .ok()
}

fn read_map(field: &Field) -> Option<Map<String, Value>> {
    field.entries()?;
    match field.to_json() {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

fn read_arguments(field: &Field) -> Option<Json> {
    read_map(field).map(|members| Json::from(&Value::Object(members)))
}

fn read_time(field: &Field) -> Option<OffsetDateTime> {
    let time = OffsetDateTime::parse(field.as_written(), &Rfc3339).ok();
    if time.is_none() {
        field.error("is no time", "write `2026-11-26T21:30:00Z`");
    }
    time
}

const EXPECT: &str = "write `allow`, `approve`, `confirm`, `deny`, `{ approve: [cfo], votes: 2 }` or `{ deny: why }`";

fn read_expected(field: &Field) -> Option<Expected> {
    if !field.is_map() {
        let approve = Expected::Approve {
            roles: None,
            votes: None,
        };
        return field.one_of(&[
            ("allow", Expected::Allow),
            ("approve", approve),
            ("confirm", Expected::Confirm),
            ("deny", Expected::Deny { reason: None }),
        ]);
    }
    let mut object = field.object()?;
    let roles = object.optional("approve").map(|field| field.text_values());
    let votes = object
        .optional("votes")
        .and_then(|field| field.whole_number(&(1..=20)));
    let reason = object
        .optional("deny")
        .and_then(|field| field.non_blank_text());
    object.finish();
    match (roles, reason) {
        (Some(roles), None) => Some(Expected::Approve {
            roles: Some(roles.into_iter().collect()),
            votes,
        }),
        (None, Some(reason)) if votes.is_none() => Some(Expected::Deny {
            reason: Some(reason.value),
        }),
        _ => {
            field.error("is not clear", EXPECT);
            None
        }
    }
}
