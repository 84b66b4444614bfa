//! The people of the test, who know several addresses of one service and insist until somebody answers; and its
//! eyes, which see every row.

use std::{
    collections::HashMap,
    io::{IsTerminal, Write},
    ops::RangeInclusive,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use chatelaine::app::accounts::{self, development};
use domain::{canonical, clock, clock::Clock};
use http::Method;
use rand::{RngExt, rngs::StdRng};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};
use time::OffsetDateTime;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use super::{
    Amount,
    answers::{Answer, Answers, Kind, is_not_for_good, mark},
    processes::{Database, Places},
};
use crate::support::client::Client;

/// What a client waits for one answer.
const TIMEOUT: Duration = Duration::from_secs(4);
/// What a chat client waits for one.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long somebody insists. Far longer than any fault lasts.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// How many people there are.
pub struct Population {
    pub companies: usize,
    /// Of each company.
    pub clerks: usize,
    pub chiefs: usize,
    /// How uneven they ask: of all clerks the nth asks as often as the first one divided by n to this power.
    pub exponent: f64,
    pub seed: u64,
    /// Somebody waits for the test.
    pub is_told: bool,
}

pub struct People {
    pub seed: u64,
    is_told: bool,
    pub places: Places,
    companies: Vec<Company>,
    /// The share of the first clerks in all that is asked, by how many they are: up to 1.
    shares: Vec<f64>,
    eyes: PgPool,
    /// One for each request that may begin.
    tickets: Semaphore,
    begun: watch::Sender<usize>,
    /// When each fault has begun and was over.
    struck: Mutex<Vec<RangeInclusive<Instant>>>,
    asked: AtomicUsize,
    pub answers: Answers,
}

/// A tenant.
struct Company {
    tenant: Uuid,
    clerks: Vec<Client>,
    chiefs: Vec<Client>,
    admin: Client,
}

/// Somebody of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    pub company: usize,
    post: Post,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    Clerk,
    Chief,
    Admin,
}

impl Who {
    pub fn clerk(company: usize, at: usize) -> Self {
        let post = Post::Clerk;
        Self { company, post, at }
    }

    pub fn chief(company: usize, at: usize) -> Self {
        let post = Post::Chief;
        Self { company, post, at }
    }

    /// The admin of a company.
    pub fn admin(company: usize) -> Self {
        let (post, at) = (Post::Admin, 0);
        Self { company, post, at }
    }

    /// The user's id.
    pub fn name(self) -> String {
        match self.post {
            Post::Clerk => format!("clerk-{}", self.at),
            Post::Chief => format!("chief-{}", self.at),
            Post::Admin => "admin".to_owned(),
        }
    }
}

impl People {
    pub async fn invite(population: &Population, database: &Database, folder: &Path) -> Self {
        let db = database.open().await;
        let (data, now) = (folder.join("data"), Clock::System.now());
        // Where they are is said with each request.
        let anybody = Client::new("", None);
        let mut companies = Vec::new();
        for company in 0..population.companies {
            let tenant = accounts::add_tenant(&db, &Clock::System, &mark(company), None, false)
                .await
                .unwrap();
            let invited = async |who: Who, role: &str| {
                let person = development::DevelopmentUser {
                    user: who.name(),
                    roles: vec![role.to_owned()],
                    admin: who.post == Post::Admin,
                    ..development::DevelopmentUser::default()
                };
                let day = now..now + time::Duration::days(1);
                let token = development::token(&db, &data, &tenant, &person, day)
                    .await
                    .unwrap();
                let bearer = format!("Bearer {}", token.expose());
                anybody.clone().with_header("authorization", &bearer)
            };
            let (mut clerks, mut chiefs) = (Vec::new(), Vec::new());
            for at in 0..population.clerks {
                clerks.push(invited(Who::clerk(company, at), "clerk").await);
            }
            for at in 0..population.chiefs {
                chiefs.push(invited(Who::chief(company, at), "chief").await);
            }
            companies.push(Company {
                tenant: tenant.id.0,
                clerks,
                chiefs,
                admin: invited(Who::admin(company), "admin").await,
            });
        }
        db.close().await;
        Self {
            seed: population.seed,
            is_told: population.is_told,
            places: Places::default(),
            companies,
            shares: shares(population),
            eyes: PgPoolOptions::new()
                .max_connections(6)
                .connect_lazy_with(database.all_seeing()),
            tickets: Semaphore::new(0),
            begun: watch::Sender::new(0),
            struck: Mutex::default(),
            asked: AtomicUsize::new(0),
            answers: Answers::default(),
        }
    }

    /// Who asks next. The busiest clerks are spread over all companies.
    pub fn draw_clerk(&self, random: &mut StdRng) -> Who {
        let drawn = random.random_range(0.0..1.0);
        let rank = self.shares.partition_point(|share| *share <= drawn);
        let rank = rank.min(self.shares.len() - 1);
        Who::clerk(rank % self.companies.len(), rank / self.companies.len())
    }

    /// Somebody who decides in that company.
    pub fn draw_chief(&self, company: usize, random: &mut StdRng) -> Who {
        let chiefs = self.companies[company].chiefs.len();
        Who::chief(company, random.random_range(0..chiefs))
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

    /// The same; `false` when no further request will begin.
    pub async fn until_begun_or_over(&self, requests: usize) -> bool {
        loop {
            if *self.begun.borrow() >= requests {
                return true;
            }
            if self.tickets.is_closed() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Notes a fault that is over.
    pub fn struck(&self, begun: Instant) {
        let fault = begun..=clock::instant();
        self.struck.lock().unwrap().push(fault);
    }

    /// Whether a fault was at work at this moment, or a while before.
    pub fn is_struck(&self, at: Instant, after: Duration) -> bool {
        let struck = self.struck.lock().unwrap();
        let mut faults = struck.iter();
        faults.any(|fault| *fault.start() <= at && at <= *fault.end() + after)
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
        (*self.begun.borrow(), self.struck.lock().unwrap().len())
    }

    pub fn client(&self, who: Who) -> &Client {
        let company = &self.companies[who.company];
        match who.post {
            Post::Clerk => &company.clerks[who.at],
            Post::Chief => &company.chiefs[who.at],
            Post::Admin => &company.admin,
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
        let there = self.client(who).at(&self.places.any(random));
        let mut sent = there
            .request(request.method.clone(), &request.path)
            .timeout(timeout);
        if let Some(body) = request.body {
            sent = sent.json(body);
        }
        if let Some(key) = &request.key {
            sent = sent.header("idempotency-key", key);
        }
        let started = clock::instant();
        let answered = async {
            let answer = sent.send().await.ok()?;
            Some((answer.status().as_u16(), answer.text().await.ok()?))
        };
        let Some((status, text)) = answered.await else {
            self.answers.note_silence();
            return None;
        };
        let answer = Answer {
            kind: request.kind,
            path: &request.path,
            sent: started,
            took: started.elapsed(),
            status,
            text: &text,
        };
        self.answers.note(who.company, &answer);
        if is_not_for_good(status) {
            return None;
        }
        Some((status, serde_json::from_str(&text).ok()?))
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
    pub async fn send_as_client(&self, who: Who, random: &mut StdRng, kind: Kind, body: &Value) {
        let is_named = !self.is_told || random.random_bool(0.5);
        let key = is_named.then(|| Uuid::new_v4().to_string());
        for attempt in 0..3 {
            let mut request = Request::post("/v1/chat/completions", body).of_kind(kind);
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
        loop {
            let found = self.find_request(args_sha256).await;
            if found.is_some() || clock::instant() > deadline {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The same, if it is there.
    pub async fn find_request(&self, args_sha256: canonical::Hash) -> Option<Uuid> {
        let sql = "select id from approvals where args_sha256 = $1";
        self.look(async || {
            sqlx::query_scalar(sql)
                .bind(args_sha256.as_slice())
                .fetch_optional(&self.eyes)
                .await
        })
        .await
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

    /// The company that owns each row that has an id.
    pub async fn owners(&self) -> HashMap<Uuid, usize> {
        let tenants = self.companies.iter().enumerate();
        let tenants: HashMap<_, _> = tenants.map(|(at, of)| (of.tenant, at)).collect();
        let tables = "select c.table_name::text from information_schema.columns c
                      join information_schema.columns t using (table_schema, table_name)
                      where table_schema = 'public' and t.column_name = 'tenant_id'
                        and c.column_name = 'id' and c.data_type = 'uuid'";
        let tables: Vec<(String,)> = self.rows(tables).await;
        assert!(
            tables.iter().any(|(table,)| table == "conversations"),
            "{tables:?}"
        );
        let mut owners = tenants.clone();
        for (table,) in tables {
            let sql = format!("select id, tenant_id from {table}");
            let rows: Vec<(Uuid, Uuid)> = self
                .look(async || {
                    sqlx::query_as(AssertSqlSafe(sql.clone()))
                        .fetch_all(&self.eyes)
                        .await
                })
                .await;
            owners.extend(rows.iter().map(|(id, tenant)| (*id, tenants[tenant])));
        }
        owners
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
    pub kind: Kind,
}

impl<'a> Request<'a> {
    pub fn post(path: impl Into<String>, body: &'a Value) -> Self {
        Self {
            method: Method::POST,
            path: path.into(),
            body: Some(body),
            key: None,
            kind: Kind::Other,
        }
    }

    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            body: None,
            key: None,
            kind: Kind::Read,
        }
    }
}

/// The share of the first clerks in all that is asked, by how many they are.
fn shares(population: &Population) -> Vec<f64> {
    let clerks = u32::try_from(population.companies * population.clerks).unwrap();
    let weights = (1..=clerks).map(|rank| f64::from(rank).powf(-population.exponent));
    let sums = weights.scan(0.0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    let sums: Vec<_> = sums.collect();
    let all = sums.last().copied().unwrap_or(1.0);
    sums.into_iter().map(|sum| sum / all).collect()
}
