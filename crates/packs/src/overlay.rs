//! Reads `MCP_SERVERS_CONFIG`: JSON that replaces `mcp.servers` of every pack, or of the packs that it names. The same
//! schema and rules hold, also for `${NAME}`.
//!
//! Operators use it to keep secrets out of files, so no problem quotes it.

use super::{
    parse_context::{ParseContext, ProblemPlace, UnsetPolicy},
    report::{Position, Problem, Severity},
    yaml::{Node, Origin, Value, join_path},
};
use domain::{config::Environment, secret::Secret};

pub(super) const NAME: &str = "MCP_SERVERS_CONFIG";

pub(super) struct Overlay<'a> {
    text: &'a str,
    root: Node,
}

impl<'a> Overlay<'a> {
    /// Parses strict JSON. Its servers are checked when a pack reads them. After an error here the packs have no
    /// servers: the operator wanted to replace those in their files.
    pub(super) fn parse(secret: &'a Secret) -> (Self, Vec<Problem>) {
        let text = secret.expose();
        let nothing = Node {
            at: Position::default(),
            span: 0..0,
            source: 0,
            origin: Origin::Written,
            note: None,
            value: Value::List(Vec::new()),
        };
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
            let at = format!("line {} column {}", error.line(), error.column());
            let hint = "write an array of servers, or an object of such arrays by pack id";
            let problem =
                Problem::of_file(Severity::Error, NAME, format!("is not JSON ({at})"), hint);
            return (
                Self {
                    text,
                    root: nothing,
                },
                vec![problem],
            );
        }
        let env = Environment::default();
        let context = ParseContext::new(NAME, text, &env, UnsetPolicy::Refused).without_excerpts();
        let mut root = context.parse().unwrap_or_else(|| nothing.clone());
        let fits = match &root.value {
            Value::List(_) => true,
            Value::Map(entries) => entries
                .iter()
                .all(|(_, node)| matches!(node.value, Value::List(_))),
            Value::Scalar { .. } => false,
        };
        if !fits {
            let message = "expected an array of servers, or an object of such arrays".to_owned();
            context.report(
                Severity::Error,
                ProblemPlace {
                    source: 0,
                    at: root.at,
                    path: "",
                },
                message,
                "write `[…]` or `{\"<pack id>\": […]}`",
            );
            root = nothing;
        }
        (Self { text, root }, context.finish().0)
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// A context in which to read the servers of one pack.
    pub(super) fn context(&self, env: &'a Environment, unset: UnsetPolicy) -> ParseContext<'a> {
        ParseContext::new(NAME, self.text, env, unset).without_excerpts()
    }

    /// The list of servers for a pack, and its path in the JSON.
    pub(super) fn servers(&self, pack: &str) -> Option<(&Node, String)> {
        match &self.root.value {
            Value::Map(entries) => {
                let (key, node) = entries.iter().find(|(key, _)| key.text == pack)?;
                Some((node, join_path("", &key.text)))
            }
            _ => Some((&self.root, String::new())),
        }
    }

    /// A problem for each name of a pack that does not exist. `packs` are the ids of all packs.
    pub(super) fn unknown_packs(&self, packs: &[String]) -> Vec<Problem> {
        let Value::Map(entries) = &self.root.value else {
            return Vec::new();
        };
        let env = Environment::default();
        let context =
            ParseContext::new(NAME, self.text, &env, UnsetPolicy::Refused).without_excerpts();
        for (key, _) in entries.iter().filter(|(key, _)| !packs.contains(&key.text)) {
            let message = format!("there is no pack {:?}", key.text);
            let hint = format!("the packs are {}", packs.join(", "));
            let place = ProblemPlace {
                source: 0,
                at: key.at,
                path: &key.text,
            };
            context.report(Severity::Error, place, message, &hint);
        }
        context.finish().0
    }
}
