//! The loop of the chat: reads lines, shows answers, and shows events that come in between.
//!
//! A line from a pipe is not read before everything that is under way has ended, so that a script's answers
//! come in its order, unless a run waits for an answer. A person may type at any time.

use super::{
    client::{Client, Me, is_signed_out},
    event::ConversationEvent,
    event_mux::{EventMux, Update},
    terminal::Renderer,
};
use crate::cli::{lines::Lines, print_line};

const HELP: &str = "\
/new – begin a new conversation        /history – show this one
/quit – leave (or Ctrl-D)              Ctrl-C – stop an answer
What waits for your decision is told by itself; the prompt counts it.
The agent's own commands:";

pub struct ChatLoop {
    client: Client,
    agent: String,
    conversation: String,
    interactive: bool,
    lines: Lines,
    event_mux: EventMux,
    renderer: Renderer,
    /// The next line is a secret.
    secret: bool,
    /// A run waits for the next line.
    answer_expected: bool,
}

impl ChatLoop {
    pub async fn begin(
        client: Client,
        me: Me,
        agent: String,
        conversation: Option<String>,
        interactive: bool,
    ) -> anyhow::Result<Self> {
        let conversation = match conversation {
            Some(id) => id,
            None => client.open(&agent).await?,
        };
        let (event_mux, before) = EventMux::open(&client, me.user).await?;
        let lines = Lines::start(interactive, prompts());
        let renderer = Renderer::default();
        let mut chat_loop = Self {
            client,
            agent,
            conversation,
            interactive,
            lines,
            event_mux,
            renderer,
            secret: false,
            answer_expected: false,
        };
        chat_loop.switch_conversation().await?;
        if let Some(before) = before {
            print_line(&before);
        }
        Ok(chat_loop)
    }

    /// Turns to the conversation that is set, and shows what was said in it.
    async fn switch_conversation(&mut self) -> anyhow::Result<()> {
        self.event_mux.switch_to(
            self.client
                .open_conversation_events(&self.conversation)
                .await?,
        );
        self.renderer.switch_conversation();
        self.history().await
    }

    async fn history(&mut self) -> anyhow::Result<()> {
        let last = self.client.show_history(&self.conversation).await?;
        self.renderer.mark_shown(last);
        Ok(())
    }

    /// Until the person leaves or is signed out.
    pub async fn run(mut self) -> anyhow::Result<()> {
        loop {
            let line = match self.line().await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(()),
                Err(error) if is_signed_out(&error) => {
                    drop(self);
                    print_line(&format!(
                        "The server takes your token no more: {error:#}. Start again with a new one."
                    ));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let done = match line.trim() {
                "" => Ok(()),
                "/quit" | "/exit" => return Ok(()),
                "/new" => self.start_conversation().await,
                "/history" => self.history().await,
                text => self.send_and_follow(text).await,
            };
            match done {
                // What was typed was not taken; a script must know.
                Err(error) if is_signed_out(&error) => {
                    return Err(error.context("the server takes your token no more"));
                }
                Err(error) => print_line(&format!("! {error:#}")),
                Ok(()) => {}
            }
        }
    }

    async fn start_conversation(&mut self) -> anyhow::Result<()> {
        self.conversation = self.client.open(&self.agent).await?;
        self.switch_conversation().await
    }

    /// Waits for a line, and shows what happens meanwhile.
    async fn line(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            let ready =
                self.interactive || self.answer_expected || self.event_mux.active_runs().is_empty();
            tokio::select! {
                biased;
                told = self.event_mux.receive() => self.show(told?),
                () = self.lines.interrupted() => self.stop().await,
                interrupted = tokio::signal::ctrl_c(), if !self.interactive => {
                    interrupted?;
                    if self.event_mux.active_runs().is_empty() {
                        return Ok(None);
                    }
                    self.stop().await;
                }
                line = self.lines.next(self.secret), if ready => {
                    (self.secret, self.answer_expected) = (false, false);
                    return Ok(line?);
                }
            }
        }
    }

    /// Stops an answer that began by itself.
    async fn stop(&mut self) {
        for run in self.event_mux.active_runs() {
            if let Err(error) = self.client.cancel(run).await {
                self.renderer.print_line(&format!("! {error:#}"));
            }
        }
        self.flush();
    }

    /// Sends one message and shows the events until its run has ended. Ctrl-C asks the run to stop.
    async fn send_and_follow(&mut self, text: &str) -> anyhow::Result<()> {
        if text == "/help" {
            print_line(HELP);
        }
        let run = self.client.post(&self.conversation, text).await?;
        let mut over = false;
        // The next prompt must not stand in an answer, whosever it is.
        while !over || self.renderer.is_streaming() {
            let told = tokio::select! {
                told = self.event_mux.receive() => told,
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    self.client.cancel(&run).await?;
                    continue;
                }
            };
            match told {
                // Said when the next line is waited for.
                Err(_) => return Ok(()),
                Ok(Update::Gone(error)) => return Err(error),
                Ok(Update::Lost(error)) => {
                    return Err(error
                        .context("the server cannot be reached; the answer is shown once it can"));
                }
                Ok(told) => {
                    match &told {
                        Update::ConversationEvent(ConversationEvent::Ended { run: ended }) => {
                            over |= *ended == run;
                        }
                        Update::ConversationEvent(ConversationEvent::Message {
                            run: of,
                            secret: true,
                            ..
                        }) => self.secret |= *of == run,
                        // It goes on with the next line.
                        Update::ConversationEvent(ConversationEvent::Message {
                            run: of,
                            waits: true,
                            ..
                        }) => over |= *of == run,
                        _ => {}
                    }
                    self.show(told);
                }
            }
        }
        Ok(())
    }

    fn show(&mut self, told: Update) {
        match told {
            Update::ConversationEvent(event) => {
                self.answer_expected |=
                    matches!(event, ConversationEvent::Message { waits: true, .. });
                self.renderer.show(&event);
            }
            Update::Notice(line) => self.renderer.print_line(&line),
            Update::Badge(waiting) => self.lines.count(waiting),
            Update::Missed => self.renderer.missed(),
            Update::Gone(error) => self.renderer.print_line(&format!("! {error:#}")),
            Update::Lost(_) | Update::Nothing => {}
        }
        self.flush();
    }

    fn flush(&mut self) {
        let text = if self.lines.is_prompting() {
            self.renderer.take_lines()
        } else {
            self.renderer.take()
        };
        if !text.is_empty() {
            self.lines.print(text);
        }
    }
}

/// The prompts by number of waiting approvals. All have the same width, because the line being typed follows
/// them.
fn prompts() -> Vec<String> {
    let counted = (1..=9).map(|waiting| format!("({waiting}) › "));
    std::iter::once("you › ".to_owned())
        .chain(counted)
        .chain(std::iter::once("(9+)› ".to_owned()))
        .collect()
}
