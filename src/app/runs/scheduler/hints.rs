//! Hints between processes that a run waits or is to stop.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::mpsc;

use crate::{
    app::{
        App,
        platform::polls::POLL,
        runs::sign_outs,
        servers::{credentials, registry},
    },
    domain::{error::Result, ids::ConversationId},
    store::{self, hints::Hint},
};

/// Time between two rounds of hints.
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
        if let Err(error) = app.db.hint(app.replica, &distinct).await {
            tracing::debug!(%error, "a hint was not sent; the others look within a second");
        }
        // What comes meanwhile goes out together.
        tokio::time::sleep(HINT_PAUSE).await;
    }
}

/// Hears the hints of the others, and reconnects when it must.
pub async fn receive_hints(app: Arc<App>) {
    let hear = async {
        loop {
            let heard = async {
                let mut hints = app.db.hints(app.replica).await?;
                loop {
                    match hints.next().await? {
                        Hint::Conversation {
                            tenant,
                            conversation,
                        } => app.live.look(tenant, conversation),
                        Hint::Credentials {
                            tenant,
                            agent,
                            user,
                        } => {
                            credentials::changed_elsewhere(&app, tenant, &agent, &user).await;
                        }
                        Hint::Approvals { tenant } => app.live.approvals_changed(tenant),
                        Hint::SignedOut { tenant, user } => {
                            sign_outs::signed_out(&app, tenant, &user).await?;
                        }
                        Hint::KeyRevoked { tenant, key } => {
                            app.accounts.key_revoked(tenant, key).await;
                        }
                        Hint::Tenant { tenant } => sign_outs::tenant_changed(&app, tenant).await?,
                        Hint::Registry { tenant } => registry::changed(&app, tenant).await,
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
                            credentials::catalog_changed_elsewhere(
                                &app, tenant, agent, server, owner,
                            )
                            .await;
                        }
                    }
                }
            };
            let broken: Result<()> = heard.await;
            if let Err(error) = broken {
                tracing::debug!(%error, "hints are not heard; looking by the clock meanwhile");
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::select! {
        () = hear => {}
        () = app.shutdown.cancelled() => {}
    }
}

/// Which of the conversations with listeners have news? `known` is what the last look saw. One query for all tenants.
pub(crate) async fn find_news(
    app: &Arc<App>,
    known: &mut HashMap<ConversationId, i64>,
) -> Result<()> {
    let listened_conversations = app.live.listened_conversations();
    if listened_conversations.is_empty() {
        known.clear();
        return Ok(());
    }
    let mut tx = app.db.system().await?;
    let last: HashMap<_, _> = store::conversations::last_events(&mut tx, &listened_conversations)
        .await?
        .into_iter()
        .collect();
    drop(tx);
    for (tenant, id) in &listened_conversations {
        // One that is not there any more is news, too. One that is new here may have news that came
        // between the listener's own look and this one.
        let last = last.get(id);
        if last.is_none() || known.get(id) != last {
            app.live.look(*tenant, *id);
        }
    }
    *known = last;
    Ok(())
}
