//! The names of the slash commands. `app::chat::commands` says what each one does, and `/help` tells users.

pub const NAMES: [&str; 16] = [
    "/help",
    "/menu",
    "/tools",
    "/prompts",
    "/connections",
    "/call",
    "/connect",
    "/disconnect",
    "/cancel",
    "/decline",
    "/confirm",
    "/approvals",
    "/approve",
    "/reject",
    "/authenticate",
    "/logout",
];

/// Whether a text begins with one of these commands.
pub fn is_command(text: &str) -> bool {
    NAMES.contains(&text.split_whitespace().next().unwrap_or_default())
}
