//! Lists the prompts of a server (`prompts/list`), gets the messages of one prompt, and completes its arguments. A server
//! whose prompts cannot be listed keeps its tools.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use tokio::time::timeout;

use super::{
    CallError, Key, Lifecycle, Mcp,
    error::Failure,
    listing::{cache_hints, next_cursor},
    outcome,
    redaction::{clip, clip_lines},
    request::Request,
    session::Session,
};
use domain::{
    jsonrpc::object,
    prompt::{PromptArgument, PromptMessage, PromptOutcome, PromptRole, ServerPrompt},
    server::ServerSpec,
    tool::CacheHints,
};

/// The most pages of a list, prompts in all pages, and bytes of all pages.
const MAX_PAGES: usize = 20;
const MAX_PROMPTS: usize = 500;
const MAX_BYTES: usize = 1024 * 1024;
/// The most arguments of a prompt.
const MAX_ARGUMENTS: usize = 32;
/// The most characters of the name of a prompt or an argument.
const MAX_NAME: usize = 128;
/// The most messages of a prompt.
const MAX_MESSAGES: usize = 100;
/// How long the prompts may take, since the tools that were listed before wait for them.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The prompts of a server.
#[derive(Default)]
pub(super) struct PromptListing {
    pub(super) prompts: Vec<Arc<ServerPrompt>>,
    /// The prompts that were left out, one text with the reason for each.
    pub(super) dropped: Vec<String>,
    /// The cache hints of the server; `None` when no page was read.
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

/// A prompt as the server lists it. Everything but the name may be missing or null.
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

/// Lists the prompts of a server, if the pack loads them and the server has the capability. A failure becomes an entry of
/// `dropped`.
pub(super) async fn list(session: &Session, spec: &ServerSpec) -> PromptListing {
    if !spec.load_prompts || !session.has_prompts {
        return PromptListing::default();
    }
    let mut reader = Reader::default();
    let trouble = match timeout(
        spec.timeouts.request.min(LIST_TIMEOUT),
        reader.read_all(session),
    )
    .await
    {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure.into_server_error().message),
        Err(_) => Some("the server did not list them in time".to_owned()),
    };
    let dropped = trouble.map(|why| format!("prompts could not be listed: {why}"));
    reader.listed.dropped.extend(dropped);
    reader.listed
}

#[derive(Default)]
struct Reader {
    listed: PromptListing,
    names: HashSet<String>,
    bytes: usize,
}

impl Reader {
    async fn read_all(&mut self, session: &Session) -> Result<(), Failure> {
        let (mut cursor, mut cursors) = (None, HashSet::new());
        for _ in 0..MAX_PAGES {
            let raw = session.read(&Request::Prompts { cursor }).await?;
            let Some(next) = self.read_page(&raw, session.lifecycle())? else {
                return Ok(());
            };
            if !cursors.insert(next.clone()) {
                return Err(Failure::Lost("the server repeats a cursor".to_owned()));
            }
            cursor = Some(next);
        }
        Err(Failure::Lost(format!(
            "there are more than {MAX_PAGES} pages"
        )))
    }

    /// Adds the prompts of one page; the cursor of the next page.
    fn read_page(
        &mut self,
        raw: &RawValue,
        lifecycle: Lifecycle,
    ) -> Result<Option<String>, Failure> {
        let page: Page = object(raw.get())
            .map_err(|error| Failure::Lost(format!("they cannot be read: {error}")))?;
        let hints = cache_hints(page.ttl_ms, page.cache_scope);
        let before = self.listed.cache.unwrap_or(hints);
        self.listed.cache = Some(before.and(hints));
        self.bytes += raw.get().len();
        if self.bytes > MAX_BYTES {
            return Err(Failure::Lost(format!(
                "there are more than {MAX_BYTES} bytes of them"
            )));
        }
        for prompt in page.prompts {
            if self.listed.prompts.len() == MAX_PROMPTS {
                return Err(Failure::Lost(format!("there are more than {MAX_PROMPTS}")));
            }
            if let Err(reason) = self.add(prompt) {
                self.listed.dropped.push(reason);
            }
        }
        next_cursor(page.next_cursor, lifecycle).map_err(|why| Failure::Lost(why.to_owned()))
    }

    fn add(&mut self, raw: &RawValue) -> Result<(), String> {
        let prompt: ListedPrompt = object(raw.get())
            .map_err(|error| format!("a prompt cannot be read: {}", clip(&error.to_string())))?;
        let label = || format!("prompt {:?}", clip(&prompt.name));
        if !is_name(&prompt.name) {
            return Err(format!(
                "{}: the name is empty, too long or has control characters",
                label()
            ));
        }
        let arguments = prompt.arguments.unwrap_or_default();
        if arguments.len() > MAX_ARGUMENTS
            || !arguments.iter().all(|argument| is_name(&argument.name))
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
            description: clip(&argument.description.unwrap_or_default()),
            required: argument.required.unwrap_or(false),
        });
        self.listed.prompts.push(Arc::new(ServerPrompt {
            name: prompt.name,
            title: prompt.title.map(|title| clip(&title)),
            description: clip_lines(&prompt.description.unwrap_or_default()),
            arguments: arguments.collect(),
        }));
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= MAX_NAME && !name.chars().any(char::is_control)
}

impl Mcp {
    /// Gets the messages of a prompt with these arguments (`prompts/get`).
    pub async fn get_prompt(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<PromptOutcome, CallError> {
        let raw = self
            .read(key, spec, &Request::Prompt { name, arguments })
            .await?;
        let messages = read_messages(&raw).map_err(Failure::into_call_error)?;
        Ok(PromptOutcome { messages, raw })
    }

    /// The suggested values for an argument of a prompt (`completion/complete`): the raw result of the server. `value` is
    /// what the user has typed so far.
    pub async fn complete(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        prompt: &str,
        argument: &str,
        value: &str,
    ) -> Result<Box<RawValue>, CallError> {
        let request = Request::Completion {
            prompt,
            argument,
            value,
        };
        self.read(key, spec, &request).await
    }
}

/// The messages of a prompt. Content that is not text becomes a placeholder with its kind and size. An error for roles
/// other than user and assistant, and for a prompt that ends with the assistant.
fn read_messages(raw: &RawValue) -> Result<Vec<PromptMessage>, Failure> {
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
    if found.messages.is_empty() || found.messages.len() > MAX_MESSAGES {
        return Err(refused(format!(
            "a prompt has 1 to {MAX_MESSAGES} messages; this one has {}",
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
                    clip(other)
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
