//! Good and broken packs.

mod aos; // servers and skills of AOS
mod broken; // what is said about each mistake
mod dialects; // what holds for all formats
mod explained; // `explain`, and what `check` understood
mod fields; // what every field does
mod holaos; // workspaces of holaOS
mod holodeck; // agents of HoloDeck
mod imported; // `import`
mod library; // start, reload, watch
mod overlay; // MCP_SERVERS_CONFIG
mod own_secrets; // of the service itself: no pack gets one
mod samples; // the packs that come with the program
mod secrets; // no value is ever told
mod skills; // shortcuts to a tool
mod template; // `${NAME}`
