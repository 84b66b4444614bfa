//! A chat that a page shows, played by the demo's users.
//!
//! ```text
//! finance › /call bank send_money {"to":"acme", …}      what the user says
//! finance ‹ ⏳ V8RZ: bank send_money waits …             what the user then reads, over as many lines as needed
//! ```
//!
//! `…` stands for anything. The first four-character code of a reply stands for the code that really came, also in
//! what is said later. `notes-erin-…` is the demo's token of Erin.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use domain::secret::Secret;
use serde_json::{Value, json};

use super::page::Block;
use crate::support::{client::Client, world::TIME_LIMIT};

/// Text in which `…` stands for anything.
pub struct Pattern<'a>(Vec<&'a str>);

impl<'a> Pattern<'a> {
    pub fn new(text: &'a str) -> Self {
        Self(text.split('…').collect())
    }

    pub fn fits(&self, text: &str) -> bool {
        let Some(mut rest) = text.strip_prefix(self.0[0]) else {
            return false;
        };
        let [_, middle @ .., last] = self.0.as_slice() else {
            return rest.is_empty();
        };
        for piece in middle {
            match rest.split_once(piece) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

/// The demo's users.
pub struct Speakers {
    clients: BTreeMap<String, Client>,
    /// Each user's conversation, and the number of the last message that was read.
    chats: BTreeMap<String, (String, i64)>,
    /// A page's code or token, and what really came.
    real: BTreeMap<String, String>,
}

impl Speakers {
    /// Reads what the demo has left in its data folder.
    pub fn of(url: &str, data: &Path) -> Self {
        let demo: Value =
            serde_json::from_slice(&fs::read(data.join("demo.json")).unwrap()).unwrap();
        let tokens = demo["tokens"].as_object().unwrap().iter();
        let clients = tokens.map(|(user, token)| {
            let token = Secret::new(token.as_str().unwrap());
            (user.clone(), Client::new(url, Some(&token)))
        });
        let notes: BTreeMap<String, Value> =
            serde_json::from_slice(&fs::read(data.join("notes-tokens.json")).unwrap()).unwrap();
        let real = notes.into_keys().map(|token| {
            let (shown, _) = token.rsplit_once('-').unwrap();
            (format!("{shown}-…"), token)
        });
        Self {
            clients: clients.collect(),
            chats: BTreeMap::new(),
            real: real.collect(),
        }
    }

    pub fn client(&self, user: &str) -> &Client {
        let client = self.clients.get(user);
        client.unwrap_or_else(|| panic!("the demo has no user {user:?}"))
    }

    pub async fn play(&mut self, block: &Block) {
        let mut lines = block.text.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some((user, text)) = line.split_once(" › ") {
                self.say(user, text).await;
            } else if let Some((user, text)) = line.split_once(" ‹ ") {
                let mut shown = text.to_owned();
                while let Some(more) = lines.next_if(|line| !starts_a_turn(line)) {
                    shown = shown + "\n" + more;
                }
                self.read(user, shown.trim_end(), &block.place).await;
            } else {
                assert!(line.is_empty(), "{}: who says {line:?}?", block.place);
            }
        }
    }

    async fn say(&mut self, user: &str, text: &str) {
        let text = self.translate(text);
        if text.starts_with("/approve ") || text.starts_with("/reject ") {
            // What was shown less than a second ago was seen by nobody.
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        let client = self.client(user).clone();
        if !self.chats.contains_key(user) {
            let chat = client.open("bank").await;
            self.chats.insert(user.to_owned(), (chat, 0));
        }
        client.say(&self.chats[user].0, &text).await;
    }

    /// Waits for a message with this text, after the one that was read last.
    async fn read(&mut self, user: &str, shown: &str, place: &str) {
        let (chat, last) = self.chats[user].clone();
        let client = self.client(user).clone();
        let mut seen = Vec::new();
        let reading = async {
            loop {
                seen = client.messages(&chat).await;
                let new = seen.iter().filter(|message| seq(message) > last);
                for message in new.filter(|message| message["role"] != "user") {
                    if self.matches(shown, &plain(message)) {
                        return seq(message);
                    }
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        };
        let found = tokio::time::timeout(TIME_LIMIT, reading).await;
        let seq = found.unwrap_or_else(|_| {
            let texts: Vec<_> = seen.iter().map(plain).collect();
            panic!(
                "{place}: {user} does not read {shown:?} but\n{}",
                texts.join("\n")
            )
        });
        self.chats.insert(user.to_owned(), (chat, seq));
    }

    /// Compares, and remembers a code that is seen for the first time.
    fn matches(&mut self, shown: &str, text: &str) -> bool {
        let known = self.translate(shown);
        if Pattern::new(&known).fits(text) {
            return true;
        }
        let (Some(shown_code), Some(code)) = (code_in(shown), code_in(text)) else {
            return false;
        };
        let fits = Pattern::new(&known.replace(shown_code, code)).fits(text);
        if fits {
            self.real.insert(shown_code.to_owned(), code.to_owned());
        }
        fits
    }

    fn translate(&self, text: &str) -> String {
        let real = self.real.iter();
        real.fold(text.to_owned(), |text, (shown, real)| {
            text.replace(shown, real)
        })
    }
}

fn starts_a_turn(line: &str) -> bool {
    line.contains(" › ") || line.contains(" ‹ ")
}

/// The first word of four capital letters and digits.
fn code_in(text: &str) -> Option<&str> {
    let code = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .find(|word| word.len() == 4 && word.chars().all(code))
}

fn seq(message: &Value) -> i64 {
    message["seq"].as_i64().unwrap()
}

/// The text of all parts, choices with their numbers.
fn plain(message: &Value) -> String {
    let mut lines = Vec::new();
    for part in message["parts"].as_array().unwrap() {
        lines.extend(part["text"].as_str().map(ToOwned::to_owned));
        let choices = part["choices"].as_array().into_iter().flatten();
        lines.extend(
            choices
                .enumerate()
                .map(|(at, choice)| format!("  {}. {}", at + 1, choice["label"].as_str().unwrap())),
        );
    }
    lines.join("\n")
}

#[test]
fn an_ellipsis_stands_for_anything() {
    assert!(Pattern::new("a … c").fits("a b c"));
    assert!(Pattern::new("… c").fits("a b c"));
    assert!(Pattern::new("a b c").fits("a b c"));
    assert!(!Pattern::new("a b").fits("a b c"));
    assert!(!Pattern::new("a … d").fits("a b c"));
    assert!(!Pattern::new("").fits(&json!(1).to_string()));
}
