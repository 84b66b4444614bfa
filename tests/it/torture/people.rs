//! The people of the test, who know several addresses of one service and insist until somebody answers; and its
//! eyes, which see every row.

use std::{
    io::{IsTerminal, Write},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use chatelaine::app::accounts::{self, development};
use domain::{canonical, clock, clock::Clock};
use http::Method;
use rand::{RngExt, rngs::StdRng};
use serde_json::Value;
use sqlx::{PgPool, postgres::PgPoolOptions};
use time::OffsetDateTime;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use super::{
    Amount,
    processes::{Addresses, Database},
};
use crate::support::client::Client;

const CLERKS: usize = 8;
pub const CHIEFS: usize = 3;
/// What a client waits for one answer.
const TIMEOUT: Duration = Duration::from_secs(4);
/// What a chat client waits for one.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long somebody insists. Far longer than any fault lasts.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

pub struct People {
    pub seed: u64,
    /// Somebody waits for the torture.
    is_told: bool,
    pub addresses: Addresses,
    clerks: Vec<Client>,
    chiefs: Vec<Client>,
    eyes: PgPool,
    /// One for each request that may begin.
    tickets: Semaphore,
    begun: watch::Sender<usize>,
    struck: AtomicUsize,
    asked: AtomicUsize,
    /// Requests over HTTP that nobody answered, or not for good.
    unanswered: AtomicUsize,
}

/// Somebody of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Clerk(usize),
    Chief(usize),
}

impl Who {
    pub fn clerk_of(request: usize) -> Self {
        Self::Clerk(request % CLERKS)
    }

    /// The user's id.
    pub fn name(self) -> String {
        match self {
            Self::Clerk(at) => format!("clerk-{at}"),
            Self::Chief(at) => format!("chief-{at}"),
        }
    }
}

impl People {
    pub async fn invite(amount: &Amount, database: &Database, folder: &Path) -> Self {
        let db = database.open().await;
        let tenant = accounts::add_tenant(&db, &Clock::System, "acme", None, false)
            .await
            .unwrap();
        let (data, now) = (folder.join("data"), Clock::System.now());
        let invited = async |who: Who, role: &str| {
            let person = development::DevelopmentUser {
                user: who.name(),
                roles: vec![role.to_owned()],
                ..development::DevelopmentUser::default()
            };
            let token = development::token(
                &db,
                &data,
                &tenant,
                &person,
                now..now + time::Duration::days(1),
            )
            .await
            .unwrap();
            // Where they are is said with each request.
            Client::new("", Some(&token))
        };
        let (mut clerks, mut chiefs) = (Vec::new(), Vec::new());
        for at in 0..CLERKS {
            clerks.push(invited(Who::Clerk(at), "clerk").await);
        }
        for at in 0..CHIEFS {
            chiefs.push(invited(Who::Chief(at), "chief").await);
        }
        db.close().await;
        Self {
            seed: amount.seed,
            is_told: amount.told,
            addresses: Addresses::default(),
            clerks,
            chiefs,
            eyes: PgPoolOptions::new()
                .max_connections(6)
                .connect_lazy_with(database.all_seeing()),
            tickets: Semaphore::new(0),
            begun: watch::Sender::new(0),
            struck: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
        }
    }

    /// Lets so many more requests begin.
    pub fn admit(&self, requests: usize) {
        self.tickets.add_permits(requests);
    }

    /// Lets no further request begin.
    pub fn admit_no_more(&self) {
        self.tickets.close();
    }

    /// Waits for a place and takes it; `false` when there will be none.
    pub async fn begin(&self) -> bool {
        let Ok(ticket) = self.tickets.acquire().await else {
            return false;
        };
        ticket.forget();
        self.begun.send_modify(|begun| *begun += 1);
        true
    }

    pub async fn until_begun(&self, requests: usize) {
        self.begun
            .subscribe()
            .wait_for(|begun| *begun >= requests)
            .await
            .expect("its sender is ours");
    }

    pub fn struck(&self) {
        self.struck.fetch_add(1, Relaxed);
    }

    /// A number that no other request has.
    pub fn number(&self) -> usize {
        self.asked.fetch_add(1, Relaxed)
    }

    /// Writes how far it is, where somebody waits for it and no bar moves.
    pub fn report(&self, amount: &Amount) {
        let (begun, struck) = self.progress();
        if amount.told && !std::io::stderr().is_terminal() {
            let line = format!("{begun} of {} requests, {struck} faults\n", amount.requests);
            // Nobody is left to read it when this fails.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// How many requests have begun, and how many faults are over.
    pub fn progress(&self) -> (usize, usize) {
        (*self.begun.borrow(), self.struck.load(Relaxed))
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Relaxed)
    }

    fn client(&self, who: Who) -> &Client {
        match who {
            Who::Clerk(at) => &self.clerks[at],
            Who::Chief(at) => &self.chiefs[at],
        }
    }

    /// Sends a request to some replica. `None` when nobody answers, or only that it cannot be said now: it may have
    /// been done all the same.
    pub async fn try_once(
        &self,
        who: Who,
        random: &mut StdRng,
        request: &Request<'_>,
    ) -> Option<(u16, Value)> {
        self.try_for(who, random, request, TIMEOUT).await
    }

    async fn try_for(
        &self,
        who: Who,
        random: &mut StdRng,
        request: &Request<'_>,
        timeout: Duration,
    ) -> Option<(u16, Value)> {
        let there = self.client(who).at(&self.addresses.any(random));
        let mut sent = there
            .request(request.method.clone(), &request.path)
            .timeout(timeout);
        if let Some(body) = request.body {
            sent = sent.json(body);
        }
        if let Some(key) = &request.key {
            sent = sent.header("idempotency-key", key);
        }
        let answered = async {
            let answer = sent.send().await.ok()?;
            let status = answer.status().as_u16();
            if status >= 500 || status == 429 {
                None
            } else {
                Some((status, answer.json().await.ok()?))
            }
        };
        let answered = answered.await;
        if answered.is_none() {
            self.unanswered.fetch_add(1, Relaxed);
        }
        answered
    }

    /// The same again and again, now here and now there, until somebody answers for good.
    pub async fn insist(
        &self,
        who: Who,
        random: &mut StdRng,
        request: &Request<'_>,
    ) -> (u16, Value) {
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            if let Some(answered) = self.try_once(who, random, request).await {
                return answered;
            }
            assert!(
                clock::instant() < deadline,
                "nobody answers {} {}",
                request.method,
                request.path
            );
            tokio::time::sleep(Duration::from_millis(random.random_range(20..250))).await;
        }
    }

    /// Sends a chat completion as the official clients do: at most three times the same, while nobody answers or the
    /// answer is a 408, 409, 429 or 5xx. It waits longer than any fault lasts. Mostly it names its request, so that nothing
    /// is done twice for it. Where somebody waits for the torture, half of the requests have no name: then a replica that
    /// is killed in the moment in which it answers may be asked twice, and nobody can tell.
    pub async fn send_as_client(&self, who: Who, random: &mut StdRng, body: &Value) {
        let is_named = !self.is_told || random.random_bool(0.5);
        let key = is_named.then(|| Uuid::new_v4().to_string());
        for attempt in 0..3 {
            let mut request = Request::post("/v1/chat/completions", body);
            request.key.clone_from(&key);
            match self.try_for(who, random, &request, PATIENCE).await {
                None | Some((408 | 409, _)) => {}
                Some(_) => return,
            }
            let pause = 500 * (1 << attempt);
            tokio::time::sleep(Duration::from_millis(random.random_range(pause / 2..pause))).await;
        }
    }

    /// The request for a call with these arguments, which nobody else asks for; `None` when none comes within seconds.
    pub async fn request_with(&self, args_sha256: canonical::Hash) -> Option<Uuid> {
        let deadline = clock::instant() + TIMEOUT;
        let sql = "select id from approvals where args_sha256 = $1";
        loop {
            let found = self.look(async || {
                sqlx::query_scalar(sql)
                    .bind(args_sha256.as_slice())
                    .fetch_optional(&self.eyes)
                    .await
            });
            if let Some(id) = found.await {
                return Some(id);
            }
            if clock::instant() > deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets a request expire in a while, if it is still pending.
    pub async fn let_expire(&self, approval: Uuid, left: Duration) {
        let sql = "update approvals set expires_at = clock_timestamp() + make_interval(secs => $2)
                   where id = $1 and state = 'pending'";
        self.look(async || {
            sqlx::query(sql)
                .bind(approval)
                .bind(left.as_secs_f64())
                .execute(&self.eyes)
                .await
        })
        .await;
    }

    /// Lets whatever is pending expire within two seconds. Answers the database's time.
    pub async fn let_everything_expire(&self) -> OffsetDateTime {
        let sql = "update approvals set expires_at = clock_timestamp() + make_interval(secs => random() * 2)
                   where state = 'pending'";
        self.look(async || sqlx::query(sql).execute(&self.eyes).await)
            .await;
        self.look(async || {
            sqlx::query_scalar("select clock_timestamp()")
                .fetch_one(&self.eyes)
                .await
        })
        .await
    }

    /// Waits until every request and every run has come to its end, or time is up; those that have not.
    pub async fn until_nothing_is_open(&self, within: Duration) -> Vec<(Uuid, String)> {
        let deadline = clock::instant() + within;
        let sql = "select id, 'request ' || code || ' is ' || state from approvals
                   where state in ('pending', 'approved', 'executing')
                   union all
                   select id, 'run of ' || user_id || ' is ' || status from runs
                   where status in ('queued', 'running')";
        loop {
            let open: Vec<(Uuid, String)> = self.rows(sql).await;
            if open.is_empty() || clock::instant() > deadline {
                return open;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Everything that a query finds.
    pub async fn rows<R>(&self, sql: &'static str) -> Vec<R>
    where
        R: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        self.look(async || sqlx::query_as(sql).fetch_all(&self.eyes).await)
            .await
    }

    /// The database may be gone for a moment, which the test's own eyes must not mind.
    async fn look<T>(&self, look: impl AsyncFn() -> Result<T, sqlx::Error>) -> T {
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            match look().await {
                Ok(seen) => return seen,
                Err(error) => assert!(
                    clock::instant() < deadline,
                    "the database does not answer: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A request of the API.
pub struct Request<'a> {
    pub method: Method,
    pub path: String,
    pub body: Option<&'a Value>,
    /// The name of the request.
    pub key: Option<String>,
}

impl<'a> Request<'a> {
    pub fn post(path: impl Into<String>, body: &'a Value) -> Self {
        Self {
            method: Method::POST,
            path: path.into(),
            body: Some(body),
            key: None,
        }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            body: None,
            key: None,
        }
    }
}
