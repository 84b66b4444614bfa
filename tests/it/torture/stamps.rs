//! A server that changes its tools now and then. A second after one replica has written that they wait, none calls them,
//! until the admin accepts them as they are; then they are tools like any others. The server takes members that stand
//! twice in one spelling or another, and notes of each call how the tools were then.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use domain::clock;
use http::Method;
use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

use super::{
    lives::{Life, SeenRequest, approve, hash_of, random_of},
    people::{People, Request, TIME_LIMIT, Who},
};
use crate::support::{
    bank::books::Entry,
    fickle::{Execution, Fickle, tool},
};

/// Anybody may call it.
const STAMP: &str = "stamp";
/// A chief approves its calls.
const SEAL: &str = "seal";
/// Members that a server may take for `amount`.
const SPELLINGS: [&str; 4] = ["Amount", "AMOUNT", "a_mount", "\u{ff41}mount"];
/// The second in which all replicas hear of what one has written, and one more for the way from the look at it to the
/// server on a busy machine.
const HOLDS_WITHIN: Duration = Duration::from_secs(2);
/// What a client waits for one answer.
const TIMEOUT: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(200);
/// Calls that are asked for once the tools are held, and once they are accepted, beside those of the clerks.
const ASKED: usize = 2;
/// The tools change once in so many requests, and at most so often.
const REQUESTS: usize = 100;
const CHANGES: usize = 20;

/// What the tools are between two changes.
struct Form {
    tools: Value,
    /// When it was seen that a replica had written that they wait.
    written: Option<Instant>,
    /// When the admin began to accept them.
    accepted: Option<Instant>,
}

impl Form {
    fn new(number: usize) -> Self {
        let words = |what: &str| format!("{what} a paper by {}.", name_of(number));
        let tools = json!([tool(STAMP, &words("Stamps")), tool(SEAL, &words("Seals"))]);
        Self {
            tools,
            written: None,
            accepted: None,
        }
    }

    /// Whether nobody may call the tools at this moment.
    fn is_held(&self, at: Instant) -> bool {
        let written = self
            .written
            .is_some_and(|written| at > written + HOLDS_WITHIN);
        written && self.accepted.is_none_or(|accepted| at < accepted)
    }
}

fn name_of(form: usize) -> String {
    format!("form {form:02}")
}

pub struct Stamps {
    server: Fickle,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    forms: Vec<Form>,
    /// Calls that were asked for while the tools were held.
    held: usize,
    complaints: Vec<String>,
}

impl Stamps {
    pub async fn start() -> Self {
        let first = Form::new(0);
        Self {
            server: Fickle::start(first.tools.clone()).await,
            seen: Mutex::new(Seen {
                forms: vec![first],
                ..Seen::default()
            }),
        }
    }

    pub fn url(&self) -> &str {
        self.server.server.url.as_str()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Asks once for a call that nobody else asks for, and waits for what comes of it. A chief approves it if it waits,
    /// also one whose amount stands twice.
    pub async fn ask(&self, people: &People, clerk: Who, random: &mut StdRng) -> Life {
        let number = people.number();
        let amount = format!("{}.{:02}", number % 1000, number % 100);
        let mut arguments = json!({ "paper": format!("paper {number}"), "amount": amount });
        let (tool, is_spelt) = [(STAMP, false), (STAMP, false), (SEAL, false), (SEAL, true)]
            [random.random_range(0..4)];
        if is_spelt {
            arguments[SPELLINGS[random.random_range(0..SPELLINGS.len())]] = json!("9000.00");
        }
        let args_sha256 = hash_of(&arguments);
        self.call(people, clerk, random, tool, &arguments).await;
        let mut seen = None;
        if let Some(approval) = people.find_request(args_sha256).await {
            let mut request = SeenRequest {
                approval,
                args_sha256,
                words: Vec::new(),
            };
            approve(people, clerk.company, &mut request, random).await;
            seen = Some(request);
        }
        match seen {
            _ if is_spelt => Life::InVain(args_sha256),
            Some(request) => Life::Waited(request),
            None => Life::Stamped,
        }
    }

    /// Says it in a conversation of its own, and waits for an answer.
    async fn call(
        &self,
        people: &People,
        clerk: Who,
        random: &mut StdRng,
        tool: &str,
        arguments: &Value,
    ) {
        let opened = json!({ "agent": "bank" });
        let opened = Request::post("/v1/conversations", &opened);
        let (status, opened) = people.insist(clerk, random, &opened).await;
        assert_eq!(status, 201, "{opened}");
        let messages = format!(
            "/v1/conversations/{}/messages",
            opened["id"].as_str().unwrap()
        );
        let text = json!({ "text": format!("/call stamps {tool} {arguments}") });
        let said = Request::post(&messages, &text);
        if people.try_once(clerk, random, &said).await.is_none() {
            return;
        }
        let deadline = clock::instant() + TIME_LIMIT;
        while clock::instant() < deadline {
            tokio::time::sleep(POLL).await;
            let (status, page) = people.insist(clerk, random, &Request::get(&messages)).await;
            assert_eq!(status, 200, "{page}");
            let answers = page["items"].as_array().unwrap().iter();
            let answers = answers.filter(|message| message["role"] != "user");
            let mut parts = answers.flat_map(|message| message["parts"].as_array().unwrap());
            let ends = ["text", "tool_result", "approval"];
            if parts.any(|part| ends.contains(&part["type"].as_str().unwrap())) {
                return;
            }
        }
    }

    /// Changes the tools now and then, and has them accepted a while later.
    pub async fn change(&self, people: &People, requests: usize) {
        let mut random = random_of(people, usize::MAX / 3);
        let changes = (requests / REQUESTS).clamp(1, CHANGES);
        let share = requests / changes;
        for change in 0..changes {
            let begun = change * share;
            if people.progress().0 >= requests
                || !people.until_begun_or_over(begun + share / 3).await
            {
                return;
            }
            let number = self.change_once(people).await;
            for _ in 0..ASKED {
                self.seen().held += 1;
                let clerk = people.draw_clerk(&mut random);
                self.ask(people, clerk, &mut random).await;
            }
            people.until_begun_or_over(begun + share * 2 / 3).await;
            self.seen().forms[number].accepted = Some(clock::instant());
            self.accept(people, &mut random).await;
            self.until_listed(people).await;
            for _ in 0..ASKED {
                let clerk = people.draw_clerk(&mut random);
                self.ask(people, clerk, &mut random).await;
            }
        }
    }

    /// Changes the tools, and waits until they must be held; the number of their form.
    async fn change_once(&self, people: &People) -> usize {
        let number = self.seen().forms.len();
        let form = Form::new(number);
        let tools = form.tools.clone();
        self.seen().forms.push(form);
        self.server.list(tools);
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            let rows: Vec<(String,)> = people
                .rows("select definition from pinned_tools_of_all where server = 'stamps'")
                .await;
            let rows = rows
                .iter()
                .filter(|(words,)| words.contains(&name_of(number)));
            if rows.count() == 2 {
                break;
            }
            if clock::instant() > deadline {
                self.complain(format!("nobody writes down {}", name_of(number)));
                return number;
            }
            tokio::time::sleep(POLL / 4).await;
        }
        self.seen().forms[number].written = Some(clock::instant());
        tokio::time::sleep(HOLDS_WITHIN).await;
        number
    }

    async fn accept(&self, people: &People, random: &mut StdRng) {
        let admin = Who::admin(0);
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            let list = Request::get("/v1/admin/changed-tools");
            let (status, waiting) = people.insist(admin, random, &list).await;
            assert_eq!(status, 200, "{waiting}");
            let waiting = waiting["items"].as_array().unwrap();
            if waiting.is_empty() {
                return;
            }
            if waiting.iter().any(|tool| tool["server"] != "stamps") || clock::instant() > deadline
            {
                return self.complain(format!("these tools wait: {waiting:?}"));
            }
            let tools = waiting
                .iter()
                .map(|tool| json!({ "id": tool["id"], "hash": tool["hash"] }));
            let seen = json!({ "tools": tools.collect::<Vec<_>>() });
            let accept = Request::post("/v1/admin/changed-tools/accept", &seen);
            people.try_once(admin, random, &accept).await;
        }
    }

    /// Waits until every replica lists the tools.
    async fn until_listed(&self, people: &People) {
        let deadline = clock::instant() + TIME_LIMIT;
        loop {
            let mut all = true;
            for place in people.places.all() {
                all &= is_listed(people, &place.address).await;
            }
            if all {
                return;
            }
            if clock::instant() > deadline {
                return self.complain("not all replicas list the accepted tools".to_owned());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn complain(&self, complaint: String) {
        self.seen().complaints.push(complaint);
    }

    /// The calls that need consent, for the bank's judge.
    pub fn seals(&self) -> impl Iterator<Item = Entry> {
        let seals = self.server.executed().into_iter().enumerate();
        let seals = seals.filter(|(_, call)| call.tool == SEAL);
        seals.map(|(number, call)| Entry {
            number,
            at: String::new(),
            tool: call.tool,
            arguments: call.arguments,
            refused: None,
        })
    }

    /// Everything that must not be. A replica that stood still, or was cut off, between its look at what is held and its
    /// request is not to blame.
    pub fn complaints(&self, people: &People) -> Vec<String> {
        let (seen, executed) = (self.seen(), self.server.executed());
        let mut complaints = seen.complaints.clone();
        let mut times: BTreeMap<_, usize> = BTreeMap::new();
        for call in &executed {
            *times.entry(call.arguments.to_string()).or_default() += 1;
            let form = seen.form_of(call);
            if form.is_held(call.at) && !people.is_struck(call.at, HOLDS_WITHIN) {
                complaints.push(format!(
                    "executed while its tool was held: {} {}, {:?} after that was written",
                    call.tool,
                    call.arguments,
                    form.written.map(|written| call.at - written)
                ));
            }
        }
        let often = times.into_iter().filter(|(_, times)| *times > 1);
        complaints
            .extend(often.map(|(call, times)| format!("executed {times} times at stamps: {call}")));
        let accepted = seen.forms.iter().any(|form| form.accepted.is_some());
        let mut executed = executed.iter();
        if accepted && !executed.any(|call| seen.form_of(call).accepted.is_some()) {
            complaints.push("nothing was executed after the tools were accepted".to_owned());
        }
        complaints
    }

    pub fn report(&self) -> String {
        let (seen, executed) = (self.seen(), self.server.executed());
        let seals = executed.iter().filter(|call| call.tool == SEAL).count();
        format!(
            "{} calls executed, {seals} of them approved; the tools changed {} times, {} calls were asked for while they \
             were held",
            executed.len(),
            seen.forms.len() - 1,
            seen.held
        )
    }
}

impl Seen {
    fn form_of(&self, call: &Execution) -> &Form {
        let mut forms = self.forms.iter();
        forms
            .find(|form| form.tools == call.listed)
            .expect("it has no other tools")
    }
}

/// Whether one replica lists the tools for a clerk; not while it does not answer.
async fn is_listed(people: &People, address: &str) -> bool {
    let client = people.client(Who::clerk(0, 0)).at(address);
    let request = client.request(Method::GET, "/v1/agents/bank/tools");
    let listed = async {
        let answer = request.timeout(TIMEOUT).send().await.ok()?;
        let listed: Value = answer.json().await.ok()?;
        let mut servers = listed["items"].as_array()?.iter();
        let stamps = servers.find(|server| server["server"] == "stamps")?;
        Some(stamps["tools"].as_array()?.len() == 2)
    };
    listed.await == Some(true)
}
