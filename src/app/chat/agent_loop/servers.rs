//! What a run says of its servers before it begins: which take part, and which do not and why. A server that is
//! down, or that lacks a tool of its allowlist, costs the run only what is missing.

use std::sync::Arc;

use super::RunWorker;
use crate::{
    app::{
        servers::{connections::State, credentials},
        tools::toolset,
    },
    domain::{error::Result, event::Transient, pack::Pack},
};

impl RunWorker {
    /// Tells whoever listens to the conversation.
    pub(super) async fn report_servers(&self, pack: &Arc<Pack>) -> Result<()> {
        let run_id = self.run.id;
        let views = credentials::views(&self.app, &self.run.principal, pack).await?;
        let toolbox = toolset::toolbox(&self.app, &self.run.principal, pack).await?;
        for (spec, view) in pack.servers.iter().zip(views) {
            let server = view.server;
            let reason = match view.state {
                State::Ready { .. } | State::Configured | State::Saved => {
                    let tools = toolbox.iter().filter(|(of, _)| of.id == spec.id).count();
                    let transport = spec.endpoint.transport();
                    self.transient(Transient::ServerStarted {
                        run_id,
                        server: server.clone(),
                        transport,
                        tools,
                    });
                    if view.missing.is_empty() {
                        continue;
                    }
                    format!("Tools not discovered: {}", view.missing.join(", "))
                }
                State::Down { reason, .. } => format!("Server unreachable: {reason}"),
                State::Connecting if view.tools == 0 => "Server still connecting".to_owned(),
                // The other states are reported elsewhere: the user must act first, or has not begun.
                State::Connecting | State::NotConfigured | State::NeedsAttention { .. } => continue,
            };
            let missing_tools = view.missing;
            self.transient(Transient::ServerUnavailable {
                run_id,
                server,
                reason,
                missing_tools,
            });
        }
        Ok(())
    }
}
