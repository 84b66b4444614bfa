//! `chatelaine chat`: a terminal client, which uses only the public API. It streams answers, shows tool calls, and
//! stays in one conversation until `/new`. While it waits for a line it listens to events: outcomes, the answers that
//! follow them, and requests for the person's decision appear by themselves.

use std::{io::IsTerminal as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use url::Url;

use super::{
    DemoFile,
    chat_loop::{ChatLoop, Start},
    client::Client,
    login::SignedIn,
    print_line, service_address,
    style::Style,
};
use domain::{
    config::{Config, Environment},
    secret::Secret,
};

#[derive(clap::Args)]
pub struct Args {
    /// A user of the demo: guest, employee, finance, manager or admin.
    #[arg(long = "as", value_name = "USER", conflicts_with = "token")]
    user: Option<String>,
    /// A bearer token or API key; also read from `CHATELAINE_TOKEN`. Without one you are who signed in with
    /// `chatelaine login`.
    #[arg(long, env = "CHATELAINE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Where the API is; the demo's address unless given.
    #[arg(long, env = "CHATELAINE_URL")]
    url: Option<Url>,
    /// The agent to talk to; the first one listed unless given.
    #[arg(long)]
    agent: Option<String>,
    /// Continue this conversation.
    #[arg(long, conflicts_with = "continues")]
    conversation: Option<String>,
    /// Go on with the newest conversation.
    #[arg(short, long = "continue")]
    continues: bool,
    /// No colours; also with any value of `NO_COLOR`.
    #[arg(long, env = "NO_COLOR", value_parser = clap::builder::FalseyValueParser::new())]
    no_color: bool,
    /// Where the lines that were typed are kept; `~/.local/state/chatelaine/chat` unless given.
    #[arg(long, env = "CHATELAINE_CHAT_HISTORY")]
    history: Option<PathBuf>,
}

/// Runs the chat. The exit code says failure if a question of a script was not answered.
pub async fn run(args: Args, config: &Config, env: &Environment) -> anyhow::Result<ExitCode> {
    let client = connect(&args, config, env).await?.in_language_of(env);
    let agent = match args
        .agent
        .or_else(|| DemoFile::read(config).ok().map(|file| file.agent))
    {
        Some(agent) => agent,
        None => client.find_first_agent().await?,
    };
    let me = client.get_me().await?;
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        print_line(&format!(
            "Talking to {agent} as {}. /help for help, Ctrl-D to leave.",
            me.name
        ));
    }
    let folder = || std::env::home_dir().map(|home| home.join(HISTORY));
    let start = Start {
        agent,
        conversation: args.conversation,
        continues: args.continues,
        interactive,
        style: Style::detect(args.no_color),
        history: args.history.or_else(folder),
    };
    let is_answered = ChatLoop::begin(client, me, start).await?.run().await?;
    Ok(if is_answered || interactive {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// How often the client checks whether its token must be replaced; less often after a failure.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// The path of the history below the home folder.
const HISTORY: &str = ".local/state/chatelaine/chat";

async fn connect(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<Client> {
    let url = service_address(args.url.as_ref(), config)?;
    let token = match (&args.token, &args.user) {
        (Some(token), _) => token.clone(),
        (None, Some(user)) => {
            let file = DemoFile::read(config)?;
            let known = || file.tokens.keys().cloned().collect::<Vec<_>>().join(", ");
            file.tokens
                .get(user)
                .with_context(|| format!("the demo has no user {user:?}; it has {}", known()))?
                .clone()
        }
        (None, None) => match SignedIn::find(&url, config, env).await? {
            Some(sign_in) => return connect_as(sign_in, url).await,
            None => bail!(
                "say who you are: `chatelaine login`, --as employee (with the demo), or --token TOKEN"
            ),
        },
    };
    Client::new(url, Secret::new(token))
}

/// Connects with the token of a sign-in, and replaces the token before it ends.
async fn connect_as(mut sign_in: SignedIn, url: Url) -> anyhow::Result<Client> {
    let client = Client::new(url, sign_in.token().await?)?;
    let chat_client = client.clone();
    tokio::spawn(async move {
        let mut pause = CHECK_INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            match sign_in.token().await {
                Ok(token) => {
                    chat_client.set_token(token);
                    pause = CHECK_INTERVAL;
                }
                // The server refuses the next request, which tells the person.
                Err(error) => {
                    tracing::debug!(%error, "the sign-in is not refreshed");
                    pause = RETRY_INTERVAL;
                }
            }
        }
    });
    Ok(client)
}
