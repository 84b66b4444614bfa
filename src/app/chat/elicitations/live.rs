//! Questions whose server waits for the answer while its call is open, and with it the run. The row is a lease that the
//! waiting worker prolongs, so that a question whose worker is gone ends by the clock; the answer may come in at any
//! replica.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::timeout;

use super::{About, draft, opened, say, words};
use crate::{
    app::App,
    domain::{
        elicitation::{Answer, InputRequired, Leave, Pending, Question, State, left},
        error::Result,
        ids::TenantId,
        message::Part,
        principal::Principal,
        texts::{self, Key},
    },
    live::{Heard, Listener},
    store,
};

/// For how long a question stands whose worker says nothing.
pub const LEASE: Duration = Duration::from_secs(15);

/// How often the waiting worker looks although it was told nothing: a hint may be lost.
const LOOK: Duration = Duration::from_secs(1);

/// The question that is open now, for whoever finds that the call is over.
#[derive(Default)]
pub struct Open(Mutex<Option<Pending>>);

impl Open {
    fn set(&self, pending: Pending) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(pending);
    }

    fn take(&self) -> Option<Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Asks the user and waits for the answer; `None` when a question is open in the conversation that is not going to be
/// over soon. One that another call waits for comes first.
pub async fn ask(
    app: &Arc<App>,
    about: &About<'_>,
    questions: &[Question],
    input: &InputRequired,
    open: &Open,
) -> Result<Option<Answer>> {
    let tenant = about.principal.tenant;
    let (pending, asked) = draft(app, about, questions, input, true).await?;
    let pack = app.library.get(about.agent);
    let part = words::prompt(
        &texts::of_any(pack.as_deref(), about.principal),
        &pending,
        &asked,
    );
    // Listen first, look second: nothing falls in between.
    let mut listener = app.live.listen(tenant, pending.conversation);
    open.set(pending.clone());
    loop {
        let mut tx = app.db.tenant(tenant).await?;
        match store::elicitations::open(&mut tx, pending.conversation).await? {
            Some(other) if !other.live => return Ok(None),
            Some(_) => {}
            None => {
                let event = say(&mut tx, tenant, &pending, part.clone()).await?;
                if store::elicitations::begin(&mut tx, tenant, &pending, LEASE).await? {
                    tx.commit().await?;
                    app.announce(tenant, pending.conversation, event);
                    break;
                }
            }
        }
        drop(tx);
        news(&mut listener).await;
    }
    metrics::counter!("chatelaine_elicitations_total").increment(1);
    let answer = wait(app, tenant, &pending, &mut listener).await?;
    open.take();
    Ok(Some(
        answer.unwrap_or_else(|| left(&input.keys, Leave::Cancel, None)),
    ))
}

/// The answer; `None` when the question is over without one.
async fn wait(
    app: &App,
    tenant: TenantId,
    pending: &Pending,
    listener: &mut Listener,
) -> Result<Option<Answer>> {
    loop {
        let mut tx = app.db.tenant(tenant).await?;
        let Some(seen) = store::elicitations::prolong(&mut tx, pending.id, LEASE).await? else {
            return Ok(None);
        };
        if seen.state != State::Open {
            store::elicitations::end(&mut tx, pending.id).await?;
            tx.commit().await?;
            let opened = opened(app, tenant, &seen).await?;
            return Ok(opened.map(|(asked, entered)| asked.answer(&entered)));
        }
        tx.commit().await?;
        news(listener).await;
    }
}

/// Waits until something was written into the conversation, or for a moment.
async fn news(listener: &mut Listener) {
    let written = async { while let Heard::Transient { .. } = listener.next().await {} };
    // That it takes too long is no error.
    let _ = timeout(LOOK, written).await;
}

/// Ends the question that is open, if one is: nobody waits for its answer any more. Its user is told.
pub async fn withdraw(app: &Arc<App>, principal: &Principal, open: &Open) -> Result<()> {
    let Some(pending) = open.take() else {
        return Ok(());
    };
    let pack = app.library.get(&pending.agent);
    let texts = texts::of_any(pack.as_deref(), principal);
    let text = texts.say(Key::AskWithdrawn, &[("server", pending.server.as_str())]);
    let part = Part::Notice {
        code: "input_withdrawn".to_owned(),
        text,
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let event = say(&mut tx, principal.tenant, &pending, part).await?;
    // One that was answered, or that had not come to be asked, is nothing to tell of.
    if store::elicitations::end(&mut tx, pending.id).await? {
        tx.commit().await?;
        app.announce(principal.tenant, pending.conversation, event);
    }
    Ok(())
}
