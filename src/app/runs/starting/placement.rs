//! Where a run takes place: its session, its conversation and its branch.

use super::RunInitiator;
use crate::{
    app::App,
    domain::{
        error::{Error, ErrorCode, Result, Thing},
        ids::{ConversationId, RunId},
        pack::Pack,
        principal::Principal,
        run::{Branch, Conversation},
    },
    store::{self, Tx},
};

/// A session that may be resumed: one of the program's own user, or one that the calling session started.
pub(super) async fn session_of(
    app: &App,
    by: RunInitiator<'_>,
    session: ConversationId,
) -> Result<Conversation> {
    let conversation = own(app, by.principal(), session).await?;
    if let RunInitiator::Run { caller, .. } = by {
        let mut tx = app.db.tenant(caller.principal.tenant).await?;
        let children =
            store::trees::children(&mut tx, &caller.principal.user, caller.session).await?;
        if children.iter().all(|child| child.session != session) {
            return Err(Error::SessionNotFound(session.to_string()));
        }
    }
    Ok(conversation)
}

pub(super) async fn own(
    app: &App,
    principal: &Principal,
    session: ConversationId,
) -> Result<Conversation> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, session, false)
        .await
        .map_err(|error| match error {
            Error::NotFound(_) => Error::SessionNotFound(session.to_string()),
            error => error,
        })
}

/// The conversation, locked. A run has values of its own, so it joins none that waits already.
pub(super) async fn conversation(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    old: Option<ConversationId>,
    text: &str,
) -> Result<Conversation> {
    let Some(id) = old else {
        let title = Conversation::title_from(text);
        let user = &principal.user;
        return store::conversations::insert(tx, user, pack.id(), &title, None).await;
    };
    let found = store::conversations::get(tx, &principal.user, id, true).await;
    let conversation = found.map_err(|_| Error::SessionNotFound(id.to_string()))?;
    if store::runs::waiting(tx, id).await?.is_some() {
        return Err(Error::conflict(
            ErrorCode::SessionBusy,
            format!("Session not finished: {id} (status: pending)"),
        ));
    }
    Ok(conversation)
}

/// The place of a new run. One that another run starts is counted, under the lock of their tree.
pub(super) async fn branch(
    app: &App,
    tx: &mut Tx,
    by: RunInitiator<'_>,
    id: RunId,
) -> Result<Branch> {
    let RunInitiator::Run { caller, .. } = by else {
        return Ok(Branch {
            root: id,
            parent: None,
            depth: 0,
        });
    };
    let gone = || Error::NotFound(Thing::Run(caller.run));
    let parent = store::trees::branch_of(tx, caller.run)
        .await?
        .ok_or_else(gone)?;
    let store::trees::Count {
        all,
        children,
        stopping,
    } = store::trees::count(tx, parent.root, caller.run).await?;
    let (deepest, widest, most) = (
        app.config.run_depth,
        app.config.run_children,
        app.config.run_tree,
    );
    let depth = parent.depth + 1;
    let refused = |code, why: String| Err(Error::conflict(code, format!("not started: {why}")));
    if stopping {
        return refused(
            ErrorCode::RunOver,
            "the run that wants it is being stopped".to_owned(),
        );
    }
    if i64::from(depth) > i64::from(deepest) {
        return refused(
            ErrorCode::LimitReached,
            format!("agents may start agents {deepest} generations deep at most; do this yourself"),
        );
    }
    if children >= i64::from(widest) {
        return refused(
            ErrorCode::LimitReached,
            format!("one run may start {widest} runs at most; use what those have found"),
        );
    }
    if all >= i64::from(most) {
        return refused(
            ErrorCode::LimitReached,
            format!("a tree of runs may have {most} runs at most; finish with what there is"),
        );
    }
    Ok(Branch {
        root: parent.root,
        parent: Some(caller.run),
        depth,
    })
}
