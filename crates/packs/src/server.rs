//! One entry of `mcp.servers` → [`ServerSpec`]. The same rules hold for `MCP_SERVERS_CONFIG`.

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
    policy::{ToolAccess, ToolPattern},
    secret::Secret,
    server::{AccessMode, CatalogScope, CredentialTest, Endpoint, Remote, ServerSpec, Timeouts},
};

/// Files that a pack named, with what was in them.
pub(super) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What an author may leave out, and what holds then.
pub(super) const REQUIRED: bool = false;
pub(super) const LOAD: bool = true;
pub(super) const TERMINATE_ON_CLOSE: bool = true;
pub(super) const ACCESS_MODES: [(&str, AccessMode); 2] = [
    ("admin-controlled", AccessMode::AdminControlled),
    ("user-controlled", AccessMode::UserControlled),
];
pub(super) const CATALOGS: [(&str, CatalogScope); 2] = [
    ("shared", CatalogScope::Shared),
    ("per-user", CatalogScope::PerUser),
];

/// What a server needs to know of its pack.
pub(super) struct PackContext<'a> {
    /// Relative paths start here.
    pub folder: &'a Path,
    pub language: &'a str,
    pub authentication: &'a Authentication,
    pub files: RefCell<Files>,
}

/// Reads a list of servers. Ids are unique ignoring case.
pub(super) fn read_all(field: &Field, pack: &PackContext) -> Vec<ServerSpec> {
    let mut servers: Vec<ServerSpec> = Vec::new();
    let mut names: Vec<(ServerId, usize)> = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(mut object) = item.object() else {
            continue;
        };
        let name = object.required("name", "write an id such as `name: wise`");
        let id = name.as_ref().and_then(|name| name.parsed(ServerId::parse));
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
        servers.extend(server(object, id, pack));
    }
    servers
}

fn server(mut object: Object, id: Option<ServerId>, pack: &PackContext) -> Option<ServerSpec> {
    let transports = "write `transport: streamable-http`, `sse`, `websocket` or `stdio`";
    let transport = object.required("transport", transports);
    let transport = transport.and_then(|field| endpoint::transport(&field));
    let access_mode = match object.optional("accessMode") {
        Some(field) => access_mode(&field),
        None => Some(AccessMode::default()),
    };
    if let Some(field) = object.older("reconnect")
        && field.boolean_or_word() == Some(false)
    {
        field.warn(
            "has no effect here",
            "a connection that was lost is made again",
        );
    }
    let reach = endpoint::read(&mut object, transport, access_mode, pack);
    let (endpoint, operator_headers) = reach.map_or_else(
        || (None, Vec::new()),
        |reach| (Some(reach.endpoint), reach.operator_headers),
    );
    let from_variables = from_variables(&object.field);
    let auth = auth::read(&mut object, access_mode, transport, endpoint.as_ref());
    let config = user_config(&mut object, access_mode, transport, pack);
    let (tools, tool_access) = tool_rules(&mut object, pack);
    if let Some(test) = &config.test {
        check_test(&test.at, &test.test, tools.as_deref(), tool_access.as_ref());
    }
    let is_orchestrator = matches!(&endpoint,
        Some(Endpoint::Remote { url, .. }) if orchestrator::is_address(url));
    if is_orchestrator && access_mode == Some(AccessMode::UserControlled) {
        let problem = "the orchestrator cannot be a personal server";
        object.field.error(problem, "remove `accessMode`");
    }
    let required = required(&mut object, access_mode);
    let mut timeouts = object
        .optional("timeouts")
        .and_then(|field| timeouts(&field))
        .unwrap_or_default();
    if !matches!(endpoint, Some(Endpoint::Stdio { .. })) {
        timeouts.start = None;
    }
    let mut switch = |name| {
        let field = object.optional(name);
        field.and_then(|field| field.boolean()).unwrap_or(LOAD)
    };
    let (load_tools, load_prompts) = (switch("loadTools"), switch("loadPrompts"));
    let terminate_on_close = terminate_on_close(&mut object, transport);
    let catalog = catalog(&mut object, access_mode);
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
        required,
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

/// What the operator's variables bring to the server. A folder that is there, and an address without anything behind its
/// host, are no credentials, and results are full of them.
fn from_variables(server: &Field) -> Vec<Secret> {
    let at = |name| server.get_path(&[name]);
    let below = |name| at(name).map(|field| field.variables()).unwrap_or_default();
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
        // A variable that is a whole address brings what stands in its query.
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

/// A tool that tests a credential is called without anybody's consent.
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
    if access.is_some_and(|access| access.approval.iter().any(|policy| names(&policy.tools))) {
        field.error(
            "this tool needs approval, and a credential is tested without",
            "name one that only reads and needs none",
        );
    }
}

fn access_mode(field: &Field) -> Option<AccessMode> {
    // In a published pack; `toolAccess` says who may call the tools.
    if field.has_raw_text("public") {
        field.warn(
            "counts as `admin-controlled`",
            "write that; `toolAccess: { default: public }` opens the tools to everyone",
        );
        return Some(AccessMode::AdminControlled);
    }
    field.one_of(&ACCESS_MODES)
}

/// `tools` and `toolAccess`.
fn tool_rules(
    object: &mut Object,
    pack: &PackContext,
) -> (Option<Vec<ToolPattern>>, Option<ToolAccess>) {
    let tools = object
        .optional("tools")
        .map(|field| access::patterns(&field));
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

fn terminate_on_close(object: &mut Object, transport: Option<Transport>) -> bool {
    let given = object.optional("terminateOnClose").and_then(|field| {
        if transport.is_some_and(|transport| transport != Transport::Remote(Remote::StreamableHttp))
        {
            endpoint::refuse_field_of(&field, "streamable-http");
        }
        field.boolean()
    });
    given.unwrap_or(TERMINATE_ON_CLOSE)
}

fn user_config<'a>(
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
        // Its users sign in at the server.
        (Some(AccessMode::UserControlled), None) if matches!(transport, Some(Transport::Remote(_))) => {}
        (Some(AccessMode::UserControlled), None) if object.is_absent("userConfig") => object.missing(
            "userConfig",
            "a personal server says what its users enter: `userConfig: { fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }] }`",
        ),
        _ => {}
    }
    field
        .and_then(|field| personal::read(&field, transport, pack.language))
        .unwrap_or_default()
}

fn catalog(object: &mut Object, mode: Option<AccessMode>) -> CatalogScope {
    let Some(field) = object.optional("catalog") else {
        return CatalogScope::default();
    };
    if mode == Some(AccessMode::AdminControlled) {
        field.warn(
            "has no effect on a shared server, whose tools are listed once",
            "remove it",
        );
    }
    field.one_of(&CATALOGS).unwrap_or_default()
}

fn required(object: &mut Object, mode: Option<AccessMode>) -> bool {
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

pub(super) fn timeouts(field: &Field) -> Option<Timeouts> {
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
    };
    object.finish();
    Some(timeouts)
}
