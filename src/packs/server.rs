//! One entry of `mcp.servers` → [`ServerSpec`]. The same rules hold for `MCP_SERVERS_CONFIG`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    access, auth,
    endpoint::{self, Transport},
    field::Field,
    object::Object,
    personal,
};
use crate::domain::{
    ids::ServerId,
    orchestrator,
    pack::Authentication,
    policy::{ToolAccess, ToolPattern},
    server::{AccessMode, CatalogScope, Endpoint, Remote, ServerSpec, Timeouts},
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
        Some(field) => field.one_of(&ACCESS_MODES),
        None => Some(AccessMode::default()),
    };
    let endpoint = endpoint::read(&mut object, transport, pack);
    let auth = auth::read(&mut object, access_mode, transport, endpoint.as_ref());
    let user_config = user_config(&mut object, access_mode, transport, pack);
    let (tools, tool_access) = tool_rules(&mut object, pack);
    let is_orchestrator = matches!(&endpoint,
        Some(Endpoint::Remote { url, .. }) if orchestrator::is_address(url));
    if is_orchestrator && access_mode == Some(AccessMode::UserControlled) {
        let problem = "the orchestrator cannot be a personal server";
        object.field.error(problem, "remove `accessMode`");
    }
    let tool_access = if is_orchestrator {
        Some(orchestrator::guarded(tool_access))
    } else {
        tool_access
    };
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
    object.finish();
    Some(ServerSpec {
        id: id?,
        endpoint: endpoint?,
        access_mode: access_mode?,
        tool_access,
        tools,
        required,
        timeouts,
        user_config,
        catalog,
        entered: Vec::new(),
        auth: auth.auth,
        oauth: auth.oauth,
        run_config: None,
        of_tenant: false,
        load_tools,
        load_prompts,
        terminate_on_close,
    })
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

fn user_config(
    object: &mut Object,
    mode: Option<AccessMode>,
    transport: Option<Transport>,
    pack: &PackContext,
) -> Vec<crate::domain::server::UserField> {
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
            "has no effect on a personal server, which never connects at start",
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
