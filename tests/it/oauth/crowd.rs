//! Many users whose tokens end every few seconds, at several processes of the product that are killed, with an
//! authorization server that is away at times. It sees every refresh token: whatever fails, each is used once, none is
//! lost, and no call is made with a token that has ended.
//!
//! `make torture-oauth` is the same with bigger numbers: `CHATELAINE_TORTURE_OAUTH=users:replicas:seconds[:grace]`. With
//! a grace of 0 the authorization server takes no refresh token twice; then each kill may cost the sign-ins whose
//! refreshes it met.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::{clock, config::Environment};
use futures_util::{StreamExt, stream};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{TEST, connect, connection, guarded::Guarded, world};
use crate::support::{
    client::Client,
    program::{Program, serve},
    world::World,
};

/// Seconds that an access token lives.
const LIFE: u64 = 5;
/// Calls under way at once, whoever makes them. Two cores serve no more in time: a token of five seconds would end while
/// its call waits for its turn.
const AT_ONCE: usize = 8;
/// A claim on a refresh ends after 15 seconds, and the request may leave up to 10 seconds after the claim.
const LEASE: Duration = Duration::from_secs(5);
/// Everything is as it should be so long after the last fault.
const SETTLED: Duration = Duration::from_secs(60);

struct Amount {
    users: usize,
    replicas: usize,
    time: Duration,
    grace: Duration,
    /// Replicas are killed, and the authorization server is away at times.
    faults: bool,
}

impl Amount {
    /// What the environment asks for, else what every run of the tests has time for.
    fn asked() -> Self {
        let env = Environment::from_process();
        let asked = env.get("CHATELAINE_TORTURE_OAUTH").unwrap_or_default();
        let numbers: Vec<u64> = asked
            .split(':')
            .filter_map(|number| number.parse().ok())
            .collect();
        let number = |number: u64| usize::try_from(number).unwrap();
        let (users, replicas, time, grace) = match numbers[..] {
            [] if asked.is_empty() => (8, 2, 12, 0),
            [users, replicas, time] => (number(users), number(replicas), time, 120),
            [users, replicas, time, grace] => (number(users), number(replicas), time, grace),
            _ => {
                panic!("CHATELAINE_TORTURE_OAUTH: {asked:?} is not users:replicas:seconds[:grace]")
            }
        };
        Self {
            users,
            replicas,
            time: Duration::from_secs(time),
            grace: Duration::from_secs(grace),
            faults: !asked.is_empty(),
        }
    }
}

/// The processes, as a load balancer knows them.
type Fleet = Arc<Mutex<Vec<Program>>>;

async fn replica(world: &World) -> Program {
    let mut command = serve(&world.config, &world.db, &"5e".repeat(32));
    command
        .env("CHATELAINE_LOG", "chatelaine=info")
        .env("CHATELAINE_REQUESTS_PER_MINUTE", "100000")
        .env("MODEL_URL", world.model.base_url().as_str())
        .env("SERVER_URL", world.env.get("SERVER_URL").unwrap());
    Program::start(command).await
}

/// What came of calls: `done`, why not, or that nobody answered.
type Outcomes = BTreeMap<String, usize>;

/// Calls at any replica until the time is up.
async fn use_it(
    user: Client,
    (fleet, turns): (Fleet, Arc<Semaphore>),
    seed: u64,
    until: std::time::Instant,
) -> Outcomes {
    let mut random = StdRng::seed_from_u64(seed);
    let mut outcomes = Outcomes::new();
    loop {
        let turn = turns.acquire().await.unwrap();
        if clock::instant() >= until {
            return outcomes;
        }
        let url = {
            let fleet = fleet.lock().unwrap();
            fleet[random.random_range(0..fleet.len())].url.clone()
        };
        *outcomes.entry(tested(&user.at(&url)).await).or_default() += 1;
        drop(turn);
        tokio::time::sleep(Duration::from_millis(random.random_range(200..1500))).await;
    }
}

async fn tested(user: &Client) -> String {
    let request = user.request(http::Method::POST, TEST).json(&json!({}));
    let Ok(answer) = request.send().await else {
        return "nobody answers".to_owned();
    };
    let status = answer.status();
    let body: Value = answer.json().await.unwrap_or_default();
    match (status.as_u16(), &body["ok"]) {
        (200, Value::Bool(true)) => "done".to_owned(),
        (200, _) => body["reason"].as_str().unwrap_or("failed").to_owned(),
        (status, _) => format!("HTTP {status}"),
    }
}

/// Kills replicas one after the other, and lets the authorization server be away in between; how often.
async fn strike(
    world: &World,
    guarded: &Guarded,
    fleet: &Fleet,
    until: std::time::Instant,
) -> [usize; 2] {
    let mut random = StdRng::seed_from_u64(4);
    let [mut kills, mut outages] = [0; 2];
    while clock::instant() + Duration::from_secs(10) < until {
        tokio::time::sleep(Duration::from_millis(random.random_range(3000..7000))).await;
        if kills % 3 == 2 {
            guarded.turn(|knobs| knobs.away = true);
            tokio::time::sleep(Duration::from_millis(random.random_range(2000..7000))).await;
            guarded.turn(|knobs| knobs.away = false);
            outages += 1;
        }
        let at = random.random_range(0..fleet.lock().unwrap().len());
        let new = replica(world).await;
        // Dropped, it is killed.
        let killed = std::mem::replace(&mut fleet.lock().unwrap()[at], new);
        drop(killed);
        kills += 1;
    }
    [kills, outages]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_is_refreshed_once_in_its_life_and_none_is_lost_whatever_fails() {
    let amount = Amount::asked();
    let guarded = Guarded::start().await;
    let often = |setup: &mut crate::support::world::Setup| {
        setup.config.requests_per_minute = 100_000;
    };
    let world = world(&guarded.url, "auth: oauth", often).await;
    let mut users = Vec::new();
    for number in 0..amount.users {
        users.push(world.user(&format!("user{number}"), &[]).await);
    }
    sign_in_all(&world, &users).await;
    let mut programs = Vec::new();
    for _ in 0..amount.replicas {
        programs.push(replica(&world).await);
    }
    let fleet = Arc::new(Mutex::new(programs));
    guarded.turn(|knobs| (knobs.life, knobs.grace) = (LIFE, amount.grace));
    // What was issued until here lives for an hour.
    guarded.end_access_tokens();
    let begun = clock::instant();
    let until = begun + amount.time;
    let (mut busy, turns) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for (seed, user) in users.iter().enumerate() {
        let at = (fleet.clone(), turns.clone());
        busy.spawn(use_it(user.clone(), at, seed as u64, until));
    }
    let mut struck = [0, 0];
    if amount.faults {
        struck = strike(&world, &guarded, &fleet, until).await;
    }
    let outcomes = busy.join_all().await.into_iter().flatten().fold(
        Outcomes::new(),
        |mut all, (outcome, times)| {
            *all.entry(outcome).or_default() += times;
            all
        },
    );
    let took = begun.elapsed();
    let lost = settle(&users, &fleet).await;
    report(&amount, &guarded, (took, &outcomes), struck, lost);
    judge(&amount, &guarded, &outcomes, (struck[0], lost));
}

async fn sign_in_all(world: &World, users: &[Client]) {
    let all = stream::iter(users).for_each_concurrent(8, async |user| {
        let chat = user.open("desk").await;
        assert!(connect(world, user, &chat).await.starts_with("✅"));
    });
    all.await;
}

/// Waits until everybody's calls are made again; of how many users the sign-in is lost.
async fn settle(users: &[Client], fleet: &Fleet) -> usize {
    let url = fleet.lock().unwrap()[0].url.clone();
    let lost = stream::iter(users).map(async |user| {
        let user = user.at(&url);
        let until = clock::instant() + SETTLED;
        while connection(&user).await["state"] == "configured" {
            if tested(&user).await == "done" {
                return 0;
            }
            assert!(clock::instant() < until, "calls are not made again");
        }
        1
    });
    lost.buffer_unordered(4)
        .collect::<Vec<usize>>()
        .await
        .into_iter()
        .sum()
}

fn judge(amount: &Amount, guarded: &Guarded, outcomes: &Outcomes, (kills, lost): (usize, usize)) {
    let (replays, late) = guarded.seen(|seen| (seen.replays, seen.late));
    assert!(
        outcomes["done"] > amount.users * 3,
        "they were busy: {outcomes:?}"
    );
    // The small run meets other tests, which may hold up a request for longer than a token has left.
    assert!(
        late == 0 || !amount.faults,
        "{late} calls were made with a token that had ended"
    );
    let refreshes = guarded.seen(|seen| seen.refreshes);
    assert!(refreshes >= amount.users, "{refreshes}");
    if amount.grace.is_zero() {
        assert_eq!(
            replays, lost,
            "a refresh token comes twice only if its replica was killed"
        );
        assert!(kills > 0 || lost == 0);
        return;
    }
    assert_eq!((replays, lost), (0, 0));
    for after in guarded.seen(|seen| seen.repeats.clone()) {
        assert!(
            after >= LEASE,
            "a refresh is repeated only for a dead replica: {after:?}"
        );
    }
}

fn report(
    amount: &Amount,
    guarded: &Guarded,
    (took, outcomes): (Duration, &Outcomes),
    [kills, outages]: [usize; 2],
    lost: usize,
) {
    if !amount.faults {
        return;
    }
    let told = guarded.seen(|seen| {
        format!(
            "{} users, {} replicas, {took:.0?}, tokens of {LIFE} s, a refresh token is good for another {:?}\n\
             kill -9: {kills}, outages of the authorization server: {outages}\n\
             calls: {outcomes:?}\n\
             refreshes: {}, after a kill repeated: {}, refused: {}\n\
             calls with a token that had ended: {}\n\
             sign-ins lost: {lost}\n",
            amount.users, amount.replicas, amount.grace, seen.refreshes, seen.repeats.len(), seen.replays, seen.late,
        )
    });
    std::io::stderr().write_all(told.as_bytes()).unwrap();
}
