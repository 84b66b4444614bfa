//! From nothing to ready, with fifty packs whose servers take connections and never say a word.

use std::time::Duration;

use domain::clock;

use super::{
    product::{Deployment, pack},
    support::db::TestDb,
    table::{Amount::Time, Target::AtMost, Times, row},
};

const PACKS: usize = 50;
const STARTS: usize = 7;

pub async fn measure() {
    let database = TestDb::new().await;
    // The kernel takes the connections; nobody reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", silent.local_addr().unwrap());
    let packs = (0..PACKS)
        .map(|at| format!("pack-{at}"))
        .map(|id| (id.clone(), pack(&id, "http://127.0.0.1:1/v1", &url)));
    let deployment = Deployment::new(&database.url, packs).await;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let start = clock::instant();
        let product = deployment.start().await;
        times.push(start.elapsed());
        let readiness = product.until(|_| true).await;
        assert_eq!(
            (&readiness["servers_ready"], &readiness["servers_down"]),
            (&0.into(), &0.into()),
            "all connect yet"
        );
    }
    let times = Times::of(times);
    let remark = format!(
        "the whole process, from `exec` to `/readyz`; slowest {}",
        Time(times.percentile(100))
    );
    let figure = format!("start with {PACKS} packs, their servers silent");
    row(
        &figure,
        &AtMost(Time(Duration::from_secs(1))),
        Time(times.median()),
        &remark,
    );
}
