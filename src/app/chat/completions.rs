//! A plain call of an agent's model, without tools, a conversation or a run. Frontends make one beside a chat, for a
//! title, tags or suggestions. Its tokens count, and the limits of tokens apply.

use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};

use super::transcript::Transcript;
use crate::app::{App, accounts::usage, servers::agents};
use domain::{
    answer_format::AnswerFormat,
    error::{Error, Result},
    ids::AgentId,
    message::Role,
    pack::Provider,
    principal::Principal,
    run::Usage,
};
use llm::{Delta, StepRequest, Stop, Turn};

/// A piece of the answer.
pub enum CompletionChunk {
    Text(String),
    /// The end of the answer. `is_cut` says that the answer reached the limit of its length.
    Done {
        usage: Usage,
        is_cut: bool,
    },
}

/// Asks the model of an agent to answer a transcript, in a `format` if one is given. `max_tokens` lowers the limit of
/// the pack.
pub async fn complete(
    app: &Arc<App>,
    principal: &Principal,
    agent: &str,
    transcript: &Transcript,
    max_tokens: Option<u64>,
    format: Option<AnswerFormat>,
) -> Result<impl Stream<Item = Result<CompletionChunk>> + Send + Unpin + use<>> {
    let pack = agents::pack(app, principal, agent).await?;
    if pack.llm.provider == Provider::None {
        return Err(Error::Unavailable("this agent has no model".to_owned()));
    }
    usage::require_tokens(app, principal).await?;
    let mut llm = pack.llm.clone();
    let lower = |own: Option<u64>| match (own, max_tokens) {
        (Some(own), Some(wanted)) => Some(own.min(wanted)),
        (own, wanted) => own.or(wanted),
    };
    llm.max_tokens = lower(llm.max_tokens);
    for other in &mut llm.fallback {
        other.max_tokens = lower(other.max_tokens);
    }
    let steps = app
        .models
        .step(&llm, build_request(principal, transcript, format));
    let (app, principal, agent) = (app.clone(), principal.clone(), pack.id().clone());
    let chunks = stream::unfold(Some(steps), move |steps| {
        let (app, principal, agent) = (app.clone(), principal.clone(), agent.clone());
        async move {
            let mut steps = steps?;
            let chunk = match steps.next().await? {
                Ok(Delta::Text(text)) => {
                    return Some((Ok(CompletionChunk::Text(text)), Some(steps)));
                }
                Ok(Delta::Done(reply)) => count_usage(&app, &principal, &agent, reply.usage)
                    .await
                    .map(|()| CompletionChunk::Done {
                        usage: reply.usage,
                        is_cut: reply.stop == Stop::Length,
                    }),
                Err(error) => Err(match error.passes_after() {
                    Some(retry_after) => Error::Busy {
                        reason: error.to_string(),
                        retry_after,
                    },
                    None => Error::Unavailable(error.to_string()),
                }),
            };
            Some((chunk, None))
        }
    });
    Ok(chunks.boxed())
}

fn build_request(
    principal: &Principal,
    transcript: &Transcript,
    format: Option<AnswerFormat>,
) -> StepRequest {
    let system = transcript
        .iter()
        .filter(|(role, _)| *role == Role::System)
        .map(|(_, text)| text.as_str());
    let history = transcript.iter().filter_map(|(role, text)| match role {
        Role::System => None,
        Role::Assistant => Some(Turn::Assistant {
            text: text.clone(),
            calls: Vec::new(),
        }),
        Role::User | Role::Tool => Some(Turn::User(text.clone())),
    });
    StepRequest {
        tenant: Some(principal.tenant),
        user: Some(principal.user.clone()),
        system: system.collect::<Vec<_>>().join("\n\n"),
        history: history.collect(),
        tools: Vec::new(),
        format,
        is_repeated_by_client: false,
    }
}

async fn count_usage(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    usage: Usage,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::usage::add(&mut tx, &principal.user, agent, usage).await?;
    tx.commit().await
}
