//! `/connect`: a user configures a personal server in a conversation. The flow lists the servers, asks which one, asks
//! a question for each field, tests the connection, and says how the test went. `/cancel` works at every step.
//!
//! A secret answer is taken out of the message before it is stored (`match_answer`): the message says `••••`, and the
//! value goes sealed to the run that uses it ([`apply_answer`]). A client that stores what its user types, as any
//! OpenAI client does, gets a one-time link to a page of the program instead ([`page`]), and a typed answer is refused.
//! The user of the page then types the code of the page in the conversation, which proves that both are the same
//! person.

pub mod page;
pub mod sign_in;
mod steps;

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

use self::steps::FlowContext;
use super::prompt_answers::AnswerCandidate;
use crate::app::{
    App,
    platform::keys::contexts::{self, FlowValue},
    servers::{credentials, oauth},
};
use domain::{
    command,
    error::{Error, ErrorCode, Result},
    flow::{Flow, Step},
    ids::{AgentId, ConversationId, RunId, TenantId},
    message::{Part, Role},
    pack::Pack,
    principal::Principal,
    run::ClaimedRun,
    scrub::MASK,
    secret::Secret,
    server::{AccessMode, FieldKind, UserField},
    skill,
    texts::Key,
};
use store::{Tx, messages::NewMessage, vault::Context};

/// How long the user may take for one step, and how long a link is valid.
const LIFE: Duration = Duration::from_secs(600);
/// How long after the end of a flow a user may still type the secret by mistake. Such a text is not stored.
const LATE: Duration = Duration::from_secs(3600);
/// How often flows that ended are deleted.
pub const PURGE_INTERVAL: Duration = Duration::from_secs(300);
/// The key of a user's conversation for links. A client that has no conversation gets a link, and the user types the
/// code of the page in this conversation.
const LINKS: &str = "chatelaine:connect";
/// The title of the conversation for links.
pub const LINKS_TITLE: &str = "Connect";
/// Wrong codes after which a flow ends.
const TRIES: i32 = 5;

/// A text that answers the open step of a flow.
pub struct FlowAnswer {
    flow: Flow,
    /// The text that the conversation keeps.
    pub shown: String,
    /// The sealed answer.
    answer: Vec<u8>,
}

impl FlowAnswer {
    /// Gives the answer to its run, in the transaction that stores the message.
    pub async fn attach_to_run(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        if store::flows::answer(tx, &self.flow, run, &self.answer).await? {
            return Ok(());
        }
        Err(Error::conflict(
            ErrorCode::QuestionClosed,
            "the question has an answer already or was cancelled meanwhile; look at the conversation",
        ))
    }
}

/// Deletes the flows that ended an hour ago, with the values that were entered. No late answer is expected any more.
pub async fn purge_ended(app: &Arc<App>) -> Result<()> {
    oauth::purge_old(app).await?;
    let mut tx = app.db.system().await?;
    let tenants = store::flows::list_tenants_with_old(&mut tx, LATE).await?;
    drop(tx);
    for tenant in tenants {
        let mut tx = app.db.tenant(tenant).await?;
        store::flows::delete_old(&mut tx, LATE).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Whether the principal is configuring a server of an agent, in any conversation or in the one that is named.
pub async fn is_open(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    conversation: Option<ConversationId>,
) -> Result<bool> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::flows::is_open(&mut tx, &principal.user, agent, conversation).await
}

/// Reads a text as an answer to the flow of its conversation. `None` when it is no answer. With a `field`, the text
/// answers the prompt for that field only, and it is a `Conflict` when no prompt asks for it.
pub(super) async fn match_answer(
    app: &App,
    candidate: &AnswerCandidate<'_>,
) -> Result<Option<FlowAnswer>> {
    let AnswerCandidate {
        principal,
        pack,
        conversation,
        text,
        field,
    } = *candidate;
    let flow = if has_personal(pack) {
        let mut tx = app.db.tenant(principal.tenant).await?;
        store::flows::get(&mut tx, conversation)
            .await?
            .filter(|flow| flow.user == principal.user)
    } else {
        None
    };
    let text = text.trim();
    if let Some(field) = field {
        let is_asked =
            |flow: &Flow| flow.expires_at > app.clock.now() && asks_for(pack, flow, field);
        let Some(flow) = flow.filter(is_asked) else {
            return Err(Error::conflict(
                ErrorCode::QuestionClosed,
                format!(
                    "nobody asks for {field:?} here at the moment; look at the conversation's last messages"
                ),
            ));
        };
        return seal_answer(app, principal, flow, text).await.map(Some);
    }
    let Some(flow) = flow else { return Ok(None) };
    // Commands keep their meaning in the middle of a flow. Any other text is its answer.
    if command::is_command(text) || skill::find_in_text(pack, text).is_some() {
        return Ok(None);
    }
    let over = flow.expires_at <= app.clock.now();
    match flow.step {
        // A late answer may be a secret, so the text is neither stored nor shown to a model.
        _ if over && flow.secret && app.clock.now() - flow.expires_at < LATE => {
            Ok(Some(FlowAnswer {
                flow,
                shown: MASK.to_owned(),
                answer: Vec::new(),
            }))
        }
        _ if over => Ok(None),
        // A user who enters values on the page may go on chatting here. Until the page is sent, they may type the
        // secret here by mistake.
        Step::Confirm if !may_be_code(text) => Ok(None),
        Step::Page if !(may_be_code(text) || flow.secret && may_be_secret(text)) => Ok(None),
        // A text that names no server is a message and no answer to the list.
        Step::Pick if steps::match_server(pack, text).is_none() => Ok(None),
        _ => seal_answer(app, principal, flow, text).await.map(Some),
    }
}

/// Seals an answer. A code is not kept: the answer only says whether it was right.
async fn seal_answer(
    app: &App,
    principal: &Principal,
    flow: Flow,
    text: &str,
) -> Result<FlowAnswer> {
    let answer = match flow.step {
        Step::Page | Step::Confirm => vec![u8::from(is_code(&flow, text))],
        Step::Pick | Step::Field(_) => {
            let context = context_of(principal, &flow, FlowValue::Answer);
            let text = Secret::new(text);
            app.keys.seal(principal.tenant, &context, &text).await?
        }
    };
    let shown = if flow.secret { MASK } else { text }.to_owned();
    Ok(FlowAnswer {
        flow,
        shown,
        answer,
    })
}

/// Whether the flow waits for the value of this field.
fn asks_for(pack: &Pack, flow: &Flow, field: &str) -> bool {
    let Step::Field(at) = flow.step else {
        return false;
    };
    let spec = flow
        .server
        .as_deref()
        .and_then(|server| pack.server(server));
    spec.and_then(|spec| spec.user_config.get(at))
        .is_some_and(|asked| asked.name == field)
}

/// Continues a flow with the answer that this run was given. Returns the text for the user.
pub async fn apply_answer(app: &Arc<App>, run: &ClaimedRun, flow: Flow) -> Result<Vec<Part>> {
    let context = FlowContext::of_run(app, run).await?;
    if !has_personal(&context.pack) {
        return Ok(vec![context.notice(
            "flow_expired",
            Key::McpConfigExpired,
            &[],
        )]);
    }
    context.apply_answer(flow).await
}

/// `/connect` and `/connect SERVER`: begins a flow.
pub async fn begin(app: &Arc<App>, run: &ClaimedRun, server: &str) -> Result<Vec<Part>> {
    let context = FlowContext::of_run(app, run).await?;
    if !has_personal(&context.pack) {
        return Ok(vec![context.notice(
            "no_servers",
            Key::McpConfigNoServers,
            &[],
        )]);
    }
    if !run.principal.authenticated {
        return Ok(vec![context.notice("sign_in", Key::McpConfigGuest, &[])]);
    }
    if server.is_empty() {
        return Ok(vec![context.start_list().await?]);
    }
    match steps::match_server(&context.pack, server) {
        Some(spec) => context.ask_for(spec).await,
        None => context.explain_unknown(server).await,
    }
}

/// Makes a one-time link for a client that has no conversation. On its page the principal enters the values that a
/// server needs. They type the code of the page in a conversation that exists for this purpose alone.
pub async fn link(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
    server: &str,
) -> Result<Option<String>> {
    let spec = steps::match_server(pack, server)
        .filter(|spec| !spec.user_config.is_empty() || spec.takes_sign_in());
    let Some(spec) = spec.filter(|_| principal.authenticated) else {
        return Ok(None);
    };
    let conversation = conversation_of_links(app, principal, pack).await?;
    let context = FlowContext::in_conversation(app, principal, pack.clone(), conversation);
    let parts = context.ask_for(spec).await?;
    let link = parts.iter().find_map(|part| match part {
        Part::Prompt(prompt) => prompt.url.clone(),
        _ => None,
    });
    append_message(app, principal.tenant, conversation, &parts).await?;
    Ok(link)
}

/// Finds or creates the conversation in which the user types the codes of links.
async fn conversation_of_links(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
) -> Result<ConversationId> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let user = &principal.user;
    let found =
        store::conversations::keyed::find_or_insert(&mut tx, user, pack.id(), LINKS_TITLE, LINKS)
            .await?;
    tx.commit().await?;
    Ok(found)
}

/// Writes a message of the program into a conversation.
async fn append_message(
    app: &App,
    tenant: TenantId,
    conversation: ConversationId,
    parts: &[Part],
) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let message = NewMessage {
        run: None,
        run_ordinal: 0,
        role: Role::System,
        parts,
        for_model: false,
    };
    let (_, event) = store::messages::append(&mut tx, tenant, conversation, message).await?;
    tx.commit().await?;
    app.announce(tenant, conversation, event);
    Ok(())
}

/// `/disconnect SERVER`: removes the user's credential.
pub async fn disconnect(app: &Arc<App>, run: &ClaimedRun, server: &str) -> Result<Vec<Part>> {
    let context = FlowContext::of_run(app, run).await?;
    let pack = &context.pack;
    let Some(spec) = steps::match_server(pack, server) else {
        return context.explain_unknown(server).await;
    };
    let (agent, server) = (pack.id().as_str(), spec.id.as_str());
    let key = if credentials::remove(app, &run.principal, agent, server).await? {
        Key::McpConfigRemoved
    } else {
        Key::McpConfigNothingToRemove
    };
    Ok(vec![context.notice(
        "connection_removed",
        key,
        &[("server", server)],
    )])
}

/// `/cancel`: ends the open flow of the conversation.
pub async fn cancel(app: &Arc<App>, run: &ClaimedRun) -> Result<Vec<Part>> {
    let context = FlowContext::of_run(app, run).await?;
    let key = if context.end().await? {
        Key::McpConfigCancelled
    } else {
        Key::McpConfigNothingToCancel
    };
    Ok(vec![context.notice("cancelled", key, &[])])
}

/// Replies to an answer whose question was withdrawn before the answer was read.
pub async fn answer_too_late(app: &Arc<App>, run: &ClaimedRun) -> Result<Vec<Part>> {
    let context = FlowContext::of_run(app, run).await?;
    Ok(vec![context.notice(
        "flow_expired",
        Key::McpConfigExpired,
        &[],
    )])
}

fn has_personal(pack: &Pack) -> bool {
    pack.servers
        .iter()
        .any(|server| server.access_mode == AccessMode::UserControlled)
}

fn context_of(principal: &Principal, flow: &Flow, which: FlowValue) -> Context {
    contexts::of_flow(
        principal.tenant,
        &principal.user,
        flow.agent.as_str(),
        flow.id,
        which,
    )
}

fn hash(text: &str) -> Vec<u8> {
    Sha256::digest(text).to_vec()
}

/// Whether the text is six digits, with any separators, and nothing else.
fn may_be_code(text: &str) -> bool {
    let digits = text.chars().filter(char::is_ascii_digit).count();
    digits == 6 && !text.chars().any(char::is_alphabetic)
}

/// Whether the text may hold a token or a password: a word with digits or signs, if the text has at most two words, or
/// a long such word in any text. Sentences of ordinary words are a message.
fn may_be_secret(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let shortest = if words.len() <= 2 { 8 } else { 20 };
    words.iter().any(|word| {
        let word =
            word.trim_matches(|c| matches!(c, '.' | ',' | '!' | '?' | ':' | ';' | '"' | '\''));
        let is_plain = word.chars().all(char::is_alphabetic);
        word.chars().count() >= shortest && !is_plain && !word.contains("://")
    })
}

/// Whether the text is the code of the flow's page.
fn is_code(flow: &Flow, text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    flow.step == Step::Confirm
        && digits.len() == 6
        && flow.code_hash.as_deref() == Some(&*hash(&digits))
}

fn is_secret(field: &UserField) -> bool {
    field.kind == FieldKind::Secret
}
