//! Questions that servers put to the user of a call. A server of the modern era answers a call with them instead of a
//! result; the call is over then, nothing waits for anybody, and what it needs to go on is a row. The user answers in the
//! chat, one thing after the other; then the call is made again with the answers ([`crate::app::tools::gate::input`]), in a run of
//! its own. That repeats no call of unknown outcome: the server has answered and wants to be asked again.

mod answers;
pub mod live;
mod words;

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

pub use self::answers::{Caught, catch, nothing_open, resume};
use crate::app::{
    App,
    platform::keys::{
        OpenError,
        contexts::{self, OfElicitation},
    },
};
use crate::{
    domain::{
        elicitation::{Asked, Entered, InputRequired, Pending, Question, State},
        error::{Error, Result},
        ids::{AgentId, ConversationId, RunId, ServerId, TenantId},
        message::{Part, Role},
        principal::Principal,
        run::ClaimedRun,
        secret::Secret,
        texts::{self, Key},
    },
    store::{self, Tx, messages::NewMessage},
    vault::Context,
};

/// How long somebody may think about one question.
const LIFE: Duration = Duration::from_secs(30 * 60);
/// How often questions that nobody answered are looked for.
pub const FORGET: Duration = Duration::from_secs(30);

/// Somebody who can be asked in the middle of a call.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Where they are asked.
    pub conversation: ConversationId,
    /// Whether a model waits for the outcome.
    pub for_model: bool,
    /// Whether they can answer while the call is open.
    pub live: bool,
}

/// A call that its server answered with questions.
pub struct About<'a> {
    pub principal: &'a Principal,
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a str,
    pub arguments: &'a serde_json::value::RawValue,
    pub credential: String,
    pub run: RunId,
    pub call_id: &'a str,
    pub asker: Asker,
    /// How often it has asked before.
    pub rounds: i32,
}

/// Whether somebody can be asked in a run: its user is in the conversation, and what they answer can be kept sealed.
pub fn asker(app: &App, run: &ClaimedRun, for_model: bool) -> Option<Asker> {
    let can_ask = app.keys.has_ring() && !run.start.is_delegated;
    can_ask.then_some(Asker {
        conversation: run.conversation,
        for_model,
        // A client that keeps the transcript cannot speak before it has its answer.
        live: !run.start.is_of_client,
    })
}

/// Asks the user, in the conversation. `false` when another question is open there.
pub async fn ask(
    app: &Arc<App>,
    about: &About<'_>,
    questions: &[Question],
    input: &InputRequired,
) -> Result<bool> {
    let (pending, asked) = draft(app, about, questions, input, false).await?;
    let pack = app.library.get(about.agent);
    let texts = texts::of_any(pack.as_deref(), about.principal);
    let part = words::prompt(&texts, &pending, &asked);
    let mut tx = app.db.tenant(about.principal.tenant).await?;
    let event = say(&mut tx, about.principal.tenant, &pending, part).await?;
    if !store::elicitations::begin(&mut tx, about.principal.tenant, &pending, LIFE).await? {
        return Ok(false);
    }
    tx.commit().await?;
    app.announce(about.principal.tenant, pending.conversation, event);
    metrics::counter!("chatelaine_elicitations_total").increment(1);
    Ok(true)
}

/// The row of a question, sealed.
async fn draft(
    app: &App,
    about: &About<'_>,
    questions: &[Question],
    input: &InputRequired,
    live: bool,
) -> Result<(Pending, Asked)> {
    let asked = Asked {
        arguments: about.arguments.to_owned(),
        keys: input.keys.clone(),
        questions: questions.to_vec(),
        state: input.state.clone(),
    };
    let mut pending = Pending {
        id: Uuid::now_v7(),
        conversation: about.asker.conversation,
        user: about.principal.user.clone(),
        agent: about.agent.clone(),
        server: about.server.clone(),
        tool: about.tool.to_owned(),
        run: about.run,
        call_id: about.call_id.to_owned(),
        credential: about.credential.clone(),
        for_model: about.asker.for_model,
        round: about.rounds + 1,
        state: State::Open,
        step: 0,
        sealed: Vec::new(),
        entered: None,
        fault: None,
        answer_run: None,
        live,
    };
    let context = context(about.principal.tenant, &pending, OfElicitation::Asked);
    pending.sealed = seal(app, &context, &asked).await?;
    Ok((pending, asked))
}

/// Tells the user of a question that was not put to them.
pub async fn tell(
    app: &Arc<App>,
    about: &About<'_>,
    code: &str,
    key: Key,
    what: &str,
) -> Result<()> {
    let pack = app.library.get(about.agent);
    let texts = texts::of_any(pack.as_deref(), about.principal);
    let text = texts.say(
        key,
        &[
            ("server", about.server.as_str()),
            ("tool", about.tool),
            ("what", what),
        ],
    );
    let part = Part::Notice {
        code: code.to_owned(),
        text,
    };
    let message = NewMessage {
        run: Some(about.run),
        run_ordinal: 0,
        role: Role::System,
        parts: &[part],
        for_model: false,
    };
    let mut tx = app.db.tenant(about.principal.tenant).await?;
    let (_, event) = store::messages::append(
        &mut tx,
        about.principal.tenant,
        about.asker.conversation,
        message,
    )
    .await?;
    tx.commit().await?;
    app.announce(about.principal.tenant, about.asker.conversation, event);
    Ok(())
}

async fn say(
    tx: &mut Tx,
    tenant: TenantId,
    pending: &Pending,
    part: Part,
) -> Result<crate::domain::event::Event> {
    let message = NewMessage {
        run: Some(pending.run),
        run_ordinal: 0,
        role: Role::System,
        parts: &[part],
        for_model: false,
    };
    Ok(
        store::messages::append(tx, tenant, pending.conversation, message)
            .await?
            .1,
    )
}

/// What is asked, and what was answered so far; `None` when it cannot be opened any more.
pub async fn opened(
    app: &App,
    tenant: TenantId,
    pending: &Pending,
) -> Result<Option<(Asked, Entered)>> {
    let of = |which| context(tenant, pending, which);
    let Some(asked) = unseal(app, &of(OfElicitation::Asked), &pending.sealed).await? else {
        return Ok(None);
    };
    let entered = match &pending.entered {
        Some(sealed) => unseal(app, &of(OfElicitation::Entered), sealed).await?,
        None => Some(Entered::default()),
    };
    Ok(entered.map(|entered| (asked, entered)))
}

/// Ends the questions whose time is over; their users are told.
pub async fn forget_old(app: &Arc<App>) -> Result<()> {
    let mut tx = app.db.system().await?;
    let tenants = store::elicitations::tenants_with_old(&mut tx).await?;
    drop(tx);
    for tenant in tenants {
        let mut tx = app.db.tenant(tenant).await?;
        let expired = store::elicitations::expire(&mut tx).await?;
        let mut events = Vec::new();
        for pending in expired {
            let conversation =
                store::conversations::get(&mut tx, &pending.user, pending.conversation, true).await;
            if let Err(Error::NotFound(_)) = conversation {
                continue;
            }
            let pack = app.library.get(&pending.agent);
            let (key, code) = if pending.live {
                (Key::AskWithdrawn, "input_withdrawn")
            } else {
                (Key::AskExpired, "input_expired")
            };
            let text =
                texts::in_default(pack.as_deref()).say(key, &[("server", pending.server.as_str())]);
            let part = Part::Notice {
                code: code.to_owned(),
                text,
            };
            events.push((
                pending.conversation,
                say(&mut tx, tenant, &pending, part).await?,
            ));
        }
        tx.commit().await?;
        for (conversation, event) in events {
            app.announce(tenant, conversation, event);
        }
    }
    Ok(())
}

/// What one of a row's two values is sealed for.
fn context(tenant: TenantId, pending: &Pending, which: OfElicitation) -> Context {
    let place = (pending.agent.as_str(), pending.server.as_str());
    contexts::of_elicitation(tenant, &pending.user, place, pending.id, which)
}

async fn seal(app: &App, context: &Context, value: &impl Serialize) -> Result<Vec<u8>> {
    let text = Secret::new(serde_json::to_string(value).map_err(Error::internal)?);
    app.keys.seal(context.tenant, context, &text).await
}

async fn unseal<T: DeserializeOwned>(
    app: &App,
    context: &Context,
    sealed: &[u8],
) -> Result<Option<T>> {
    match app.keys.open(context.tenant, context, sealed).await {
        Ok(text) => serde_json::from_str(text.expose())
            .map(Some)
            .map_err(Error::internal),
        Err(OpenError::Unopenable(_)) => Ok(None),
        Err(OpenError::Failed(error)) => Err(error),
    }
}
