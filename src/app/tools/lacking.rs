//! Why there is no such tool in a toolbox, in the sentences of the AOS document. What is kept from some is told to
//! nobody: where the answer could say something of it, there is none, and a tool that one may not see is as unknown as
//! one that is not there.

use super::Toolbox;
use crate::domain::policy::hears_of_allowlist;

impl Toolbox {
    /// The servers that its principal can reach and whose tools are not known yet, in the pack's order.
    pub(in crate::app) fn awaited(&self) -> impl Iterator<Item = &str> {
        let servers = self.all.specs.iter().zip(&self.all.catalogs).zip(&self.usable);
        let unknown = servers.filter(|((spec, catalog), usable)| **usable && catalog.is_none() && spec.load_tools);
        unknown.map(|((spec, _), _)| spec.id.as_str())
    }

    /// Of a tool that is not in it, by its server and its own name.
    pub(in crate::app) fn obstacle(&self, server: &str, tool: &str) -> Option<String> {
        let at = self.all.specs.iter().position(|spec| spec.id.as_str() == server);
        if at.is_some_and(|at| hears_of_allowlist(&self.all.specs[at], &self.standing, tool)) {
            return Some(not_allowlisted(server, tool));
        }
        // Of a server that one has to connect to first, everything is unknown.
        let absent = at.is_none_or(|at| self.usable[at] && self.all.catalogs[at].is_none());
        absent.then(|| not_available(server))
    }
}

fn not_allowlisted(server: &str, tool: &str) -> String {
    format!("Tool {tool:?} is not allowlisted for MCP server {server:?}")
}

/// Of a server that is not there, by whatever name, or does not answer.
pub(in crate::app) fn not_available(server: &str) -> String {
    format!("MCP server {server:?} is not available")
}
