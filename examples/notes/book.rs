//! Everybody's notes. A change is tried on a copy, written to the file, and only then in force, so that the
//! file never lacks what an answer told.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;
use domain::clock::Clock;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use time::format_description::well_known::Rfc3339;

/// Characters of one note.
const LONGEST: usize = 2000;
/// Notes of one holder.
const MOST: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// Unique among the holder's notes; never given twice.
    pub number: u64,
    /// When it was written, RFC 3339.
    pub at: String,
    pub text: String,
}

/// One holder's notes, oldest first.
#[derive(Clone, Default, Serialize, Deserialize)]
struct HolderNotes {
    last_number: u64,
    notes: Vec<Note>,
}

type NotesByHolder = BTreeMap<String, HolderNotes>;

pub struct Book {
    file: Option<PathBuf>,
    by_holder: Mutex<NotesByHolder>,
}

impl Book {
    /// What the file holds, or nothing yet.
    pub fn open(file: Option<PathBuf>) -> anyhow::Result<Self> {
        let text = match file.as_ref().map(fs::read_to_string) {
            Some(Ok(text)) => text,
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("the file of notes");
            }
            Some(Err(_)) | None => "{}".to_owned(),
        };
        let by_holder = serde_json::from_str(&text).context("the file of notes")?;
        Ok(Self {
            file,
            by_holder: Mutex::new(by_holder),
        })
    }

    /// The holder's notes, oldest first.
    pub fn of(&self, holder: &str) -> Vec<Note> {
        self.by_holder()
            .get(holder)
            .map(|own| own.notes.clone())
            .unwrap_or_default()
    }

    pub fn write(&self, holder: &str, text: &str) -> Result<Note, String> {
        let text = text.trim();
        if text.is_empty() || text.chars().count() > LONGEST {
            return Err(format!("a note has 1 to {LONGEST} characters"));
        }
        self.change(holder, |own| {
            if own.notes.len() >= MOST {
                return Err(format!("there are {MOST} notes already; delete one first"));
            }
            own.last_number += 1;
            let at = Clock::System
                .now()
                .format(&Rfc3339)
                .map_err(|error| error.to_string())?;
            let note = Note {
                number: own.last_number,
                at,
                text: text.to_owned(),
            };
            own.notes.push(note.clone());
            Ok(note)
        })
    }

    pub fn delete(&self, holder: &str, number: u64) -> Result<Note, String> {
        self.change(holder, |own| {
            let at = own.notes.iter().position(|note| note.number == number);
            at.map(|at| own.notes.remove(at))
                .ok_or_else(|| format!("there is no note {number}"))
        })
    }

    fn change<T>(
        &self,
        holder: &str,
        change: impl FnOnce(&mut HolderNotes) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut by_holder = self.by_holder();
        let mut changed = by_holder.clone();
        let done = change(changed.entry(holder.to_owned()).or_default())?;
        self.save(&changed)
            .map_err(|error| format!("the notes cannot be kept: {error}"))?;
        *by_holder = changed;
        Ok(done)
    }

    /// All of it or nothing.
    fn save(&self, by_holder: &NotesByHolder) -> anyhow::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let draft = file.with_extension("new");
        fs::write(&draft, serde_json::to_vec_pretty(by_holder)?)?;
        Ok(fs::rename(draft, file)?)
    }

    fn by_holder(&self) -> MutexGuard<'_, NotesByHolder> {
        self.by_holder
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
