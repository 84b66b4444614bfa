//! `chatelaine chat`: a terminal client of the public API and of nothing else. It streams, shows tool
//! calls, and keeps to one conversation until `/new`.

mod client;
mod terminal;

use std::{collections::BTreeMap, io::IsTerminal as _};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use self::{
    client::{Client, News},
    terminal::Lines,
};
use crate::domain::{config::Config, secret::Secret};

#[derive(clap::Args)]
pub struct Args {
    /// A user of the demo: guest, employee, finance or admin.
    #[arg(long = "as", value_name = "USER", conflicts_with = "token")]
    user: Option<String>,
    /// A bearer token or API key; also read from `CHATELAINE_TOKEN`.
    #[arg(long, env = "CHATELAINE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Where the API is; the demo's address unless given.
    #[arg(long, env = "CHATELAINE_URL")]
    url: Option<url::Url>,
    /// The agent to talk to; the first one listed unless given.
    #[arg(long)]
    agent: Option<String>,
    /// Continue this conversation.
    #[arg(long)]
    conversation: Option<String>,
}

/// What `chatelaine demo` leaves in the data folder for this client.
#[derive(Serialize, Deserialize)]
pub struct DemoNotes {
    pub url: url::Url,
    pub agent: String,
    /// User → token. The folder is readable by its owner only.
    pub tokens: BTreeMap<String, String>,
}

impl DemoNotes {
    pub const FILE: &str = "demo.json";

    pub fn read(config: &Config) -> anyhow::Result<Self> {
        let path = config.data.join(Self::FILE);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{} is not there; start the demo with `make demo` first", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }
}

const HELP: &str = "\
/new – begin a new conversation        /history – show this one
/quit – leave (or Ctrl-D)              Ctrl-C – stop an answer
The agent's own commands:";

pub async fn run(args: Args, config: &Config) -> anyhow::Result<()> {
    let client = connect(&args, config)?;
    let agent = match args.agent.or_else(|| DemoNotes::read(config).ok().map(|notes| notes.agent)) {
        Some(agent) => agent,
        None => client.first_agent().await?,
    };
    let mut conversation = match args.conversation {
        Some(id) => id,
        None => client.open(&agent).await?,
    };
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        super::say(&format!("Talking to {agent} as {}. /help for help, Ctrl-D to leave.", client.who().await?));
    }
    client.show_history(&conversation).await?;
    let mut lines = Lines::start(interactive);
    let mut secret = false;
    while let Some(line) = lines.next(secret).await? {
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/new" => {
                conversation = client.open(&agent).await?;
                client.show_history(&conversation).await?;
            }
            "/history" => client.show_history(&conversation).await?,
            text => {
                if text == "/help" {
                    super::say(HELP);
                }
                match converse(&client, &conversation, text).await {
                    Ok(asked) => secret = asked,
                    Err(error) => super::say(&format!("! {error:#}")),
                }
            }
        }
    }
    Ok(())
}

fn connect(args: &Args, config: &Config) -> anyhow::Result<Client> {
    let notes = DemoNotes::read(config);
    let token = match (&args.token, &args.user) {
        (Some(token), _) => token.clone(),
        (None, Some(user)) => {
            let notes = notes.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            let known = || notes.tokens.keys().cloned().collect::<Vec<_>>().join(", ");
            notes
                .tokens
                .get(user)
                .with_context(|| format!("the demo has no user {user:?}; it has {}", known()))?
                .clone()
        }
        (None, None) => bail!("say who you are: --as employee (with the demo), or --token TOKEN"),
    };
    let url = match (&args.url, notes) {
        (Some(url), _) => url.clone(),
        (None, Ok(notes)) => notes.url,
        (None, Err(_)) => format!("http://{}", config.listen).parse()?,
    };
    Client::new(url, Secret::new(token))
}

/// Says one thing and shows what comes back until its run has ended. Ctrl-C asks the run to stop. Whether a
/// secret is asked for at the end.
async fn converse(client: &Client, conversation: &str, text: &str) -> anyhow::Result<bool> {
    let mut events = client.listen(conversation).await?;
    let run = client.post(conversation, text).await?;
    let mut screen = terminal::Screen::default();
    let mut secret = false;
    loop {
        let news = tokio::select! {
            news = events.next() => news?,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                client.cancel(&run).await?;
                continue;
            }
        };
        match news {
            News::Ended { run: ended } if ended == run => {
                screen.end();
                return Ok(secret);
            }
            news => {
                secret |= matches!(&news, News::Message { run: of, secret: true, .. } if *of == run);
                screen.show(&news, &run);
            }
        }
    }
}
