//! Runs what a page shows: shell commands, chats and programs, in their order, against the demo.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use domain::secret::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    chat::{Pattern, Speakers},
    page::{Block, Page},
};
use crate::support::{
    client::Client,
    db::TestDb,
    model::{ScriptedModel, text},
    program::chatelaine,
    world::TIME_LIMIT,
};

/// Where the pages say that the demo is.
const SHOWN_URL: &str = "http://127.0.0.1:8080";
const OPERATOR_TOKEN: &str = "an-operator-token-of-forty-characters-ok";
/// A program of a page runs no longer than this.
const PROGRAM: Duration = Duration::from_secs(60);
const END: &str = "@@end";
/// `chatelaine` and `curl` as a reader has them, but a failed request fails the block, and a stream of events ends.
const PREAMBLE: &str = r#"
set -euo pipefail
chatelaine() { "$CHATELAINE_PROGRAM" "$@"; }
curl() {
  case " $* " in
    *" -N "*) command curl --silent --show-error --max-time 2 "$@" || [ $? = 28 ];;
    *) command curl --silent --show-error --fail-with-body --write-out '\n' --max-time 20 "$@";;
  esac
}
"#;

/// The demo, and a shell beside it in the folder where a reader would be.
pub struct Session {
    demo: Child,
    shell: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    speakers: Speakers,
    url: String,
    /// What the last shell block printed.
    printed: String,
    folder: TempDir,
    _model: ScriptedModel,
    _db: TestDb,
}

impl Session {
    pub async fn start() -> Self {
        let (db, model) = (TestDb::new().await, ScriptedModel::start().await);
        model.on(|_| Some(text("You can ask for exchange rates.")));
        let folder = tempfile::tempdir().unwrap();
        copy_packs(&folder.path().join("packs"));
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let packages = crate::support::servers::folder().join("node_modules");
        std::os::unix::fs::symlink(packages, folder.path().join("node_modules")).unwrap();
        let mut demo = command(&["demo"], folder.path(), &db.url);
        demo.env("OPENAI_BASE_URL", model.base_url().as_str())
            .env("OPENAI_API_KEY", "model-key-0123456789");
        let mut demo = demo.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
        let url = tokio::time::timeout(TIME_LIMIT, async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once("Chatelaine is up at ") {
                    return rest.split(". ").next().unwrap().to_owned();
                }
            }
            panic!("the demo ended at its start");
        });
        let url = url.await.expect("the demo does not start");
        // What the demo prints later must not fill the pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let (shell, input, output) = shell(folder.path(), &db.url, &model);
        let speakers = Speakers::of(&url, &folder.path().join(".chatelaine"));
        let mut session = Self {
            demo,
            shell,
            input,
            output,
            speakers,
            url,
            printed: String::new(),
            folder,
            _model: model,
            _db: db,
        };
        session.tools_ready().await;
        session.shell("the preamble", PREAMBLE).await;
        session
    }

    /// The demo's bank is connected in the background, and its other servers have answered or not.
    async fn tools_ready(&self) {
        let client = self.speakers.client("employee");
        let ready = async {
            while !tools(client).await.contains("get_balances")
                || client.get("/readyz").await.status != 200
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIME_LIMIT, ready)
            .await
            .expect("the demo's bank is not connected");
    }

    /// Runs every block of a page that can be run.
    pub async fn run(&mut self, page: &Page) {
        for block in page.blocks().iter().filter(|block| block.is_run()) {
            match (block.language.as_str(), block.comment.as_str()) {
                ("sh", _) => self.printed = self.shell(&block.place, &block.text).await,
                ("chat", _) => self.speakers.play(block).await,
                ("json", "answer") => self.compare(block),
                ("python", _) => self.program("python", block).await,
                ("js", _) => self.program("node", block).await,
                _ => {}
            }
        }
    }

    /// Runs commands in the shell, which keeps its variables; what they printed.
    pub async fn shell(&mut self, place: &str, commands: &str) -> String {
        let commands = commands.replace(SHOWN_URL, &self.url);
        let script = format!("{commands}\nprintf '\\n%s\\n' '{END}'\n");
        self.input.write_all(script.as_bytes()).await.unwrap();
        let mut printed = String::new();
        loop {
            let line = tokio::time::timeout(PROGRAM, self.output.next_line()).await;
            match line.unwrap_or_else(|_| panic!("{place} does not end:\n{printed}")) {
                Ok(Some(line)) if line == END => return printed.trim().to_owned(),
                Ok(Some(line)) => printed = printed + &line + "\n",
                _ => panic!("{place} fails; standard error is above:\n{commands}\n{printed}"),
            }
        }
    }

    /// Runs a program of a page in the folder, with the variables of the shell that the index sets.
    async fn program(&mut self, program: &str, block: &Block) {
        let (end, program) = match program {
            "node" => ("mjs", "node".to_owned()),
            _ => ("py", python().display().to_string()),
        };
        let file = self
            .folder
            .path()
            .join("tmp")
            .join(format!("program.{end}"));
        fs::write(&file, block.text.replace(SHOWN_URL, &self.url)).unwrap();
        let run = format!("export TOKEN URL\n{program} tmp/program.{end}");
        self.printed = self.shell(&block.place, &run).await;
        assert!(!self.printed.is_empty(), "{} prints nothing", block.place);
    }

    fn compare(&self, block: &Block) {
        let last = self.printed.lines().last().unwrap_or_default();
        let answer: Value = serde_json::from_str(last)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", block.place, self.printed));
        let shown: Value = serde_json::from_str(&block.text).unwrap();
        if let Err(difference) = same_shape(&shown, &answer, "") {
            panic!("{}: {difference}; the answer is {answer}", block.place);
        }
    }

    pub async fn stop(mut self) {
        self.shell.kill().await.unwrap();
        self.demo.kill().await.unwrap();
    }
}

/// What is shown is there and of the same kind. An answer may have more than a page shows.
fn same_shape(shown: &Value, answer: &Value, path: &str) -> Result<(), String> {
    match (shown, answer) {
        (Value::Object(shown), Value::Object(answer)) => {
            shown.iter().try_for_each(|(key, value)| {
                let path = format!("{path}.{key}");
                let found = answer.get(key).ok_or(format!("{path} is not there"))?;
                same_shape(value, found, &path)
            })
        }
        (Value::Array(shown), Value::Array(answer)) => {
            if shown.len() > answer.len() {
                return Err(format!("{path} has {} items", answer.len()));
            }
            let mut pairs = shown.iter().zip(answer);
            pairs.try_for_each(|(shown, answer)| same_shape(shown, answer, path))
        }
        (Value::String(shown), Value::String(answer)) => {
            if Pattern::new(shown).fits(answer) || shown.contains(|c: char| c.is_ascii_digit()) {
                return Ok(());
            }
            Err(format!("{path} is {answer:?}"))
        }
        _ if std::mem::discriminant(shown) == std::mem::discriminant(answer) => Ok(()),
        _ => Err(format!("{path} is {answer}")),
    }
}

async fn tools(client: &Client) -> String {
    client.get("/v1/agents/bank/tools").await.text
}

/// The program as an operator starts it in `folder`.
fn command(arguments: &[&str], folder: &Path, database: &Secret) -> Command {
    let mut command = chatelaine(arguments);
    command
        .current_dir(folder)
        .env("CHATELAINE_LISTEN", "127.0.0.1:0")
        .env("CHATELAINE_OPERATOR_TOKEN", OPERATOR_TOKEN)
        .env("CHATELAINE_REQUESTS_PER_MINUTE", "60000")
        .env("CHATELAINE_LOG", "error")
        .env("DATABASE_URL", database.expose());
    command
}

fn shell(
    folder: &Path,
    database: &Secret,
    model: &ScriptedModel,
) -> (Child, ChildStdin, Lines<BufReader<ChildStdout>>) {
    let program = command(&[], folder, database);
    let mut shell = Command::new("bash");
    let known = program.as_std().get_envs();
    shell
        .arg("-s")
        .current_dir(folder)
        .env_clear()
        .envs(known.filter_map(|(name, value)| Some((name, value?))))
        .env("CHATELAINE_PROGRAM", program.as_std().get_program())
        .env("OPENAI_API_KEY", "model-key-0123456789")
        .env("OPENAI_BASE_URL", model.base_url().as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut shell = shell.spawn().unwrap();
    let (input, output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
    (shell, input, BufReader::new(output).lines())
}

fn copy_packs(to: &Path) {
    for pack in fs::read_dir("packs").unwrap() {
        let pack = pack.unwrap();
        let folder = to.join(pack.file_name());
        fs::create_dir_all(&folder).unwrap();
        fs::copy(
            pack.path().join("agent-pack.yaml"),
            folder.join("agent-pack.yaml"),
        )
        .unwrap();
    }
}

/// Has the official OpenAI client; `make test` installs it.
fn python() -> PathBuf {
    crate::support::servers::venv("python")
}

#[test]
fn an_answer_may_have_more_than_a_page_shows_and_nothing_else() {
    let answer = json!({ "id": "01a2", "items": [{ "state": "pending", "votes": 1 }] });
    for shown in [
        json!({ "id": "01ff" }),
        json!({ "items": [{ "state": "pending" }] }),
        json!({ "items": [{ "state": "…" }] }),
    ] {
        assert_eq!(same_shape(&shown, &answer, ""), Ok(()), "{shown}");
    }
    for wrong in [
        json!({ "name": "…" }),
        json!({ "items": [{ "state": "approved" }] }),
        json!({ "items": [{ "votes": "1" }] }),
    ] {
        assert!(same_shape(&wrong, &answer, "").is_err(), "{wrong}");
    }
}
