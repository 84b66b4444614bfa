//! One whole turn: the message in by HTTP, a step of the model, its one tool call, another step, the answer out as
//! events; every step a row before the next. The model answers at once. From the first byte of the request to the
//! event that says that the run has ended.

use std::{
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{clock, config::Environment, secret::Secret};
use futures_util::future::join_all;
use serde_json::json;
use tempfile::TempDir;

use super::{
    product::{Deployment, Product, pack},
    rates::{self, TOOL},
    support::{
        client::Client,
        db::TestDb,
        model::{ScriptedModel, calls, results, text},
    },
    table::{
        Amount::Time,
        Target::{AtMost, Unset},
        Times, row,
    },
};

const AT_ONCE: usize = 16;
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(8);
/// Turns of a conversation before a new one is opened.
const TURNS: usize = 4;

pub async fn measure() {
    let (_folder, private) = on_disk().await;
    compare(private.url(), "safe on disk").await;
    private.stop().await.unwrap();
    compare(&TestDb::new().await.url, "without fsync").await;
}

/// A Postgres of its own whose commits are safe on a disk, and its folder, which goes with the first value.
pub async fn on_disk() -> (TempDir, PrivatePostgres) {
    // /tmp need not be on a disk.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    // Root's server runs as another user, who must pass through.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let private = PrivatePostgres::start(
        &folder.path().join("postgres"),
        &Environment::from_process(),
    )
    .await
    .unwrap();
    (folder, private)
}

async fn compare(database: &Secret, durability: &str) {
    let (model, server) = (ScriptedModel::start().await, rates::start().await);
    let (tool, rate) = (
        format!("bank__{TOOL}"),
        json!({ "from": "EUR", "to": "USD" }),
    );
    model.on(move |request| {
        let called = results(request)
            .is_empty()
            .then(|| calls([(tool.as_str(), rate.clone())]));
        Some(called.unwrap_or_else(|| text("One euro is a dollar and eight and a half cents.")))
    });
    let packs = [(
        "bank".to_owned(),
        pack("bank", model.base_url().as_str(), &server),
    )];
    let deployment = Deployment::new(database, packs).await;
    let product = Arc::new(deployment.start().await);
    product.until_connected().await;
    turns(&deployment, &product, AT_ONCE, WARM_UP).await;

    let times = turns(&deployment, &product, AT_ONCE, MEASURED).await;
    let rate = times.count() as u64 / MEASURED.as_secs();
    let figure = format!("a turn with a tool call, {AT_ONCE} at once, {durability}");
    let remark = format!("{} turns, {rate} a second", times.count());
    row(
        &format!("{figure}, p50"),
        &AtMost(Time(Duration::from_millis(15))),
        Time(times.median()),
        &remark,
    );
    row(
        &format!("{figure}, p99"),
        &AtMost(Time(Duration::from_millis(50))),
        Time(times.percentile(99)),
        "",
    );
    let times = turns(&deployment, &product, 1, MEASURED / 2).await;
    let remark = format!("p99 {}", Time(times.percentile(99)));
    row(
        &format!("the same, one at a time, {durability}, p50"),
        &Unset,
        Time(times.median()),
        &remark,
    );
}

/// How long each turn of `at_once` people took who talk without a pause.
async fn turns(
    deployment: &Deployment,
    product: &Arc<Product>,
    at_once: usize,
    time: Duration,
) -> Times {
    let mut people = Vec::new();
    for at in 0..at_once {
        people.push(deployment.user(product, &format!("user-{at}")).await);
    }
    let until = clock::instant() + time;
    let talks = people
        .into_iter()
        .map(|person| tokio::spawn(talk(product.clone(), person, until)));
    Times::of(
        join_all(talks)
            .await
            .into_iter()
            .flat_map(Result::unwrap)
            .collect(),
    )
}

async fn talk(product: Arc<Product>, person: Client, until: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while clock::instant() < until {
        let conversation = person.open("bank").await;
        let mut events = product.listen(&person, &conversation).await;
        for _ in 0..TURNS {
            let start = clock::instant();
            let run = person
                .say(&conversation, "What is a euro worth in dollars?")
                .await;
            let heard = events.until_run_ends(&run).await;
            times.push(start.elapsed());
            let count = |name: &str| heard.iter().filter(|event| event.name == name).count();
            assert_eq!(
                (count("message"), count("tool_finished")),
                (4, 1),
                "the user, the call, its result, the answer"
            );
            assert!(count("delta") > 0, "nothing was streamed");
            assert_eq!(heard.last().expect("the end").data["status"], "succeeded");
        }
    }
    times
}
