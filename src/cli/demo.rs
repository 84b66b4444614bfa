//! `chatelaine demo`: the complete service on one machine, without outside services: a tenant with five
//! users, a bank, a clock, personal notes, and a page of things to try. A second start finds the same data.

mod bank;
mod example;
mod guide;
mod notes;
mod people;

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::serve::{Service, with_database};
use crate::{
    api::Demo,
    app::platform::keys::folder,
    domain::config::{Config, Environment},
};

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

/// What the model is when the environment names an endpoint and no model.
const MODEL: &str = "gpt-5-mini";

pub async fn run(args: Args, mut config: Config, env: Environment) -> anyhow::Result<()> {
    std::fs::create_dir_all(&config.data)?;
    if config.ring.is_none() {
        config.ring = Some(folder::ring_or_new(&config.data)?);
    }
    let bank = bank::start(args.bank, &config.data).await?;
    let notes = notes::start(args.notes, &config.data).await?;
    let model = Model::of(&env);
    let env = prepare_environment(env, &config, &bank, &notes, &model);
    config.packs = args.pack;
    // Nobody sends requests here but the person who stops it.
    config.drain = Duration::ZERO;
    let loopback = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
    config.egress_allow.extend(loopback.clone());
    config.tenant_egress_allow.extend(loopback);
    with_database(&config, &env, async |db| {
        let demo = Arc::new(Demo::new());
        let service =
            Service::start_for(config.clone(), &env, db.clone(), Some(demo.clone())).await?;
        let people = people::create_people(&db, &service, &config).await?;
        demo.set_people(people.tokens.clone());
        let page = demo.link(people.url.as_str());
        super::print_line(&guide::text(&people, &page, &notes, &model));
        service.run_until_stopped().await
    })
    .await
}

/// Which model the demo talks to.
pub(super) enum Model {
    Endpoint { model: String, at: String },
    None,
}

impl Model {
    fn of(env: &Environment) -> Self {
        let set = |name: &str| {
            env.get(name)
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        if set("OPENAI_BASE_URL").is_none() && set("OPENAI_API_KEY").is_none() {
            return Self::None;
        }
        Self::Endpoint {
            model: set("LLM_MODEL").unwrap_or_else(|| MODEL.to_owned()),
            at: set("OPENAI_BASE_URL").unwrap_or_else(|| "https://api.openai.com/v1".to_owned()),
        }
    }
}

/// The variables that the demo's pack names. What the environment sets already wins, but for the examples.
fn prepare_environment(
    env: Environment,
    config: &Config,
    bank: &bank::Bank,
    notes: &notes::Notes,
    model: &Model,
) -> Environment {
    let (provider, name, at) = match model {
        Model::Endpoint { model, at } => ("openai", model.as_str(), at.as_str()),
        Model::None => ("none", "", ""),
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
