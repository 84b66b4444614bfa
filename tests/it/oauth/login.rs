//! People who sign in to the service itself from the terminal, at npm `oidc-provider`.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Stdio};

use domain::sign_in::SignInProvider;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use super::{PACK, fetch};
use crate::{
    admin::{operator, with_operator},
    support::{
        model::text,
        program::chatelaine,
        servers::{Server, folder, soon, start},
        world::World,
    },
};

/// A service, the provider that it publishes, and somebody at a terminal with an empty home.
struct Desk {
    world: World,
    provider: Server,
    home: TempDir,
}

impl Desk {
    /// Tokens live for so many seconds.
    async fn open(life: &str) -> Self {
        let mut command = Command::new("node");
        command.arg(folder().join("provider.mjs")).arg(life);
        let provider = start(command).await;
        let issuer = format!("http://127.0.0.1:{}", provider.port);
        let published = json!([{ "name": "Acme", "issuer": issuer, "client_id": "page",
                                 "terminal_client_id": "terminal", "scope": "openid chat",
                                 "parameters": { "resource": "https://chat.example.org" } }]);
        let world = World::with(|setup| {
            with_operator(setup);
            setup.config.sign_in = SignInProvider::parse_all(&published.to_string()).unwrap();
            setup.env = setup
                .env
                .clone()
                .with("SERVER_URL", "http://127.0.0.1:1/mcp");
            setup.packs = vec![("desk".to_owned(), PACK.replace("AUTH", ""))];
        })
        .await;
        let trusted = json!({ "issuer": issuer, "audience": "https://chat.example.org",
                              "algorithm": "RS256", "jwks_url": format!("{issuer}/jwks") });
        let path = "/v1/admin/tenants/acme/issuers";
        operator(&world).post(path, trusted).await.expect(201);
        Self {
            world,
            provider,
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = chatelaine(line);
        command
            .env("HOME", self.home.path())
            .env("CHATELAINE_DATA", self.home.path())
            .env("CHATELAINE_URL", &self.world.url)
            .env("CHATELAINE_LOG", "trace")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Whether it ended well, and what it printed.
    async fn run(&self, mut command: Command, typed: &str) -> (bool, String) {
        let mut process = command.spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(typed.as_bytes()).await.unwrap();
        drop(stdin);
        let done = soon(process.wait_with_output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, log) = (text(done.stdout), text(done.stderr));
        self.assert_no_token_in(&(out.clone() + &log));
        let complaint: String = log
            .lines()
            .filter(|line| line.starts_with("chatelaine: "))
            .collect();
        (done.status.success(), out + &complaint)
    }

    async fn login(&self) {
        let mut command = self.command(&["login"]);
        command.env("BROWSER", folder().join("browser.mjs"));
        let (is_done, said) = self.run(command, "").await;
        assert!(
            is_done && said.ends_with("Signed in at Acme as ann.\n"),
            "{said}"
        );
    }

    async fn chat(&self) -> (bool, String) {
        self.world.model.reply(text("Hello, whoever you are."));
        self.run(self.command(&["chat", "--agent", "desk"]), "hello\n")
            .await
    }

    async fn count(&self, path: &str) -> Value {
        let url = format!("http://127.0.0.1:{}{path}", self.provider.port);
        fetch(&url).await.json().await.unwrap()
    }

    fn file(&self) -> std::path::PathBuf {
        self.home
            .path()
            .join(".local/state/chatelaine/sign-ins.json")
    }

    /// The tokens that are kept are in nothing that is printed or logged.
    fn assert_no_token_in(&self, text: &str) {
        let Ok(kept) = std::fs::read_to_string(self.file()) else {
            return;
        };
        let kept: Value = serde_json::from_str(&kept).unwrap();
        for sign_in in kept.as_object().unwrap().values() {
            for name in ["access_token", "refresh_token"] {
                let token = sign_in["authorization"][name].as_str().unwrap();
                assert!(!text.contains(token), "{name} is in {text:.3000}");
            }
        }
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn somebody_signs_in_with_a_browser_chats_and_signs_out() {
    let desk = Desk::open("3600").await;
    let (is_done, said) = desk.chat().await;
    assert!(
        !is_done && said.contains("say who you are: `chatelaine login`"),
        "{said}"
    );
    desk.login().await;
    assert_eq!(mode(&desk.file()), 0o600);
    assert_eq!(mode(desk.file().parent().unwrap()), 0o700);
    let (is_done, said) = desk.chat().await;
    assert!(
        is_done && said.contains("Hello, whoever you are."),
        "{said}"
    );
    let (is_done, said) = desk.run(desk.command(&["logout"]), "").await;
    assert!(is_done && said == "Signed out.\n", "{said}");
    assert_eq!(desk.count("/count").await["revoked"], 1);
    assert_eq!(std::fs::read_to_string(desk.file()).unwrap(), "{}");
    let (_, said) = desk.run(desk.command(&["logout"]), "").await;
    assert!(said.starts_with("You are not signed in at "), "{said}");
}

#[tokio::test]
async fn a_token_that_ends_is_refreshed_until_the_provider_refuses() {
    let desk = Desk::open("2").await;
    desk.login().await;
    let refreshed = async || desk.count("/count").await["refreshed"].as_i64().unwrap();
    while refreshed().await < 2 {
        let (is_done, said) = desk.chat().await;
        assert!(
            is_done && said.contains("Hello, whoever you are."),
            "{said}"
        );
    }
    desk.count("/end").await;
    let said = soon(async {
        loop {
            let (is_done, said) = desk.chat().await;
            if !is_done {
                return said;
            }
        }
    })
    .await;
    assert!(said.contains("has ended; run `chatelaine login`"), "{said}");
    assert_eq!(std::fs::read_to_string(desk.file()).unwrap(), "{}");
}

#[tokio::test]
async fn without_a_browser_somebody_types_a_code_on_another_device() {
    let desk = Desk::open("3600").await;
    let mut process = desk.command(&["login", "--device"]).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut address = String::new();
    // The second address has the code in it.
    while !address.contains("user_code=") {
        address = soon(lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .trim()
            .to_owned();
    }
    let mut browser = Command::new(folder().join("browser.mjs"));
    assert!(
        soon(browser.arg(&address).status())
            .await
            .unwrap()
            .success()
    );
    let mut said = String::new();
    while let Some(line) = soon(lines.next_line()).await.unwrap() {
        said += &line;
    }
    assert!(said.ends_with("Signed in at Acme as ann."), "{said}");
    assert!(soon(process.wait()).await.unwrap().success());
    assert_eq!(desk.count("/count").await["devices"], 1);
    assert!(desk.chat().await.0);
}

#[tokio::test]
async fn what_a_provider_says_of_its_refusal_is_said_in_the_terminal() {
    let desk = Desk::open("3600").await;
    let mut command = desk.command(&["login"]);
    let mut process = command.env("BROWSER", "true").spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let address = loop {
        let line = soon(lines.next_line()).await.unwrap().unwrap();
        if let Ok(address) = line.trim().parse::<url::Url>() {
            break address;
        }
    };
    let sent = |name: &str| {
        address
            .query_pairs()
            .find(|(key, _)| key == name)
            .unwrap()
            .1
            .into_owned()
    };
    let mut back: url::Url = sent("redirect_uri").parse().unwrap();
    back.query_pairs_mut()
        .append_pair("state", &sent("state"))
        .append_pair("iss", &format!("http://127.0.0.1:{}", desk.provider.port))
        .append_pair("error", "invalid_target")
        .append_pair(
            "error_description",
            "unknown resource\u{202e}\nchatelaine: signed in",
        );
    fetch(back.as_str()).await;
    let done = soon(process.wait_with_output()).await.unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success());
    let words = "answered with invalid_target: \"unknown resource chatelaine: signed in\"";
    assert!(said.contains(words), "{said:.2000}");
}

#[tokio::test]
async fn a_service_without_a_provider_says_what_to_do() {
    let world = World::shared().await;
    let home = tempfile::tempdir().unwrap();
    let mut command = chatelaine(&["login", "--url", &world.url]);
    let done = command.env("HOME", home.path()).output().await.unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success());
    assert!(
        said.contains(
            "has no provider at which people sign in; name your tenant with --tenant, or use `chatelaine chat --token TOKEN`"
        ),
        "{said}"
    );
}
