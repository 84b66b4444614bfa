//! What comes before the model is asked: a message that names a prompt of a server is replaced by what the prompt
//! comes to, one that answers a server's question by what comes of the call that the server then goes on with. All of it is written at once, so that a run taken up again does not do it twice.

use std::sync::Arc;

use super::{Ending, Work};
use crate::{
    app::{
        chat::{
            prompt_answers::{self, Given},
            prompts::{self, Used},
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

impl Work {
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
                    Used::Messages(of_prompt) => messages.extend(of_prompt),
                    Used::Notice(notice) => notices.push(*notice),
                }
            }
        }
        let mut input = start.has_input || !messages.is_empty();
        if let Given::Calls(calls) = prompt_answers::given_to(&self.app, &self.run).await? {
            let target = elicitations::target_of(&self.app, &self.run, true);
            input |= self.send_answers(pack, calls, target).await?;
        }
        self.write_opening(messages).await?;
        if !input {
            let ending = Ending::succeeded();
            return Ok(Some(if notices.is_empty() {
                ending
            } else {
                ending.telling(notices)
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

/// Whether a message is a server's text and not one that somebody here has said.
pub(super) fn is_of_prompt(message: &Message) -> bool {
    message
        .parts
        .iter()
        .any(|part| matches!(part, Part::ServerPrompt(_)))
}
