//! The one gate. Every tool call from every entry point passes [`call`]. The gate makes the same pure decision as the
//! listing, checks the arguments against the schema of the tool, sees to it that the audit line exists, and sends the
//! call once. Two kinds of calls come back later: one whose user has answered a question of the server by
//! [`call_with_answer`], and one that needed consent by `approvals::execution`, which sends it with the same `Permit`.
//!
//! A call that was sent and not answered is `OutcomeUnknown` and is never repeated by the program.

pub(super) mod limits;
mod questions;
pub mod reads;
pub(super) mod send;

use std::{fmt::Display, sync::Arc};

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    questions::{CallQuestions, QuestionOutcome, ask_user},
    send::{CallContext, Destination, Permit, counted_result, resolve_destination},
};
use crate::app::{
    App,
    platform::replicas,
    servers::{agents, pins},
    tools::{
        approvals,
        elicitations::ElicitationTarget,
        kept_calls::{self, DecidedCall},
        toolset::{self, NamedTool, Toolset, held_back, truncate_text},
    },
};
use domain::{
    canonical,
    elicitation::{Answer, Elicitation},
    error::Error,
    ids::{AuditId, RunId},
    json::Json,
    message::{CallStatus, Refusal, ToolCall, ToolResult},
    orchestrator,
    pin::Pin,
    policy::{
        Allowed, CallFacts, CallUsage, Decision, DenyRule, LimitedCall, Origin, decide, is_offered,
    },
    principal::Principal,
    run::ClaimedRun,
    server::ServerSpec,
    texts,
    tool::SHORTEST_FRESH,
};
use mcp::{CallError, CallOptions, ProgressSender};
use store::{audit::AuditRow, call_limits};

/// The most times that a call is sent without asking the user. Each time but the last, the server has returned
/// questions that were declined at once, or an empty list of questions.
const MAX_SENDS: usize = 4;

/// A call that is to be made.
#[derive(Clone)]
pub struct Call<'a> {
    pub principal: &'a Principal,
    pub toolset: &'a Arc<Toolset>,
    /// `None` for a client that calls tools itself.
    pub run: Option<RunId>,
    pub call_id: &'a str,
    /// The line of a run's call in the audit trail, by which the run is taken up after a crash.
    pub line: Option<AuditId>,
    /// Whether that line exists already ([`opening_line`]). Its outcome is then written with the result.
    pub is_recorded: bool,
    pub target: CallTarget<'a>,
    pub origin: Origin,
    /// The parsed arguments, or a text that is not JSON.
    pub arguments: Result<Json, &'a str>,
    /// Why two JSON parsers could read the arguments differently, if they could.
    pub ambiguity: Option<&'a str>,
    pub progress: ProgressSender,
    pub cancel: CancellationToken,
    /// Where questions of the server to the user are shown; `None` when the user cannot be asked.
    pub elicitation: Option<ElicitationTarget>,
    /// Whether the user reads in the answer of the run that the call waits for consent.
    pub shows_requests: bool,
}

/// The tool that is to be called.
#[derive(Clone)]
pub enum CallTarget<'a> {
    /// By the name in the model's request.
    Name(&'a str),
    /// By the server's id and the tool's own name.
    Pair { server: &'a str, tool: &'a str },
}

/// A call that passed the gate.
struct AdmittedCall<'a> {
    pub permit: Permit<'a>,
    pub tool: &'a str,
    pub arguments: Box<RawValue>,
    /// Whether it may be sent again although it may have been executed.
    pub may_repeat: bool,
    /// How often the user has been asked for this call.
    pub rounds: i32,
    /// Under which id it was taken from limits.
    pub taken: Option<Uuid>,
}

/// The answer of a call's user to its server's question.
pub struct AnsweredCall {
    /// The credential of the connection that the server asked on.
    pub credential: String,
    pub answer: Answer,
    pub rounds: i32,
    /// Under which id the call was taken from limits when it was sent before.
    pub taken: Option<Uuid>,
}

/// Who asks for a call, and how.
struct AskedCall<'a> {
    principal: &'a Principal,
    toolset: &'a Toolset,
    origin: Origin,
}

impl AskedCall<'_> {
    fn facts<'f>(&'f self, app: &App, named: &NamedTool, arguments: &'f Json) -> CallFacts<'f> {
        CallFacts {
            arguments,
            claims: &self.principal.claims,
            origin: self.origin,
            now: app.clock.now(),
            vars: &self.toolset.pack().vars,
            exceeded: &[],
            only_reads: named.tool.is_read_only(),
        }
    }

    /// The decision before limits over time are looked at.
    fn decide<'s>(
        &self,
        app: &App,
        spec: &'s ServerSpec,
        named: &'s NamedTool,
        arguments: &Json,
    ) -> Decision<'s> {
        let facts = self.facts(app, named, arguments);
        decide(spec, self.toolset.access(), &named.tool.name, &facts)
    }

    /// The decision by what other calls have left of limits. A call that it allows is taken from them; `taken` before, it
    /// is taken anew, so that it counts from now on.
    async fn judge<'s>(
        &self,
        app: &App,
        spec: &'s ServerSpec,
        named: &'s NamedTool,
        arguments: &Json,
        taken: Option<Uuid>,
    ) -> Result<Judgement<'s>, Error> {
        let (access, tool) = (self.toolset.access(), &named.tool.name);
        let facts = self.facts(app, named, arguments);
        let call = LimitedCall {
            agent: self.toolset.agent(),
            server: &spec.id,
            tool,
            user: &self.principal.user,
            who: access,
        };
        let usage = CallUsage::new(spec, &call, &facts);
        if usage.sums.is_empty() {
            let decision = decide(spec, access, tool, &facts);
            return Ok(Judgement { decision, taken });
        }
        let mut tx = app.db.tenant(self.principal.tenant).await?;
        call_limits::lock(&mut tx, &usage.sums).await?;
        if let Some(taken) = taken {
            call_limits::give_back(&mut tx, taken).await?;
        }
        let exceeded = usage.list_exceeded(&call_limits::read(&mut tx, &usage.sums).await?);
        let facts = CallFacts {
            exceeded: &exceeded,
            ..facts
        };
        let decision = decide(spec, access, tool, &facts);
        let Decision::Allow(_) = decision else {
            // What was taken before stays, since the call was sent then.
            return Ok(Judgement { decision, taken });
        };
        let id = taken.unwrap_or_else(Uuid::now_v7);
        call_limits::take(&mut tx, id, &usage.sums).await?;
        tx.commit().await?;
        Ok(Judgement {
            decision,
            taken: Some(id),
        })
    }
}

/// What becomes of a call.
struct Judgement<'a> {
    decision: Decision<'a>,
    /// Under which id the call was taken from limits.
    taken: Option<Uuid>,
}

/// The audit line of a call that may be sent without consent; `None` for any other call. It is written in the
/// transaction that stores the call, so a call of a run without a line was never sent.
pub fn opening_line(
    app: &Arc<App>,
    run: &ClaimedRun,
    toolset: &Toolset,
    call: &ToolCall,
) -> Option<AuditRow> {
    let (server, tool) = (call.server.as_deref()?, call.tool.as_deref()?);
    let (spec, named) = toolset.by_pair(server, tool)?;
    let asked = AskedCall {
        principal: &run.principal,
        toolset,
        origin: run.origin_of(call),
    };
    let arguments = fill_in(spec, named, use_own_names(spec, named, call.arguments()));
    let Decision::Allow(allowed) = asked.decide(app, spec, named, &arguments) else {
        return None;
    };
    let caller = CallContext {
        app,
        principal: &run.principal,
        agent: toolset.agent(),
        run: Some(run.id),
        line: call.audit_id,
        is_recorded: true,
    };
    let (arguments, unknown) = (call.arguments.get(), CallStatus::OutcomeUnknown);
    Some(AuditRow {
        id: call.audit_id?,
        detail: detail_of(&allowed),
        ..caller.audit_row("tool.call", server, tool, arguments, unknown)
    })
}

/// The audit line of a call whose user has answered. It is written in the transaction that marks the call as sent.
pub fn opening_line_of_answered(
    app: &Arc<App>,
    run: &ClaimedRun,
    elicitation: &Elicitation,
    arguments: &RawValue,
) -> AuditRow {
    let caller = CallContext {
        app,
        principal: &run.principal,
        agent: &elicitation.agent,
        run: Some(run.id),
        line: None,
        is_recorded: true,
    };
    let (server, tool) = (elicitation.server.as_str(), elicitation.tool.as_str());
    let unknown = CallStatus::OutcomeUnknown;
    AuditRow {
        detail: Some(format!("with the user's answer {}", elicitation.round)),
        ..caller.audit_row("tool.call", server, tool, arguments.get(), unknown)
    }
}

fn detail_of(allowed: &Allowed<'_>) -> Option<String> {
    allowed
        .is_self_approved()
        .then(|| "self-approved".to_owned())
}

/// Makes the call, or returns why not. The result is for the model; even a failure of the program is such a result.
pub async fn call(app: &Arc<App>, call: Call<'_>) -> ToolResult {
    Box::pin(make(app, &call, None)).await
}

/// Makes a call again with its user's answer to the server's question. All checks of the first call are repeated.
pub async fn call_with_answer(
    app: &Arc<App>,
    call: &Call<'_>,
    answered: AnsweredCall,
) -> ToolResult {
    Box::pin(make(app, call, Some(answered))).await
}

/// Makes the call by the rules in force.
async fn make(app: &Arc<App>, call: &Call<'_>, answered: Option<AnsweredCall>) -> ToolResult {
    match restrict_toolset(app, call).await {
        Ok(None) => make_with_toolset(app, call, answered).await,
        Ok(Some(toolset)) => {
            let toolset = &toolset;
            let call = Call {
                toolset,
                ..call.clone()
            };
            make_with_toolset(app, &call, answered).await
        }
        Err(error) => deny(app, call, not_executed(&error).into()),
    }
}

/// The toolset of a call as the rules in force restrict it, if they have changed since it was selected. A run keeps its pack
/// to its end: its prompts, its model and its servers, but not a right that nobody has any more.
async fn restrict_toolset(app: &Arc<App>, call: &Call<'_>) -> Result<Option<Arc<Toolset>>, Error> {
    let pack = call.toolset.pack();
    replicas::refresh_policies(app).await?;
    let now = app.packs.get(pack.id());
    if now.is_some_and(|now| now.version == pack.version) {
        return Ok(None);
    }
    let now = agents::pack(app, call.principal, pack.id().as_str()).await?;
    let restricted = Arc::new(pack.restricted_by(&now));
    let toolset = toolset::select(app, call.principal, &restricted).await?;
    Ok(Some(toolset))
}

async fn make_with_toolset(
    app: &Arc<App>,
    call: &Call<'_>,
    answered: Option<AnsweredCall>,
) -> ToolResult {
    let found = match &call.target {
        CallTarget::Name(name) => call.toolset.by_name(name),
        CallTarget::Pair { server, tool } => call.toolset.by_pair(server, tool),
    };
    let Some((spec, named)) = found else {
        return deny(app, call, unknown_tool(app, call).into());
    };
    let (decision, arguments) = match admit(app, call, spec, named).await {
        Ok(admitted) => admitted,
        Err(reason) => return deny(app, call, reason),
    };
    if answered.is_none() {
        keep(app, call, spec, named, &arguments).await;
    }
    match decision {
        Decision::Allow(_) | Decision::Approve(_) => {}
        Decision::Deny(_) => return deny(app, call, unknown_tool(app, call).into()),
        Decision::Refuse(rule) => return deny(app, call, Refused::by_rule(rule)),
    }
    let destination = match find_destination(app, call, spec).await {
        Ok(destination) => destination,
        Err(reason) => return deny(app, call, reason.into()),
    };
    if answered
        .as_ref()
        .is_some_and(|answered| answered.credential != destination.credential())
    {
        let reason = "not executed: the user's credential has changed since the server asked; make the call again";
        return deny(app, call, reason.to_owned().into());
    }
    let taken = answered.as_ref().and_then(|answered| answered.taken);
    let asked = call.asked();
    let judged = asked.judge(app, spec, named, &arguments, taken).await;
    let Judgement { decision, taken } = match judged {
        Ok(judgement) => judgement,
        Err(error) => return refuse(call, not_executed(&error).into()),
    };
    let allowed = match decision {
        Decision::Allow(allowed) => allowed,
        Decision::Deny(_) => return deny(app, call, unknown_tool(app, call).into()),
        Decision::Refuse(rule) => return deny(app, call, Refused::by_rule(rule)),
        Decision::Approve(_) if answered.is_some() => {
            let reason =
                "not executed: this call needs consent by now; make it again if the user wants it";
            return deny(app, call, reason.to_owned().into());
        }
        Decision::Approve(policy) => {
            let arguments = match canonical::text(&arguments) {
                Ok(arguments) => arguments,
                Err(problem) => return deny(app, call, Refused::unfit(problem)),
            };
            let credential = destination.credential();
            let request = approvals::ApprovalRequest {
                principal: call.principal,
                agent: call.toolset.agent(),
                server: &spec.id,
                tool: &named.tool,
                policy,
                counts_requester: policy.counts_requester(call.toolset.access()),
                arguments: &arguments,
                credential: &credential,
                run: call.run,
                call_id: call.call_id,
                origin: call.origin,
                is_shown: call.shows_requests,
            };
            return request_approval(app, call, request).await;
        }
    };
    if let Err(reason) = require_accepted(app, call, spec, named, &destination).await {
        call.give_back(app, taken.filter(|_| answered.is_none()))
            .await;
        return deny(app, call, reason.into());
    }
    let arguments = arguments.to_raw();
    let (caller, detail) = (call.caller(app), detail_of(&allowed));
    let permit = Permit::allowed(caller, &allowed, destination, &arguments, detail);
    let permit = match permit.await {
        Ok(permit) => permit,
        Err(error) => {
            call.give_back(app, taken.filter(|_| answered.is_none()))
                .await;
            return refuse(call, not_executed(&error).into());
        }
    };
    let ready = AdmittedCall {
        permit,
        tool: &named.tool.name,
        arguments,
        may_repeat: spec.may_repeat(&named.tool),
        rounds: answered.as_ref().map_or(0, |answered| answered.rounds),
        taken,
    };
    send_admitted(app, call, ready, answered.map(|answered| answered.answer)).await
}

/// Keeps the call, where its tenant wants policies to be tried with it.
async fn keep(app: &App, call: &Call<'_>, spec: &ServerSpec, named: &NamedTool, arguments: &Json) {
    let decided = DecidedCall {
        principal: call.principal,
        agent: call.toolset.agent(),
        server: &spec.id,
        tool: &named.tool,
        origin: call.origin,
        arguments,
    };
    kept_calls::keep(app, &decided).await;
}

/// Sends an admitted call. It is sent again only after the server has answered it with questions that need no user, so
/// a call of unknown outcome is never repeated.
async fn send_admitted(
    app: &Arc<App>,
    call: &Call<'_>,
    ready: AdmittedCall<'_>,
    mut answer: Option<Answer>,
) -> ToolResult {
    let live = call.elicitation.is_some_and(|target| target.live);
    let call_questions = CallQuestions::for_call(app, call, &ready);
    // What is sent again, was sent.
    let mut taken = ready.taken.filter(|_| ready.rounds == 0);
    for _ in 0..MAX_SENDS {
        let (questions, live_questions) = mpsc::unbounded_channel();
        let options = CallOptions {
            live_questions: live.then_some(questions),
            progress: Some(call.progress.clone()),
            cancel: call.cancel.clone(),
            idempotency_key: None,
            can_ask_user: call_questions.is_some(),
            answer: answer.take(),
            may_repeat: ready.may_repeat,
            ..CallOptions::default()
        };
        let calling = Box::pin(ready.permit.call(ready.tool, &ready.arguments, options));
        let sent = match &call_questions {
            Some(call_questions) if live => {
                Box::pin(call_questions.answer_while_open(live_questions, calling)).await
            }
            _ => calling.await,
        };
        if sent.as_ref().is_err_and(CallError::is_unsent) {
            call.give_back(app, taken).await;
        }
        taken = None;
        let Some(outcome) = ask_user(call_questions.as_ref(), sent.as_ref().ok()).await else {
            return ready.permit.into_result(call.call_id, sent);
        };
        let result = match outcome {
            QuestionOutcome::Answer(given) => {
                answer = Some(given);
                continue;
            }
            QuestionOutcome::User => await_input(call),
            QuestionOutcome::Failed(reason) => fail(call, &reason),
        };
        ready.permit.end(result.status);
        return result;
    }
    let result = fail(call, "the server asks again and again instead of answering");
    ready.permit.end(result.status);
    result
}

impl<'a> Call<'a> {
    fn asked(&self) -> AskedCall<'a> {
        AskedCall {
            principal: self.principal,
            toolset: self.toolset,
            origin: self.origin,
        }
    }

    async fn give_back(&self, app: &App, taken: Option<Uuid>) {
        if let Some(taken) = taken {
            limits::give_back(app, self.principal.tenant, taken).await;
        }
    }

    fn caller(&self, app: &'a Arc<App>) -> CallContext<'a> {
        CallContext {
            app,
            principal: self.principal,
            agent: self.toolset.agent(),
            run: self.run,
            line: self.line,
            is_recorded: self.is_recorded,
        }
    }
}

/// Stores the call until an approver decides. The result tells the model at once that the call waits.
async fn request_approval(
    app: &Arc<App>,
    call: &Call<'_>,
    request: approvals::ApprovalRequest<'_>,
) -> ToolResult {
    let requested = match approvals::request(app, request).await {
        Ok(requested) => requested,
        Err(error) => {
            log_internal(&error);
            return deny(
                app,
                call,
                format!("not executed: this call needs approval, and {error}").into(),
            );
        }
    };
    let approvals::Requested {
        approval,
        begins_with,
        equal_elsewhere,
    } = requested;
    let equal = equal_elsewhere.map(|code| {
        format!(" An equal request of the user, {code}, waits in another conversation; say so.")
    });
    let (text, advice) = approvals::waiting_text(&approval, begins_with);
    ToolResult {
        advice: Some(advice.to_owned() + &equal.unwrap_or_default()),
        approval: Some(approval.id),
        ..counted_result(call.call_id, CallStatus::AwaitingApproval, text)
    }
}

/// The connection of a call, or why there is none.
async fn find_destination(
    app: &Arc<App>,
    call: &Call<'_>,
    spec: &Arc<ServerSpec>,
) -> Result<Destination, String> {
    match resolve_destination(&call.caller(app), spec).await {
        Ok(Some(connection)) => Ok(connection),
        Ok(None) => Err(not_connected(spec)),
        Err(error) => Err(no_destination(call.toolset, call.principal, &error)),
    }
}

/// Why a call is not made after an error, in words that tell nothing of the program's inside. The log has the cause.
fn not_executed(error: &Error) -> String {
    log_internal(error);
    format!("not executed: {error}")
}

fn log_internal(error: &Error) {
    if let Error::Internal(_) = error {
        let error = error.with_cause();
        tracing::error!(error, "a call is not made because of an internal error");
    }
}

/// Refuses a call that may change something unless its server, where changed tools are held, lists the tool as somebody
/// accepted it. A list older than a minute is asked for again first: who changes a tool behind somebody's back announces
/// nothing.
async fn require_accepted(
    app: &Arc<App>,
    call: &Call<'_>,
    spec: &ServerSpec,
    named: &NamedTool,
    destination: &Destination,
) -> Result<(), String> {
    let caller = call.caller(app);
    if spec.pin != Pin::Hold || !spec.is_pinned() || named.tool.is_read_only() {
        return Ok(());
    }
    let (tool, server) = (&named.tool.name, spec.id.as_str());
    let listed = destination.find_tool(&caller, spec, tool, SHORTEST_FRESH);
    let listed = listed.await.map_err(|error| {
        format!(
            "not executed: nothing was sent, because it cannot be seen whether {server} has changed the tool {tool:?}: \
             {error}; try again later"
        )
    })?;
    let Some(listed) = listed else {
        return Err(format!(
            "not executed: {server} does not have the tool {tool:?} any more"
        ));
    };
    let found = pins::find_hold(app, call.principal.tenant, caller.agent, spec, &listed).await;
    match found {
        Ok(None) => Ok(()),
        Ok(Some(held)) => Err(format!("not executed: {}", held_back(server, tool, &held))),
        Err(error) => Err(not_executed(&error)),
    }
}

/// Why a call has no connection, for the model and for its user.
fn no_destination(toolset: &Toolset, principal: &Principal, error: &Error) -> String {
    log_internal(error);
    let texts = texts::of(toolset.pack(), principal);
    format!("not executed: {}", texts.explain(error))
}

fn not_connected(spec: &ServerSpec) -> String {
    format!(
        "not executed: {0} is not connected; type /connect {0}",
        spec.id
    )
}

/// The maximum length in characters of an unknown name in a message.
const MAX_NAME: usize = 128;

/// Why a call is not made, for the model and for people.
struct Refused {
    text: String,
    why: Option<Refusal>,
}

impl From<String> for Refused {
    fn from(text: String) -> Self {
        Self { text, why: None }
    }
}

impl Refused {
    fn by_rule(rule: &DenyRule) -> Self {
        format!("not executed: a rule forbids this call: {}", rule.reason).into()
    }

    fn unfit(problem: impl Display) -> Self {
        Self {
            text: format!("not executed: {problem}"),
            why: Some(Refusal::UnfitArguments),
        }
    }
}

/// The gate's own checks, in order. Returns the decision before limits are looked at, and the arguments as they are judged
/// and sent.
async fn admit<'s>(
    app: &App,
    call: &Call<'_>,
    spec: &'s ServerSpec,
    named: &'s NamedTool,
) -> Result<(Decision<'s>, Json), Refused> {
    let tool = &named.tool.name;
    // A denied caller must learn nothing about the arguments.
    if !is_offered(spec, call.toolset.access(), tool) {
        return Err(unknown_tool(app, call).into());
    }
    let arguments = call.arguments.as_ref().map_err(|_| {
        Refused::unfit(
            "the arguments are not valid JSON; send one JSON object that fits the tool's schema",
        )
    })?;
    if arguments.as_object().is_none() {
        return Err(Refused::unfit("the arguments must be one JSON object"));
    }
    let arguments = use_own_names(spec, named, arguments.clone());
    if spec.is_guarded(tool) {
        let schema = named.schema().await.map_err(Refused::unfit)?;
        let ambiguity = call.ambiguity.map(str::to_owned);
        let vars = &call.toolset.pack().vars;
        let ambiguity =
            ambiguity.or_else(|| spec.find_ambiguity(tool, Some(schema), &arguments, vars));
        if let Some(why) = ambiguity {
            return Err(Refused::unfit(format!(
                "a call that rules of the pack look at must be clear beyond doubt, and {why}"
            )));
        }
    }
    // What rules have judged is what is sent.
    let arguments = fill_in(spec, named, arguments);
    let decision = call.asked().decide(app, spec, named, &arguments);
    let arguments = if matches!(decision, Decision::Approve(_)) {
        canonical::with_defaults(&named.tool.input_schema, arguments)
    } else {
        arguments
    };
    let checked = named.check(&arguments).await;
    checked.map_err(|problems| {
        Refused::unfit(format!("the arguments do not fit the tool: {problems}"))
    })?;
    Ok((decision, arguments))
}

/// Gives arguments of the built-in server the names that its tools and the rules about them have.
fn use_own_names(spec: &ServerSpec, named: &NamedTool, mut arguments: Json) -> Json {
    if orchestrator::is_built_in(spec) {
        orchestrator::use_own_arguments(&named.tool.name, &mut arguments);
    }
    arguments
}

/// Puts the defaults of the tool's schema into arguments that conditions look into.
fn fill_in(spec: &ServerSpec, named: &NamedTool, arguments: Json) -> Json {
    if spec.has_conditions(&named.tool.name) {
        canonical::with_defaults(&named.tool.input_schema, arguments)
    } else {
        arguments
    }
}

/// The answer for an unknown tool. It is the same for a missing tool and for one that the principal may not see,
/// unless the reason is no secret.
fn unknown_tool(app: &App, call: &Call<'_>) -> String {
    let pair = match call.target {
        CallTarget::Name(name) => call
            .toolset
            .pair_of(name)
            .map(|(server, tool)| (server.to_owned(), tool.to_owned())),
        CallTarget::Pair { server, tool } => Some((
            truncate_text(server, MAX_NAME),
            truncate_text(tool, MAX_NAME),
        )),
    };
    if let Some(obstacle) = pair.as_ref().and_then(|(server, tool)| {
        let cause = |spec: &ServerSpec| app.connections.down_cause(call.principal.tenant, spec);
        call.toolset.obstacle(server, tool, cause)
    }) {
        return format!("not executed: {obstacle}");
    }
    match (&call.target, pair) {
        (CallTarget::Pair { .. }, Some((server, tool))) => {
            let name = format!("{server} {tool}");
            format!(
                "not executed: there is no tool {name:?} for you; /tools lists those that there are"
            )
        }
        (CallTarget::Name(name) | CallTarget::Pair { tool: name, .. }, _) => {
            let name = truncate_text(name, MAX_NAME);
            format!("not executed: there is no tool {name:?}; use one of the tools you were given")
        }
    }
}

fn fail(call: &Call<'_>, reason: &str) -> ToolResult {
    let text = format!("failed: {reason}");
    counted_result(call.call_id, CallStatus::Failed, text)
}

fn await_input(call: &Call<'_>) -> ToolResult {
    let text = "not finished: the server wants to know something from the user first, and they are being asked in the \
                chat";
    let advice = "do not retry and do not answer for them. You will be told the outcome.";
    ToolResult {
        advice: Some(advice.to_owned()),
        ..counted_result(call.call_id, CallStatus::AwaitingInput, text.to_owned())
    }
}

fn refuse(call: &Call<'_>, refused: Refused) -> ToolResult {
    ToolResult {
        refusal: refused.why,
        ..counted_result(call.call_id, CallStatus::Denied, refused.text)
    }
}

/// Refuses a call and writes its audit line, also for a tool that the principal may not see. When the audit queue is
/// full, the line is dropped: no call was made.
fn deny(app: &Arc<App>, call: &Call<'_>, reason: Refused) -> ToolResult {
    if call.is_recorded {
        return refuse(call, reason);
    }
    let (server, tool) = match &call.target {
        CallTarget::Name(name) => call.toolset.pair_of(name).unwrap_or(("", name)),
        CallTarget::Pair { server, tool } => (*server, *tool),
    };
    // The text comes from a model or a user: it may be long and contain characters that Postgres cannot
    // store.
    let [server, tool] =
        [server, tool].map(|name| truncate_text(name, MAX_NAME).replace('\0', "\u{fffd}"));
    let arguments = call
        .arguments
        .as_ref()
        .map_or_else(|text| (*text).to_owned(), Json::to_string);
    let context = call.caller(app);
    let row = context.audit_row("tool.call", &server, &tool, &arguments, CallStatus::Denied);
    app.audit.record(row);
    refuse(call, reason)
}
