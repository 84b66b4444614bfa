//! The names of the slash commands. `app::chat::commands` says what each one does, and `/help` tells users. Commands about
//! requests for consent are read here, since every protocol must read them alike.

use crate::{
    approval::{Choice, parse_code},
    hidden::{breaks_line, remove_hidden},
};

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

/// What a command does with a request for consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsentVerb {
    Show,
    Approve,
    Reject,
    Confirm,
    Decline,
    Cancel,
}

impl ConsentVerb {
    const ALL: [(&'static str, Self); 6] = [
        ("/approvals", Self::Show),
        ("/approve", Self::Approve),
        ("/reject", Self::Reject),
        ("/confirm", Self::Confirm),
        ("/decline", Self::Decline),
        ("/cancel", Self::Cancel),
    ];

    fn parse(word: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == word);
        found.map(|(_, verb)| verb)
    }

    pub fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, verb)| *verb == self);
        found.map(|(name, _)| name).unwrap_or_default()
    }

    /// The decision that it gives, if it gives one.
    pub fn choice(self) -> Option<Choice> {
        match self {
            Self::Approve | Self::Confirm => Some(Choice::Approve),
            Self::Reject | Self::Decline => Some(Choice::Reject),
            Self::Show | Self::Cancel => None,
        }
    }
}

/// What the whole message of a user says about requests for consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsentCommand {
    /// `/approvals`: shows what waits.
    List,
    One {
        verb: ConsentVerb,
        code: String,
        /// The words behind `/reject CODE`.
        reason: Option<String>,
    },
    /// It names a command, and is more or less than this command. It decides nothing: what a person adds to a decision may
    /// be a condition, a doubt or another decision.
    Unclear {
        verb: ConsentVerb,
        /// The request that it seems to be about.
        code: Option<String>,
    },
}

impl ConsentCommand {
    /// Reads a message, with all of its texts; `None` for a message about something else. A decision is one line. The
    /// texts of several parts are lines, so two parts are no decision.
    pub fn read(message: &str) -> Option<Self> {
        let message = message.trim();
        let (name, rest) = split_word(message);
        let Some(verb) = ConsentVerb::parse(name) else {
            return Self::read_end(message);
        };
        let (word, behind) = split_word(rest);
        match (verb, parse_code(word)) {
            (ConsentVerb::Show, _) if rest.is_empty() => Some(Self::List),
            // Of a form or of `/connect`, not of a request.
            (ConsentVerb::Decline | ConsentVerb::Cancel, _) if rest.is_empty() => None,
            (ConsentVerb::Show, Some(code)) => Some(Self::One {
                verb,
                code,
                reason: None,
            }),
            (_, Some(code)) if is_whole(verb, message, behind) => Some(Self::One {
                verb,
                code,
                reason: (!behind.is_empty()).then(|| behind.to_owned()),
            }),
            _ => Some(Self::Unclear {
                verb,
                code: rest.split_whitespace().find_map(find_code),
            }),
        }
    }

    /// Reads a message that ends with a command: "yes, /approve 7F3K". A model that answered it could say that it is done.
    fn read_end(message: &str) -> Option<Self> {
        if message.starts_with('/') {
            return None;
        }
        let mut words = message.split_whitespace().rev();
        let (code, name) = (words.next()?, words.next()?);
        let verb = ConsentVerb::parse(name).filter(|verb| *verb != ConsentVerb::Show)?;
        let code = Some(find_code(code)?);
        Some(Self::Unclear { verb, code })
    }
}

/// Whether a message is a command and nothing else. `behind` are the words behind its code, which are a reason where the
/// command takes one, unless they give a decision themselves.
fn is_whole(verb: ConsentVerb, message: &str, behind: &str) -> bool {
    let words: Vec<_> = behind.split_whitespace().collect();
    let decides = words.windows(2).any(|pair| {
        ConsentVerb::parse(pair[0]).is_some_and(|verb| verb != ConsentVerb::Show)
            && find_code(pair[1]).is_some()
    });
    !message.contains(breaks_line) && (words.is_empty() || verb == ConsentVerb::Reject && !decides)
}

/// The first word and what stands behind it.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

/// The code in a word, whatever else stands in it: marks, and characters that nobody sees.
fn find_code(word: &str) -> Option<String> {
    let clean = remove_hidden(word);
    parse_code(clean.trim_matches(|c: char| !c.is_ascii_alphanumeric()))
}
