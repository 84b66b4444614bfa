//! The policy of an agent as one replica tells it to the others, and the pack of a replica beside which others have
//! another policy: while a new pack is rolled out, or where one replica was forgotten. Without this, whoever meets the
//! replica with the laxer pack would pay without consent.
//!
//! The stricter policy decides at every replica. A call must be admitted by each of them, every rule about calls of each
//! of them counts, and only who is in `adminUsers` of all of them is an admin. What a replica says and another one
//! cannot compare (a member of a newer release, another claim for the roles) is *unknown*: then no call is made that
//! may change something, and no approver is asked who may not exist.
//!
//! Prompts, models, addresses and secrets are no part of a policy.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{ApprovalPolicy, DenyRule, Limit, ToolAccess, ToolPattern, Vars};
use crate::{
    canonical,
    ids::ServerId,
    json::Json,
    pack::{Authentication, Pack},
    pin::Pin,
    registry::ServerRef,
    server::ServerSpec,
};

/// The SHA-256 of a policy. Order of members, comments, texts and models of a pack do not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyDigest(pub [u8; 32]);

impl PolicyDigest {
    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).ok()?;
        Some(Self(digest))
    }
}

impl fmt::Display for PolicyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl Serialize for PolicyDigest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicyDigest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("no SHA-256 in hexadecimal"))
    }
}

/// Who may do what at one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentPolicy {
    authentication: Authentication,
    /// What conditions name as `vars`, as canonical JSON.
    vars: String,
    servers: BTreeMap<ServerId, ServerPolicy>,
}

/// Who may call which tools of one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerPolicy {
    pub tools: Option<Vec<ToolPattern>>,
    pub tool_access: Option<ToolAccess>,
    pub pin: Pin,
    pub load_tools: bool,
}

/// What other policies say of a server: those of other replicas, and of packs that have a server at its address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherPolicies {
    /// Each of these must admit a call, beside the server's own.
    pub admitting: Vec<Arc<ServerPolicy>>,
    /// A replica has a policy that this one cannot compare.
    pub is_unknown: bool,
}

/// How the policies that other replicas have of an agent count for a pack. Those that are like the pack's own are among
/// them, so that they hold from the first moment of another pack that takes its place.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyOverride {
    /// The strictest of its own and of these decides; `None` for one that cannot be read.
    Strictest(BTreeMap<PolicyDigest, Option<Arc<AgentPolicy>>>),
    /// The operator has settled that this one decides alone.
    Settled(PolicyDigest, Arc<AgentPolicy>),
}

impl PolicyOverride {
    /// What of it is not the pack's own policy; `None` where all agree.
    pub fn beside(&self, own: PolicyDigest) -> Option<Self> {
        match self {
            Self::Settled(digest, _) => (*digest != own).then(|| self.clone()),
            Self::Strictest(policies) => {
                let mut others = policies.clone();
                others.remove(&own);
                (!others.is_empty()).then_some(Self::Strictest(others))
            }
        }
    }
}

impl AgentPolicy {
    pub fn of(pack: &Pack) -> Self {
        let own = pack.servers.iter();
        let own = own.map(|server| (server.id.clone(), ServerPolicy::of(server)));
        let references = pack.references.iter();
        let references = references.map(|it| (it.alias.clone(), ServerPolicy::of_reference(it)));
        Self {
            authentication: pack.flows.authentication.clone(),
            vars: pack.vars.canonical(),
            // A server that the registry has given for a reference has rules of its address, too.
            servers: references.chain(own).collect(),
        }
    }

    pub fn digest(&self) -> PolicyDigest {
        let text = serde_json::to_vec(self).unwrap_or_default();
        PolicyDigest(Sha256::digest(text).into())
    }

    /// The values of `vars`; `None` where they are no JSON object that conditions can use.
    fn vars(&self) -> Option<Vars> {
        let vars = Json::parse(&self.vars).ok()?;
        Vars::new(vars.as_object()?.clone()).ok()
    }

    /// Whether principals have the same roles and names by both.
    fn names_users_like(&self, other: &Authentication) -> bool {
        let own = Authentication {
            required: other.required,
            admin_users: other.admin_users.clone(),
            ..self.authentication.clone()
        };
        own == *other
    }
}

impl ServerPolicy {
    pub fn of(server: &ServerSpec) -> Self {
        Self {
            tools: server.tools.clone(),
            tool_access: server.tool_access.clone(),
            pin: server.pin,
            load_tools: server.load_tools,
        }
    }

    pub fn of_reference(reference: &ServerRef) -> Self {
        Self {
            tools: reference.tools.clone(),
            tool_access: reference.tool_access.clone(),
            pin: reference.pin,
            load_tools: true,
        }
    }

    /// Of a server that the other replica does not have: nothing of it may be called.
    fn without_tools() -> Self {
        Self {
            tools: Some(Vec::new()),
            tool_access: None,
            pin: Pin::Hold,
            load_tools: false,
        }
    }

    /// Binds its conditions to other `vars` than those of the pack that they are added to.
    #[must_use]
    pub fn bound_to(&self, vars: &Vars) -> Self {
        let mut bound = self.clone();
        let access = bound.tool_access.iter_mut();
        let conditions = access.flat_map(|access| {
            let policies = access.approval.iter_mut().chain(&mut access.confirm);
            let policies = policies.filter_map(|policy| policy.when.as_mut());
            let denied = access.deny.iter_mut().filter_map(|rule| rule.when.as_mut());
            let limits = access.limits.iter_mut();
            policies
                .chain(denied)
                .chain(limits.filter_map(|limit| limit.when.as_mut()))
        });
        for condition in conditions {
            condition.bind(vars);
        }
        bound
    }

    /// What admits calls, without the rules about calls.
    fn admission(&self) -> Self {
        let admission = self.tool_access.as_ref().map(|access| ToolAccess {
            default: access.default,
            public: access.public.clone(),
            roles: access.roles.clone(),
            ..ToolAccess::default()
        });
        Self {
            tool_access: admission,
            pin: Pin::default(),
            ..self.clone()
        }
    }
}

impl Pack {
    /// The pack as this replica may use it beside others with other policies.
    #[must_use]
    pub fn overridden(&self, by: &PolicyOverride) -> Self {
        let mut pack = self.clone();
        let mut version = Sha256::new_with_prefix(&self.version);
        match by {
            PolicyOverride::Settled(digest, policy) => {
                version.update("settled");
                version.update(digest.0);
                pack.replace_policy(policy);
            }
            PolicyOverride::Strictest(others) => {
                for (digest, policy) in others {
                    version.update(digest.0);
                    pack.restrict(policy.as_deref());
                }
            }
        }
        pack.version = hex::encode(version.finalize());
        pack
    }

    /// This pack, which a run began with, as `now`, the pack in force, lets it be used: what one of them forbids is
    /// forbidden. A server that `now` does not have any more has the rules of before: it stays with the run. Both are as
    /// they are for the tenant of the run.
    #[must_use]
    pub fn restricted_by(&self, now: &Self) -> Self {
        let mut pack = self.clone();
        pack.version.clone_from(&now.version);
        // What was not known when the run began may be known now.
        pack.elsewhere_of_servers()
            .for_each(|(_, elsewhere)| elsewhere.is_unknown = false);
        let mut policy = AgentPolicy::of(now);
        for (id, own) in AgentPolicy::of(self).servers {
            policy.servers.entry(id).or_insert(own);
        }
        pack.restrict(Some(&policy));
        let mut now = now.clone();
        let now: BTreeMap<_, _> = now.elsewhere_of_servers().collect();
        for (id, elsewhere) in pack.elsewhere_of_servers() {
            if let Some(now) = now.get(&id) {
                elsewhere.is_unknown |= now.is_unknown;
                elsewhere.admitting.extend(now.admitting.iter().cloned());
            }
        }
        pack
    }

    fn elsewhere_of_servers(&mut self) -> impl Iterator<Item = (ServerId, &mut OtherPolicies)> {
        let references = self.references.iter_mut();
        let references = references.map(|it| (it.alias.clone(), &mut it.elsewhere));
        let servers = self.servers.iter_mut();
        references.chain(servers.map(|it| (it.id.clone(), &mut it.elsewhere)))
    }

    fn replace_policy(&mut self, by: &AgentPolicy) {
        let Some(vars) = by.vars() else {
            return self.restrict(None);
        };
        self.vars = vars;
        self.flows.authentication = by.authentication.clone();
        let missing = ServerPolicy::without_tools();
        let policy = |id: &ServerId| by.servers.get(id).unwrap_or(&missing).clone();
        for server in &mut self.servers {
            let policy = policy(&server.id);
            (server.tools, server.tool_access) = (policy.tools, policy.tool_access);
            (server.pin, server.load_tools) = (policy.pin, policy.load_tools);
        }
        for reference in &mut self.references {
            let policy = policy(&reference.alias);
            (reference.tools, reference.tool_access) = (policy.tools, policy.tool_access);
            reference.pin = policy.pin;
        }
    }

    /// Lets the pack allow only what `by` allows, too; `None` for a policy that cannot be read.
    fn restrict(&mut self, by: Option<&AgentPolicy>) {
        let comparable = by.filter(|by| by.names_users_like(&self.flows.authentication));
        let Some((by, vars)) = comparable.and_then(|by| Some((by, by.vars()?))) else {
            self.elsewhere_of_servers()
                .for_each(|(_, elsewhere)| elsewhere.is_unknown = true);
            return;
        };
        let authentication = &mut self.flows.authentication;
        authentication.required |= by.authentication.required;
        let admins = &by.authentication.admin_users;
        authentication.admin_users.retain(|it| admins.contains(it));
        let missing = ServerPolicy::without_tools();
        let has_same_vars = vars == self.vars;
        let policy = |id: &ServerId| match by.servers.get(id) {
            Some(policy) if has_same_vars => policy.clone(),
            Some(policy) => policy.bound_to(&vars),
            None => missing.clone(),
        };
        for server in &mut self.servers {
            server.restrict(policy(&server.id));
        }
        for reference in &mut self.references {
            let policy = policy(&reference.alias);
            let rules = (&mut reference.tool_access, &mut reference.elsewhere);
            restrict(
                reference.tools.as_deref(),
                rules,
                policy,
                &mut reference.pin,
            );
        }
    }
}

impl ServerSpec {
    /// Lets it allow only what `other` allows, too, and ask for whatever consent `other` wants.
    pub fn restrict(&mut self, other: ServerPolicy) {
        self.load_tools &= other.load_tools;
        let rules = (&mut self.tool_access, &mut self.elsewhere);
        restrict(self.tools.as_deref(), rules, other, &mut self.pin);
    }
}

/// Adds what another policy says of a server to its rules.
fn restrict(
    tools: Option<&[ToolPattern]>,
    (access, elsewhere): (&mut Option<ToolAccess>, &mut OtherPolicies),
    other: ServerPolicy,
    pin: &mut Pin,
) {
    // In the order in which they are declared, the strictest first.
    *pin = (*pin).min(other.pin);
    let own = ServerPolicy {
        tools: tools.map(<[_]>::to_vec),
        tool_access: access.clone(),
        pin: Pin::default(),
        load_tools: other.load_tools,
    };
    let admission = other.admission();
    if admission != own.admission() {
        elsewhere.admitting.push(Arc::new(admission));
    }
    let (Some(access), Some(other)) = (access, other.tool_access) else {
        return;
    };
    add_new::<ApprovalPolicy>(&mut access.approval, other.approval);
    add_new::<ApprovalPolicy>(&mut access.confirm, other.confirm);
    add_new::<DenyRule>(&mut access.deny, other.deny);
    add_new::<Limit>(&mut access.limits, other.limits);
}

fn add_new<R: PartialEq>(rules: &mut Vec<R>, others: Vec<R>) {
    for other in others {
        if !rules.contains(&other) {
            rules.push(other);
        }
    }
}

impl Vars {
    /// Canonical JSON.
    fn canonical(&self) -> String {
        // It was read from JSON or YAML, so its numbers can be written.
        canonical::text(&self.to_json()).unwrap_or_default()
    }
}
