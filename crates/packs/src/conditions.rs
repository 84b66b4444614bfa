//! Compares the conditions and sums of rules with the arguments of the tools that they are about, where a list of these
//! tools is known. Whoever reads a pack asks no server, so the lists come from elsewhere.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::{
    dialect::servers_of,
    folder::{PackTree, read},
    parse_context::UnsetPolicy,
    report::{Problem, Severity},
    yaml::Node,
};
use domain::{
    config::Environment,
    ids::{AgentId, ServerId},
    pack::Pack,
    policy::{Condition, Limit, SampleCall, ToolAccess, ToolPattern, names::TAKES_UNKNOWN},
    secret::Secret,
    server::ServerSpec,
    tool::Tool,
};

/// The tools of servers, by the pack that names the server.
pub type KnownTools = BTreeMap<(AgentId, ServerId), Vec<Arc<Tool>>>;

/// How rules fit the tools that they are about.
#[derive(Default)]
pub struct ComparedRules {
    /// Warnings: such a rule always applies.
    pub problems: Vec<Problem>,
    /// The servers with rules to compare, of which no list of tools is known.
    pub unknown: Vec<(AgentId, ServerId)>,
}

/// Compares the rules of the servers that packs write out with the tools that are known of them. Packs with errors are
/// left out, and so are servers of the registry, which are other ones for each tenant.
pub fn compare_rules(
    path: &Path,
    env: &Environment,
    mcp_servers: Option<&Secret>,
    known: &KnownTools,
) -> ComparedRules {
    let mut compared = ComparedRules::default();
    for found in read(path, env, mcp_servers, UnsetPolicy::Allowed).packs {
        let Some((pack, tree)) = found.pack.zip(found.tree) else {
            continue;
        };
        for (at, node) in servers_of(&tree.root).iter().enumerate() {
            let name = node.get("name").and_then(Node::scalar_text);
            if let Some(server) = name.and_then(|name| pack.server(name)) {
                let place = ServerPlace {
                    at,
                    node,
                    tree: &tree,
                };
                compared.add(&pack, server, &place, known);
            }
        }
    }
    compared
}

/// A server in the tree of its pack.
struct ServerPlace<'a> {
    at: usize,
    node: &'a Node,
    tree: &'a PackTree,
}

/// What is compared of a rule: its condition, or what a limit adds up.
enum Compared<'a> {
    When(&'a Condition),
    Sum(&'a Limit),
}

impl ComparedRules {
    fn add(
        &mut self,
        pack: &Pack,
        server: &ServerSpec,
        place: &ServerPlace<'_>,
        known: &KnownTools,
    ) {
        let rules: Vec<_> = server.tool_access.iter().flat_map(list_rules).collect();
        let key = (pack.id().clone(), server.id.clone());
        let Some(tools) = known.get(&key) else {
            self.unknown.extend((!rules.is_empty()).then_some(key));
            return;
        };
        for rule in rules {
            let is_of_rule = |tool: &&Arc<Tool>| rule.tools.iter().any(|it| it.matches(&tool.name));
            let of_rule = tools.iter().filter(is_of_rule);
            let mut samples = of_rule.filter_map(|tool| SampleCall::new(tool));
            let problem = samples.find_map(|sample| {
                let message = match rule.compared {
                    Compared::When(when) => sample.find_unfit(when, &pack.vars),
                    Compared::Sum(limit) => sample.find_unreadable(limit),
                };
                Some(place.warn(&rule, message?, &sample.arguments().join(", ")))
            });
            self.problems.extend(problem);
        }
        let open = server.list_open_tools(tools).into_iter();
        self.problems.extend(open.map(|tool| {
            let path = format!("mcp.servers[{}].toolAccess", place.at);
            let node = place.node.get("toolAccess").unwrap_or(place.node);
            let message = format!("the guarded tool {tool:?} {TAKES_UNKNOWN}");
            place.warn_at(node, path, message, None)
        }));
    }
}

struct LocatedRule<'a> {
    /// The list in `toolAccess` that has it.
    list: &'static str,
    at: usize,
    tools: &'a [ToolPattern],
    compared: Compared<'a>,
}

/// The conditions and sums of rules, each with its place.
fn list_rules(access: &ToolAccess) -> impl Iterator<Item = LocatedRule<'_>> {
    let of_policies = [("approval", &access.approval), ("confirm", &access.confirm)];
    let of_policies = of_policies.into_iter().flat_map(|(list, policies)| {
        let rules = policies.iter().enumerate();
        rules.map(move |(at, policy)| (list, at, &policy.tools, policy.when.as_ref()))
    });
    let of_deny = access.deny.iter().enumerate();
    let of_deny = of_deny.map(|(at, rule)| ("deny", at, &rule.tools, rule.when.as_ref()));
    let limits = access.limits.iter().enumerate();
    let of_limits = limits.clone();
    let of_limits = of_limits.map(|(at, limit)| ("limits", at, &limit.tools, limit.when.as_ref()));
    let conditions = of_policies.chain(of_deny).chain(of_limits);
    let conditions = conditions.filter_map(|(list, at, tools, when)| {
        Some(LocatedRule {
            list,
            at,
            tools,
            compared: Compared::When(when?),
        })
    });
    let sums = limits.filter(|(_, limit)| limit.sum.is_some());
    conditions.chain(sums.map(|(at, limit)| LocatedRule {
        list: "limits",
        at,
        tools: &limit.tools,
        compared: Compared::Sum(limit),
    }))
}

impl ServerPlace<'_> {
    fn warn(&self, rule: &LocatedRule<'_>, message: String, arguments: &str) -> Problem {
        let field = match rule.compared {
            Compared::When(_) => "when",
            Compared::Sum(_) => "sum",
        };
        let rules = self.node.get_path(&["toolAccess", rule.list]);
        let written = rules.and_then(|rules| rules.items().get(rule.at));
        let node = written.and_then(|rule| rule.get(field));
        let path = format!(
            "mcp.servers[{}].toolAccess.{}[{}].{field}",
            self.at, rule.list, rule.at
        );
        let hint = format!("the tool takes: {arguments}");
        self.warn_at(node.unwrap_or(self.node), path, message, Some(hint))
    }

    fn warn_at(&self, node: &Node, path: String, message: String, hint: Option<String>) -> Problem {
        Problem {
            severity: Severity::Warning,
            file: self
                .tree
                .files
                .get(node.source)
                .cloned()
                .unwrap_or_default(),
            at: Some(node.at),
            path,
            message,
            hint,
            excerpt: None,
        }
    }
}
