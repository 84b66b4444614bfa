//! Deleting a conversation, which stops the runs in it and below it.

use crate::{
    app::App,
    domain::{
        audit::Fact,
        error::{Error, Result},
        ids::{ConversationId, RunId},
        principal::Principal,
    },
    store::{self, Tx, hints::Hint},
};

/// Removes a conversation with everything in it, and the sessions that its runs have started, with everything in them.
/// Runs under way stop; what those sessions have asked consent for is taken back. A request of the conversation's own
/// stays: its user sees it in their list.
pub async fn delete(app: &App, principal: &Principal, id: ConversationId) -> Result<()> {
    let mut tries = 0;
    loop {
        match delete_once(app, principal, id).await {
            Err(error) if tries < 3 && store::is_deadlock(&error) => tries += 1,
            done => return done,
        }
    }
}

async fn delete_once(app: &App, principal: &Principal, id: ConversationId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let runs = async |tx: &mut Tx, sessions: &[ConversationId]| {
        let runs = store::trees::runs_of(tx, sessions).await?;
        Ok::<_, Error>(runs.into_iter().map(|(run, _)| run).collect::<Vec<RunId>>())
    };
    // Requests first: whoever decides about one locks it before its conversation.
    let below = store::trees::sessions_below(&mut tx, &principal.user, id).await?;
    let asking = runs(&mut tx, &below).await?;
    let mut withdrawn = store::approvals::withdraw(&mut tx, &asking, &principal.user).await?;
    let below = store::trees::lock_sessions_below(&mut tx, &principal.user, id).await?;
    // What was asked for between the two looks.
    let asking = runs(&mut tx, &below).await?;
    withdrawn.extend(store::approvals::withdraw(&mut tx, &asking, &principal.user).await?);
    let open = store::trees::runs_of(&mut tx, &[&below[..], &[id]].concat()).await?;
    let agent = store::conversations::delete(&mut tx, &principal.user, id).await?;
    let detail = id.to_string();
    let fact = Fact::new(principal.user.as_str(), "conversation.deleted").detail(&detail);
    store::audit::record(
        &mut tx,
        principal.tenant,
        &Fact {
            agent: Some(&agent),
            ..fact
        },
    )
    .await?;
    tx.commit().await?;
    for (run, _) in open.into_iter().filter(|(_, open)| *open) {
        app.running.cancel(run);
    }
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((principal.tenant, approval));
    }
    for gone in below.into_iter().chain([id]) {
        app.live.look(principal.tenant, gone);
        let _ = app.hints.send(Hint::Conversation {
            tenant: principal.tenant,
            conversation: gone,
        });
    }
    Ok(())
}
