//! The slash commands by name. What each does is said in `app::chat::commands`, and to people by `/help`.

pub const NAMES: [&str; 15] = [
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
    "/approvals",
    "/approve",
    "/reject",
    "/authenticate",
    "/logout",
];

/// Whether a text is one of them, with whatever follows.
pub fn is_one(text: &str) -> bool {
    NAMES.contains(&text.split_whitespace().next().unwrap_or_default())
}
