//! Who does what: calls that need consent, talk, looks at lists, and looks at what is another company's.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use domain::clock;
use futures_util::{
    StreamExt,
    future::{self, join_all},
    stream,
};
use http::Method;
use rand::{RngExt, rngs::StdRng};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{COMPANIES, Hour};
use crate::torture::{
    answers::{Kind, mark},
    lives::{self, Life},
    people::{People, Request, Who},
};

/// Activities under way at once. One more waits for a place, and is not made up for.
const LANES: usize = 64;

/// Begins activities at an even pace until the time is over; what came of the calls that need consent.
pub async fn work(hour: &Hour, begun: Instant, people: &People) -> Vec<Life> {
    let mut pace = interval(Duration::from_secs_f64(1.0 / hour.rate));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = begun + hour.time;
    stream::unfold((pace, 0), async |(mut pace, at)| {
        pace.tick().await;
        (clock::instant() < end).then_some((at, (pace, at + 1)))
    })
    .map(|at| act(people, at))
    .buffer_unordered(LANES)
    .filter_map(future::ready)
    .collect()
    .await
}

async fn act(people: &People, at: usize) -> Option<Life> {
    let mut random = lives::random_of(people, at);
    let clerk = people.draw_clerk(&mut random);
    match random.random_range(0..100) {
        0..35 => return Some(lives::want(people, clerk, &mut random).await),
        35..65 => talk(people, clerk, &mut random).await,
        65..95 => read(people, clerk, &mut random).await,
        _ => peek(people, clerk, &mut random).await,
    }
    None
}

/// A turn without a call.
async fn talk(people: &People, clerk: Who, random: &mut StdRng) {
    let text = format!("How does {} stand?", mark(clerk.company));
    let body = json!({ "model": "bank", "messages": [{ "role": "user", "content": text }] });
    people
        .send_as_client(clerk, random, Kind::Turn, &body)
        .await;
}

/// A list, as a page shows it.
async fn read(people: &People, clerk: Who, random: &mut StdRng) {
    let chief = people.draw_chief(clerk.company, random);
    let admin = Who::admin(clerk.company);
    let search = format!("/v1/conversations?search={}", mark(clerk.company));
    let lists = [
        (clerk, "/v1/conversations?limit=20"),
        (clerk, "/v1/approvals?limit=20"),
        (clerk, "/v1/agents/bank/tools"),
        (clerk, search.as_str()),
        (chief, "/v1/approvals?role=approver&decidable=true&limit=50"),
        (admin, "/v1/admin/audit?limit=50"),
        (admin, "/v1/admin/users?limit=50"),
    ];
    let (who, path) = lists[random.random_range(0..lists.len())];
    let (status, answer) = people.insist(who, random, &Request::get(path)).await;
    if status != 200 {
        let complaint = format!("{path}: {status} {answer}");
        people.answers.complain(complaint);
    }
}

/// Asks for something that another company has seen.
async fn peek(people: &People, clerk: Who, random: &mut StdRng) {
    let Some(id) = people.answers.any_of_others(clerk.company, random) else {
        return;
    };
    for path in [
        format!("/v1/conversations/{id}"),
        format!("/v1/approvals/{id}"),
        format!("/v1/runs/{id}"),
    ] {
        let answered = people.try_once(clerk, random, &Request::get(&path)).await;
        if let Some((status, answer)) = answered.filter(|(status, _)| *status != 404) {
            let complaint = format!("{path} is another company's: {status} {answer}");
            people.answers.complain(complaint);
        }
    }
}

/// A clerk and a chief of each company listen for news, all the time.
pub async fn listen(people: &People) -> Infallible {
    let all = (0..COMPANIES).flat_map(|company| {
        [Who::clerk(company, 0), Who::chief(company, 0)].map(|who| listen_as(people, who))
    });
    join_all(all).await;
    future::pending().await
}

async fn listen_as(people: &People, who: Who) -> Infallible {
    let mut random = lives::random_of(people, usize::MAX / 2 - who.company);
    loop {
        let there = people.client(who).at(&people.places.any(&mut random));
        if let Ok(answer) = there.request(Method::GET, "/v1/events").send().await {
            let is_good = answer.status() == 200;
            let mut news = answer.bytes_stream();
            while let Some(Ok(piece)) = news.next().await {
                let text = String::from_utf8_lossy(&piece);
                people
                    .answers
                    .note_text(who.company, "/v1/events", is_good, &text);
            }
        }
        sleep(Duration::from_millis(random.random_range(200..1500))).await;
    }
}
