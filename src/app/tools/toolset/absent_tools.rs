//! Why a tool is not in a toolbox, in the sentences of the AOS document. A restricted tool is not revealed:
//! when the answer could say something about it, there is no answer, and a tool that the principal may not
//! see is as unknown as a missing one.

use super::Toolbox;
use crate::domain::{
    connection::DownCause,
    policy::{Decision, decide, may_see_unlisted},
};

impl Toolbox {
    /// The servers that its principal can reach and whose tools are not known yet, in the pack's order.
    pub(in crate::app) fn awaited(&self) -> impl Iterator<Item = &str> {
        let servers = self
            .all
            .specs
            .iter()
            .zip(&self.all.catalogs)
            .zip(&self.usable);
        let unknown = servers
            .filter(|((spec, catalog), usable)| **usable && catalog.is_none() && spec.load_tools);
        unknown.map(|((spec, _), _)| spec.id.as_str())
    }

    /// Of a tool that is not in it, by its server and its own name. `cause`: why a server is down.
    pub(in crate::app) fn obstacle(
        &self,
        server: &str,
        tool: &str,
        cause: impl FnOnce() -> Option<DownCause>,
    ) -> Option<String> {
        let Some(at) = self
            .all
            .specs
            .iter()
            .position(|spec| spec.id.as_str() == server)
        else {
            return Some(not_available(server, None));
        };
        let spec = &self.all.specs[at];
        if may_see_unlisted(spec, &self.access, tool) {
            return Some(not_allowlisted(server, tool));
        }
        if !self.usable[at] {
            // Nothing is known of the tool; only principals who could call it are told what to do.
            let may = !matches!(decide(spec, &self.access, tool), Decision::Deny(_));
            return may.then(|| format!("{server} is not connected; type /connect {server}"));
        }
        self.all.catalogs[at]
            .is_none()
            .then(|| not_available(server, cause()))
    }
}

fn not_allowlisted(server: &str, tool: &str) -> String {
    format!("Tool {tool:?} is not allowlisted for MCP server {server:?}")
}

/// The sentence about a server that does not exist, whatever its name, or does not answer. What only somebody can mend
/// is said with it.
pub(in crate::app) fn not_available(server: &str, cause: Option<DownCause>) -> String {
    let lasting = cause.filter(|cause| cause.is_lasting());
    let why = lasting.map(|cause| format!(": {}", cause.sentence()));
    format!(
        "MCP server {server:?} is not available{}",
        why.unwrap_or_default()
    )
}
