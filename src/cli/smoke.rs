//! `chatelaine smoke <pack> [server]`: can a pack's servers be reached, in which protocol era, which tools
//! have they, and what do those look like to each role? Needs no database.

use std::{collections::BTreeSet, fmt::Write as _, path::PathBuf, process::ExitCode, sync::Arc};

use crate::{
    domain::{
        config::{Config, Environment},
        ids::TenantId,
        pack::Pack,
        policy::{Decision, Standing, decide},
        principal::{GUEST, roles_named_by},
        server::{AccessMode, ServerSpec},
    },
    egress::Egress,
    mcp::{Discovery, Key, Mcp, Options},
    packs::Library,
};

#[derive(clap::Args)]
pub struct Args {
    /// The pack's folder, or its id below `CHATELAINE_PACKS`.
    pack: PathBuf,
    /// Only this server.
    server: Option<String>,
}

pub async fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<ExitCode> {
    let folder = if args.pack.is_dir() { args.pack.clone() } else { config.packs.join(&args.pack) };
    let library = Library::load(&folder, env, config.mcp_servers.as_ref())?;
    let packs = library.snapshot();
    let mcp = Mcp::new(
        Egress::new(&config.egress_allow).map_err(anyhow::Error::msg)?,
        Options { stdio_commands: config.stdio_commands.clone(), ..Options::default() },
    );
    let mut reached = true;
    let mut tried = 0;
    for pack in packs.packs() {
        for spec in &pack.servers {
            if args.server.as_ref().is_none_or(|wanted| spec.id.as_str() == wanted) {
                tried += 1;
                reached &= try_server(&mcp, pack, spec).await;
            }
        }
    }
    mcp.shutdown().await;
    if tried == 0 {
        anyhow::bail!("no such server in {}; leave the name out to try all", folder.display());
    }
    Ok(if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says how one server is; `false` when it cannot be reached.
async fn try_server(mcp: &Mcp, pack: &Pack, spec: &ServerSpec) -> bool {
    if spec.access_mode == AccessMode::UserControlled {
        super::say(&format!("{} {}: personal; it connects with a user's own credential only", pack.id(), spec.id));
        return true;
    }
    let key = Key {
        tenant: TenantId::new(),
        agent: pack.id().clone(),
        server: spec.id.clone(),
        scope: "".into(),
        generation: 0,
    };
    let started = crate::domain::clock::instant();
    match mcp.discover(&key, &Arc::new(spec.clone())).await {
        Ok(discovery) => {
            let took = started.elapsed().as_millis();
            super::say(&format!("{} {}: reachable in {took} ms, protocol {}", pack.id(), spec.id, discovery.protocol));
            super::say(&table(pack, spec, &discovery));
            true
        }
        Err(error) => {
            super::say(&format!("{} {}: not reachable: {error}", pack.id(), spec.id));
            false
        }
    }
}

/// One line per tool: its name and what each role may do with it.
fn table(pack: &Pack, spec: &ServerSpec, discovery: &Discovery) -> String {
    let mut roles: BTreeSet<&str> = roles_named_by(pack);
    roles.insert(GUEST);
    let mut standings: Vec<(&str, Standing)> = roles
        .into_iter()
        .map(|role| (role, Standing { roles: BTreeSet::from([role.to_owned()]), admin: false }))
        .collect();
    standings.push(("(admin)", Standing { roles: BTreeSet::new(), admin: true }));
    let width = discovery.tools.iter().map(|tool| tool.name.len()).max().unwrap_or(0).max("tool".len());
    let mut text = format!("  {:width$}", "tool");
    for (role, _) in &standings {
        let _ = write!(text, "  {role}");
    }
    for tool in &discovery.tools {
        let _ = write!(text, "\n  {:width$}", tool.name);
        for (role, standing) in &standings {
            let verdict = match decide(spec, standing, &tool.name) {
                Decision::Allow { .. } => "yes",
                Decision::Approve(_) => "ask",
                Decision::Deny(_) => "–",
            };
            let _ = write!(text, "  {verdict:<0$}", role.chars().count());
        }
    }
    for dropped in &discovery.dropped {
        let _ = write!(text, "\n  left out: {dropped}");
    }
    text.push_str("\n  yes: may call it · ask: needs an approval · –: is not told that it exists");
    text
}
