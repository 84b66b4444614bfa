//! A request from its asking to the last word about it. What is said, by whom and when, is drawn: alone, at once
//! with what contradicts it, again, or around the moment in which the request expires. Some clerks ask through a chat
//! client, which by itself sends again what failed.

use std::time::{Duration, Instant};

use domain::{approval::State, canonical, clock, json::Json};
use futures_util::future::join_all;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    answers::{Kind, mark},
    judge::{DESK, TILL},
    model::PLEASE,
    people::{People, Request, TIME_LIMIT, Who},
    stamps::Stamps,
};

pub enum Life {
    Waited(SeenRequest),
    /// A call at the till, which needed nobody's consent, with these arguments.
    Direct(canonical::Hash),
    /// A call that rules forbid, with these arguments.
    InVain(canonical::Hash),
    /// A call of a tool that changes, which [`Stamps`] judges.
    Stamped,
}

/// A request that somebody made and saw waiting.
pub struct SeenRequest {
    pub approval: Uuid,
    /// Of the arguments as they were sent.
    pub args_sha256: canonical::Hash,
    pub words: Vec<Word>,
}

/// What somebody said about a request.
#[derive(Clone, Debug)]
pub struct Word {
    pub by: Who,
    pub choice: Choice,
    /// Why; told apart from all other words by it.
    pub reason: String,
    pub heard: Heard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Approve,
    Reject,
    Cancel,
    /// A chief tries to confirm what only the clerk may.
    Intrude,
}

/// What came of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Acknowledged, with the state of the request as it was shown.
    Yes(State),
    /// Too late, or contrary to what the same person said before.
    No,
    /// Nothing of the kind should have been answered.
    Nonsense(String),
}

/// `None` when it did not begin before the time was up.
pub async fn live(people: &People, stamps: &Stamps, at: usize) -> Option<Life> {
    if !people.begin().await {
        return None;
    }
    let mut random = random_of(people, at);
    let clerk = people.draw_clerk(&mut random);
    if random.random_bool(0.1) {
        return Some(stamps.ask(people, clerk, &mut random).await);
    }
    Some(want(people, clerk, &mut random).await)
}

/// What is drawn for the request of this number.
pub fn random_of(people: &People, at: usize) -> StdRng {
    StdRng::seed_from_u64(people.seed.wrapping_mul(1_000_003) ^ at as u64)
}

/// A call that a clerk wants, to the last word about it.
pub async fn want(people: &People, clerk: Who, random: &mut StdRng) -> Life {
    let server = match random.random_range(0..20) {
        0 => return want_in_vain(people, clerk, random).await,
        1..3 => TILL,
        3..6 => DESK,
        _ => "bank",
    };
    let (approval, args_sha256) = if server == TILL {
        match pay_at_till(people, clerk, random).await {
            (Some(approval), args_sha256) => (approval, args_sha256),
            (None, args_sha256) => return Life::Direct(args_sha256),
        }
    } else {
        ask(people, clerk, random, server).await
    };
    // Some of them expire within moments, before, during or after what is said about them.
    let expiry = random
        .random_bool(0.3)
        .then(|| Duration::from_millis(random.random_range(0..1500)));
    let span = if expiry.is_some() { 2000 } else { 150 };
    let words = (0..[0, 1, 1, 1, 2, 2, 2, 3, 3, 4][random.random_range(0..10)]).map(|_| {
        let delay = Duration::from_millis(random.random_range(0..span));
        let (word, random) = (
            draw(people, clerk, server, random),
            StdRng::seed_from_u64(random.next_u64()),
        );
        async move {
            tokio::time::sleep(delay).await;
            say(people, approval, args_sha256, word, random).await
        }
    });
    let words = join_all(words);
    let run_out = async {
        if let Some(left) = expiry {
            people.let_expire(approval, left).await;
        }
    };
    let ((), words) = tokio::join!(run_out, words);
    Life::Waited(SeenRequest {
        approval,
        args_sha256,
        words,
    })
}

/// A request that nobody says anything about yet.
pub async fn ask_for_later(people: &People, clerk: Who, random: &mut StdRng) -> SeenRequest {
    let (approval, args_sha256) = ask(people, clerk, random, "later").await;
    SeenRequest {
        approval,
        args_sha256,
        words: Vec::new(),
    }
}

/// A chief approves what was asked for long ago.
pub async fn approve(people: &People, company: usize, seen: &mut SeenRequest, random: &mut StdRng) {
    let word = Word {
        by: people.draw_chief(company, random),
        choice: Choice::Approve,
        reason: "at last".to_owned(),
        heard: Heard::No,
    };
    let random = StdRng::seed_from_u64(random.next_u64());
    let word = say(people, seen.approval, seen.args_sha256, word, random).await;
    seen.words.push(word);
}

/// A call that is made at once as long as the till is not full, asked for through a client that insists. Its request, where
/// there is one.
async fn pay_at_till(
    people: &People,
    clerk: Who,
    random: &mut StdRng,
) -> (Option<Uuid>, canonical::Hash) {
    let (tool, arguments) = invoice(people.number(), clerk, random);
    let (asked, args_sha256) = (completion(TILL, tool, &arguments), hash_of(&arguments));
    people
        .send_as_client(clerk, random, Kind::Other, &asked)
        .await;
    (people.find_request(args_sha256).await, args_sha256)
}

/// A payment to somebody whom nobody pays, or of too much.
async fn want_in_vain(people: &People, clerk: Who, random: &mut StdRng) -> Life {
    let number = people.number();
    let (to, most) = if random.random_bool(0.5) {
        ("delta", 0)
    } else {
        ("acme", 2_000_000)
    };
    let arguments = payment(to, most, number);
    let asked = completion("bank", "send_money", &arguments);
    people
        .send_as_client(clerk, random, Kind::Other, &asked)
        .await;
    Life::InVain(hash_of(&arguments))
}

/// What a chat client sends.
fn completion(server: &str, tool: &str, arguments: &Value) -> Value {
    let text = format!("{PLEASE}{server} {tool} {arguments}");
    json!({ "model": "bank", "messages": [{ "role": "user", "content": text }] })
}

pub fn hash_of(arguments: &Value) -> canonical::Hash {
    canonical::hash(&canonical::text(&Json::from(arguments)).unwrap())
}

fn draw(people: &People, clerk: Who, server: &str, random: &mut StdRng) -> Word {
    let chief = people.draw_chief(clerk.company, random);
    let (by, choice) = match (random.random_range(0..20), server) {
        (17.., _) => (clerk, Choice::Cancel),
        (0..10, DESK) => (clerk, Choice::Approve),
        (10..14, DESK) => (chief, Choice::Intrude),
        (14..17, DESK) => (clerk, Choice::Reject),
        (0..14, _) => (chief, Choice::Approve),
        _ => (chief, Choice::Reject),
    };
    let mark = format!("{:016x}", random.next_u64());
    // Whoever confirms their own call says nothing beside.
    let is_confirmation = (server, choice) == (DESK, Choice::Approve);
    Word {
        by,
        choice,
        reason: Some(mark).filter(|_| !is_confirmation).unwrap_or_default(),
        heard: Heard::No,
    }
}

/// Asks for a call of its own until a request for it is seen. What was asked for without an answer may become a
/// request as well, which nobody will decide.
async fn ask(
    people: &People,
    clerk: Who,
    random: &mut StdRng,
    server: &str,
) -> (Uuid, canonical::Hash) {
    let deadline = clock::instant() + TIME_LIMIT;
    loop {
        let number = people.number();
        let (tool, arguments) = if server == "bank" {
            wanted(number, clerk, random)
        } else {
            invoice(number, clerk, random)
        };
        let args_sha256 = hash_of(&arguments);
        if random.random_bool(0.2) {
            let asked = completion(server, tool, &arguments);
            let kind = Kind::Other;
            people.send_as_client(clerk, random, kind, &asked).await;
            if let Some(id) = people.request_with(args_sha256).await {
                return (id, args_sha256);
            }
            assert_in_time(clerk, deadline);
            continue;
        }
        let (status, opened) = people
            .insist(
                clerk,
                random,
                &Request::post("/v1/conversations", &json!({ "agent": "bank" })),
            )
            .await;
        assert_eq!(status, 201, "{opened}");
        let messages = format!(
            "/v1/conversations/{}/messages",
            opened["id"].as_str().unwrap()
        );
        // Some ask the model for the call.
        let command = if random.random_bool(0.3) {
            PLEASE
        } else {
            "/call "
        };
        let text = json!({ "text": format!("{command}{server} {tool} {arguments}") });
        let said = people
            .try_once(clerk, random, &Request::post(&messages, &text))
            .await;
        let wait = match &said {
            Some((202, _)) => Duration::from_secs(30),
            Some((status, answer)) => panic!("{status} {answer}"),
            None => Duration::from_secs(2),
        };
        if let Some(note) = seen(people, clerk, random, &messages, wait).await {
            assert_eq!(
                note["args_sha256"],
                hex::encode(args_sha256),
                "{note}: these are not the arguments sent"
            );
            return (note["id"].as_str().unwrap().parse().unwrap(), args_sha256);
        }
        assert_in_time(clerk, deadline);
    }
}

fn assert_in_time(clerk: Who, deadline: Instant) {
    assert!(
        clock::instant() < deadline,
        "no request came of what {} said",
        clerk.name()
    );
}

/// A call that nobody else asks for: an invoice or a payment, which one chief approves, or a payment to sato or of more than
/// the account holds, which needs two of them.
fn wanted(number: usize, clerk: Who, random: &mut StdRng) -> (&'static str, Value) {
    if random.random_bool(0.7) {
        return invoice(number, clerk, random);
    }
    let most = if random.random_bool(0.8) {
        0
    } else {
        1_000_000
    };
    let to = if random.random_bool(0.7) {
        "acme"
    } else {
        "sato"
    };
    ("send_money", payment(to, most, number))
}

fn payment(to: &str, most: usize, number: usize) -> Value {
    let amount = format!("{}.{:02}", most + number / 100, number % 100);
    json!({ "from_account": "savings", "to": to, "amount": amount, "currency": "EUR" })
}

fn invoice(number: usize, clerk: Who, random: &mut StdRng) -> (&'static str, Value) {
    let cents = random.random_range(0..100);
    let amount = format!("{number}.{cents:02}");
    let customer = format!("customer {number} of {}", mark(clerk.company));
    let arguments = json!({ "customer": customer, "amount": amount, "currency": "EUR" });
    ("create_invoice", arguments)
}

/// The request as its conversation shows it; `None` when the call came to nothing, or did not become one in time.
async fn seen(
    people: &People,
    clerk: Who,
    random: &mut StdRng,
    messages: &str,
    wait: Duration,
) -> Option<Value> {
    let deadline = clock::instant() + wait;
    let mut pause = Duration::from_millis(60);
    while clock::instant() < deadline {
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(1.5).min(Duration::from_secs(1));
        let (status, page) = people.insist(clerk, random, &Request::get(messages)).await;
        assert_eq!(status, 200, "{page}");
        let parts = || {
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|message| message["parts"].as_array().unwrap())
        };
        if let Some(note) = parts().find(|part| part["type"] == "approval") {
            return Some(note.clone());
        }
        // A replica that has just started does not know the bank yet; one that was killed asks nothing again. A model
        // that fails ends the run with a text.
        let said = page["items"].as_array().unwrap().iter().any(|message| {
            message["role"] != "user"
                && message["parts"].as_array().unwrap().iter().any(|part| {
                    ["tool_result", "text", "notice"].contains(&part["type"].as_str().unwrap())
                })
        });
        if said {
            return None;
        }
    }
    None
}

/// Says a word until it is answered for good.
async fn say(
    people: &People,
    approval: Uuid,
    args_sha256: canonical::Hash,
    word: Word,
    mut random: StdRng,
) -> Word {
    let (path, body) = match word.choice {
        Choice::Cancel => (format!("/v1/approvals/{approval}/cancel"), json!({})),
        choice => {
            let decision = if choice == Choice::Reject {
                "reject"
            } else {
                "approve"
            };
            let reason = Some(&word.reason).filter(|reason| !reason.is_empty());
            let body = json!({ "decision": decision, "reason": reason, "args_sha256": hex::encode(args_sha256) });
            (format!("/v1/approvals/{approval}/decision"), body)
        }
    };
    let heard = match people
        .insist(
            word.by,
            &mut random,
            &Request::post(path, &body).of_kind(Kind::Decision),
        )
        .await
    {
        (200, view) => match State::ALL
            .into_iter()
            .find(|state| view["state"] == state.into_str())
        {
            Some(state) => Heard::Yes(state),
            None => Heard::Nonsense(view.to_string()),
        },
        (409, _) => Heard::No,
        // What one may not decide about is not there.
        (404, _) if word.choice == Choice::Intrude => Heard::No,
        (status, answer) => Heard::Nonsense(format!("{status} {answer}")),
    };
    Word { heard, ..word }
}
