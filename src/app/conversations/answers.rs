//! A text that answers something: the question of a flow, or one that a server put to the user.

use crate::{
    app::{App, elicitations, flows},
    domain::{
        error::Result,
        ids::{ConversationId, RunId},
        pack::Pack,
        principal::Principal,
        run::RunKind,
    },
    store::Tx,
};

/// A text that answers something that was asked in its conversation.
pub enum Caught {
    Flow(flows::Caught),
    Elicited(elicitations::Caught),
}

impl Caught {
    pub(super) fn shown(&self) -> &str {
        match self {
            Self::Flow(caught) => &caught.shown,
            Self::Elicited(caught) => &caught.shown,
        }
    }

    pub(super) fn kind(&self) -> RunKind {
        match self {
            Self::Flow(_) => RunKind::Command,
            Self::Elicited(caught) => caught.kind(),
        }
    }

    pub(super) async fn deliver(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        match self {
            Self::Flow(caught) => caught.deliver(tx, run).await,
            Self::Elicited(caught) => caught.deliver(tx, run).await,
        }
    }
}

/// What a text answers, if it answers something: a field by its name, or else the flow before a server's question. Asked
/// before anything of it is stored.
pub async fn catch(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    id: ConversationId,
    text: &str,
    field: Option<&str>,
) -> Result<Option<Caught>> {
    if field.is_some()
        && let Some(caught) = elicitations::catch(app, principal, id, text, field).await?
    {
        return Ok(Some(Caught::Elicited(caught)));
    }
    if let Some(caught) = flows::catch(app, principal, pack, id, text, field).await? {
        return Ok(Some(Caught::Flow(caught)));
    }
    Ok(elicitations::catch(app, principal, id, text, field).await?.map(Caught::Elicited))
}
