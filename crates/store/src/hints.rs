//! Sends hints between replicas with `NOTIFY`, such as "this conversation has changed". A lost hint only costs a
//! second, because every replica also polls the rows.

use sqlx::postgres::{PgConnectOptions, PgListener};
use tracing::Span;
use uuid::Uuid;

use super::{Db, limits::Limited, pool::single};
use domain::{
    error::Result,
    ids::{AgentId, ApiKeyId, ConversationId, ReplicaId, ServerId, TenantId, UserId},
    owner::CatalogOwner,
};

const CHANNEL: &str = "chatelaine";

/// A change that another replica should read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A conversation has new events.
    Conversation {
        tenant: TenantId,
        conversation: ConversationId,
    },
    /// A user's credentials at an agent changed.
    Credentials {
        tenant: TenantId,
        agent: AgentId,
        user: UserId,
    },
    /// The tools of a personal server changed, as its owner sees them.
    Catalog {
        tenant: TenantId,
        agent: AgentId,
        server: ServerId,
        owner: CatalogOwner,
    },
    /// A tenant's approvals changed.
    Approvals { tenant: TenantId },
    /// A user signed out.
    SignedOut { tenant: TenantId, user: UserId },
    /// An API key was revoked.
    KeyRevoked { tenant: TenantId, key: ApiKeyId },
    /// The operator changed or removed a tenant.
    Tenant { tenant: TenantId },
    /// The tenant's registry of servers, or a secret of it, changed.
    Registry { tenant: TenantId },
    /// What is accepted of the tools of servers changed: for one tenant, or for all.
    Tools { tenant: Option<TenantId> },
    /// A client cancelled its own call, which it names by the id that it chose.
    CallCancelled {
        tenant: TenantId,
        agent: AgentId,
        id: String,
        user: UserId,
    },
}

/// Receives the hints of the other replicas.
pub struct Hints {
    listener: PgListener,
    me: ReplicaId,
}

impl Db {
    /// Starts to listen for hints, on a connection that is not one of the pool. `None` without a direct address: a
    /// pooler would give the session that listens, and its hints, to whoever comes next.
    pub async fn listen(&self, me: ReplicaId) -> Result<Option<Hints>> {
        let Some(direct) = &self.direct else {
            return Ok(None);
        };
        let one = single(PgConnectOptions::clone(direct));
        let mut listener = PgListener::connect_with(&one).await?;
        listener.listen(CHANNEL).await?;
        Ok(Some(Hints { listener, me }))
    }

    /// Sends hints to the other replicas, in one statement and outside of a transaction. Without a direct address no
    /// replica listens.
    pub async fn send_hints(&self, me: ReplicaId, hints: &[Hint]) -> Result<()> {
        if self.direct.is_none() {
            return Ok(());
        }
        let payloads: Vec<_> = hints
            .iter()
            .map(|hint| format!("{me} {}", to_payload(hint)))
            .collect();
        let notify = sqlx::query!(
            "select pg_notify($1, payload) from unnest($2::text[]) payload",
            CHANNEL,
            &payloads
        );
        let mut connection = self.pool.get().await?;
        let span = Span::none();
        let limited = Limited::new(&mut connection, &self.health, &span);
        notify.fetch_all(limited).await?;
        connection.give_back();
        Ok(())
    }
}

impl Hints {
    /// Waits for the next hint of another replica. Reconnects by itself.
    pub async fn next(&mut self) -> Result<Hint> {
        loop {
            let notification = self.listener.recv().await?;
            if let Some((from, hint)) = parse_payload(notification.payload())
                && from != self.me
            {
                return Ok(hint);
            }
        }
    }
}

/// The payload of a hint: words between blanks. The id of a user may contain blanks, so it is always the last word.
fn to_payload(hint: &Hint) -> String {
    match hint {
        Hint::Conversation {
            tenant,
            conversation,
        } => format!("conversation {tenant} {conversation}"),
        Hint::Credentials {
            tenant,
            agent,
            user,
        } => format!("credentials {tenant} {agent} {user}"),
        Hint::Catalog {
            tenant,
            agent,
            server,
            owner,
        } => format!("catalog {tenant} {agent} {server} {owner}"),
        Hint::Approvals { tenant } => format!("approvals {tenant} -"),
        Hint::SignedOut { tenant, user } => format!("signed_out {tenant} {user}"),
        Hint::KeyRevoked { tenant, key } => format!("key_revoked {tenant} {key}"),
        Hint::Tenant { tenant } => format!("tenant {tenant} -"),
        Hint::Registry { tenant } => format!("registry {tenant} -"),
        Hint::Tools { tenant } => {
            let tenant = tenant.unwrap_or(TenantId(Uuid::nil()));
            format!("tools {tenant} -")
        }
        Hint::CallCancelled {
            tenant,
            agent,
            id,
            user,
        } => format!("call_cancelled {tenant} {agent} {} {user}", hex::encode(id)),
    }
}

fn parse_payload(payload: &str) -> Option<(ReplicaId, Hint)> {
    let mut words = payload.splitn(4, ' ');
    let from = words.next()?.parse().ok()?;
    let (kind, tenant, rest) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let agent = |text: &str| AgentId::parse(text).ok();
    let hint = match kind {
        "conversation" => Hint::Conversation {
            tenant,
            conversation: rest.parse().ok()?,
        },
        "signed_out" => Hint::SignedOut {
            tenant,
            user: UserId(rest.into()),
        },
        "key_revoked" => Hint::KeyRevoked {
            tenant,
            key: rest.parse().ok()?,
        },
        "tenant" => Hint::Tenant { tenant },
        "registry" => Hint::Registry { tenant },
        "credentials" => {
            let (name, user) = rest.split_once(' ')?;
            Hint::Credentials {
                tenant,
                agent: agent(name)?,
                user: UserId(user.into()),
            }
        }
        "catalog" => {
            let (name, rest) = rest.split_once(' ')?;
            let (server, owner) = rest.split_once(' ')?;
            Hint::Catalog {
                tenant,
                agent: agent(name)?,
                server: ServerId::parse(server).ok()?,
                owner: owner.parse().ok()?,
            }
        }
        "call_cancelled" => {
            let (name, rest) = rest.split_once(' ')?;
            let (id, user) = rest.split_once(' ')?;
            Hint::CallCancelled {
                tenant,
                agent: agent(name)?,
                id: String::from_utf8(hex::decode(id).ok()?).ok()?,
                user: UserId(user.into()),
            }
        }
        "approvals" => Hint::Approvals { tenant },
        "tools" => Hint::Tools {
            tenant: Some(tenant).filter(|tenant| !tenant.0.is_nil()),
        },
        _ => return None,
    };
    Some((from, hint))
}
