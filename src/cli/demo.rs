//! `chatelaine demo`: the complete service on one machine, without outside services: a tenant with five users, a bank,
//! a clock, personal notes, and a page of things to try. A second start finds the same data.
//!
//! The command comes first, then the users, the page that it prints, and the example servers.

pub mod model;
pub mod ollama;

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::serve::{Service, with_database};
use crate::{
    api::{Demo, DemoPeople},
    app::{
        accounts::{self, development::DevelopmentUser},
        platform::keys::folder,
    },
};
use domain::{
    clock::Clock,
    config::{Config, Environment},
    error::Error,
};
use store::Db;
use terminal::{DemoFile, print_line};

#[derive(clap::Args)]
pub struct Args {
    /// The pack to serve.
    #[arg(long, default_value = "packs/bank")]
    pack: PathBuf,
    /// The example bank; found beside this program unless given.
    #[arg(long)]
    bank: Option<PathBuf>,
    /// The example notes; found beside this program unless given.
    #[arg(long)]
    notes: Option<PathBuf>,
}

/// The model when the environment names an endpoint and no model.
const MODEL: &str = "gpt-5-mini";

pub async fn run(args: Args, mut config: Config, env: Environment) -> anyhow::Result<()> {
    std::fs::create_dir_all(&config.data)?;
    if config.ring.is_none() {
        config.ring = Some(folder::ring_or_new(&config.data)?);
    }
    let bank = start_bank(args.bank, &config.data).await?;
    let notes = start_notes(args.notes, &config.data).await?;
    let model = Model::choose(&env).await?;
    let env = prepare_environment(env, &config, &bank, &notes, &model);
    config.demo_model = matches!(model, Model::Demo(_));
    config.packs = args.pack;
    // The only client is the person who stops the demo, so nothing has to be drained.
    config.drain = Duration::ZERO;
    let loopback = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
    config.egress_allow.extend(loopback.clone());
    config.tenant_egress_allow.extend(loopback);
    with_database(&config, &env, async |db| {
        let demo = Arc::new(Demo::new());
        let service =
            Service::start_for(config.clone(), &env, db.clone(), Some(demo.clone())).await?;
        let people = create_people(&db, &service, &config).await?;
        demo.set_people(DemoPeople {
            people: people.tokens.clone(),
            notes: notes.tokens_by_person(),
        });
        let page = demo.link(people.url.as_str());
        print_line(&guide_text(&people, &page, &notes, &model));
        service.run_until_stopped().await
    })
    .await
}

/// Which model the demo talks to.
enum Model {
    Endpoint {
        model: String,
        at: String,
    },
    /// The environment names a provider itself.
    Other(String),
    /// The demo model, which follows rules. It is used when there is no other model.
    Demo(model::DemoModel),
}

impl Model {
    /// Chooses the model that the environment names, or one of Ollama at its usual address, or the demo model.
    async fn choose(env: &Environment) -> anyhow::Result<Self> {
        let set = |name: &str| {
            env.get(name)
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        if let Some(provider) = set("LLM_PROVIDER") {
            return Ok(Self::Other(provider));
        }
        let named = set("LLM_MODEL");
        if set("OPENAI_BASE_URL").is_some() || set("OPENAI_API_KEY").is_some() {
            return Ok(Self::Endpoint {
                model: named.unwrap_or_else(|| MODEL.to_owned()),
                at: set("OPENAI_BASE_URL")
                    .unwrap_or_else(|| "https://api.openai.com/v1".to_owned()),
            });
        }
        if let Some(model) = ollama::find_model(ollama::ADDRESS, named.as_deref()).await {
            let at = format!("{}/v1", ollama::ADDRESS);
            return Ok(Self::Endpoint { model, at });
        }
        Ok(Self::Demo(model::start(model::READING_PACE).await?))
    }
}

/// Sets the variables that the demo's pack names. A variable that is set already stays, but for those of the example
/// servers.
fn prepare_environment(
    env: Environment,
    config: &Config,
    bank: &Bank,
    notes: &Notes,
    model: &Model,
) -> Environment {
    let (provider, name, at) = match model {
        Model::Endpoint { model, at } => ("openai", model.as_str(), at.as_str()),
        Model::Other(provider) => (provider.as_str(), "", ""),
        Model::Demo(model) => ("openai", model::NAME, model.url.as_str()),
    };
    // The environment may name a model without an endpoint. There is no such model here.
    let env = match model {
        Model::Demo(_) => env.with("LLM_MODEL", model::NAME),
        _ => env,
    };
    let python = config.data.join("venv/bin/python");
    let python = std::path::absolute(&python)
        .ok()
        .filter(|path| path.exists());
    let time = python.map_or_else(|| "python3".to_owned(), |path| path.display().to_string());
    let defaults = [
        ("LLM_PROVIDER", provider),
        ("LLM_MODEL", name),
        ("OPENAI_BASE_URL", at),
        ("OPENAI_API_KEY", ""),
        ("MCP_TIME_COMMAND", &time),
    ];
    let unset: Vec<_> = defaults
        .into_iter()
        .filter(|(name, _)| env.get(name).is_none_or(str::is_empty))
        .collect();
    let env = unset
        .into_iter()
        .fold(env, |env, (name, value)| env.with(name, value));
    env.with("BANK_MCP_URL", bank.server.url.clone())
        .with("BANK_TOKEN", bank.token.clone())
        .with("NOTES_MCP_URL", notes.server.url.clone())
}

const TENANT: &str = "demo";
/// How long the tokens are valid.
const TOKEN_LIFETIME: time::Duration = time::Duration::days(30);

/// Makes the tenant if there is none, and a token for each user. The terminal client finds the tokens in the data
/// folder.
async fn create_people(db: &Db, service: &Service, config: &Config) -> anyhow::Result<DemoFile> {
    let clock = Clock::System;
    let tenant = match accounts::find_tenant(db, TENANT).await {
        Err(Error::NotFound(_)) => accounts::add_tenant(db, &clock, TENANT, None, true).await?,
        found => found?,
    };
    let mut tokens = BTreeMap::new();
    for (user, person) in demo_users() {
        let now = clock.now();
        let token = accounts::development::token(
            db,
            &config.data,
            &tenant,
            &person,
            now..now + TOKEN_LIFETIME,
        )
        .await?;
        tokens.insert(user.to_owned(), token.expose().to_owned());
    }
    let tenant = service.app.accounts.tenant_for_guests(TENANT).await?;
    let (guest, _) = service.app.accounts.create_guest(tenant).await?;
    tokens.insert("guest".to_owned(), guest.expose().to_owned());
    let agent = service
        .app
        .packs
        .snapshot()
        .packs()
        .next()
        .map(|pack| pack.id().to_string())
        .unwrap_or_default();
    let file = DemoFile {
        url: format!("http://{}", service.address).parse()?,
        agent,
        tokens,
    };
    write_private(&file, config)?;
    Ok(file)
}

/// The four users with an identity of their own; the fifth is a guest.
fn demo_users() -> [(&'static str, DevelopmentUser); 4] {
    let person = |user: &str, name: &str, roles: &[&str]| DevelopmentUser {
        user: user.to_owned(),
        name: Some(name.to_owned()),
        email: Some(format!("{user}@example.org")),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        ..DevelopmentUser::default()
    };
    [
        ("employee", person("erin", "Erin", &["employee"])),
        ("finance", person("fred", "Fred", &["employee", "finance"])),
        (
            "manager",
            person("mona", "Mona", &["employee", "finance-manager"]),
        ),
        (
            "admin",
            DevelopmentUser {
                admin: true,
                // The second of two who approve a large payment.
                ..person("alice", "Alice", &["cfo"])
            },
        ),
    ]
}

/// Writes the file that the terminal client reads. Only its owner may read it, because it holds tokens.
fn write_private(content: &DemoFile, config: &Config) -> anyhow::Result<()> {
    let path = config.data.join(DemoFile::FILE);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&serde_json::to_vec_pretty(content)?)?;
    Ok(())
}

/// The page that the demo prints when it is up. The link comes last: it is the first to be used, and long tokens would
/// push it out of the terminal.
fn guide_text(people: &DemoFile, page: &str, notes: &Notes, model: &Model) -> String {
    let url = people.url.as_str().trim_end_matches('/');
    let employee = people
        .tokens
        .get("employee")
        .map(String::as_str)
        .unwrap_or_default();
    let agent = &people.agent;
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "chatelaine".to_owned());
    let tokens: Vec<String> = people
        .tokens
        .iter()
        .map(|(user, token)| format!("  {user:<9} {token}"))
        .collect();
    let note_tokens = notes
        .tokens
        .iter()
        .map(|(token, holder)| format!("  {token}  ({})", holder.scopes.join(", ")));
    let note_tokens: Vec<String> = note_tokens.collect();
    let file = notes.file.display();
    let model = describe_model(model);
    format!(
        "
Chatelaine is up at {url}. Ctrl-C stops it; the next start finds the same data.
{model}

Talk to it in another terminal:
  {program} chat --as employee    (also: guest, finance, manager, admin)

Money needs a second pair of eyes: let finance say
  Please pay 12.50 EUR to acme
and the manager /approvals, then /approve and the code.

Or by curl:
  TOKEN={employee}
  ID=$(curl -s {url}/v1/conversations -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\
       -d '{{\"agent\":\"{agent}\"}}' | sed 's/.*\"id\":\"\\([^\"]*\\)\".*/\\1/')
  curl -s {url}/v1/conversations/$ID/messages -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\
       -d '{{\"text\":\"/tools\"}}'
  curl -N \"{url}/v1/conversations/$ID/events?after=0\" -H \"Authorization: Bearer $TOKEN\"

Or by any OpenAI client: base_url={url}/v1, api_key=one of the tokens, model={agent}.

Tokens, good for 30 days:
{}

The notes are personal: nobody has their tools before they say /connect in a chat and enter a token of their own.
The notes know these; take one out of {file}
and it is refused from then on:
{}

Open it in a browser, and be any of its five people:
  {page}
",
        tokens.join("\n"),
        note_tokens.join("\n")
    )
}

fn describe_model(model: &Model) -> String {
    match model {
        Model::Endpoint { model, at } => format!("The model is {model} at {at}."),
        Model::Other(provider) => {
            format!("The model is the one that LLM_PROVIDER={provider} names.")
        }
        Model::Demo(_) => "This is the demo model: it understands a few sentences in English, \
                           Spanish and French.\nSet OPENAI_API_KEY for a real one, or start Ollama \
                           with a model that has tools."
            .to_owned(),
    }
}

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running example server. It ends when this value is dropped, and with the process.
struct Example {
    /// Its MCP address.
    url: String,
    _process: Child,
}

/// Starts an example server on a free port. Without `program` it is looked for where cargo puts examples.
async fn start_example(
    name: &'static str,
    program: Option<PathBuf>,
    prepare: impl FnOnce(&mut Command),
) -> anyhow::Result<Example> {
    let program = match program {
        Some(program) => program,
        None => sibling_program(name)?,
    };
    let mut process = Command::new(&program);
    for name in Environment::from_process().without_keys().withheld() {
        process.env_remove(name);
    }
    process.args(["--listen", "127.0.0.1:0", "--with-parent"]);
    prepare(&mut process);
    let mut process = process
        // The example ends when this pipe is closed, and the kernel closes it even after `kill -9`.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C must not reach the example, which has to answer the last calls.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start the example {}", program.display()))?;
    let mut lines =
        BufReader::new(process.stdout.take().context("the example has no output")?).lines();
    let line = tokio::time::timeout(START_TIMEOUT, lines.next_line())
        .await
        .with_context(|| format!("the example {name} does not start"))??;
    let Some(url) = line.as_deref().and_then(|line| {
        line.split_whitespace()
            .find(|word| word.starts_with("http://"))
    }) else {
        bail!("the example {name} ended at once; see its message above");
    };
    let url = url.to_owned();
    // The later lines of the example are printed: a pipe that nobody reads would fill up and block it.
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = writeln!(std::io::stderr(), "{name}: {line}");
        }
    });
    Ok(Example {
        url,
        _process: process,
    })
}

/// Finds an example below the folder of this program.
fn sibling_program(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let example = program
        .parent()
        .context("this program is in no folder")?
        .join(Path::new("examples").join(name));
    if example.exists() {
        Ok(example)
    } else {
        bail!(
            "{} is not there; build it with `cargo build --example {name}`, or use `make demo`",
            example.display()
        )
    }
}

/// The example bank, behind a token that only this process knows.
struct Bank {
    server: Example,
    token: String,
}

/// Starts the bank. Its ledger lies in the data folder.
async fn start_bank(program: Option<PathBuf>, data: &Path) -> anyhow::Result<Bank> {
    let token = hex::encode(rand::random::<[u8; 16]>());
    let server = start_example("bank", program, |command| {
        command
            .arg("--ledger")
            .arg(data.join("bank-ledger.jsonl"))
            .env("BANK_TOKEN", &token);
    });
    Ok(Bank {
        server: server.await?,
        token,
    })
}

/// The example notes: a personal server, with a token for each of two users. The tokens are made once and kept in a
/// file. Remove one there to see how a revoked token is answered.
struct Notes {
    server: Example,
    /// The file with the tokens.
    file: PathBuf,
    tokens: BTreeMap<String, TokenHolder>,
}

/// The user and the rights of a token, in the example's own format.
#[derive(Serialize, Deserialize)]
struct TokenHolder {
    name: String,
    scopes: Vec<String>,
}

impl Notes {
    /// The tokens of those users who are people of the demo.
    fn tokens_by_person(&self) -> BTreeMap<String, String> {
        let people = demo_users();
        let holders = self.tokens.iter().filter_map(|(token, holder)| {
            let (person, _) = people.iter().find(|(_, user)| user.user == holder.name)?;
            Some(((*person).to_owned(), token.clone()))
        });
        holders.collect()
    }
}

/// Starts the notes server. The notes lie in the data folder.
async fn start_notes(program: Option<PathBuf>, data: &Path) -> anyhow::Result<Notes> {
    let file = data.join("notes-tokens.json");
    let tokens = read_or_make_tokens(&file)
        .with_context(|| format!("{}; remove it to get new tokens", file.display()))?;
    let server = start_example("notes", program, |command| {
        command
            .arg("--tokens")
            .arg(&file)
            .arg("--notes")
            .arg(data.join("notes.json"));
    });
    Ok(Notes {
        server: server.await?,
        file,
        tokens,
    })
}

fn read_or_make_tokens(file: &Path) -> anyhow::Result<BTreeMap<String, TokenHolder>> {
    match fs::read_to_string(file) {
        Ok(text) => return Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Err(_) => {}
    }
    let new = [("erin", &["read", "write"][..]), ("fred", &["read"])].map(|(name, scopes)| {
        let holder = TokenHolder {
            name: name.to_owned(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        };
        (
            format!("notes-{name}-{}", hex::encode(rand::random::<[u8; 8]>())),
            holder,
        )
    });
    let tokens = BTreeMap::from(new);
    let mut made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    made.write_all(&serde_json::to_vec_pretty(&tokens)?)?;
    Ok(tokens)
}
