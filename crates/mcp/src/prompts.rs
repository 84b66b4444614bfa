//! Prompts: reads all pages of `prompts/list` within limits, and gets the messages of one prompt. A server
//! whose prompts cannot be listed keeps its tools.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use tokio::time::timeout;

use super::{
    CallError, Era, Key, Mcp,
    error::Failure,
    interceptor::{clipped, clipped_lines, object},
    listing::{cache_hints, next_cursor},
    outcome,
    reading::Reading,
    session::Session,
};
use domain::{
    prompt::{PromptArgument, PromptMessage, PromptOutcome, PromptRole, ServerPrompt},
    server::ServerSpec,
    tool::CacheHints,
};

const PAGES: usize = 20;
const PROMPTS: usize = 500;
const BYTES: usize = 1024 * 1024;
const ARGUMENTS: usize = 32;
/// Characters of a name, and bytes of a description.
const NAME: usize = 128;
/// Messages of one prompt.
const MESSAGES: usize = 100;
/// The tools are listed already and must not wait longer for the prompts.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server offers as commands.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) prompts: Vec<Arc<ServerPrompt>>,
    /// What was left out and why.
    pub(super) dropped: Vec<String>,
    /// How the server says that the list may be kept; absent when no page was read.
    pub(super) cache: Option<CacheHints>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    prompts: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    next_cursor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ttl_ms: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_scope: Option<&'a RawValue>,
}

/// As it comes: anything but the name may be missing or null.
#[derive(Deserialize)]
struct ListedPrompt {
    name: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    arguments: Option<Vec<ListedArgument>>,
}

#[derive(Deserialize)]
struct ListedArgument {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    required: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    #[serde(borrow, default)]
    messages: Vec<Message<'a>>,
    #[serde(borrow, default)]
    result_type: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// The prompts of a server, if the pack wants them and the server has them.
pub(super) async fn of(session: &Session, spec: &ServerSpec) -> Listed {
    if !spec.load_prompts || !session.has_prompts {
        return Listed::default();
    }
    let mut reader = Reader::default();
    let trouble = match timeout(
        spec.timeouts.request.min(LIST_TIMEOUT),
        reader.read_all(session),
    )
    .await
    {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure.of_server().message),
        Err(_) => Some("the server did not list them in time".to_owned()),
    };
    let dropped = trouble.map(|why| format!("prompts could not be listed: {why}"));
    reader.listed.dropped.extend(dropped);
    reader.listed
}

#[derive(Default)]
struct Reader {
    listed: Listed,
    names: HashSet<String>,
    bytes: usize,
}

impl Reader {
    async fn read_all(&mut self, session: &Session) -> Result<(), Failure> {
        let (mut cursor, mut cursors) = (None, HashSet::new());
        for _ in 0..PAGES {
            let raw = session.read(&Reading::Prompts { cursor }).await?;
            let Some(next) = self.read(&raw, session.era)? else {
                return Ok(());
            };
            if !cursors.insert(next.clone()) {
                return Err(Failure::Lost("the server repeats a cursor".to_owned()));
            }
            cursor = Some(next);
        }
        Err(Failure::Lost(format!("there are more than {PAGES} pages")))
    }

    /// Reads one page; the cursor of the next.
    fn read(&mut self, raw: &RawValue, era: Era) -> Result<Option<String>, Failure> {
        let page: Page = object(raw.get())
            .map_err(|error| Failure::Lost(format!("they cannot be read: {error}")))?;
        let hints = cache_hints(page.ttl_ms, page.cache_scope);
        let before = self.listed.cache.unwrap_or(hints);
        self.listed.cache = Some(before.and(hints));
        self.bytes += raw.get().len();
        if self.bytes > BYTES {
            return Err(Failure::Lost(format!(
                "there are more than {BYTES} bytes of them"
            )));
        }
        for prompt in page.prompts {
            if self.listed.prompts.len() == PROMPTS {
                return Err(Failure::Lost(format!("there are more than {PROMPTS}")));
            }
            if let Err(reason) = self.add(prompt) {
                self.listed.dropped.push(reason);
            }
        }
        next_cursor(page.next_cursor, era).map_err(|why| Failure::Lost(why.to_owned()))
    }

    fn add(&mut self, raw: &RawValue) -> Result<(), String> {
        let prompt: ListedPrompt = object(raw.get())
            .map_err(|error| format!("a prompt cannot be read: {}", clipped(&error.to_string())))?;
        let label = || format!("prompt {:?}", clipped(&prompt.name));
        if !is_name(&prompt.name) {
            return Err(format!(
                "{}: the name is empty, too long or has control characters",
                label()
            ));
        }
        let arguments = prompt.arguments.unwrap_or_default();
        if arguments.len() > ARGUMENTS || !arguments.iter().all(|argument| is_name(&argument.name))
        {
            return Err(format!(
                "{}: its arguments are too many or have names that cannot be used",
                label()
            ));
        }
        if !self.names.insert(prompt.name.clone()) {
            return Err(format!(
                "{}: the server lists this name twice; the first one is kept",
                label()
            ));
        }
        let arguments = arguments.into_iter().map(|argument| PromptArgument {
            name: argument.name,
            description: clipped(&argument.description.unwrap_or_default()),
            required: argument.required.unwrap_or(false),
        });
        self.listed.prompts.push(Arc::new(ServerPrompt {
            name: prompt.name,
            title: prompt.title.map(|title| clipped(&title)),
            description: clipped_lines(&prompt.description.unwrap_or_default()),
            arguments: arguments.collect(),
        }));
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= NAME && !name.chars().any(char::is_control)
}

impl Mcp {
    /// What a prompt comes to with these arguments. Nothing is changed by asking, so it is asked once more when the
    /// connection was lost before an answer.
    pub async fn prompt(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<PromptOutcome, CallError> {
        let raw = self
            .read(key, spec, &Reading::Prompt { name, arguments })
            .await?;
        let messages = said(&raw).map_err(Failure::of_call)?;
        Ok(PromptOutcome { messages, raw })
    }
}

impl Mcp {
    /// Values that an argument of a prompt may have, as the server answers.
    pub async fn complete(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        prompt: &str,
        (argument, value): (&str, &str),
    ) -> Result<Box<RawValue>, CallError> {
        let what = Reading::Completion {
            prompt,
            argument,
            value,
        };
        self.read(key, spec, &what).await
    }
}

/// The texts of a prompt; what is no text is named and measured. Whoever else speaks than user and assistant is refused.
fn said(raw: &RawValue) -> Result<Vec<PromptMessage>, Failure> {
    let refused = |message: String| Failure::Refused {
        code: None,
        message,
    };
    let found: Outcome = object(raw.get())
        .map_err(|_| refused("what the prompt comes to cannot be read".to_owned()))?;
    if let Some(kind) = found.result_type.filter(|kind| kind != "complete") {
        return Err(refused(format!(
            "the server answered with {kind:?}, which a prompt cannot be used with here"
        )));
    }
    if found.messages.is_empty() || found.messages.len() > MESSAGES {
        return Err(refused(format!(
            "a prompt has 1 to {MESSAGES} messages; this one has {}",
            found.messages.len()
        )));
    }
    let mut left = outcome::MAX_TEXT;
    let mut all = Vec::with_capacity(found.messages.len());
    for message in found.messages {
        let by = match message.role.as_ref() {
            "user" => PromptRole::User,
            "assistant" => PromptRole::Assistant,
            other => {
                return Err(refused(format!(
                    "the prompt speaks as {:?}, which no prompt may",
                    clipped(other)
                )));
            }
        };
        let text = outcome::cut(outcome::text_of(message.content), left);
        left = left.saturating_sub(text.len());
        all.push(PromptMessage { by, text });
    }
    if all
        .last()
        .is_some_and(|last| last.by == PromptRole::Assistant)
    {
        return Err(refused(
            "the prompt ends with words of the assistant, which leaves nothing to answer"
                .to_owned(),
        ));
    }
    Ok(all)
}
