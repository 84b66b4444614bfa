//! What the notes offer to models, by the scopes of the holder's token.

use std::sync::Arc;

use rmcp::{
    Json, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    schemars::{self, JsonSchema},
    tool, tool_handler, tool_router,
};
use serde::{Deserialize, Serialize};

use super::{
    book::{Book, Note},
    http::{Holder, Scope},
};

/// One holder's server.
#[derive(Clone)]
pub struct Notes {
    book: Arc<Book>,
    holder: String,
    router: ToolRouter<Self>,
}

#[derive(Serialize, JsonSchema)]
pub struct Found {
    /// Whose notes these are.
    holder: String,
    notes: Vec<Note>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Words that the note holds, in upper or lower case; every note without it.
    #[serde(default)]
    containing: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct New {
    /// What to keep, at most 2000 characters.
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// The number of the note, as in `list_notes`.
    number: u64,
}

impl Notes {
    /// The tools that the holder's token is good for.
    pub fn new(book: Arc<Book>, holder: &Holder) -> Self {
        let mut router = ToolRouter::new();
        for scope in &holder.scopes {
            router.merge(match scope {
                Scope::Read => Self::reading(),
                Scope::Write => Self::writing(),
            });
        }
        Self {
            book,
            holder: holder.name.clone(),
            router,
        }
    }
}

#[tool_router(router = reading)]
impl Notes {
    /// Your notes, oldest first; with `containing`, those that hold these words.
    #[tool(annotations(
        title = "Notes",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_notes(&self, Parameters(wanted): Parameters<Wanted>) -> Json<Found> {
        let words = wanted.containing.to_lowercase();
        let mut notes = self.book.of(&self.holder);
        notes.retain(|note| note.text.to_lowercase().contains(&words));
        Json(Found {
            holder: self.holder.clone(),
            notes,
        })
    }
}

#[tool_router(router = writing)]
impl Notes {
    /// Keeps a note for you.
    #[tool(annotations(
        title = "Write a note",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn write_note(&self, Parameters(new): Parameters<New>) -> Result<Json<Note>, String> {
        self.book.write(&self.holder, &new.text).map(Json)
    }

    /// Deletes one of your notes for good, and gives it back once more.
    #[tool(annotations(
        title = "Delete a note",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn delete_note(
        &self,
        Parameters(which): Parameters<Which>,
    ) -> Result<Json<Note>, String> {
        self.book.delete(&self.holder, which.number).map(Json)
    }
}

#[tool_handler(
    router = self.router,
    name = "notes",
    instructions = "The user's own notes. What can be done with them depends on the token."
)]
impl ServerHandler for Notes {}
