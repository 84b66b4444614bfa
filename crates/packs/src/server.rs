//! Reads an item of `mcp.servers` into a [`ServerSpec`]. The same rules hold for `MCP_SERVERS_CONFIG`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use url::Url;

use super::{
    access, auth,
    endpoint::{self, Transport},
    field::Field,
    object::Object,
    personal,
};
use domain::{
    ids::ServerId,
    orchestrator,
    pack::Authentication,
    pin::Pin,
    policy::{OtherPolicies, ToolAccess, ToolPattern},
    secret::Secret,
    server::{AccessMode, CatalogScope, CredentialTest, Endpoint, Remote, ServerSpec, Timeouts},
};

/// The files that a pack names, with their content.
pub(super) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// How many connections a shared server has. By default a process is one for each tenant, since it may keep what it was
/// told.
pub(super) const INSTANCES: [(&str, bool); 2] = [("shared", false), ("per-tenant", true)];
/// When a shared server is connected. By default one for all is connected at the start.
pub(super) const CONNECT: [(&str, bool); 2] = [("start", true), ("first-use", false)];
/// The default of `required`.
pub(super) const REQUIRED: bool = false;
/// The default of `loadTools` and `loadPrompts`.
pub(super) const LOAD: bool = true;
/// The default of `terminateOnClose`.
pub(super) const TERMINATE_ON_CLOSE: bool = true;
pub(super) const ACCESS_MODES: [(&str, AccessMode); 2] = [
    ("admin-controlled", AccessMode::AdminControlled),
    ("user-controlled", AccessMode::UserControlled),
];
pub(super) const CATALOGS: [(&str, CatalogScope); 2] = [
    ("shared", CatalogScope::Shared),
    ("per-user", CatalogScope::PerUser),
];

pub(super) const PINS: [(&str, Pin); 3] =
    [("hold", Pin::Hold), ("tell", Pin::Tell), ("off", Pin::Off)];

/// The parts of a pack that the readers of its servers need.
pub(super) struct PackContext<'a> {
    /// The folder from which relative paths start.
    pub folder: &'a Path,
    /// The default language.
    pub language: &'a str,
    pub authentication: &'a Authentication,
    /// The files that were read for the servers.
    pub files: RefCell<Files>,
}

/// Reads a list of servers. Two servers must not have the same name, ignoring case.
pub(super) fn read_all(field: &Field, pack: &PackContext) -> Vec<ServerSpec> {
    let mut servers: Vec<ServerSpec> = Vec::new();
    let mut names: Vec<(ServerId, usize)> = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(mut object) = item.object() else {
            continue;
        };
        let name = object.required("name", "write an id such as `name: wise`");
        let id = name
            .as_ref()
            .and_then(|name| name.parse_with(ServerId::parse));
        if let (Some(id), Some(name)) = (&id, &name) {
            let same =
                |(other, _): &&(ServerId, usize)| other.as_str().eq_ignore_ascii_case(id.as_str());
            if let Some((other, line)) = names.iter().find(same) {
                let case = if other == id { "" } else { ", ignoring case" };
                let message = format!("the server on line {line} has the same name{case}");
                name.error(message, "give every server of a pack a name of its own");
            }
            names.push((id.clone(), name.at.line));
        }
        servers.extend(read_server(object, id, pack));
    }
    servers
}

fn read_server(mut object: Object, id: Option<ServerId>, pack: &PackContext) -> Option<ServerSpec> {
    let transports = "write `transport: streamable-http`, `sse`, `websocket` or `stdio`";
    let transport = object.required("transport", transports);
    let transport = transport.and_then(|field| endpoint::read_transport(&field));
    let access_mode = match object.optional("accessMode") {
        Some(field) => read_access_mode(&field),
        None => Some(AccessMode::default()),
    };
    if let Some(field) = object.older("reconnect")
        && field.boolean_or_word() == Some(false)
    {
        let hint = "a connection that was lost is made again";
        field.warn("has no effect here", hint);
    }
    let parsed = endpoint::read(&mut object, transport, access_mode, pack);
    let (endpoint, operator_headers) = parsed.map_or_else(
        || (None, Vec::new()),
        |parsed| (Some(parsed.endpoint), parsed.operator_headers),
    );
    let from_variables = read_variable_secrets(&object.field);
    let auth = auth::read(&mut object, access_mode, transport, endpoint.as_ref());
    let config = read_user_config(&mut object, access_mode, transport, pack);
    let (tools, tool_access) = read_tool_rules(&mut object, pack);
    if let Some(test) = &config.test {
        check_test(&test.at, &test.test, tools.as_deref(), tool_access.as_ref());
    }
    let is_orchestrator = matches!(&endpoint,
        Some(Endpoint::Remote { url, .. }) if orchestrator::is_address(url));
    if is_orchestrator && access_mode == Some(AccessMode::UserControlled) {
        let problem = "the orchestrator cannot be a personal server";
        object.field.error(problem, "remove `accessMode`");
    }
    let pin = object.optional("pin");
    let summaries = object.optional("summaries");
    let summaries = summaries.map(|field| read_summaries(&field, pack.language));
    let required = read_required(&mut object, access_mode);
    let is_stdio = matches!(endpoint, Some(Endpoint::Stdio { .. }));
    let per_tenant = read_of_shared(&mut object, "instances", access_mode, &INSTANCES);
    let per_tenant =
        per_tenant.unwrap_or(is_stdio && access_mode == Some(AccessMode::AdminControlled));
    let at_start = read_of_shared(&mut object, "connect", access_mode, &CONNECT);
    let at_start = at_start.unwrap_or(!per_tenant && !is_stdio);
    let mut timeouts = object
        .optional("timeouts")
        .and_then(|field| read_timeouts(&field))
        .unwrap_or_default();
    if !is_stdio {
        timeouts.start = None;
    }
    let mut switch = |name| {
        let field = object.optional(name);
        field.and_then(|field| field.boolean()).unwrap_or(LOAD)
    };
    let (load_tools, load_prompts) = (switch("loadTools"), switch("loadPrompts"));
    let terminate_on_close = read_terminate_on_close(&mut object, transport);
    let catalog = read_catalog(&mut object, access_mode);
    if let Some(headers) = object.field.get_path(&["headers"])
        && catalog == CatalogScope::PerUser
        && !operator_headers.is_empty()
    {
        headers.warn(
            "the operator's headers discover nothing, because the tools are listed for each user",
            "remove them, or write `catalog: shared`",
        );
    }
    object.finish();
    let mut server = ServerSpec {
        id: id?,
        endpoint: endpoint?,
        access_mode: access_mode?,
        tool_access,
        tools,
        pin: read_pin(pin.as_ref(), catalog),
        held: BTreeMap::new(),
        elsewhere: OtherPolicies::default(),
        summaries: summaries.unwrap_or_default(),
        required,
        per_tenant,
        at_start,
        timeouts,
        user_config: config.fields,
        credential_test: config.test.map(|test| test.test),
        catalog,
        operator_headers,
        from_variables,
        entered: Vec::new(),
        has_user_values: false,
        asks_for_sign_in: false,
        auth: auth.auth,
        oauth: auth.oauth,
        run_config: None,
        of_tenant: false,
        load_tools,
        load_prompts,
        terminate_on_close,
    };
    if is_orchestrator {
        orchestrator::guard(&mut server);
    }
    Some(server)
}

/// The values of the operator's variables that the server gets, which may be credentials. An existing folder and an
/// address without a path are none, and the results of tools often contain them.
fn read_variable_secrets(server: &Field) -> Vec<Secret> {
    let at = |name| server.get_path(&[name]);
    let below = |name| {
        at(name)
            .map(|field| field.variable_values())
            .unwrap_or_default()
    };
    let is_place = |value: &str| {
        let is_origin = |url: Url| url.path().len() < 2 && url.query().is_none();
        Path::new(value).is_absolute() && Path::new(value).exists()
            || Url::parse(value).is_ok_and(|url| url.has_host() && is_origin(url))
    };
    let mut found: Vec<Secret> = ["headers", "env", "args", "config"]
        .into_iter()
        .flat_map(below)
        .filter(|value| !is_place(value.expose()))
        .collect();
    let url = at("url").and_then(|field| Url::parse(&field.try_text()?).ok());
    for value in below("url") {
        // If a variable holds a whole address, only the values in its query may be credentials.
        if let Ok(whole) = Url::parse(value.expose()) {
            let query = whole.query_pairs();
            found.extend(query.map(|(_, value)| Secret::new(value.into_owned())));
        } else if url.as_ref().is_some_and(|url| {
            url.host_str()
                .is_some_and(|host| !host.contains(value.expose()))
        }) {
            found.push(value);
        }
    }
    found
}

/// Checks the tool that tests a credential. It is called without approval.
fn check_test(
    field: &Field,
    test: &CredentialTest,
    tools: Option<&[ToolPattern]>,
    access: Option<&ToolAccess>,
) {
    let names = |patterns: &[ToolPattern]| patterns.iter().any(|it| it.matches(&test.tool));
    if tools.is_some_and(|tools| !names(tools)) {
        field.error("this tool is not in `tools`", "name one that is");
    }
    let mut rules = access.into_iter().flat_map(ToolAccess::guards);
    if rules.any(|(_, tools)| names(tools)) {
        field.error(
            "this tool needs approval or is denied, and a credential is tested without asking",
            "name one that only reads and has no such rule",
        );
    }
}

fn read_access_mode(field: &Field) -> Option<AccessMode> {
    // Published packs write it. Here `toolAccess` says who may call the tools.
    if field.has_raw_text("public") {
        field.warn(
            "counts as `admin-controlled`",
            "write that; `toolAccess: { default: public }` opens the tools to everyone",
        );
        return Some(AccessMode::AdminControlled);
    }
    field.one_of(&ACCESS_MODES)
}

/// Reads `tools` and `toolAccess`.
fn read_tool_rules(
    object: &mut Object,
    pack: &PackContext,
) -> (Option<Vec<ToolPattern>>, Option<ToolAccess>) {
    let tools = object
        .optional("tools")
        .map(|field| access::read_patterns(&field));
    let tool_access = object.optional("toolAccess");
    if tool_access.is_none() && object.is_absent("toolAccess") {
        object.field.warn(
            "there is no `toolAccess`, so nobody but `adminUsers` may call its tools",
            "`toolAccess: { default: public }` opens them to everyone",
        );
    }
    let tool_access =
        tool_access.and_then(|field| access::read(&field, tools.as_deref(), pack.authentication));
    let tools = tools.map(|tools| tools.into_iter().map(|listed| listed.pattern).collect());
    (tools, tool_access)
}

/// Reads `pin`. Where each user has a list of their own, every list but the first would be held.
fn read_pin(field: Option<&Field>, catalog: CatalogScope) -> Pin {
    let pin = field.and_then(|field| field.one_of(&PINS));
    pin.unwrap_or(match catalog {
        CatalogScope::Shared => Pin::Hold,
        CatalogScope::PerUser => Pin::Tell,
    })
}

/// What a call of each tool means, for people: a sentence with `{argument}`s, by language.
fn read_summaries(field: &Field, language: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut summaries = BTreeMap::new();
    for (tool, sentence) in field.entries().unwrap_or_default() {
        let Some(texts) = personal::read_label(&sentence, language) else {
            continue;
        };
        for text in texts.values() {
            if let Err(reason) = check_summary(text) {
                let hint = "write it such as `\"Send {amount} to {recipient}\"`, with names of the tool's arguments";
                sentence.error(reason, hint);
            }
        }
        summaries.insert(tool.to_owned(), texts);
    }
    summaries
}

/// Each brace of a sentence belongs to the name of an argument. The sentence is one short line.
fn check_summary(text: &str) -> Result<(), String> {
    const MAX_LENGTH: usize = 160;
    if text.chars().count() > MAX_LENGTH || text.contains(char::is_control) {
        return Err(format!(
            "is not one line of at most {MAX_LENGTH} characters"
        ));
    }
    let mut pieces = text.split('{');
    let is_fine = pieces.next().is_some_and(|start| !start.contains('}'))
        && pieces.all(|piece| {
            piece
                .split_once('}')
                .is_some_and(|(name, after)| !name.trim().is_empty() && !after.contains('}'))
        });
    if is_fine {
        Ok(())
    } else {
        Err(format!("{text:?} has a brace that encloses no name"))
    }
}

fn read_terminate_on_close(object: &mut Object, transport: Option<Transport>) -> bool {
    let given = object.optional("terminateOnClose").and_then(|field| {
        if transport.is_some_and(|transport| transport != Transport::Remote(Remote::StreamableHttp))
        {
            endpoint::refuse_field_of(&field, "streamable-http");
        }
        field.boolean()
    });
    given.unwrap_or(TERMINATE_ON_CLOSE)
}

fn read_user_config<'a>(
    object: &mut Object<'a>,
    mode: Option<AccessMode>,
    transport: Option<Transport>,
    pack: &PackContext,
) -> personal::UserConfig<'a> {
    let field = object.optional("userConfig");
    match (mode, &field) {
        (Some(AccessMode::AdminControlled), Some(field)) => {
            field.error("`userConfig` is for personal servers", "remove it, or write `accessMode: user-controlled`");
        }
        // Without fields, its users sign in at the server.
        (Some(AccessMode::UserControlled), None) if matches!(transport, Some(Transport::Remote(_))) => {}
        (Some(AccessMode::UserControlled), None) if object.is_absent("userConfig") => object.report_missing(
            "userConfig",
            "a personal server says what its users enter: `userConfig: { fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }] }`",
        ),
        _ => {}
    }
    field
        .and_then(|field| personal::read(&field, transport, pack.language))
        .unwrap_or_default()
}

fn read_catalog(object: &mut Object, mode: Option<AccessMode>) -> CatalogScope {
    let Some(field) = object.optional("catalog") else {
        return CatalogScope::default();
    };
    let scope = field.one_of(&CATALOGS).unwrap_or_default();
    if mode == Some(AccessMode::AdminControlled) {
        field.warn(
            "has no effect on a shared server, whose tools are listed once",
            "remove it",
        );
        return CatalogScope::default();
    }
    scope
}

/// Reads a choice that only a shared server has.
fn read_of_shared(
    object: &mut Object,
    name: &'static str,
    mode: Option<AccessMode>,
    choices: &[(&'static str, bool)],
) -> Option<bool> {
    let field = object.optional(name)?;
    if mode == Some(AccessMode::UserControlled) {
        field.warn(
            "has no effect on a personal server, where each user has a connection of their own",
            "remove it",
        );
        return None;
    }
    field.one_of(choices)
}

fn read_required(object: &mut Object, mode: Option<AccessMode>) -> bool {
    let Some(field) = object.optional("required") else {
        return REQUIRED;
    };
    let required = field.boolean().unwrap_or(REQUIRED);
    if required && mode == Some(AccessMode::UserControlled) {
        field.warn(
            "has no effect on a personal server, which has no connection of its own at start",
            "remove it",
        );
    }
    required
}

/// Reads `timeouts`, in seconds.
pub(super) fn read_timeouts(field: &Field) -> Option<Timeouts> {
    let mut object = field.object()?;
    let mut seconds = |name| {
        object
            .optional(name)
            .and_then(|f| f.number(&(0.001..=86_400.0)))
            .map(Duration::from_secs_f64)
    };
    let default = Timeouts::default();
    let start = seconds("connectSeconds");
    let timeouts = Timeouts {
        connect: start.unwrap_or(default.connect),
        start,
        request: seconds("requestSeconds").unwrap_or(default.request),
        stream_idle: seconds("streamIdleSeconds"),
        idle: seconds("idleSeconds"),
    };
    object.finish();
    Some(timeouts)
}
