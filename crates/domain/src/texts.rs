//! The program's own words in a conversation, in English, Spanish and French: the files of `locales/`, which `build.rs`
//! checks. A pack overrides any of them, in any language, by its name in `languages.*.strings`.

use super::{
    error::{Error, ErrorCode},
    pack::{Language, Pack},
    principal::Principal,
};

include!(concat!(env!("OUT_DIR"), "/texts.rs"));

/// The names under which published Hologram packs say the same as a text of ours. Of several for one text the first counts.
const PUBLISHED: [(&str, Key); 19] = [
    ("MCP_CONFIG_SELECT_SERVER", Key::McpConfigList),
    ("MCP_CONFIG_INVALID", Key::McpConfigFailed),
    ("MCP_CONFIG_ABORTED", Key::McpConfigCancelled),
    ("MCP_CONFIG_MENU", Key::MenuMcpConfig),
    ("MCP_CONFIG_ABORT", Key::MenuAbortConfig),
    ("CREDENTIAL", Key::MenuAuthenticate),
    ("LOGOUT", Key::MenuLogout),
    ("PENDING_APPROVALS", Key::MenuPendingApprovals),
    ("MY_APPROVAL_REQUESTS", Key::MenuMyApprovalRequests),
    ("ROOT_TITLE", Key::Menu),
    ("LOGOUT_CONFIRMATION", Key::LoggedOut),
    ("AUTH_SUCCESS_NAME", Key::SignedInAlready),
    ("AUTH_SUCCESS", Key::SignedInAlready),
    ("AUTH_REQUIRED", Key::McpConfigGuest),
    ("LOGIN_REQUIRED", Key::McpConfigGuest),
    ("PENDING_APPROVALS_PROMPT", Key::ApprovalsWaiting),
    ("MY_APPROVAL_REQUESTS_PROMPT", Key::ApprovalsMine),
    ("NO_PENDING_APPROVALS", Key::ApprovalsNone),
    ("APPROVAL_NOT_ALLOWED", Key::ApprovalForOthers),
];

/// Texts of published packs that this program has no occasion to say.
pub const UNSAID: [&str; 20] = [
    "WELCOME",
    "WAITING_CREDENTIAL",
    "AUTH_PROCESS_STARTED",
    "AUTH_DECLINED",
    "AUTH_NO_CREDENTIAL",
    "AUTH_ERROR",
    "STATS_ERROR",
    "ERROR_MESSAGES",
    "MCP_CONFIG_ERROR",
    "NO_APPROVAL_REQUESTS",
    "APPROVAL_REVIEW_DETAILS",
    "APPROVAL_REVIEW_PROMPT",
    "APPROVE",
    "REJECT",
    "APPROVAL_APPROVED_CONFIRM",
    "APPROVAL_REJECTED_CONFIRM",
    "APPROVAL_CANCELLED_CONFIRM",
    "APPROVAL_ALREADY_RESOLVED",
    "VOICE_AUTH_REQUIRED",
    "IMAGE_AUTH_REQUIRED",
];

/// The text that has this name, or means the same under it in published packs.
pub fn named(name: &str) -> Option<Key> {
    let own = TEXTS.iter().position(|(own, _)| *own == name);
    let own = own.map(|at| KEYS[at]);
    own.or_else(|| {
        PUBLISHED
            .iter()
            .find(|(other, _)| *other == name)
            .map(|(_, key)| *key)
    })
}

/// Every name of a text that has an effect.
pub fn names() -> impl Iterator<Item = &'static str> {
    let published = PUBLISHED.iter().map(|(name, _)| *name);
    TEXTS.iter().map(|(name, _)| *name).chain(published)
}

/// A text of a pack in one language: under our name for it, else under one that published packs use.
fn own_text(language: &Language, key: Key) -> Option<&str> {
    let (name, _) = TEXTS[key as usize];
    let others = PUBLISHED.iter().filter(|(_, other)| *other == key);
    let names = std::iter::once(name).chain(others.map(|(other, _)| *other));
    let mut texts = names.filter_map(|name| language.strings.get(name));
    texts.next().map(String::as_str)
}

/// The texts for one user of one pack.
pub struct Texts<'a> {
    pack: Option<&'a Pack>,
    locale: Option<&'a str>,
}

/// The texts in the language of a principal.
pub fn of<'a>(pack: &'a Pack, principal: &'a Principal) -> Texts<'a> {
    Texts {
        pack: Some(pack),
        locale: principal.locale.as_deref(),
    }
}

/// The texts for a user whose language is not known: those of the pack's own language.
pub fn default_texts(pack: Option<&Pack>) -> Texts<'_> {
    Texts { pack, locale: None }
}

/// The texts in a language, without a pack.
pub fn in_language(language: &str) -> Texts<'_> {
    Texts {
        pack: None,
        locale: Some(language),
    }
}

/// The texts about an agent whose pack may be gone.
pub fn for_optional_pack<'a>(pack: Option<&'a Pack>, principal: &'a Principal) -> Texts<'a> {
    Texts {
        pack,
        locale: principal.locale.as_deref(),
    }
}

impl Texts<'_> {
    /// The text with `{name}` replaced, once and literally. In the user's language by the pack, else by us,
    /// then in the pack's default language, then in English.
    pub fn render(&self, key: Key, values: &[(&str, &str)]) -> String {
        let (_, built_in) = TEXTS[key as usize];
        let of_program = |tag: &str| {
            let mut languages = LANGUAGES.iter();
            let at = languages.position(|language| language.eq_ignore_ascii_case(tag))?;
            Some(built_in[at])
        };
        let mut tags = self.tags();
        let found = tags.find_map(|tag| self.own(tag, key).or_else(|| of_program(tag)));
        fill(found.unwrap_or(built_in[0]), values)
    }

    /// What an error says to the user: in their language where there is a text for it.
    pub fn explain(&self, error: &Error) -> String {
        match error {
            Error::KeysUnreadable => self.render(Key::KeysUnreadable, &[]),
            Error::Conflict(ErrorCode::ArgumentsUnreadable, _) => {
                self.render(Key::ApprovalArgumentsDamaged, &[])
            }
            other => other.to_string(),
        }
    }

    /// The pack's own text, if it has one: in the user's language, then in its default language.
    pub fn of_pack(&self, key: Key) -> Option<String> {
        let found = self.tags().find_map(|tag| self.own(tag, key));
        found.map(str::to_owned)
    }

    /// The language of the user, or else of the pack.
    pub fn locale(&self) -> Option<&str> {
        self.tags().next()
    }

    /// The languages in their order: each tag, then the language alone.
    fn tags(&self) -> impl Iterator<Item = &str> {
        let default = self
            .pack
            .map(|pack| pack.metadata.default_language.as_str());
        let tags = self.locale.into_iter().chain(default).chain(["en"]);
        tags.flat_map(|tag| [tag, tag.split(['-', '_']).next().unwrap_or(tag)])
    }

    fn own(&self, tag: &str, key: Key) -> Option<&str> {
        let languages = &self.pack?.languages;
        let mut named = languages.iter();
        let (_, language) = named.find(|(language, _)| language.eq_ignore_ascii_case(tag))?;
        own_text(language, key)
    }
}

/// Replaces in one pass: a value that was filled in is not scanned again.
fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let value = values.iter().find_map(|(name, value)| {
            let after = rest[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((*value, after))
        });
        match value {
            Some((value, after)) => {
                filled.push_str(value);
                rest = after;
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}
