//! A text that answers something: the question of a flow, or one that a server put to the user.

use super::{PendingPost, Posted, Unpublished};
use crate::{
    app::{
        App,
        chat::{elicitations, flows},
    },
    domain::{
        error::Result,
        ids::{ConversationId, RunId},
        message::{Part, Role},
        pack::Pack,
        principal::Principal,
        run::RunKind,
    },
    store::{self, Tx, messages::NewMessage},
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

    /// An answer for which a run waits, and which run.
    pub(super) fn live(&self) -> Option<(&elicitations::Caught, RunId)> {
        match self {
            Self::Flow(_) => None,
            Self::Elicited(caught) => caught.waiting().map(|run| (caught, run)),
        }
    }

    pub(super) async fn deliver(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        match self {
            Self::Flow(caught) => caught.deliver(tx, run).await,
            Self::Elicited(caught) => caught.deliver(tx, run).await,
        }
    }
}

/// Writes an answer into the run that waits for it, and what is asked next. The conversation is locked.
pub(super) async fn hand_over(
    tx: &mut Tx,
    principal: &Principal,
    conversation: ConversationId,
    caught: &elicitations::Caught,
    run: RunId,
) -> Result<PendingPost> {
    caught.deliver(tx, run).await?;
    let parts = [Part::text(caught.shown.clone())];
    let said = NewMessage {
        run: Some(run),
        run_ordinal: 0,
        role: Role::User,
        parts: &parts,
        for_model: false,
    };
    let (message, event) =
        store::messages::append(tx, principal.tenant, conversation, said).await?;
    let mut events = vec![event];
    if !caught.next.is_empty() {
        let (role, parts) = (Role::System, &caught.next);
        let next = NewMessage {
            run: Some(run),
            run_ordinal: 0,
            role,
            parts,
            for_model: false,
        };
        events.push(
            store::messages::append(tx, principal.tenant, conversation, next)
                .await?
                .1,
        );
    }
    let run = store::runs::get(tx, &principal.user, run).await?;
    Ok(PendingPost {
        posted: Posted { message, run },
        unpublished: Unpublished::Events(events),
    })
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
    Ok(elicitations::catch(app, principal, id, text, field)
        .await?
        .map(Caught::Elicited))
}
