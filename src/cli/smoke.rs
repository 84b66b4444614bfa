//! `chatelaine smoke <pack> [server]` connects to the servers of a pack, and prints the protocol revision of each, its
//! tools, and what each role may do with them. It tries a personal server only if the operator names it, with values
//! that the operator enters or with a sign-in, and keeps nothing of these. It needs no database.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{self, IsTerminal as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::bail;

use domain::{
    config::{Config, Environment},
    connection::ConnectionTestError,
    ids::TenantId,
    oauth::{Authorization, OAuthConfig},
    owner::SharedKey,
    pack::Pack,
    personal::{self, Values},
    policy::{EffectiveAccess, Offer, names::TAKES_UNKNOWN, offer},
    principal::{GUEST, roles_named_by},
    server::{AccessMode, FieldKind, ServerSpec, UserField},
};
use egress::Egress;
use mcp::{
    Discovery, Key, Mcp, McpError, McpErrorKind, Options,
    oauth::{self, AuthorizationServer, ClientChoice, OAuthError, ProtectedServer, SignInRequest},
};
use packs::PackStore;
use terminal::{completion::Words, lines::Lines, loopback::Loopback, print_line};

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
    let store = PackStore::load(&folder, env, config.mcp_servers.as_ref())?;
    let packs = store.snapshot();
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
    let mut all_reached = true;
    let mut tried = 0;
    for pack in packs.packs() {
        for spec in &pack.servers {
            if args
                .server
                .as_ref()
                .is_none_or(|wanted| spec.id.as_str() == wanted)
            {
                tried += 1;
                all_reached &= match spec.access_mode {
                    AccessMode::AdminControlled => try_shared(&mcp, &egress, pack, spec).await,
                    AccessMode::UserControlled if args.server.is_none() => {
                        let command =
                            format!("`chatelaine smoke {} {}`", args.pack.display(), spec.id);
                        print_line(&format!(
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
    Ok(if all_reached {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Connects to a shared server and prints its tools; `false` when it cannot be reached.
async fn try_shared(mcp: &Mcp, egress: &Egress, pack: &Pack, spec: &ServerSpec) -> bool {
    let found = discover(mcp, pack, spec).await;
    if let Err(error) = &found {
        print_line(&format!(
            "{} {}: not reachable: {error}",
            pack.id(),
            spec.id
        ));
        if let Some(found) = find_sign_in(egress, spec, error).await {
            print_line(&describe_sign_in(spec, &found));
        }
    }
    found.is_ok()
}

/// Connects to a personal server with values that the operator enters now, or prints how its users sign in.
async fn try_personal(
    mcp: &Mcp,
    egress: &Egress,
    pack: &Pack,
    spec: &ServerSpec,
) -> anyhow::Result<bool> {
    // The pack has headers for discovery, so no values of a user are needed.
    if let Some(spec) = spec.for_discovery() {
        return Ok(try_shared(mcp, egress, pack, &spec).await);
    }
    if spec.takes_sign_in()
        && let Err(error) = discover(mcp, pack, &spec.asking_for_sign_in()).await
        && let Some(found) = find_sign_in(egress, spec, &error).await
    {
        let described = describe_sign_in(spec, &found);
        print_line(&format!(
            "{} {}: reachable\n{described}",
            pack.id(),
            spec.id
        ));
        if spec.user_config.is_empty() {
            return match found {
                Ok(found) if io::stdin().is_terminal() => {
                    try_sign_in(mcp, egress, pack, spec, &found).await
                }
                _ => Ok(true),
            };
        }
    }
    let values = ask_values(pack, spec).await?;
    let report_failure = |failure: ConnectionTestError, why: &str| {
        print_line(&format!(
            "{} {}: {}: {}\n  {why}",
            pack.id(),
            spec.id,
            failure.code().as_str(),
            failure.sentence()
        ));
        Ok(false)
    };
    let spec = match personal::effective(spec, &values) {
        Ok(spec) => spec,
        Err(unfit) => {
            return report_failure(
                ConnectionTestError::BadTemplate,
                &format!("{} {}", unfit.field, unfit.fault),
            );
        }
    };
    match discover(mcp, pack, &spec).await {
        Ok(()) => Ok(true),
        Err(error) => report_failure(ConnectionTestError::from(&error), &error.message),
    }
}

/// Signs in at a server, prints its tools, and ends the sign-in.
async fn try_sign_in(
    mcp: &Mcp,
    egress: &Egress,
    pack: &Pack,
    spec: &ServerSpec,
    found: &ProtectedServer,
) -> anyhow::Result<bool> {
    let tokens = sign_in(egress, spec, found).await?;
    let discovered = discover(mcp, pack, &spec.with_bearer(&tokens.access_token)).await;
    if let Err(error) = oauth::revoke(egress, &tokens).await {
        print_line(&format!(
            "  the sign-in is not ended at its server: {error}"
        ));
    }
    if let Err(error) = &discovered {
        let failed = ConnectionTestError::from(error);
        print_line(&format!(
            "{} {}: {}: {}\n  {error}",
            pack.id(),
            spec.id,
            failed.code().as_str(),
            failed.sentence()
        ));
    }
    Ok(discovered.is_ok())
}

/// Connects to a server and prints its tools.
async fn discover(mcp: &Mcp, pack: &Pack, spec: &ServerSpec) -> Result<(), McpError> {
    let key = Key::Shared(SharedKey::new(TenantId::new(), spec));
    let started = domain::clock::instant();
    let discovery = mcp.discover(&key, &Arc::new(spec.clone())).await?;
    let took = started.elapsed().as_millis();
    print_line(&format!(
        "{} {}: reachable in {took} ms, protocol {}",
        pack.id(),
        spec.id,
        discovery.protocol
    ));
    print_line(&table(pack, spec, &discovery));
    Ok(())
}

/// The columns of the table: users without a role, guests where the pack takes any, each role that the pack names, and
/// administrators.
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
            let verdict = match offer(spec, access, &tool.name) {
                _ if is_closed => "–",
                Offer::Call => "yes",
                Offer::Approve { .. } => "ask",
                Offer::Deny(_) => "–",
            };
            let _ = write!(text, "  {verdict:<0$}", role.chars().count());
        }
    }
    for unmatched in pack.unmatched_names(spec, &discovery.tools) {
        let _ = write!(text, "\n  warning: {unmatched}");
    }
    for tool in spec.list_open_tools(&discovery.tools) {
        let _ = write!(
            text,
            "\n  warning: the guarded tool {tool:?} {TAKES_UNKNOWN}"
        );
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
    text.push_str("\n  (signed in): every user, also without a role\n  yes: may call it · ask: needs consent, or may · –: is not told that it exists");
    text
}

/// Asks for a value of every field that a user of a personal server enters, and checks it: on a terminal field by field,
/// without showing a secret, and again after a wrong value; from a pipe one line for each field.
async fn ask_values(pack: &Pack, spec: &ServerSpec) -> anyhow::Result<Values> {
    let interactive = io::stdin().is_terminal();
    let mut lines = Lines::start(interactive, vec!["› ".to_owned()], Words::default(), None);
    let mut values = Values::default();
    for field in &spec.user_config {
        loop {
            if interactive {
                print_line(&question(pack, field));
            }
            let Some(line) = lines.next(field.kind == FieldKind::Secret).await? else {
                let names: Vec<_> = spec
                    .user_config
                    .iter()
                    .map(|field| field.name.as_str())
                    .collect();
                bail!(
                    "{}: nothing was entered; a line is needed for each of: {}",
                    field.name,
                    names.join(", ")
                );
            };
            match personal::check(field, line.trim_end_matches(['\r', '\n'])) {
                Ok(value) => {
                    values.set(field, value);
                    break;
                }
                Err(fault) if interactive => print_line(&format!("{} {fault}", field.name)),
                Err(fault) => bail!("{} {fault}", field.name),
            }
        }
    }
    Ok(values)
}

fn question(pack: &Pack, field: &UserField) -> String {
    let label = pack.text(&field.label, None).unwrap_or(&field.name);
    let options: Vec<_> = field
        .options
        .iter()
        .map(|option| option.value.as_str())
        .collect();
    let hint = match field.kind {
        FieldKind::Boolean => " (true or false)".to_owned(),
        FieldKind::Select => format!(" ({})", options.join(", ")),
        FieldKind::Text | FieldKind::Secret | FieldKind::Url => String::new(),
    };
    format!(
        "{label}{hint}{}",
        if field.required {
            ""
        } else {
            " – may be left empty"
        }
    )
}

/// Finds where the users of a server sign in (OAuth), if it answered that they have to.
async fn find_sign_in(
    egress: &Egress,
    spec: &ServerSpec,
    error: &McpError,
) -> Option<Result<ProtectedServer, OAuthError>> {
    if error.kind != McpErrorKind::SignInRequired {
        return None;
    }
    let challenge = error.challenge.as_deref().cloned().unwrap_or_default();
    Some(oauth::discover(egress, spec.url()?, &challenge).await)
}

/// Describes for the author of the pack how users sign in at a server.
fn describe_sign_in(spec: &ServerSpec, found: &Result<ProtectedServer, OAuthError>) -> String {
    match found {
        Ok(found) => describe_server(spec, found),
        Err(error) => format!("  signing in (OAuth) does not work: {error}"),
    }
}

/// Signs in as a user of the service would, with a browser of this machine. The tokens are used for this trial only.
async fn sign_in(
    egress: &Egress,
    spec: &ServerSpec,
    found: &ProtectedServer,
) -> anyhow::Result<Authorization> {
    let loopback = Loopback::open().await?;
    let config = OAuthConfig {
        // That document names the callback of the service, and the browser has to come back to this program.
        client_metadata_url: None,
        ..spec.oauth.clone().unwrap_or_default()
    };
    let found = &found.for_sign_in(&config)?;
    let scopes = found.scopes_to_request(&config.scopes, &[]);
    let choice = ClientChoice {
        config: &config,
        redirect_uri: loopback.redirect_uri(),
        document: None,
        registered: None,
        scopes: &scopes,
    };
    let client = oauth::choose_client(egress, &found.authorization_server, choice).await?;
    if client.is_of_pack {
        print_line(&format!(
            "  the client of the pack must allow the callback {}",
            loopback.redirect_uri()
        ));
    }
    let request = SignInRequest {
        at: found,
        client,
        redirect_uri: loopback.redirect_uri(),
        scopes,
        parameters: &BTreeMap::new(),
    };
    let started = oauth::start(egress, request).await?;
    print_line(&format!("  to try it, sign in at:\n\n{}\n", started.url));
    let params = loopback.wait(&started.state).await?;
    let tokens = oauth::redeem(egress, &started.pending, &params).await?;
    let pending = started.pending;
    Ok(tokens.into_authorization(pending.service, pending.scopes, None))
}

fn describe_server(spec: &ServerSpec, found: &ProtectedServer) -> String {
    let server = &found.authorization_server;
    let config = spec.oauth.clone().unwrap_or_default();
    let scopes = found.scopes_to_request(&config.scopes, &[]).join(" ");
    let scopes = if scopes.is_empty() { "none" } else { &scopes };
    let pkce = match server.sign_in_endpoint() {
        Ok(_) => "users can sign in".to_owned(),
        Err(_) if config.assumes_pkce && server.endpoint_without_pkce.is_some() => {
            "users can sign in; PKCE is assumed".to_owned()
        }
        Err(error) => format!("users cannot sign in: {error}"),
    };
    format!(
        "  sign-in (OAuth) at {}\n  {pkce}; scopes: {scopes}\n  client: {}",
        server.issuer,
        describe_client(server, config.client_id.is_some())
    )
}

/// The OAuth client as which the service will sign users in.
fn describe_client(server: &AuthorizationServer, is_in_pack: bool) -> &'static str {
    if is_in_pack {
        "the one in the pack"
    } else if server.takes_metadata_documents {
        "the metadata document of this service, where its public URL is https"
    } else if server.registration_endpoint.is_some() {
        "this service registers itself"
    } else {
        "register one by hand, with the callback https://your-service/oauth/callback, and write its `clientId`"
    }
}
