//! The completion of words by Tab: commands, and the servers and codes that commands take.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The commands of this client.
const CLIENT_COMMANDS: [&str; 6] = [
    "/conversations",
    "/details",
    "/history",
    "/new",
    "/quit",
    "/help",
];
/// The commands of every agent.
const AGENT_COMMANDS: [&str; 16] = [
    "/approvals",
    "/approve",
    "/authenticate",
    "/call",
    "/cancel",
    "/confirm",
    "/connect",
    "/connections",
    "/decline",
    "/disconnect",
    "/help",
    "/logout",
    "/menu",
    "/prompts",
    "/reject",
    "/tools",
];

/// The words that Tab completes, shared with the thread that reads the line.
#[derive(Clone, Default)]
pub struct Words(Arc<Mutex<KnownWords>>);

#[derive(Default)]
struct KnownWords {
    skills: Vec<String>,
    servers: Vec<String>,
    codes: Vec<String>,
}

impl Words {
    pub fn set_skills(&self, skills: Vec<String>) {
        self.lock().skills = skills;
    }

    pub fn set_servers(&self, servers: Vec<String>) {
        self.lock().servers = servers;
    }

    pub fn set_codes(&self, codes: Vec<String>) {
        self.lock().codes = codes;
    }

    fn lock(&self) -> MutexGuard<'_, KnownWords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where the word before the cursor begins, and the words that complete it.
    pub fn complete(&self, line: &str) -> (usize, Vec<String>) {
        let start = line.rfind(' ').map_or(0, |at| at + 1);
        let (before, word) = line.split_at(start);
        let known = self.lock();
        let mut fitting: Vec<String> = match before.trim() {
            "" if word.starts_with('/') => {
                let skills = known.skills.iter().map(|id| format!("/{id}"));
                let commands = CLIENT_COMMANDS
                    .iter()
                    .chain(&AGENT_COMMANDS)
                    .map(|name| (*name).to_owned());
                commands.chain(skills).collect()
            }
            "/connect" | "/disconnect" | "/call" | "/tools" => known.servers.clone(),
            "/approve" | "/reject" | "/confirm" | "/decline" | "/cancel" | "/approvals" => {
                known.codes.clone()
            }
            _ => Vec::new(),
        };
        let typed = word.to_lowercase();
        fitting.retain(|candidate| candidate.to_lowercase().starts_with(&typed));
        fitting.sort_unstable();
        fitting.dedup();
        // The next word may follow at once.
        for candidate in &mut fitting {
            candidate.push(' ');
        }
        (start, fitting)
    }
}
