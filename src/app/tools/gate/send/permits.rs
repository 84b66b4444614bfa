//! The permissions to send: each names the decision that allows it.

use std::sync::Arc;

use serde_json::{Map, Value, value::RawValue};

use super::{CallContext, Destination, Permit};
use crate::{
    app::tools::{
        approvals::execution::{self, Claimed},
        toolset::Toolbox,
    },
    domain::{
        error::{Error, Result},
        message::CallStatus,
        policy::Allowed,
        prompt::ServerPrompt,
        server::ServerSpec,
    },
    store::audit::AuditRow,
};

impl<'a> CallContext<'a> {
    async fn permit(
        self,
        server: &'a ServerSpec,
        destination: Destination,
        row: AuditRow,
    ) -> Result<Permit<'a>> {
        let line = if self.is_recorded {
            None
        } else {
            let mut line = self.app.audit.open(row)?;
            line.wait_until_written().await?;
            Some(line)
        };
        Ok(Permit {
            caller: self,
            server,
            destination,
            line,
        })
    }
}

impl<'a> Permit<'a> {
    /// For a call that the policy allows without anybody's consent.
    pub(in crate::app::tools::gate) async fn allowed(
        caller: CallContext<'a>,
        allowed: &Allowed<'a>,
        destination: Destination,
        arguments: &RawValue,
        detail: Option<String>,
    ) -> Result<Self> {
        let what = (allowed.server().id.as_str(), allowed.tool());
        let unknown = CallStatus::OutcomeUnknown;
        let row = caller.audit_row("tool.call", what, arguments.get(), unknown);
        let row = AuditRow { detail, ..row };
        caller.permit(allowed.server(), destination, row).await
    }

    /// For an approved call that this process has claimed. The request is being executed from here on, which is
    /// committed before anything is sent. The inner error says why the request was taken back; `Conflict` when the claim
    /// was lost.
    pub(in crate::app::tools::gate) async fn approved(
        caller: CallContext<'a>,
        claimed: &'a Claimed,
        server: &'a ServerSpec,
        destination: Destination,
    ) -> Result<Result<Self, &'static str>> {
        let what = (claimed.server.as_str(), claimed.tool.as_str());
        let row = AuditRow {
            id: claimed.audit_id(),
            args_sha256: claimed.args_sha256.to_vec(),
            detail: Some(format!("approval {}", claimed.code)),
            ..caller.audit_row("tool.call", what, "", CallStatus::OutcomeUnknown)
        };
        let withdrawn = execution::start(caller.app, claimed, &row).await?;
        Ok(match withdrawn {
            None => Ok(Permit {
                caller,
                server,
                destination,
                line: None,
            }),
            Some(reason) => Err(reason),
        })
    }

    /// For a prompt that the toolbox offers, which it decides by the policy for the server's tools.
    pub(in crate::app::tools::gate) async fn offered(
        caller: CallContext<'a>,
        toolbox: &'a Toolbox,
        (server, prompt): (&'a ServerSpec, &ServerPrompt),
        destination: Destination,
        arguments: &Map<String, Value>,
    ) -> Result<Self> {
        let is_it = |offered: &(&Arc<ServerSpec>, &Arc<ServerPrompt>)| {
            offered.0.id == server.id && offered.1.name == prompt.name
        };
        if toolbox.prompts().find(is_it).is_none() {
            return Err(Error::not_found(format!("prompt {:?}", prompt.name)));
        }
        let arguments = Value::from(arguments.clone()).to_string();
        let what = (server.id.as_str(), prompt.name.as_str());
        let row = caller.audit_row("prompt.get", what, &arguments, CallStatus::Failed);
        caller.permit(server, destination, row).await
    }

    /// For a resource that a result of a tool linked to, if the toolbox still has the tool.
    pub(in crate::app::tools::gate) async fn linked(
        caller: CallContext<'a>,
        toolbox: &'a Toolbox,
        (server, tool): (&ServerSpec, &str),
        destination: Destination,
        uri: &str,
    ) -> Result<Self> {
        let Some((server, _)) = toolbox.by_pair(server.id.as_str(), tool) else {
            return Err(Error::not_found(format!("tool {tool:?}")));
        };
        let what = (server.id.as_str(), tool);
        let row = caller.audit_row("resource.read", what, uri, CallStatus::Failed);
        caller.permit(server, destination, row).await
    }
}
