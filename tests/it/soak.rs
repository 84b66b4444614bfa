//! One process of the product, honest users, and beside them all that may flood it: servers over HTTP, a WebSocket and
//! standard streams that ask, report and log without end, clients that read nothing of what they asked for, guests who
//! upload as much as they may, and models that never stop. When they have gone, the memory must be what it was, the log
//! small, and no honest call may have taken more than a second.
//!
//! `make soak` runs it: `CHATELAINE_SOAK=minutes`. It takes minutes and both processors, so that without the variable
//! nothing is done.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use domain::{clock, config::Environment};
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{task::JoinSet, time::sleep};

use super::{
    mcp_transports::sockets::{Say, Sockets, sampling},
    support::{
        bank::pair,
        client::Client,
        model::{ScriptedModel, raw, text},
        program::{Program, serve},
        scripted::{Scripted, Seen, event, events, reply},
        servers::{folder, venv},
        world::World,
    },
};

/// What must hold at the end.
const MOST_MEMORY: u64 = 64;
const MOST_LOG: usize = 10_000_000;
const LONGEST_CALL: Duration = Duration::from_secs(1);
/// The memory is what it was so long after the floods. Most caches forget what nobody has used for a minute.
const SETTLED: Duration = Duration::from_secs(120);
/// Honest users alone, before the floods.
const WARM_UP: Duration = Duration::from_secs(15);

/// What floods are counted as.
const UPLOADED: &str = "uploaded by guests";
const UNREAD: &str = "called and not read";
const ENDLESS: &str = "asked of the model";
const CONNECTED: &str = "connected";
const CHATTER: &str = "chattered";

const HONEST: usize = 4;
const SLOW: usize = 8;
const GUESTS: usize = 4;

/// What the floods came to, so that nobody takes a calm for a success.
#[derive(Default)]
struct Floods(Mutex<BTreeMap<&'static str, usize>>);

impl Floods {
    fn count(&self, what: &'static str) {
        *self.0.lock().unwrap().entry(what).or_default() += 1;
    }
}

/// How long the calls of honest users took, by their kind.
type Calls = Mutex<BTreeMap<&'static str, Vec<Duration>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_cost_nobody_else_anything_and_leave_nothing_behind() {
    let env = Environment::from_process();
    let asked = env.get("CHATELAINE_SOAK").filter(|asked| !asked.is_empty());
    let Some(minutes) = asked else { return };
    let time = Duration::from_secs_f64(minutes.parse::<f64>().expect("minutes") * 60.0);
    let report = soak(time).await;
    write!(std::io::stderr(), "{report}").unwrap();
    report.judge();
}

/// What was seen.
struct Report {
    time: Duration,
    /// Mebibytes before the floods, at most, and after them.
    memory: [u64; 3],
    settled: Duration,
    /// Bytes, without the lines that say that an honest user was answered; the bytes of those; and the other lines that are
    /// most of it.
    log: usize,
    honest_log: usize,
    lines: Vec<(usize, usize, String)>,
    calls: BTreeMap<&'static str, Vec<Duration>>,
    floods: BTreeMap<&'static str, usize>,
    /// How the first honest user ended who was not served to the end.
    unserved: Option<String>,
}

async fn soak(time: Duration) -> Report {
    let (floods, calls) = (Arc::<Floods>::default(), Arc::<Calls>::default());
    let world = World::start().await;
    world.model.on(|_| Some(text("It is so.")));
    let (mut honest, mut slow) = (Vec::new(), Vec::new());
    for at in 0..HONEST {
        honest.push(world.user(&format!("honest-{at}"), &["employee"]).await);
    }
    for at in 0..SLOW {
        slow.push(world.user(&format!("slow-{at}"), &[]).await);
    }
    let tenant = world.tenant.name.clone();
    // A line of the log names a user by a hash.
    let logged_as = (0..HONEST).map(|at| {
        let user = format!("{}/honest-{at}", world.tenant.id);
        hex::encode(&Sha256::digest(user)[..6])
    });
    let logged_as: Vec<_> = logged_as.collect();
    let world = world.stop().await;
    let mut command = serve(&world.config, &world.db, &"5e".repeat(32));
    command
        .envs(["MODEL_URL", "BANK_URL"].map(|name| (name, world.env.get(name).unwrap())))
        .env("CHATELAINE_REQUESTS_PER_MINUTE", "100000")
        .env("CHATELAINE_STORED_MIB_BY_GUESTS_PER_DAY", "128");
    let program = Program::start(command).await;
    until_served(&honest[0].at(&program.url), "bank").await;
    let mut honest_users = JoinSet::new();
    for user in honest {
        honest_users.spawn(be_honest(user.at(&program.url), calls.clone()));
    }
    sleep(WARM_UP).await;
    let before = program.memory();

    let servers = Servers::start(&floods).await;
    let pack = world.config.packs.join("hostile");
    fs::create_dir_all(&pack).unwrap();
    fs::write(pack.join("agent-pack.yaml"), servers.pack()).unwrap();
    until_served(&slow[0].at(&program.url), "hostile").await;
    let mut clients = JoinSet::new();
    for user in slow {
        let user = user.at(&program.url);
        clients.spawn(read_nothing(user.clone(), floods.clone()));
        clients.spawn(ask_without_end(user, floods.clone()));
    }
    for _ in 0..GUESTS {
        clients.spawn(upload(program.url.clone(), tenant.clone(), floods.clone()));
    }
    let (until, mut peak) = (clock::instant() + time, before);
    while clock::instant() < until {
        peak = peak.max(program.memory());
        sleep(Duration::from_millis(200)).await;
    }
    clients.shutdown().await;
    drop(servers);
    fs::remove_dir_all(&pack).unwrap();

    let gone = clock::instant();
    let mut after = program.memory();
    while after > before + MOST_MEMORY && gone.elapsed() < SETTLED {
        sleep(Duration::from_secs(1)).await;
        after = program.memory();
    }
    let settled = gone.elapsed();
    let unserved = honest_users
        .try_join_next()
        .map(|ended| format!("{ended:?}"));
    honest_users.shutdown().await;
    let log = program.stop().await;
    let is_honest = |line: &&str| {
        line.contains("answered") && logged_as.iter().any(|user| line.contains(user.as_str()))
    };
    let (honest, other): (Vec<_>, Vec<_>) = log.lines().partition(is_honest);
    let bytes_of = |lines: &[&str]| lines.iter().map(|line| line.len() + 1).sum();
    let mut calls = std::mem::take(&mut *calls.lock().unwrap());
    for times in calls.values_mut() {
        times.sort_unstable();
    }
    Report {
        time,
        memory: [before, peak, after],
        settled,
        log: bytes_of(&other),
        honest_log: bytes_of(&honest),
        lines: most_of(&other),
        calls,
        floods: std::mem::take(&mut *floods.0.lock().unwrap()),
        unserved,
    }
}

impl Report {
    fn judge(&self) {
        let [before, _, after] = self.memory;
        assert_eq!(self.unserved, None, "an honest user was not served{self}");
        for what in [UPLOADED, UNREAD, ENDLESS, CONNECTED, CHATTER] {
            assert!(self.floods.contains_key(what), "nothing was {what}{self}");
        }
        assert!(
            after <= before + MOST_MEMORY,
            "memory is not given back{self}"
        );
        assert!(self.log <= MOST_LOG, "the log is too large{self}");
        for (kind, times) in &self.calls {
            let slowest = times.last().unwrap();
            assert!(
                *slowest <= LONGEST_CALL,
                "a {kind} of an honest user took {slowest:?}{self}"
            );
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([before, peak, after], settled) = (self.memory, self.settled.as_secs());
        writeln!(f, "\nsoak: {} s", self.time.as_secs())?;
        writeln!(
            f,
            "  memory   {before} MiB before, {peak} at most, {after} {settled} s after"
        )?;
        let (log, honest) = (self.log, self.honest_log);
        writeln!(
            f,
            "  log      {log} bytes, and {honest} of answers to honest users"
        )?;
        for (bytes, lines, kind) in &self.lines {
            writeln!(f, "           {bytes} bytes in {lines} lines: {kind:.100}")?;
        }
        for (kind, times) in &self.calls {
            let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_millis();
            let (middle, most, all) = (at(50), at(99), at(100));
            let count = times.len();
            writeln!(
                f,
                "  {kind:8} {count} times: p50 {middle} ms, p99 {most} ms, at most {all} ms"
            )?;
        }
        for (what, count) in &self.floods {
            writeln!(f, "  {what:20} {count} times")?;
        }
        Ok(())
    }
}

/// Bytes and number of the lines that fill a log, by their level, place and first word.
fn most_of(lines: &[&str]) -> Vec<(usize, usize, String)> {
    let mut kinds = BTreeMap::<String, (usize, usize)>::new();
    for line in lines {
        // Not which request it was.
        let what = line.split_once("}: ").map_or(*line, |(_, what)| what);
        let words: Vec<_> = what.split_whitespace().skip(1).take(3).collect();
        let kind = kinds.entry(words.join(" ")).or_default();
        *kind = (kind.0 + line.len(), kind.1 + 1);
    }
    let kinds = kinds
        .into_iter()
        .map(|(kind, (bytes, lines))| (bytes, lines, kind));
    let mut kinds: Vec<_> = kinds.collect();
    kinds.sort_unstable_by(|a, b| b.cmp(a));
    kinds.truncate(5);
    kinds
}

/// Waits until an agent is served and its servers have been asked for their tools.
async fn until_served(client: &Client, agent: &str) {
    let path = format!("/v1/agents/{agent}/tools");
    let served = async || {
        let listed = client.get(&path).await;
        let is_connecting = || listed.json().to_string().contains("\"connecting\"");
        listed.status == 200 && !is_connecting()
    };
    super::support::wait::eventually(served).await;
}

/// Calls a tool as an MCP client, talks, and reads, again and again.
async fn be_honest(user: Client, calls: Arc<Calls>) {
    loop {
        let conversation = user.open("bank").await;
        for _ in 0..20 {
            let params = json!({ "name": "bank__get_exchange_rate", "arguments": pair() });
            let body =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
            let answer = timed(&calls, "call", user.post("/mcp/bank", body))
                .await
                .expect(200);
            assert_eq!(answer["result"]["isError"], false, "{answer}");
            let run = timed(
                &calls,
                "turn",
                user.say_and_wait(&conversation, "How is it?"),
            )
            .await;
            assert_eq!(run["status"], "succeeded", "{run}");
            timed(&calls, "read", user.get("/v1/agents/bank/tools"))
                .await
                .expect(200);
            sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn timed<T>(calls: &Calls, kind: &'static str, work: impl Future<Output = T>) -> T {
    let begun = clock::instant();
    let done = work.await;
    calls
        .lock()
        .unwrap()
        .entry(kind)
        .or_default()
        .push(begun.elapsed());
    done
}

/// Makes calls that report their progress without end, and reads nothing of it.
async fn read_nothing(user: Client, floods: Arc<Floods>) {
    let params =
        json!({ "name": "talks__flood", "arguments": {}, "_meta": { "progressToken": 1 } });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    loop {
        let request = user.request(Method::POST, "/mcp/hostile");
        let request = request.header("accept", "application/json, text/event-stream");
        let unread = request.json(&body).send().await;
        if unread.as_ref().is_ok_and(|answer| answer.status() == 200) {
            floods.count(UNREAD);
        }
        sleep(Duration::from_secs(4)).await;
    }
}

/// Asks a model that never stops, while somebody listens and reads nothing.
async fn ask_without_end(user: Client, floods: Arc<Floods>) {
    loop {
        let conversation = user.open("hostile").await;
        let events = format!("/v1/conversations/{conversation}/events");
        let _listening = user.request(Method::GET, &events).send().await;
        for _ in 0..10 {
            let say = json!({ "text": "go on" });
            let path = format!("/v1/conversations/{conversation}/messages");
            let answer = user.post(&path, say).await;
            floods.count(if answer.status == 202 {
                ENDLESS
            } else {
                "refused question"
            });
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Becomes one guest after the other, and uploads until it is refused.
async fn upload(url: String, tenant: String, floods: Arc<Floods>) {
    let nobody = Client::new(&url, None);
    let file = "x".repeat(1024 * 1024);
    loop {
        let guest = nobody.post("/v1/guests", json!({ "tenant": tenant })).await;
        if guest.status != 201 {
            floods.count("refused guest");
            sleep(Duration::from_millis(200)).await;
            continue;
        }
        let token = domain::secret::Secret::new(guest.json()["token"].as_str().unwrap());
        let guest = Client::new(&url, Some(&token));
        let opened = guest
            .post("/v1/conversations", json!({ "agent": "bank" }))
            .await;
        let Some(conversation) = opened.json()["id"].as_str().map(str::to_owned) else {
            floods.count("refused conversation");
            sleep(Duration::from_millis(200)).await;
            continue;
        };
        loop {
            let path = format!("/v1/conversations/{conversation}/attachments?name=a.txt");
            let request = guest
                .request(Method::POST, &path)
                .header("content-type", "text/plain");
            let answer = guest.send(request.body(file.clone())).await;
            floods.count(if answer.status == 201 {
                UPLOADED
            } else {
                "refused upload"
            });
            if answer.status != 201 {
                sleep(Duration::from_millis(100)).await;
                break;
            }
        }
    }
}

/// The hostile servers and the model without an end.
struct Servers {
    asks: Scripted,
    talks: Scripted,
    socket: Sockets,
    model: ScriptedModel,
}

/// A message of a server that does not stop: `number` says which.
fn chatter(number: usize) -> Value {
    let long = "x".repeat(1024);
    match number % 5 {
        0 => {
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": long}})
        }
        1 => json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
        2 => json!({"jsonrpc": "2.0", "method": "notifications/progress",
                    "params": {"progressToken": "nobody's", "progress": number, "message": long}}),
        3 => {
            json!({"jsonrpc": "2.0", "method": "notifications/never_heard_of", "params": {"data": long}})
        }
        _ => json!({"jsonrpc": "2.0", "id": number, "result": {"data": long}}),
    }
}

impl Servers {
    async fn start(floods: &Arc<Floods>) -> Self {
        let count = floods.clone();
        // Requests without end, whose answers are never taken.
        let asks = Scripted::legacy(move |seen: Seen| {
            let count = count.clone();
            async move {
                match seen.method() {
                    "GET" => {
                        count.count(CONNECTED);
                        Some(events(
                            stream::iter(0..).map(|number| Ok(event(&sampling(number)))),
                        ))
                    }
                    "POST" => std::future::pending().await,
                    _ => None,
                }
            }
        })
        .await;
        let count = floods.clone();
        let talks = Scripted::legacy(move |seen: Seen| {
            let count = count.clone();
            async move {
                let token = seen.body["params"]["_meta"]["progressToken"].clone();
                match seen.method() {
                    "GET" => Some(flood(move |number| {
                        count.count(CHATTER);
                        chatter(number)
                    })),
                    "tools/list" => Some(seen.result(json!({
                        "tools": [{ "name": "flood", "inputSchema": { "type": "object" } }]
                    }))),
                    "tools/call" => Some(flood(move |number| {
                        let params = json!({"progressToken": token, "progress": number, "message": "x".repeat(100_000)});
                        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
                    })),
                    "POST" => Some(reply(StatusCode::ACCEPTED, &[], "")),
                    _ => None,
                }
            }
        })
        .await;
        let connections = AtomicUsize::new(0);
        let socket = Sockets::start(move |message, _| {
            let tools = json!([{ "name": "echo", "inputSchema": { "type": "object" } }]);
            (message["method"] == "tools/list").then(|| {
                // Now requests, now everything else.
                let messages = [sampling, chatter][connections.fetch_add(1, Relaxed) % 2];
                Say::ResultThen(json!({ "tools": tools }), messages)
            })
        })
        .await;
        let model = ScriptedModel::start().await;
        let word = json!({ "choices": [{ "delta": { "content": "x".repeat(4 << 10) } }] });
        let word = format!("data: {word}\n\n");
        let comment = format!(": {}\n\n", "x".repeat(8 << 10));
        let asked = AtomicUsize::new(0);
        model.on(move |_| {
            let piece = [&word, &comment][asked.fetch_add(1, Relaxed) % 2];
            Some(raw([piece.as_bytes()]).endless())
        });
        Self {
            asks,
            talks,
            socket,
            model,
        }
    }

    fn pack(&self) -> String {
        let (python, probe) = (venv("python"), folder().join("probe.py"));
        let remote = |name: &str, transport: &str, url: &url::Url| {
            format!(
                "    - {{ name: {name}, transport: {transport}, url: \"{url}\", timeouts: {{ requestSeconds: 5 }}, toolAccess: {{ default: public }} }}\n"
            )
        };
        let child = |mode: &str| {
            format!(
                "    - {{ name: {mode}, transport: stdio, command: {}, args: [{}, {mode}], toolAccess: {{ default: public }} }}\n",
                python.display(),
                probe.display()
            )
        };
        format!(
            "metadata: {{ id: hostile, displayName: H, description: H, defaultLanguage: en }}\n\
             languages: {{ en: {{ systemPrompt: Hi }} }}\n\
             llm: {{ provider: openai, model: endless, baseUrl: \"{}\", apiKey: model-key-0123456789 }}\n\
             flows: {{ authentication: {{ required: true }} }}\nmcp:\n  servers:\n{}{}{}{}{}",
            self.model.base_url(),
            remote("asks", "streamable-http", &self.asks.url),
            remote("talks", "streamable-http", &self.talks.url),
            remote("socket", "websocket", &self.socket.url),
            child("greedy"),
            child("noisy"),
        )
    }
}

/// Messages without end, some megabytes a second.
fn flood(
    mut message: impl FnMut(usize) -> Value + Send + 'static,
) -> super::support::scripted::Reply {
    events(stream::iter(0..).then(move |number| {
        let text = event(&message(number));
        async move {
            if number % 16 == 0 {
                sleep(Duration::from_millis(2)).await;
            }
            Ok(text)
        }
    }))
}
