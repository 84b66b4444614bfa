//! The loop of the chat: reads lines, shows answers, and shows events that come in between.
//!
//! A line from a pipe is read only when all runs have ended, so that the answers come in the order of the script,
//! unless a run waits for an answer. A person may type at any time.

use std::path::PathBuf;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    client::{Client, ConversationLine, Me, is_signed_out},
    completion::Words,
    event::ConversationEvent,
    event_mux::{EventMux, Update},
    lines::Lines,
    local_time, print_line, prompts,
    renderer::Renderer,
    spinner::Spinner,
    style::{DIM, Style},
};

/// Empties the line that the cursor is on.
const ERASE: &str = "\r\u{1b}[K";

/// How a chat begins.
pub struct Start {
    pub agent: String,
    /// Go on with this conversation.
    pub conversation: Option<String>,
    /// Go on with the newest conversation.
    pub continues: bool,
    pub interactive: bool,
    pub style: Style,
    /// The file with the lines that were typed in earlier chats.
    pub history: Option<PathBuf>,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the chat"
)]
pub struct ChatLoop {
    client: Client,
    agent: String,
    conversation: String,
    interactive: bool,
    lines: Lines,
    event_mux: EventMux,
    renderer: Renderer,
    style: Style,
    spinner: Spinner,
    words: Words,
    /// The conversations that were listed last.
    listed: Vec<ConversationLine>,
    /// Whether a question was not answered.
    has_failed: bool,
    /// Whether the next line is a secret.
    secret: bool,
    /// Whether a run waits for the next line.
    answer_expected: bool,
}

impl ChatLoop {
    pub async fn begin(client: Client, me: Me, start: Start) -> anyhow::Result<Self> {
        let newest = if start.continues {
            client
                .list_conversations(&start.agent)
                .await?
                .into_iter()
                .next()
        } else {
            None
        };
        let conversation = match (start.conversation, newest) {
            (Some(id), _) => id,
            (None, Some(newest)) => newest.id,
            (None, None) => client.create_conversation(&start.agent).await?,
        };
        let event_mux = EventMux::open(&client, me.user).await?;
        let words = Words::default();
        let lines = Lines::start(
            start.interactive,
            prompts::by_number(),
            words.clone(),
            start.history,
        );
        let mut chat_loop = Self {
            client,
            agent: start.agent,
            conversation,
            interactive: start.interactive,
            lines,
            event_mux,
            renderer: Renderer::new(start.style),
            style: start.style,
            spinner: Spinner::default(),
            words,
            listed: Vec::new(),
            has_failed: false,
            secret: false,
            answer_expected: false,
        };
        chat_loop.switch_conversation().await?;
        if start.interactive {
            chat_loop.load_words().await;
        }
        Ok(chat_loop)
    }

    /// Opens the events of the current conversation, and shows its history.
    async fn switch_conversation(&mut self) -> anyhow::Result<()> {
        self.event_mux.switch_to(
            self.client
                .open_conversation_events(&self.conversation)
                .await?,
        );
        self.renderer.switch_conversation();
        self.show_history().await
    }

    async fn show_history(&mut self) -> anyhow::Result<()> {
        let last = self
            .client
            .show_history(&self.conversation, &self.style)
            .await?;
        self.renderer.mark_shown(last);
        Ok(())
    }

    /// Loads the words that Tab completes. The chat works without them, too.
    async fn load_words(&self) {
        let (client, agent) = (&self.client, &self.agent);
        let (skills, servers, codes) = tokio::join!(
            client.list_names(agent, "skills", "id"),
            client.list_names(agent, "connections", "server"),
            client.list_decidable_approvals(),
        );
        self.words.set_skills(skills.unwrap_or_default());
        self.words.set_servers(servers.unwrap_or_default());
        let codes = codes.unwrap_or_default();
        let codes = codes.iter().filter_map(|request| request["code"].as_str());
        self.words.set_codes(codes.map(str::to_owned).collect());
    }

    /// Runs until the person leaves or is signed out. Returns whether every question was answered.
    pub async fn run(mut self) -> anyhow::Result<bool> {
        loop {
            let line = match self.next_line().await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(!self.has_failed),
                Err(error) if is_signed_out(&error) => {
                    drop(self);
                    print_line(&format!(
                        "The server takes your token no more: {error:#}. Start again with a new one."
                    ));
                    return Ok(true);
                }
                Err(error) => return Err(error),
            };
            let result = match line.trim() {
                "" => Ok(()),
                "/quit" | "/exit" => return Ok(!self.has_failed),
                "/new" => self.start_conversation().await,
                "/history" => self.show_history().await,
                "/details" => self.show_details().await,
                "/conversations" => self.list_conversations().await,
                text if text.starts_with("/conversations ") => self.choose_conversation(text).await,
                text => self.send_and_follow(text).await,
            };
            if self.spinner.hide() {
                self.lines.print(ERASE.to_owned());
            }
            match result {
                // The line was not posted, so a script must get an error.
                Err(error) if is_signed_out(&error) => {
                    return Err(error.context("the server takes your token no more"));
                }
                Err(error) => {
                    self.has_failed = true;
                    print_line(&format!("! {error:#}"));
                }
                Ok(()) => {}
            }
        }
    }

    async fn start_conversation(&mut self) -> anyhow::Result<()> {
        self.conversation = self.client.create_conversation(&self.agent).await?;
        self.switch_conversation().await
    }

    async fn list_conversations(&mut self) -> anyhow::Result<()> {
        self.listed = self.client.list_conversations(&self.agent).await?;
        for (at, one) in self.listed.iter().enumerate() {
            let time = self.style.paint(DIM, &one.updated_at);
            let is_this = if one.id == self.conversation {
                " ←"
            } else {
                ""
            };
            print_line(&format!("{:>3}. {time}  {}{is_this}", at + 1, one.title));
        }
        print_line("Write /conversations and a number to go on with one.");
        Ok(())
    }

    async fn choose_conversation(&mut self, line: &str) -> anyhow::Result<()> {
        if self.listed.is_empty() {
            self.listed = self.client.list_conversations(&self.agent).await?;
        }
        let number = line.rsplit(' ').next().and_then(|text| text.parse().ok());
        let chosen = number.and_then(|number: usize| self.listed.get(number.checked_sub(1)?));
        let chosen =
            chosen.context("there is no conversation of that number; /conversations lists them")?;
        self.conversation.clone_from(&chosen.id);
        self.switch_conversation().await
    }

    async fn show_details(&mut self) -> anyhow::Result<()> {
        let calls = self.client.newest_calls(&self.conversation).await?;
        let calls = if calls.is_empty() {
            "No tool was called."
        } else {
            &calls
        };
        self.renderer.print_line(calls);
        self.flush();
        Ok(())
    }

    /// Waits for a line, and shows the updates that arrive meanwhile.
    async fn next_line(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            let ready =
                self.interactive || self.answer_expected || self.event_mux.active_runs().is_empty();
            tokio::select! {
                biased;
                update = self.event_mux.receive() => {
                    let update = update?;
                    let has_new_codes = self.interactive && matches!(update, Update::Badge(_));
                    self.show(update);
                    if has_new_codes {
                        self.load_words().await;
                    }
                }
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

    /// Stops the runs that are under way while a line is typed.
    async fn stop(&mut self) {
        let runs: Vec<_> = self.event_mux.active_runs().iter().cloned().collect();
        if runs.is_empty() && self.interactive {
            self.renderer
                .print_line("Nothing is under way. Ctrl-D leaves.");
        }
        for run in runs {
            if let Err(error) = self.cancel(&run).await {
                self.renderer.print_line(&format!("! {error:#}"));
            }
        }
        self.flush();
    }

    async fn cancel(&mut self, run: &str) -> anyhow::Result<()> {
        let call = self.renderer.current_call().map(str::to_owned);
        self.client.cancel(run).await?;
        let what = call.map_or_else(
            || "the answer; what was written stays".to_owned(),
            |call| format!("the answer, while {call} was under way; it may have been done"),
        );
        self.renderer
            .stop_answer(run, &format!("■ Stopped: {what}."));
        self.flush();
        Ok(())
    }

    /// Sends one message and shows the events until its run has ended. Ctrl-C asks the run to stop.
    async fn send_and_follow(&mut self, text: &str) -> anyhow::Result<()> {
        if text == "/help" {
            print_line(prompts::HELP);
        }
        self.spinner.restart();
        let mut interrupts = signal(SignalKind::interrupt())?;
        let run = self.client.post(&self.conversation, text).await?;
        let mut is_over = false;
        // The next prompt must not stand in the middle of an answer, even of another run.
        while !is_over || self.renderer.is_streaming() {
            let update = tokio::select! {
                biased;
                update = self.event_mux.receive() => update,
                _ = interrupts.recv() => {
                    self.cancel(&run).await?;
                    continue;
                }
                () = Spinner::tick(), if self.may_spin() => {
                    self.spin();
                    continue;
                }
            };
            match update {
                // The error comes again when the next line is waited for, and is shown then.
                Err(_) => return Ok(()),
                Ok(Update::Gone(error)) => return Err(error),
                Ok(Update::Lost(error)) => {
                    return Err(error
                        .context("the server cannot be reached; the answer is shown once it can"));
                }
                Ok(update) => {
                    match &update {
                        Update::ConversationEvent(ConversationEvent::Ended {
                            run: ended,
                            status,
                        }) => {
                            is_over |= *ended == run;
                            self.has_failed |= *ended == run && status != "succeeded";
                        }
                        Update::ConversationEvent(ConversationEvent::Message {
                            run: of,
                            secret: true,
                            ..
                        }) => self.secret |= *of == run,
                        // The run goes on with the next line.
                        Update::ConversationEvent(ConversationEvent::Message {
                            run: of,
                            waits: true,
                            ..
                        }) => is_over |= *of == run,
                        _ => {}
                    }
                    self.show(update);
                }
            }
        }
        Ok(())
    }

    /// Whether the spinner may use the last line.
    fn may_spin(&self) -> bool {
        self.interactive && self.style.is_terminal() && !self.renderer.is_streaming()
    }

    fn spin(&mut self) {
        let frame = self.spinner.frame(self.renderer.current_call());
        let line: String = frame.chars().take(self.style.columns()).collect();
        let line = format!("\r{}\u{1b}[K", self.style.paint(DIM, &line));
        self.lines.print(line);
    }

    fn show(&mut self, update: Update) {
        match update {
            Update::ConversationEvent(event) => {
                self.answer_expected |=
                    matches!(event, ConversationEvent::Message { waits: true, .. });
                self.renderer.show(&event);
            }
            Update::Notice(line) => self.renderer.print_line(&local_time::in_text(&line)),
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
            let erased = if self.spinner.hide() { ERASE } else { "" };
            self.lines.print(format!("{erased}{text}"));
        }
    }
}
