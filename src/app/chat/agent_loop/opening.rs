//! Prepares a turn before the model is asked. A message that names a prompt of a server is replaced by the
//! text of the prompt. For a message that answers a question of a server, the call is repeated and its
//! result is used. All of it is written in one transaction, so that a resumed run does not do it twice.

use std::sync::Arc;

use super::{Ending, RunWorker};
use crate::{
    app::{
        chat::{
            prompt_answers::{self, RunInput},
            prompts::{self, PromptOutcome},
        },
        tools::elicitations,
    },
    domain::{
        error::Result,
        message::{Message, Part, Role},
        pack::Pack,
        prompt,
    },
    store,
};

impl RunWorker {
    /// Prepares a turn; `Some` when there is nothing to ask the model then.
    pub(super) async fn open(&self, pack: &Arc<Pack>) -> Result<Option<Ending>> {
        let start = &self.run.start;
        if !start.has_aside {
            return Ok(None);
        }
        let written = self.written().await?;
        let (mut messages, mut notices) = (Vec::new(), Vec::new());
        if !written.iter().any(is_of_prompt) {
            // What was said later answers a server's question.
            let said = written
                .iter()
                .take_while(|message| message.role != Role::Assistant);
            for message in said.filter(|message| message.role == Role::User) {
                let said = message.plain();
                let Some(command) = prompt::command(&said) else {
                    continue;
                };
                match prompts::use_one(&self.app, &self.run.principal, pack, self.run.id, command)
                    .await?
                {
                    PromptOutcome::Messages(of_prompt) => messages.extend(of_prompt),
                    PromptOutcome::Notice(notice) => notices.push(*notice),
                }
            }
        }
        let mut input = start.has_input || !messages.is_empty();
        if let RunInput::Calls(calls) = prompt_answers::load_input(&self.app, &self.run).await? {
            let target = elicitations::target_of(&self.app, &self.run, true);
            input |= self.send_answers(pack, calls, target).await?;
        }
        self.write_opening(messages).await?;
        if !input {
            let ending = Ending::succeeded();
            return Ok(Some(if notices.is_empty() {
                ending
            } else {
                ending.with_notices(notices)
            }));
        }
        if !notices.is_empty() {
            self.append(Role::System, &notices, false).await?;
        }
        Ok(None)
    }

    async fn write_opening(&self, messages: Vec<(Role, Part)>) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::assert_held(&mut tx, &self.run).await?;
        let mut events = Vec::new();
        for (role, part) in messages {
            events.push(self.write(&mut tx, role, &[part], true).await?);
        }
        tx.commit().await?;
        for event in events {
            self.announce(event);
        }
        Ok(())
    }
}

/// Whether a message is the text of a server's prompt rather than a message of the user.
pub(super) fn is_of_prompt(message: &Message) -> bool {
    message
        .parts
        .iter()
        .any(|part| matches!(part, Part::ServerPrompt(_)))
}
