//! The talk itself: lines in, answers out, and whatever happens in between.
//!
//! A line from a pipe is not read before everything that is under way has ended, so that a script's answers
//! come in its order, unless a run waits for an answer. A person may type at any time.

use super::{
    client::{Client, Me, signed_out},
    ears::{Ears, Told},
    news::News,
    terminal::Screen,
};
use crate::cli::{lines::Lines, say};

const HELP: &str = "\
/new – begin a new conversation        /history – show this one
/quit – leave (or Ctrl-D)              Ctrl-C – stop an answer
What waits for your decision is told by itself; the prompt counts it.
The agent's own commands:";

pub struct Talk {
    client: Client,
    agent: String,
    conversation: String,
    interactive: bool,
    lines: Lines,
    ears: Ears,
    screen: Screen,
    /// The next line is a secret.
    secret: bool,
    /// A run waits for the next line.
    awaited: bool,
}

impl Talk {
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
        let (ears, before) = Ears::open(&client, me.user).await?;
        let lines = Lines::start(interactive, prompts());
        let screen = Screen::default();
        let mut talk = Self {
            client,
            agent,
            conversation,
            interactive,
            lines,
            ears,
            screen,
            secret: false,
            awaited: false,
        };
        talk.turn().await?;
        if let Some(before) = before {
            say(&before);
        }
        Ok(talk)
    }

    /// Turns to the conversation that is set, and shows what was said in it.
    async fn turn(&mut self) -> anyhow::Result<()> {
        self.ears
            .turn_to(self.client.listen(&self.conversation).await?);
        self.screen.turn();
        self.history().await
    }

    async fn history(&mut self) -> anyhow::Result<()> {
        let last = self.client.show_history(&self.conversation).await?;
        self.screen.saw(last);
        Ok(())
    }

    /// Until the person leaves or is signed out.
    pub async fn run(mut self) -> anyhow::Result<()> {
        loop {
            let line = match self.line().await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(()),
                Err(error) if signed_out(&error) => {
                    drop(self);
                    say(&format!(
                        "The server takes your token no more: {error:#}. Start again with a new one."
                    ));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let done = match line.trim() {
                "" => Ok(()),
                "/quit" | "/exit" => return Ok(()),
                "/new" => self.begin_anew().await,
                "/history" => self.history().await,
                text => self.converse(text).await,
            };
            match done {
                // What was typed was not taken; a script must know.
                Err(error) if signed_out(&error) => {
                    return Err(error.context("the server takes your token no more"));
                }
                Err(error) => say(&format!("! {error:#}")),
                Ok(()) => {}
            }
        }
    }

    async fn begin_anew(&mut self) -> anyhow::Result<()> {
        self.conversation = self.client.open(&self.agent).await?;
        self.turn().await
    }

    /// Waits for a line, and shows what happens meanwhile.
    async fn line(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            let ready = self.interactive || self.awaited || self.ears.under_way().is_empty();
            tokio::select! {
                biased;
                told = self.ears.hear() => self.show(told?),
                () = self.lines.interrupted() => self.stop().await,
                interrupted = tokio::signal::ctrl_c(), if !self.interactive => {
                    interrupted?;
                    if self.ears.under_way().is_empty() {
                        return Ok(None);
                    }
                    self.stop().await;
                }
                line = self.lines.next(self.secret), if ready => {
                    (self.secret, self.awaited) = (false, false);
                    return Ok(line?);
                }
            }
        }
    }

    /// Stops an answer that began by itself.
    async fn stop(&mut self) {
        for run in self.ears.under_way() {
            if let Err(error) = self.client.cancel(run).await {
                self.screen.say(&format!("! {error:#}"));
            }
        }
        self.flush();
    }

    /// Says one thing and shows what comes back until its run has ended. Ctrl-C asks the run to stop.
    async fn converse(&mut self, text: &str) -> anyhow::Result<()> {
        if text == "/help" {
            say(HELP);
        }
        let run = self.client.post(&self.conversation, text).await?;
        let mut over = false;
        // The next prompt must not stand in an answer, whosever it is.
        while !over || self.screen.is_streaming() {
            let told = tokio::select! {
                told = self.ears.hear() => told,
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    self.client.cancel(&run).await?;
                    continue;
                }
            };
            match told {
                // Said when the next line is waited for.
                Err(_) => return Ok(()),
                Ok(Told::Gone(error)) => return Err(error),
                Ok(Told::Lost(error)) => {
                    return Err(error
                        .context("the server cannot be reached; the answer is shown once it can"));
                }
                Ok(told) => {
                    match &told {
                        Told::News(News::Ended { run: ended }) => over |= *ended == run,
                        Told::News(News::Message {
                            run: of,
                            secret: true,
                            ..
                        }) => self.secret |= *of == run,
                        // It goes on with the next line.
                        Told::News(News::Message {
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

    fn show(&mut self, told: Told) {
        match told {
            Told::News(news) => {
                self.awaited |= matches!(news, News::Message { waits: true, .. });
                self.screen.show(&news);
            }
            Told::Notice(line) => self.screen.say(&line),
            Told::Badge(waiting) => self.lines.count(waiting),
            Told::Missed => self.screen.missed(),
            Told::Gone(error) => self.screen.say(&format!("! {error:#}")),
            Told::Lost(_) | Told::Nothing => {}
        }
        self.flush();
    }

    fn flush(&mut self) {
        let text = if self.lines.is_prompting() {
            self.screen.take_lines()
        } else {
            self.screen.take()
        };
        if !text.is_empty() {
            self.lines.print(text);
        }
    }
}

/// By how much waits for the person. All of one width, because a line that is being typed stands behind it.
fn prompts() -> Vec<String> {
    let counted = (1..=9).map(|waiting| format!("({waiting}) › "));
    std::iter::once("you › ".to_owned())
        .chain(counted)
        .chain(std::iter::once("(9+)› ".to_owned()))
        .collect()
}
