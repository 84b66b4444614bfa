//! `chatelaine explain <pack>` prints the pack in the native format, with the source of each value. `chatelaine explain
//! <agent> --user <user>` prints which tools the user has at the agent, and why not the others.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::Value;

use domain::{
    config::{Config, Environment},
    secret::Secret,
};
use terminal::{client::Client, print_line};

#[derive(clap::Args)]
pub struct Args {
    /// The id of a pack in `CHATELAINE_PACKS`, a pack's folder, or its file; with `--user` the id of an agent.
    pack: PathBuf,
    /// Say which tools this user has, and why not the others: asked of a running server.
    #[arg(long, requires = "token")]
    user: Option<String>,
    /// An admin's token or key; also read from `CHATELAINE_TOKEN`.
    #[arg(long, env = "CHATELAINE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Where the API is; this machine unless given.
    #[arg(long, env = "CHATELAINE_URL")]
    url: Option<url::Url>,
}

pub async fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<()> {
    let text = match &args.user {
        Some(user) => explain_tools(args, config, user).await?,
        None => packs::explain(
            &find_pack(&args.pack, config),
            env,
            config.mcp_servers.as_ref(),
        )?,
    };
    print_line(text.trim_end());
    Ok(())
}

async fn explain_tools(args: &Args, config: &Config, user: &str) -> anyhow::Result<String> {
    let token = args.token.clone().context("give an admin's --token")?;
    let url = match &args.url {
        Some(url) => url.clone(),
        None => format!("http://{}", config.listen).parse()?,
    };
    let client = Client::new(url, Secret::new(token))?;
    let agent = args.pack.to_string_lossy();
    let query = [("explain", "true"), ("user", user)];
    let tools = client
        .get(&format!("/v1/agents/{agent}/tools"), &query)
        .await?;
    Ok(describe(&tools))
}

/// One line for each tool of each server: that the user has it, or why not and what to change.
fn describe(tools: &Value) -> String {
    let mut text = String::new();
    let items = |of: &Value| of.as_array().cloned().unwrap_or_default();
    for server in items(&tools["items"]) {
        let state = server["state"]["state"].as_str();
        let state = state.or(server["state"].as_str()).unwrap_or_default();
        let name = server["server"].as_str().unwrap_or_default();
        let _ = writeln!(text, "{name} ({})", state.replace('_', " "));
        for tool in items(&server["tools"]) {
            let roles = items(&tool["needs_approval_by"]);
            let roles: Vec<_> = roles.iter().filter_map(Value::as_str).collect();
            let consent = match roles.as_slice() {
                [] if tool["needs_confirmation"] == true => {
                    "  after its user confirms it".to_owned()
                }
                [] => String::new(),
                roles => format!("  after approval by {}", roles.join(" or ")),
            };
            let name = tool["tool"].as_str().unwrap_or_default();
            let _ = writeln!(text, "  yes  {name}{consent}");
        }
        for tool in items(&server["denied"]) {
            let word = |name: &str| tool[name].as_str().unwrap_or_default().replace('_', " ");
            let remedy = tool["remedy"].as_str().unwrap_or_default();
            let name = tool["tool"].as_str().unwrap_or_default();
            let _ = writeln!(text, "  no   {name}  {}: {remedy}", word("reason"));
        }
    }
    text
}

/// The path of a pack: `pack` itself, or the folder with this id below `CHATELAINE_PACKS`.
pub(super) fn find_pack(pack: &Path, config: &Config) -> PathBuf {
    if pack.exists() {
        pack.to_owned()
    } else {
        config.packs.join(pack)
    }
}
