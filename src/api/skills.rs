//! Skills: lists those of the caller, and runs one without a model. A run makes the call, as if its command had been typed.
//! A client that left before the end finds the result under the run.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    ApiState,
    agents::List,
    extract::{Caller, NoParameters, Path, Query},
    limits::RequestPermit,
    openai::add_headers,
    problem::{AnswerIds, Problem},
    request_key::{self, KEPT, Keyed},
};
use crate::app::{
    self, App,
    runs::{ending::wait, starting},
    tools::skills::{
        SkillRunSpec, SkillView,
        outcome::{SkillRunOutcome, SkillRunStatus},
    },
};
use domain::{
    canonical,
    error::{Error, ErrorCode},
    ids::{ConversationId, RunId},
    json::{Json, Members},
    request_key::KeySource,
    skill,
};

/// The skills of an agent that the caller may run.
///
/// A skill is one tool with a form, called without a model.
#[utoipa::path(get, path = "/v1/agents/{agent}/skills", operation_id = "listSkills", tag = "skills",
    params(("agent" = String, Path)), responses((status = 200, body = List<SkillView>)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(agent): Path<String>,
    _: Query<NoParameters>,
) -> Result<axum::Json<List<SkillView>>, Problem> {
    Ok(axum::Json(List {
        items: app::tools::skills::list(&app, caller.principal(), &agent).await?,
    }))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SkillRunRequest)]
pub(super) struct NewSkillRun {
    /// What the tool is called with. Together with `input` at most 100000 characters.
    #[schema(value_type = Option<Object>)]
    arguments: Option<Box<RawValue>>,
    /// Free text, which the tool gets as its argument `input`.
    input: Option<String>,
    /// Where it is written down; absent: in a conversation of its own.
    conversation_id: Option<ConversationId>,
}

impl NewSkillRun {
    /// Reads the arguments, with the free text added.
    fn read_arguments(&self) -> Result<Members, Problem> {
        let text = self.arguments.as_ref().map_or("{}", |raw| raw.get());
        if let Some(why) = canonical::ambiguity(text) {
            return Err(Problem::invalid(
                "arguments",
                format!("must be clear beyond doubt, and {why}"),
            ));
        }
        let Ok(Json::Object(given)) = Json::parse(text) else {
            let reason = "must be one JSON object";
            return Err(Problem::unfit(ErrorCode::WrongType, "arguments", reason));
        };
        let input = self.input.as_deref().unwrap_or_default();
        skill::with_input(given, input).map_err(|why| Problem::invalid("input", why))
    }
}

/// Run a skill and wait for what its tool says.
///
/// 202 when somebody has to consent first, or when it takes longer than `CHATELAINE_RUN_WAIT_SECONDS`: ask for the
/// run then.
#[utoipa::path(post, path = "/v1/agents/{agent}/skills/{skill}", operation_id = "runSkill", tag = "skills",
    request_body = NewSkillRun, params(("agent" = String, Path), ("skill" = String, Path)),
    responses((status = 200, body = SkillRunOutcome), (status = 202, body = SkillRunOutcome),
        (status = 400, description = "arguments_unfit"), (status = 409, description = "refused, run_cancelled"),
        (status = 429, description = "too_many_streams, too_many_runs, quota_exceeded"),
        (status = 502, description = "skill_failed, outcome_unknown")))]
pub(super) async fn run(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    Path((agent, skill)): Path<(String, String)>,
    Keyed(new, key): Keyed<NewSkillRun>,
) -> Result<Response, Problem> {
    let (app, principal) = (&state.app, caller.principal());
    let arguments = new.read_arguments()?;
    let _stream = state.limits.open_stream(principal)?;
    let spec = SkillRunSpec {
        agent: &agent,
        skill: &skill,
        arguments,
        conversation: new.conversation_id,
        key: key.as_ref(),
    };
    let key = key.as_ref();
    let mut earlier = request_key::join_earlier(app, principal, key).await?;
    let mut begun = None;
    if earlier.is_none() {
        match app::tools::skills::begin(app, principal, &spec).await {
            Err(Error::Repeated) => {
                earlier = request_key::join_earlier(app, principal, key).await?;
            }
            made => begun = Some(made?),
        }
    }
    let begun = match (begun, earlier) {
        (Some(begun), _) => begun,
        (None, Some(earlier)) => starting::load_started(app, principal, earlier).await?,
        (None, None) => return Err(Error::Repeated.into()),
    };
    permit.release();
    wait(app, principal, &begun).await?;
    let outcome = app::tools::skills::outcome::get(app, principal, &agent, begun.run).await?;
    let is_named = key.is_some_and(|key| key.origin == KeySource::Named);
    Ok(answer(outcome, is_named))
}

/// What a run of a skill has come to.
///
/// For the user whose run it is.
#[utoipa::path(get, path = "/v1/agents/{agent}/skills/{skill}/runs/{id}", operation_id = "getSkillRun",
    tag = "skills", params(("agent" = String, Path), ("skill" = String, Path), ("id" = RunId, Path)),
    responses((status = 200, body = SkillRunOutcome)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((agent, skill, id)): Path<(String, String, RunId)>,
) -> Result<axum::Json<SkillRunOutcome>, Problem> {
    let outcome = app::tools::skills::outcome::get(&app, caller.principal(), &agent, id).await?;
    if outcome.skill == skill {
        Ok(axum::Json(outcome))
    } else {
        Err(Problem::not_found(format!("run {id} of it")))
    }
}

/// Answers with the outcome of a run; the headers always name the run and the conversation. `is_named`: the client gave a
/// key, under which the answer is kept.
fn answer(outcome: SkillRunOutcome, is_named: bool) -> Response {
    let (conversation, run) = (outcome.conversation_id, outcome.run_id);
    let why = || {
        let why = outcome.text.clone().unwrap_or_default();
        if is_named {
            format!("{why}; {KEPT}")
        } else {
            why
        }
    };
    let failed = |status, code, why: String| {
        let ids = AnswerIds {
            conversation,
            run,
            is_over: true,
        };
        Problem::new(status, code, why)
            .with_run(ids)
            .into_response()
    };
    let mut response = match outcome.status {
        SkillRunStatus::Succeeded => axum::Json(outcome).into_response(),
        SkillRunStatus::Running | SkillRunStatus::AwaitingApproval => {
            (StatusCode::ACCEPTED, axum::Json(outcome)).into_response()
        }
        SkillRunStatus::Failed => failed(StatusCode::BAD_GATEWAY, ErrorCode::SkillFailed, why()),
        SkillRunStatus::OutcomeUnknown => {
            failed(StatusCode::BAD_GATEWAY, ErrorCode::OutcomeUnknown, why())
        }
        SkillRunStatus::Refused => failed(StatusCode::CONFLICT, ErrorCode::Refused, why()),
        SkillRunStatus::Cancelled => failed(
            StatusCode::CONFLICT,
            ErrorCode::RunCancelled,
            "the run was cancelled".to_owned(),
        ),
    };
    add_headers(
        &mut response,
        conversation.to_string(),
        run.to_string(),
        &[],
    );
    response
}
