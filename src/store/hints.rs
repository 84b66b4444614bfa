//! Hints between replicas over `NOTIFY`: "somebody should look at this conversation". Lost hints cost a
//! second, never a row: everyone also looks by the clock.

use sqlx::postgres::PgListener;

use super::Db;
use crate::domain::{
    error::Result,
    ids::{ConversationId, ReplicaId, TenantId},
};

const CHANNEL: &str = "chatelaine";

/// A conversation has news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    pub tenant: TenantId,
    pub conversation: ConversationId,
}

/// Hints of the other replicas.
pub struct Hints {
    listener: PgListener,
    me: ReplicaId,
}

impl Db {
    /// Starts to listen; takes one connection for as long as the result lives.
    pub async fn hints(&self, me: ReplicaId) -> Result<Hints> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Hints { listener, me })
    }

    /// Tells the other replicas, in one statement outside of any business transaction.
    pub async fn hint(&self, me: ReplicaId, hints: &[Hint]) -> Result<()> {
        let payloads: Vec<_> = hints.iter().map(|hint| format!("{me} {} {}", hint.tenant, hint.conversation)).collect();
        sqlx::query!("select pg_notify($1, payload) from unnest($2::text[]) payload", CHANNEL, &payloads)
            .fetch_all(&self.pool)
            .await?;
        Ok(())
    }
}

impl Hints {
    /// The next hint of another replica; waits for one. Reconnects by itself.
    pub async fn next(&mut self) -> Result<Hint> {
        loop {
            let notification = self.listener.recv().await?;
            if let Some((from, hint)) = parse(notification.payload())
                && from != self.me
            {
                return Ok(hint);
            }
        }
    }
}

fn parse(payload: &str) -> Option<(ReplicaId, Hint)> {
    let mut words = payload.split(' ');
    let from = words.next()?.parse().ok()?;
    let hint = Hint { tenant: words.next()?.parse().ok()?, conversation: words.next()?.parse().ok()? };
    Some((from, hint))
}
