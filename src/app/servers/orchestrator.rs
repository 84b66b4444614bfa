//! The server that is built in, as far as everybody needs it: where it is, which servers of packs are it, and how a
//! run reaches it. What its tools do is in [`super::runs`].
//!
//! It listens on a port of its own on this machine's loopback, and nothing but its own client may go there: no other
//! server's address is allowed to be it. Whoever asks must show a token that speaks for one run. Tokens are made
//! here, live in this process and as a hash on the run's row, and never reach a model.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use time::OffsetDateTime;
use url::Url;

use crate::app::App;
use crate::{
    domain::{
        error::{Error, Result, Thing},
        ids::{AgentId, ConversationId, RunId, ServerId, TenantId},
        orchestrator,
        owner::ConnectionOwner,
        principal::Principal,
        secret::Secret,
        server::{Endpoint, Remote, ServerSpec, Timeouts},
        tool::{Catalog, Tool},
    },
    egress::Egress,
    mcp::{Key, Mcp, Options},
    store,
};

/// Calls of one agent under way: each may wait for a run that makes calls of its own.
const CALLS: usize = 4096;
/// More than a call waits for a run.
const MARGIN: Duration = Duration::from_secs(30);

pub struct Orchestrator {
    url: Url,
    mcp: Mcp,
    tools: Vec<Arc<Tool>>,
    voices: Mutex<HashMap<RunId, Voice>>,
}

/// How a run at work here speaks.
struct Voice {
    token: Secret,
    keys: Vec<Key>,
}

/// A run that asks for something.
#[derive(Clone)]
pub struct Speaker {
    pub run: RunId,
    pub session: ConversationId,
    pub principal: Principal,
}

impl Orchestrator {
    /// Takes a port. Nobody is answered there until [`crate::app::runs::endpoint::serve`] is given the listener.
    pub fn new() -> anyhow::Result<(Self, TcpListener)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let egress = Egress::new(&[address.to_string()]).map_err(anyhow::Error::msg)?;
        let options = Options {
            calls_per_server: CALLS,
            ..Options::default()
        };
        let new = Self {
            url: Url::parse(&format!("http://{address}/mcp"))?,
            mcp: Mcp::new(egress, options),
            tools: orchestrator::tools(),
            voices: Mutex::default(),
        };
        Ok((new, listener))
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Whether a server of a pack is this one.
    pub fn is(&self, spec: &ServerSpec) -> bool {
        spec.url()
            .is_some_and(|url| orchestrator::is_placeholder(url) || *url == self.url)
    }

    /// The connections to use for a server: its own, which go nowhere else, or `others`.
    pub fn mcp<'a>(&'a self, spec: &ServerSpec, others: &'a Mcp) -> &'a Mcp {
        if self.is(spec) { &self.mcp } else { others }
    }

    /// Its tools, which are the same for everybody.
    pub fn catalog(&self, server: &ServerId) -> Arc<Catalog> {
        Arc::new(Catalog {
            server: server.clone(),
            tools: self.tools.clone(),
            prompts: Vec::new(),
            dropped: Vec::new(),
            fetched_at: OffsetDateTime::UNIX_EPOCH,
            version: "built in".to_owned(),
        })
    }

    pub fn tools(&self) -> &[Arc<Tool>] {
        &self.tools
    }

    pub async fn shutdown(&self) {
        self.mcp.shutdown().await;
    }

    fn voices(&self) -> MutexGuard<'_, HashMap<RunId, Voice>> {
        self.voices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a run reaches the server: over a connection of its own, with its own token.
pub async fn reach(
    app: &App,
    tenant: TenantId,
    agent: &AgentId,
    spec: &ServerSpec,
    run: RunId,
) -> Result<(Key, Arc<ServerSpec>)> {
    let key = Key {
        tenant,
        agent: agent.clone(),
        server: spec.id.clone(),
        owner: ConnectionOwner::Run(run),
    };
    let known = app
        .orchestrator
        .voices()
        .get(&run)
        .map(|voice| voice.token.clone());
    let token = match known {
        Some(token) => token,
        None => token(app, tenant, run).await?,
    };
    let token = {
        let mut voices = app.orchestrator.voices();
        // Of two that were made at once the first is used.
        let voice = voices.entry(run).or_insert(Voice {
            token,
            keys: Vec::new(),
        });
        if !voice.keys.contains(&key) {
            voice.keys.push(key.clone());
        }
        voice.token.clone()
    };
    let bearer = Secret::new(format!("Bearer {}", token.expose()));
    let reached = ServerSpec {
        endpoint: Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: app.orchestrator.url.clone(),
            headers: vec![("authorization".to_owned(), bearer)],
        },
        timeouts: Timeouts {
            request: app.config.run_wait + MARGIN,
            ..Timeouts::default()
        },
        entered: vec![token],
        ..spec.clone()
    };
    Ok((key, Arc::new(reached)))
}

/// A new token of a run.
async fn token(app: &App, tenant: TenantId, run: RunId) -> Result<Secret> {
    let token = format!("{tenant}.{run}.{}", hex::encode(rand::random::<[u8; 32]>()));
    let mut tx = app.db.tenant(tenant).await?;
    if !store::trees::add_token(&mut tx, run, &hash(&token)).await? {
        return Err(Error::NotFound(Thing::Run(run)));
    }
    tx.commit().await?;
    Ok(Secret::new(token))
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Whom a token speaks for; `None`: for nobody.
pub async fn authenticate(app: &App, token: &str) -> Result<Option<Speaker>> {
    let mut parts = token.splitn(3, '.');
    let (tenant, run) = (parts.next().map(str::parse), parts.next().map(str::parse));
    let (Some(Ok(tenant)), Some(Ok(run))) = (tenant, run) else {
        return Ok(None);
    };
    let mut tx = app.db.tenant(TenantId(tenant)).await?;
    let run = RunId(run);
    let Some(found) = store::trees::speaking(&mut tx, run).await? else {
        return Ok(None);
    };
    let given = hash(token);
    let good = found
        .hashes
        .iter()
        .any(|hash| bool::from(hash.as_slice().ct_eq(&given)));
    Ok(good.then_some(Speaker {
        run,
        session: found.conversation,
        principal: found.principal,
    }))
}

/// A run is not at work here any more.
pub async fn forget(app: &App, run: RunId) {
    let voice = app.orchestrator.voices().remove(&run);
    for key in voice.into_iter().flat_map(|voice| voice.keys) {
        app.orchestrator.mcp.close(&key).await;
    }
}
