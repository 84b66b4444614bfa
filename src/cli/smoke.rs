//! `chatelaine smoke <pack> [server]`: can a pack's servers be reached, in which protocol era, which tools
//! have they, and what may each role do with them? A personal server that is named is tried with values that
//! the operator enters, or with a sign-in; nothing of that is kept. Needs no database.

mod entry;
mod sign_in;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, IsTerminal as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use crate::{
    domain::{
        config::{Config, Environment},
        connection::ConnectionTestError,
        ids::TenantId,
        owner::ConnectionOwner,
        pack::Pack,
        personal,
        policy::{Decision, EffectiveAccess, decide},
        principal::{GUEST, roles_named_by},
        server::{AccessMode, ServerSpec},
    },
    egress::Egress,
    llm,
    mcp::{
        Discovery, Key, Mcp, McpError, Options,
        oauth::{self, ProtectedServer},
    },
    packs::PackStore,
};

#[derive(clap::Args)]
pub struct Args {
    /// The pack's folder, or its id below `CHATELAINE_PACKS`.
    pack: PathBuf,
    /// Only this server.
    server: Option<String>,
}

pub async fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<ExitCode> {
    let folder = if args.pack.is_dir() {
        args.pack.clone()
    } else {
        config.packs.join(&args.pack)
    };
    let library = PackStore::load(&folder, env, config.mcp_servers.as_ref())?;
    let packs = library.snapshot();
    let egress = Egress::new(&config.egress_allow).map_err(anyhow::Error::msg)?;
    let mcp = Mcp::new(
        egress.clone(),
        Options {
            stdio_commands: config.stdio_commands.clone(),
            stdio_env: config.stdio_env.clone(),
            stdio_launcher: config.launcher.clone(),
            ..Options::default()
        },
    );
    let mut reached = true;
    let mut tried = 0;
    for pack in packs.packs() {
        for spec in &pack.servers {
            if args
                .server
                .as_ref()
                .is_none_or(|wanted| spec.id.as_str() == wanted)
            {
                tried += 1;
                reached &= match spec.access_mode {
                    AccessMode::AdminControlled => try_shared(&mcp, &egress, pack, spec).await,
                    AccessMode::UserControlled if args.server.is_none() => {
                        let command =
                            format!("`chatelaine smoke {} {}`", args.pack.display(), spec.id);
                        super::print_line(&format!(
                            "{} {}: personal; {command} asks for a credential and tries it",
                            pack.id(),
                            spec.id
                        ));
                        true
                    }
                    AccessMode::UserControlled => try_personal(&mcp, &egress, pack, spec).await?,
                };
            }
        }
    }
    mcp.shutdown().await;
    if tried == 0 {
        anyhow::bail!(
            "no such server in {}; leave the name out to try all",
            folder.display()
        );
    }
    Ok(if reached {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Says how a shared server is; `false` when it cannot be reached.
async fn try_shared(mcp: &Mcp, egress: &Egress, pack: &Pack, spec: &ServerSpec) -> bool {
    let found = discover(mcp, pack, spec).await;
    if let Err(error) = &found {
        super::print_line(&format!(
            "{} {}: not reachable: {error}",
            pack.id(),
            spec.id
        ));
        if let Some(found) = sign_in::find(egress, spec, error).await {
            super::print_line(&sign_in::describe(spec, &found));
        }
    }
    found.is_ok()
}

/// The same for a personal server, with what is entered now. Of one where users sign in it says how.
async fn try_personal(
    mcp: &Mcp,
    egress: &Egress,
    pack: &Pack,
    spec: &ServerSpec,
) -> anyhow::Result<bool> {
    // What the operator's headers discover needs nothing of a user.
    if let Some(spec) = spec.for_discovery() {
        return Ok(try_shared(mcp, egress, pack, &spec).await);
    }
    if spec.takes_sign_in()
        && let Err(error) = discover(mcp, pack, &spec.asking_for_sign_in()).await
        && let Some(found) = sign_in::find(egress, spec, &error).await
    {
        let described = sign_in::describe(spec, &found);
        super::print_line(&format!(
            "{} {}: reachable\n{described}",
            pack.id(),
            spec.id
        ));
        if spec.user_config.is_empty() {
            return match found {
                Ok(found) if io::stdin().is_terminal() => {
                    try_sign_in(mcp, egress, (pack, spec), &found).await
                }
                _ => Ok(true),
            };
        }
    }
    let values = entry::ask(pack, spec).await?;
    let failed = |trouble: ConnectionTestError, why: &str| {
        super::print_line(&format!(
            "{} {}: {}: {}\n  {why}",
            pack.id(),
            spec.id,
            trouble.code().as_str(),
            trouble.sentence()
        ));
        Ok(false)
    };
    let spec = match personal::effective(spec, &values) {
        Ok(spec) => spec,
        Err(unfit) => {
            return failed(
                ConnectionTestError::BadTemplate,
                &format!("{} {}", unfit.field, unfit.fault),
            );
        }
    };
    match discover(mcp, pack, &spec).await {
        Ok(()) => Ok(true),
        Err(error) => failed(ConnectionTestError::from(&error), &error.message),
    }
}

/// Signs in at a server, shows what it has, and ends the sign-in.
async fn try_sign_in(
    mcp: &Mcp,
    egress: &Egress,
    (pack, spec): (&Pack, &ServerSpec),
    found: &ProtectedServer,
) -> anyhow::Result<bool> {
    let tokens = sign_in::sign_in(egress, spec, found).await?;
    let discovered = discover(mcp, pack, &spec.with_bearer(&tokens.access_token)).await;
    if let Err(error) = oauth::revoke(egress, &tokens).await {
        super::print_line(&format!(
            "  the sign-in is not ended at its server: {error}"
        ));
    }
    if let Err(error) = &discovered {
        let failed = ConnectionTestError::from(error);
        super::print_line(&format!(
            "{} {}: {}: {}\n  {error}",
            pack.id(),
            spec.id,
            failed.code().as_str(),
            failed.sentence()
        ));
    }
    Ok(discovered.is_ok())
}

/// Connects, and shows what the server has.
async fn discover(mcp: &Mcp, pack: &Pack, spec: &ServerSpec) -> Result<(), McpError> {
    let key = Key {
        tenant: TenantId::new(),
        agent: pack.id().clone(),
        server: spec.id.clone(),
        owner: ConnectionOwner::Shared,
    };
    let started = crate::domain::clock::instant();
    let discovery = mcp.discover(&key, &Arc::new(spec.clone())).await?;
    let took = started.elapsed().as_millis();
    super::print_line(&format!(
        "{} {}: reachable in {took} ms, protocol {}",
        pack.id(),
        spec.id,
        discovery.protocol
    ));
    super::print_line(&table(pack, spec, &discovery));
    Ok(())
}

/// Guests where the pack takes any, users without a role, each role that the pack names, and administrators.
fn accesses(pack: &Pack) -> Vec<(&str, EffectiveAccess)> {
    let mut roles: BTreeSet<&str> = roles_named_by(pack);
    let takes_guests = !pack.flows.authentication.required;
    if takes_guests {
        roles.insert(GUEST);
    }
    let access = |roles, admin| EffectiveAccess {
        roles,
        admin,
        is_guest: false,
    };
    let of_role = |role: &str| EffectiveAccess {
        is_guest: takes_guests && role == GUEST,
        ..access(BTreeSet::from([role.to_owned()]), false)
    };
    let mut accesses = vec![("(signed in)", EffectiveAccess::default())];
    accesses.extend(roles.into_iter().map(|role| (role, of_role(role))));
    accesses.push(("(admin)", access(BTreeSet::new(), true)));
    accesses
}

/// One line per tool: its name and what each role may do with it.
fn table(pack: &Pack, spec: &ServerSpec, discovery: &Discovery) -> String {
    let accesses = accesses(pack);
    let width = discovery
        .tools
        .iter()
        .map(|tool| tool.name.len())
        .max()
        .unwrap_or(0)
        .max("tool".len());
    let mut text = format!("  {:width$}", "tool");
    for (role, _) in &accesses {
        let _ = write!(text, "  {role}");
    }
    let names: Vec<&str> = discovery
        .tools
        .iter()
        .map(|tool| tool.name.as_str())
        .collect();
    let closed = spec
        .tool_access
        .as_ref()
        .map(|access| access.closed_tools(&names));
    for tool in &discovery.tools {
        let is_closed = closed
            .as_ref()
            .is_some_and(|closed| closed.contains(tool.name.as_str()));
        let _ = write!(text, "\n  {:width$}", tool.name);
        for (role, access) in &accesses {
            let verdict = match decide(spec, access, &tool.name) {
                _ if is_closed => "–",
                Decision::Allow(_) => "yes",
                Decision::Approve(_) => "ask",
                Decision::Deny(_) => "–",
            };
            let _ = write!(text, "  {verdict:<0$}", role.chars().count());
        }
    }
    for unmatched in pack.unmatched_names(spec, &names) {
        let _ = write!(text, "\n  warning: {unmatched}");
    }
    for dropped in &discovery.dropped {
        let _ = write!(text, "\n  left out: {dropped}");
    }
    for unchecked in &discovery.unchecked {
        let _ = write!(text, "\n  not checked here, but by the server: {unchecked}");
    }
    for tool in &discovery.tools {
        let changes = llm::schema_changes(&pack.llm, &tool.input_schema);
        if !changes.is_empty() {
            let (tool, changes) = (&tool.name, changes.join("; "));
            let _ = write!(
                text,
                "\n  the model is told otherwise: tool {tool:?}: {changes}"
            );
        }
    }
    text.push_str("\n  (signed in): every user, also without a role\n  yes: may call it · ask: needs an approval · –: is not told that it exists");
    text
}
