//! Who decides on an approval, and on which approvals.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Approval;
use crate::{
    error::Error,
    ids::{AgentId, TenantId, UserId},
    pack::Pack,
    policy::ToolAccess,
    principal::{Principal, tool_accesses},
};

/// The right to decide requests: the user, and the roles at each agent. [`Principal::approver`] and
/// [`Principal::decider`] are the only ways to get one, so its holder has an approver role now, or is the one whom a
/// confirmation asks.
#[derive(Clone, Debug)]
pub struct Approver {
    principal: Principal,
    name: String,
    roles: BTreeMap<AgentId, BTreeSet<String>>,
}

impl Principal {
    /// The power to decide, by today's packs and the claims that were verified just now. Being one of
    /// `adminUsers` is not enough: a pack that wants them to decide gives them the role.
    pub fn approver(&self, packs: &[Arc<Pack>]) -> Result<Approver, Error> {
        let approver = self.with_roles(packs);
        if approver.roles.is_empty() {
            return Err(Error::Forbidden(
                "you hold none of the roles that may decide".to_owned(),
            ));
        }
        Ok(approver)
    }

    /// The power to decide this request. A confirmation needs no role: it asks its requester.
    pub fn decider(&self, packs: &[Arc<Pack>], approval: &Approval) -> Result<Approver, Error> {
        if approval.asks_requester(&self.user) {
            Ok(self.with_roles(packs))
        } else {
            self.approver(packs)
        }
    }

    fn with_roles(&self, packs: &[Arc<Pack>]) -> Approver {
        let mut roles = BTreeMap::new();
        // Whoever comes with a token of one MCP endpoint decides nothing for others.
        let may_hold = self.authenticated && self.audience.is_service();
        for pack in packs.iter().filter(|_| may_hold) {
            let access = self.access(pack);
            let named = tool_accesses(pack)
                .flat_map(ToolAccess::policies)
                .flat_map(|policy| &policy.approvers);
            let held: BTreeSet<String> = named
                .filter(|role| access.roles.contains(*role))
                .cloned()
                .collect();
            if !held.is_empty() {
                roles.insert(pack.id().clone(), held);
            }
        }
        Approver {
            principal: self.clone(),
            name: self.display_name(),
            roles,
        }
    }
}

impl Approver {
    pub fn tenant(&self) -> TenantId {
        self.principal.tenant
    }

    pub fn user(&self) -> &UserId {
        &self.principal.user
    }

    /// Who they are, in the session that they came with.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// What to call them.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether one of their roles is among those that decide about this request. A confirmation has none.
    pub fn holds_role_for(&self, approval: &Approval) -> bool {
        let held = self.roles.get(&approval.agent);
        held.is_some_and(|held| {
            approval
                .rule
                .approvers
                .iter()
                .any(|role| held.contains(role))
        })
    }

    /// Whether both hold the same roles.
    pub fn has_roles_of(&self, other: &Self) -> bool {
        self.roles == other.roles
    }

    /// Whether they may decide it. Nobody decides their own where the policy says so, and nobody but its requester
    /// decides a confirmation, admins included.
    pub fn may_decide(&self, approval: &Approval) -> bool {
        let own = self.user() == approval.requester();
        let by_role = self.holds_role_for(approval) && (!own || approval.rule.self_approval);
        let asks_them = approval.asks_requester(self.user())
            && self.principal.audience.includes(approval.agent.as_str());
        self.tenant() == approval.tenant && (by_role || asks_them)
    }

    /// Every (agent, role), as two columns.
    pub fn columns(&self) -> (Vec<String>, Vec<String>) {
        let pairs = self
            .roles
            .iter()
            .flat_map(|(agent, roles)| roles.iter().map(move |role| (agent, role)));
        pairs
            .map(|(agent, role)| (agent.to_string(), role.clone()))
            .unzip()
    }
}
