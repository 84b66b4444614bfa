//! Hints between replicas: rows have changed, so a replica that has them in memory or has listeners should read them
//! again. A hint may be lost. Each change is also found by a poll.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::mpsc;

use crate::app::{
    App,
    platform::polls::POLL,
    runs::sign_outs,
    servers::{credentials, pins, registry},
};
use domain::{error::Result, ids::ConversationId};
use store::hints::Hint;

/// Time between two statements that send hints.
const HINT_PAUSE: Duration = Duration::from_millis(10);

/// Sends hints to the other replicas, many in one statement.
pub async fn send_hints(app: Arc<App>, mut inbox: mpsc::UnboundedReceiver<Hint>) {
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            received = inbox.recv_many(&mut batch, 1024) => if received == 0 { return },
            () = app.shutdown.cancelled() => return,
        }
        let distinct: Vec<Hint> = batch
            .drain(..)
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        if let Err(error) = app.db.send_hints(app.replica, &distinct).await {
            tracing::debug!(
                error = error.with_cause(),
                "a hint was not sent; the others look within a second"
            );
        }
        // Hints that come during the pause are sent together.
        tokio::time::sleep(HINT_PAUSE).await;
    }
}

/// Acts on the hints of other replicas, and connects again when the connection breaks. Ends at once where no replica
/// can listen.
pub async fn receive_hints(app: Arc<App>) {
    let receive = async {
        loop {
            let received = async {
                let Some(mut hints) = app.db.listen(app.replica).await? else {
                    return Ok(());
                };
                loop {
                    match hints.next().await? {
                        Hint::Conversation {
                            tenant,
                            conversation,
                        } => app.live.refresh(tenant, conversation),
                        Hint::Credentials {
                            tenant,
                            agent,
                            user,
                        } => {
                            credentials::forget_user(&app, tenant, &agent, &user).await;
                        }
                        Hint::Approvals { tenant } => app.live.notify_approval_listeners(tenant),
                        Hint::SignedOut { tenant, user } => {
                            sign_outs::apply_sign_out(&app, tenant, &user).await?;
                        }
                        Hint::KeyRevoked { tenant, key } => {
                            app.accounts.key_revoked(tenant, key).await;
                        }
                        Hint::Tenant { tenant } => {
                            sign_outs::apply_tenant_change(&app, tenant).await?;
                        }
                        Hint::Registry { tenant } => registry::forget(&app, tenant).await,
                        Hint::Tools { tenant } => pins::forget(&app, tenant).await,
                        Hint::CallCancelled {
                            tenant,
                            agent,
                            id,
                            user,
                        } => app.client_calls.cancel(tenant, &user, &agent, &id),
                        Hint::Catalog {
                            tenant,
                            agent,
                            server,
                            owner,
                        } => {
                            credentials::forget_catalog(&app, tenant, agent, server, owner).await;
                        }
                    }
                }
            };
            let received: Result<()> = received.await;
            match received {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(
                        error = error.with_cause(),
                        "hints are not heard; looking by the clock meanwhile"
                    );
                }
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        () = receive => {}
        () = app.shutdown.cancelled() => {}
    }
}

/// Notifies the listeners of conversations with new events since the last poll (`known`). One query serves all tenants.
pub(crate) async fn poll_changes(
    app: &Arc<App>,
    known: &mut HashMap<ConversationId, i64>,
) -> Result<()> {
    let listened_conversations = app.live.listened_conversations();
    if listened_conversations.is_empty() {
        known.clear();
        return Ok(());
    }
    let asked = listened_conversations.clone();
    let last = app.db.look(move |tx| {
        Box::pin(async move { store::conversations::list_last_events(tx, &asked).await })
    });
    let last: HashMap<_, _> = last.await?.into_iter().collect();
    for (tenant, id) in &listened_conversations {
        // A conversation that was deleted has changed, too. A conversation that is not in `known` may have got events
        // between the listener's first read and this poll.
        let last = last.get(id);
        if last.is_none() || known.get(id) != last {
            app.live.refresh(*tenant, *id);
        }
    }
    *known = last;
    Ok(())
}
