//! The way of an approved call: claim, check, start, send, finish. [`execute`] holds all of it. A request that ends without
//! a call is ended by [`withdraw`], [`expire`], [`lapse`] or [`give_up`], which the sweep of `scheduler::approvals` calls.
//!
//! A request is claimed with a lease and a fence while nothing has been sent. Everything that was true when the call
//! was requested is checked again. The request is marked as executing before the first byte is sent, and ended once.
//! The call passes the gate's `Permit` like any other call, and is sent once, with the arguments that were approved.
//!
//! A process that has lost the lease changes nothing: its answer is kept as evidence beside an outcome that stays
//! unknown.

use std::{convert::Infallible, sync::Arc, time::Duration};

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, field, field::Empty};

use crate::app::{
    App,
    platform::{keys::OpenError, leases, replicas},
    servers::{
        agents, connections,
        credentials::{self, ResolvedConnection},
        pins, run_values,
    },
    tools::{
        approvals::{
            AuditedStep, audit, client_calls, context, decision, delivery, name_of,
            notify_listeners, publish_outcome, served_packs,
        },
        gate::{
            limits,
            send::{ApprovedPermit, CallContext, Destination, Permit, resolve_destination},
        },
    },
};
use domain::{
    approval::{Approval, ApprovalRule, State},
    audit::SYSTEM,
    canonical, elicitation,
    error::{Error, ErrorCode, Result},
    hidden::one_line,
    ids::{ApprovalId, AuditId, ServerId, TenantId, UserId},
    json::Json,
    message::{CallStatus, ToolResult},
    pack::Pack,
    policy::{self, CallFacts, CallUsage, Decision, EffectiveAccess, LimitedCall, decide},
    principal::Principal,
    resource,
    server::{AccessMode, ServerSpec},
    tool::Tool,
    trace_context::TRACES,
};
use mcp::{CallError, CallOptions, Key, schemas};
use store::{
    approvals::{Transition, TransitionGuard},
    audit::AuditRow,
    call_limits,
};

/// Pause before an unreachable server is tried again, until the request lapses.
const PAUSE: Duration = Duration::from_secs(5);

/// When to vote again for a call whose rules are not known.
const RULES_KNOWN_AFTER: Duration = Duration::from_secs(60);

/// Why an approved call is not made when a vote for it no longer counts.
const VOTES_GONE: &str = "not enough of those who approved it may still do so: somebody was signed out, blocked or deleted, or lost the \
     role; ask again";

/// Why an approved call is not made when the tool has changed in what no model reads.
const CHANGED: &str =
    "its server has changed the tool, and nobody has accepted that yet; ask again";

const UNREADABLE: &str = "its arguments cannot be opened any more";

/// The most characters of a late answer that are kept as evidence.
const EVIDENCE: usize = 2000;

/// The most characters of the reason of a failure.
const MAX_REASON: usize = 200;

/// An approved request that this process has claimed for execution, under a lease and a fence. Only [`claim`] makes
/// one.
pub struct Claimed {
    approval: Approval,
    /// The id of the call's line in the audit trail.
    audit_id: AuditId,
}

impl Claimed {
    pub fn audit_id(&self) -> AuditId {
        self.audit_id
    }
}

impl std::ops::Deref for Claimed {
    type Target = Approval;

    fn deref(&self) -> &Approval {
        &self.approval
    }
}

/// Executes an approved request, if it is free: claims it, checks it, sends its call once, and writes the outcome.
/// Each step is a function of its own below, in this order.
pub async fn execute(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<()> {
    let Some(approval) = claim(app, tenant, id).await? else {
        return withdraw(app, tenant, id).await.map(|_| ());
    };
    let span = Span::current();
    if let (Some(run), Some(conversation)) = (approval.run, approval.conversation) {
        span.record("run", field::display(run));
        span.record("conversation", field::display(conversation));
    }
    let traced = span_of(&approval);
    Box::pin(send_claimed(app, &approval))
        .instrument(traced)
        .await
}

/// The span of an approved call in the trace of its request.
fn span_of(approval: &Approval) -> Span {
    // The span of the task, which has to say in the log for whom the work is, has begun before the trace was known.
    let span = tracing::error_span!(
        target: TRACES,
        "approved call",
        tenant = %approval.tenant,
        conversation = approval.conversation.map(field::display),
        run = approval.run.map(field::display),
        approval = %approval.id,
        server = %approval.server,
        tool = approval.tool,
        trace_id = Empty,
        span_id = Empty,
    );
    telemetry::join(&span, approval.trace.as_ref());
    span
}

/// Checks a claimed call, sends it once, and writes the outcome.
async fn send_claimed(app: &Arc<App>, approval: &Claimed) -> Result<()> {
    let cancel = CancellationToken::new();
    let result = tokio::select! {
        result = check_and_send(app, approval, cancel.clone()) => result?,
        never = hold_lease(app, approval, &cancel) => match never {},
    };
    let Some(result) = result else { return Ok(()) };
    // The call was made, so its outcome is written even if the database is unreachable for a while.
    let mut pause = Duration::from_millis(100);
    loop {
        match finish(app, approval, &result).await {
            Err(error) if error.is_passing() && pause < app.config.run_lease => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            finished => return finished,
        }
    }
}

/// Holds the lease while the call goes on. When the lease is lost, the call continues: its answer is evidence. A
/// process that stops waits for the call for a while and then cancels it.
async fn hold_lease(app: &App, approval: &Claimed, cancel: &CancellationToken) -> Infallible {
    let end = leases::renew_until_lost(app, "approval", || async move {
        if heartbeat(app, approval).await? {
            Ok(())
        } else {
            Err(Error::conflict(ErrorCode::Conflict, "the lease was lost"))
        }
    });
    match end.await {
        leases::LeaseEnd::Stopped => cancel.cancel(),
        leases::LeaseEnd::Lost => {
            tracing::warn!("the lease of an approved call was lost");
        }
    }
    std::future::pending().await
}

/// Claims an approved request for execution; `None` when it is not free.
pub async fn claim(app: &App, tenant: TenantId, id: ApprovalId) -> Result<Option<Claimed>> {
    let mut tx = app.db.tenant(tenant).await?;
    let claimed = store::approvals::claim(&mut tx, id, app.replica, app.config.run_lease).await?;
    tx.commit().await?;
    Ok(claimed.map(|approval| Claimed {
        approval,
        audit_id: AuditId::new(),
    }))
}

/// Prolongs the lease; `false` when it was lost.
pub async fn heartbeat(app: &App, approval: &Claimed) -> Result<bool> {
    let mut tx = app.db.tenant(approval.tenant).await?;
    let held = store::approvals::heartbeat(&mut tx, approval, app.config.run_lease).await?;
    tx.commit().await?;
    Ok(held)
}

/// Checks a claimed call again and sends it once; `None` when it was not sent, and the row says why.
async fn check_and_send(
    app: &Arc<App>,
    approval: &Claimed,
    cancel: CancellationToken,
) -> Result<Option<ToolResult>> {
    let prepared = match prepare(app, approval).await {
        Ok(prepared) => prepared,
        Err(NotSent::Revoked(reason)) => {
            revoke(app, approval, &reason).await?;
            return Ok(None);
        }
        Err(NotSent::Later) => {
            postpone(app, approval).await?;
            return Ok(None);
        }
    };
    let PreparedCall {
        permitted,
        destination,
        arguments,
    } = prepared;
    let context = call_context(app, approval);
    let permit = match Permit::approved(context, approval, &permitted, destination).await? {
        ApprovedPermit::Granted(permit) => permit,
        ApprovedPermit::Withdrawn(reason) => {
            revoke(app, approval, &reason).await?;
            return Ok(None);
        }
    };
    let options = CallOptions {
        cancel,
        idempotency_key: Some(approval.id.to_string()),
        ..CallOptions::default()
    };
    let answer = permit.call(&approval.tool, &arguments, options).await;
    if permitted.spec.has_limits(&approval.tool) && answer.as_ref().is_err_and(CallError::is_unsent)
    {
        limits::give_back(app, approval.tenant, approval.id.0).await;
    }
    Ok(Some(permit.into_result(&approval.call_id, answer)))
}

/// Why an approved call is not sent.
enum NotSent {
    /// It is no longer the call that was approved, so it is never sent.
    Revoked(String),
    /// It cannot be sent now, and is tried again later.
    Later,
}

impl From<Error> for NotSent {
    /// Nothing was sent, so a failure of the program is tried again. A call whose arguments are damaged is never sent.
    fn from(error: Error) -> Self {
        if let Error::Conflict(ErrorCode::ArgumentsUnreadable, why) = error {
            return Self::Revoked(why);
        }
        tracing::warn!(error = error.with_cause(), "an approved call is put off");
        Self::Later
    }
}

/// A call that was checked, and its destination.
struct PreparedCall {
    permitted: Box<PermittedCall>,
    destination: Destination,
    arguments: Box<RawValue>,
}

/// Checks everything that was true when the call was requested: the requester's rights, the policy, the credential,
/// and the tool as its server describes it now.
async fn prepare(app: &Arc<App>, approval: &Claimed) -> Result<PreparedCall, NotSent> {
    if approval.withdrawn_by.is_some() {
        return Err(NotSent::Revoked(approval.withdrawn_reason().to_owned()));
    }
    replicas::refresh_policies(app).await?;
    let permitted = match permitted_server(app, approval).await? {
        Recheck::Permitted(permitted) => permitted,
        Recheck::Outdated(reason) => return Err(NotSent::Revoked(reason)),
        Recheck::RulesUnknown => {
            tracing::info!("an approved call is put off: the rules of a replica are not known");
            return Err(NotSent::Later);
        }
    };
    let spec = permitted.spec.clone();
    let destination = find_destination(app, approval, &spec).await?;
    let listed = list_tool(app, approval, &spec, &destination).await?;
    let tool = find_same_tool(listed.as_slice(), approval).map_err(NotSent::Revoked)?;
    let held = pins::find_hold(app, approval.tenant, &approval.agent, &spec, tool).await?;
    if held.is_some() {
        return Err(NotSent::Revoked(CHANGED.to_owned()));
    }
    let arguments = open_arguments(app, approval).await?;
    // It may have been asked for before the gate looked at this.
    let schema = schemas::compile(tool.clone())
        .await
        .map_err(NotSent::Revoked)?;
    let given = Json::parse(arguments.get()).unwrap_or(Json::Null);
    if let Some(why) = spec.find_ambiguity(&tool.name, Some(&schema), &given, &permitted.pack.vars)
    {
        let reason = format!("its arguments are not clear beyond doubt: {why}");
        return Err(NotSent::Revoked(reason));
    }
    // Its server may have taken its time to list its tools.
    let now = app.packs.get(&approval.agent);
    if now.is_none_or(|now| now.version != permitted.pack.version) {
        return Err(NotSent::Later);
    }
    Ok(PreparedCall {
        permitted,
        destination,
        arguments,
    })
}

/// A call that may still be made, by the roles and claims of now.
pub struct PermittedCall {
    spec: Arc<ServerSpec>,
    pack: Arc<Pack>,
    principal: Principal,
    access: EffectiveAccess,
    /// Empty unless rules look into them.
    arguments: Json,
}

/// Whether a request still matches the call that was requested. A change since then revokes the request, because the
/// approvers did not consent to the change.
pub enum Recheck {
    Permitted(Box<PermittedCall>),
    /// The call must not be made, for this reason.
    Outdated(String),
    /// A replica has rules that this one cannot read, so it cannot be said now.
    RulesUnknown,
}

/// Finds the server of a request in today's pack, with the values of the run that made the request, and checks that
/// the requester may still call the tool by their newest claims.
pub async fn permitted_server(app: &App, approval: &Approval) -> Result<Recheck> {
    let outdated = |reason: &str| Ok(Recheck::Outdated(reason.to_owned()));
    let principal = match app.accounts.current(approval.as_act()).await? {
        Ok(principal) => principal,
        Err(end) => return outdated(end.reason()),
    };
    let pack = match agents::pack(app, &principal, approval.agent.as_str()).await {
        Ok(pack) => pack,
        Err(Error::Suspended(_)) => return outdated("its tenant is suspended"),
        Err(Error::NotFound(_) | Error::Forbidden(_)) => {
            return outdated("its requester may not talk to the agent any more");
        }
        Err(error) => return Err(error),
    };
    let pack = match (approval.run, approval.conversation) {
        (Some(run), Some(session)) => {
            match run_values::pack_for_run(app, approval.tenant, run, session, pack).await {
                Ok(pack) => pack,
                Err(Error::NotFound(_)) => {
                    return outdated("the run that asked for it is gone");
                }
                Err(error) => return Err(error),
            }
        }
        _ => pack,
    };
    let servers = &mut pack.servers.iter();
    let Some(spec) = servers.find(|server| server.id == approval.server) else {
        return outdated("the agent does not have the server any more");
    };
    if spec.elsewhere.is_unknown {
        return Ok(Recheck::RulesUnknown);
    }
    // Only conditions look into the arguments.
    let arguments = if spec.has_conditions(&approval.tool) {
        let arguments = open_arguments(app, approval).await?;
        Json::parse(arguments.get()).unwrap_or(Json::Null)
    } else {
        Json::Null
    };
    let permitted = PermittedCall::new(pack.clone(), principal, spec, arguments);
    let exceeded = {
        let usage = permitted.usage(app, approval);
        if usage.sums.is_empty() {
            Vec::new()
        } else {
            let mut tx = app.db.tenant(approval.tenant).await?;
            usage.list_exceeded(&call_limits::read(&mut tx, &usage.sums).await?)
        }
    };
    Ok(match permitted.find_change(app, approval, &exceeded) {
        Some(reason) => Recheck::Outdated(reason),
        None => Recheck::Permitted(Box::new(permitted)),
    })
}

impl PermittedCall {
    pub fn new(
        pack: Arc<Pack>,
        principal: Principal,
        server: &ServerSpec,
        arguments: Json,
    ) -> Self {
        Self {
            spec: Arc::new(server.clone()),
            access: principal.access(&pack),
            principal,
            pack,
            arguments,
        }
    }

    pub fn spec(&self) -> &Arc<ServerSpec> {
        &self.spec
    }

    fn facts<'f>(&'f self, app: &App, approval: &Approval, exceeded: &'f [usize]) -> CallFacts<'f> {
        CallFacts {
            arguments: &self.arguments,
            claims: &self.principal.claims,
            origin: approval.origin,
            now: app.clock.now(),
            vars: &self.pack.vars,
            exceeded,
            only_reads: false,
        }
    }

    /// The limits that the call counts for.
    fn usage(&self, app: &App, approval: &Approval) -> CallUsage<'_> {
        let call = LimitedCall {
            agent: &approval.agent,
            server: &approval.server,
            tool: &approval.tool,
            user: approval.requester(),
            who: &self.access,
        };
        CallUsage::new(&self.spec, &call, &self.facts(app, approval, &[]))
    }

    /// Why it is not the call any more that was approved.
    fn find_change(&self, app: &App, approval: &Approval, exceeded: &[usize]) -> Option<String> {
        let facts = self.facts(app, approval, exceeded);
        match decide(&self.spec, &self.access, &approval.tool, &facts) {
            Decision::Deny(_) => Some("its requester may not use the tool any more".to_owned()),
            Decision::Refuse(rule) => Some(format!("a rule forbids the call now: {}", rule.reason)),
            // Who has the consent of others need not confirm the call as well.
            Decision::Approve(policy) if policy.is_confirmation() => None,
            Decision::Approve(policy) if ApprovalRule::from(policy) != approval.rule => {
                Some("who has to approve it has changed; ask again".to_owned())
            }
            Decision::Approve(_) | Decision::Allow(_) => None,
        }
    }
}

/// The connection of the call, with the credential with which its requester asked.
async fn find_destination(
    app: &Arc<App>,
    approval: &Approval,
    spec: &Arc<ServerSpec>,
) -> Result<Destination, NotSent> {
    let changed =
        || NotSent::Revoked("its requester's credential has changed; ask again".to_owned());
    let gone = || NotSent::Revoked("the run that asked for it is gone".to_owned());
    let is_built_in = app.orchestrator.is(spec);
    if is_built_in && approval.run.is_none() {
        return Err(gone());
    }
    let destination = match resolve_destination(&call_context(app, approval), spec).await {
        Ok(destination) => destination.ok_or_else(changed)?,
        Err(Error::NotFound(_)) if is_built_in => return Err(gone()),
        Err(error) => return Err(error.into()),
    };
    if destination.credential() == approval.credential {
        Ok(destination)
    } else {
        Err(changed())
    }
}

/// The tool of a request as its server lists it now. Listing may be repeated, and shows whether the session is alive, so that
/// the call itself need not be the first to try it.
async fn list_tool(
    app: &Arc<App>,
    approval: &Approval,
    spec: &ServerSpec,
    destination: &Destination,
) -> Result<Option<Arc<Tool>>, NotSent> {
    let caller = call_context(app, approval);
    let listed = destination.find_tool(&caller, spec, &approval.tool, Duration::ZERO);
    match listed.await {
        Ok(tool) => Ok(tool),
        Err(error) if error.is_credential_refused() => Err(NotSent::Revoked(
            "the server does not accept the credential any more".to_owned(),
        )),
        Err(error) => {
            tracing::info!(
                error = error.to_string(),
                "the server of an approved call cannot be reached"
            );
            Err(NotSent::Later)
        }
    }
}

/// The tool of a request, if the server still describes it as it did when the call was requested.
fn find_same_tool<'t>(
    tools: &'t [Arc<Tool>],
    approval: &Approval,
) -> Result<&'t Arc<Tool>, String> {
    let tool = tools.iter().find(|tool| tool.name == approval.tool);
    let tool = tool.ok_or_else(|| "its server does not have the tool any more".to_owned())?;
    if canonical::fingerprint(tool).ok() == Some(approval.fingerprint) {
        Ok(tool)
    } else {
        Err("its server describes the tool differently now; ask again".to_owned())
    }
}

/// The arguments that were approved, to the byte: canonical JSON, whose hash the approvers saw. `ArgumentsUnreadable` when
/// what is stored of them is damaged: a request with such arguments can be rejected, and is not approved.
pub async fn open_arguments(app: &App, approval: &Approval) -> Result<Box<RawValue>> {
    let sealed_for = context(
        &approval.principal,
        &approval.agent,
        &approval.server,
        approval.id,
    );
    let damaged = || Error::conflict(ErrorCode::ArgumentsUnreadable, UNREADABLE);
    let keys = &app.keys;
    let opened = match keys
        .open(approval.tenant, &sealed_for, &approval.sealed)
        .await
    {
        Ok(opened) if canonical::hash(opened.expose()) == approval.args_sha256 => opened,
        Ok(_) => return Err(damaged()),
        Err(OpenError::Unopenable(why)) => {
            tracing::error!(approval = %approval.id, %why, "the arguments of a request cannot be opened");
            return Err(damaged());
        }
        Err(OpenError::Failed(error)) => return Err(error),
    };
    RawValue::from_string(opened.expose().to_owned()).map_err(Error::internal)
}

/// Marks a request as executing, in one transaction with the audit line of its call, before the first byte is sent.
/// Returns why the call must not be sent, if the request was taken back meanwhile or has too few votes that count.
/// What it adds to limits is taken then. `Conflict` when the lease was lost.
pub async fn start(
    app: &App,
    approval: &Claimed,
    permitted: &PermittedCall,
    line: &AuditRow,
) -> Result<Option<String>> {
    let packs = served_packs(app, approval.tenant).await?;
    let mut tx = app.db.tenant(approval.tenant).await?;
    let started = store::approvals::change(
        &mut tx,
        approval.id,
        &transition_held(approval, State::Executing, None),
    )
    .await?;
    let Some(started) = started else {
        let now = store::approvals::get(&mut tx, approval.id).await?;
        let withdrawn = now.filter(|now| {
            now.fence == approval.fence
                && now.state == State::Approved
                && now.withdrawn_by.is_some()
        });
        return match withdrawn {
            Some(now) => Ok(Some(now.withdrawn_reason().to_owned())),
            None => Err(lease_lost(approval)),
        };
    };
    if !decision::is_approved(&mut tx, &packs, &started).await? {
        return Ok(Some(VOTES_GONE.to_owned()));
    }
    let usage = permitted.usage(app, approval);
    if !usage.sums.is_empty() {
        call_limits::lock(&mut tx, &usage.sums).await?;
        let exceeded = usage.list_exceeded(&call_limits::read(&mut tx, &usage.sums).await?);
        if let Some(reason) = permitted.find_change(app, approval, &exceeded) {
            return Ok(Some(reason));
        }
        call_limits::take(&mut tx, approval.id.0, &usage.sums).await?;
    }
    let step = AuditedStep::new("approval.executing", approval.requester());
    audit(app, &mut tx, &started, step).await?;
    store::audit::insert(&mut tx, approval.tenant, std::slice::from_ref(line)).await?;
    tx.commit().await?;
    notify_listeners(app, &started);
    Ok(None)
}

fn call_context<'a>(app: &'a Arc<App>, approval: &'a Approval) -> CallContext<'a> {
    CallContext {
        app,
        principal: &approval.principal,
        agent: &approval.agent,
        run: approval.run,
        line: None,
        is_recorded: true,
    }
}

/// Writes the outcome of the call and delivers it. When the request was given up meanwhile, the answer is kept as
/// evidence.
pub async fn finish(app: &Arc<App>, approval: &Claimed, result: &ToolResult) -> Result<()> {
    let failure = failure_line(&approval.server, result);
    let (to, reason) = match result.status {
        CallStatus::Succeeded => (State::Succeeded, None),
        CallStatus::OutcomeUnknown => (State::OutcomeUnknown, Some(result.text.as_str())),
        _ => (State::Failed, failure.as_deref()),
    };
    let mut tx = app.db.tenant(approval.tenant).await?;
    store::audit::record_outcome(&mut tx, approval.audit_id, result.status.into_str()).await?;
    let Some(ended) =
        store::approvals::change(&mut tx, approval.id, &transition_held(approval, to, reason))
            .await?
    else {
        drop(tx);
        return keep_evidence(app, approval, result).await;
    };
    let delivered = delivery::deliver(app, &mut tx, &ended, Some(result)).await?;
    if ended.run.is_none() && ended.conversation.is_none() {
        client_calls::keep_result(&mut tx, ended.id, result).await?;
    }
    // A delivered outcome means that the conversation exists and is locked.
    if let (Some(_), Some(session), Some(raw)) = (&delivered, ended.conversation, &result.raw) {
        let (server, links) = (ended.server.as_str(), resource::links_in(raw));
        store::resources::insert(&mut tx, ended.tenant, session, server, &ended.tool, &links)
            .await?;
    }
    let step = AuditedStep::new("approval.executed", approval.requester());
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    publish_outcome(app, &ended, delivered);
    Ok(())
}

/// The first line of a failure, for people who do not read the result. A server's own words are quoted behind its
/// name, so that they cannot pass for the program's.
fn failure_line(server: &ServerId, result: &ToolResult) -> Option<String> {
    let mut lines = result
        .text
        .lines()
        .map(|line| elicitation::readable(line, MAX_REASON));
    let line = lines.find(|line| !line.is_empty())?;
    if result.raw.is_none() {
        return Some(line);
    }
    Some(format!("{server}: “{}”", line.replace(['“', '”'], "\"")))
}

async fn keep_evidence(app: &App, approval: &Approval, result: &ToolResult) -> Result<()> {
    let status = if result.status == CallStatus::Succeeded {
        "succeeded"
    } else {
        "did not succeed"
    };
    let text = one_line(&result.text, EVIDENCE);
    let mut tx = app.db.tenant(approval.tenant).await?;
    let evidence = format!("a late answer says that it {status}: {text}");
    let Some(noted) = store::approvals::add_evidence(&mut tx, approval.id, &evidence).await? else {
        return Ok(());
    };
    let why = format!("a late answer says that it {status}");
    let step = AuditedStep::new("approval.evidence", approval.requester()).because(Some(&why));
    audit(app, &mut tx, &noted, step).await?;
    tx.commit().await?;
    notify_listeners(app, &noted);
    Ok(())
}

/// Why a pending request must no longer be approved. The server is asked only when its known catalog differs from the
/// request; the execution always asks it.
pub(super) async fn find_obstacle(app: &Arc<App>, approval: &Approval) -> Result<Option<String>> {
    let spec = match permitted_server(app, approval).await? {
        Recheck::Permitted(permitted) => permitted.spec,
        Recheck::Outdated(reason) => return Ok(Some(reason)),
        Recheck::RulesUnknown => {
            return Err(Error::Busy {
                reason: policy::RULES_UNKNOWN.to_owned(),
                retry_after: RULES_KNOWN_AFTER,
            });
        }
    };
    if spec.access_mode == AccessMode::UserControlled {
        let connection =
            credentials::resolve_connection(app, &approval.principal, &approval.agent, &spec)
                .await?;
        let held = connection.map(|connection| credential_of(&connection));
        let changed = held.as_deref() != Some(&approval.credential);
        return Ok(changed.then(|| "its requester's credential has changed; ask again".to_owned()));
    }
    if app.orchestrator.is(&spec) {
        return Ok(None);
    }
    let known = app
        .connections
        .catalog(approval.tenant, &approval.agent, &spec);
    if known.is_none_or(|catalog| find_same_tool(&catalog.tools, approval).is_ok()) {
        return Ok(None);
    }
    // The known catalog may be older than the request. A server that does not answer now is asked again before the
    // call.
    let key = connections::shared_key(approval.tenant, &spec);
    let asked = app.mcp.discover(&key, &spec).await;
    Ok(asked
        .ok()
        .and_then(|discovery| find_same_tool(&discovery.tools, approval).err()))
}

/// What goes out with a call over a connection: another credential, another generation or other values of a run give
/// another text.
pub fn credential_of(connection: &ResolvedConnection) -> String {
    match (&connection.key, &connection.spec.run_config) {
        (Key::Personal(credential), _) => format!("{}/{}", credential.id, credential.generation),
        (Key::Shared(_), Some(digest)) => format!("run-{}/0", hex::encode(digest)),
        (Key::Shared(_), None) => "/0".to_owned(),
    }
}

/// Ends a claimed request whose call is no longer the approved one; the call is not made.
pub async fn revoke(app: &Arc<App>, approval: &Claimed, reason: &str) -> Result<()> {
    settle(
        app,
        approval.tenant,
        approval.id,
        transition_held(approval, State::Revoked, Some(reason)),
        "approval.revoked",
    )
    .await?;
    Ok(())
}

/// Gives a claimed request back, because its call cannot be sent now. It was not sent, so it is tried again a little
/// later.
pub async fn postpone(app: &App, approval: &Claimed) -> Result<()> {
    let mut tx = app.db.tenant(approval.tenant).await?;
    store::approvals::release(&mut tx, approval, PAUSE).await?;
    tx.commit().await
}

/// Ends a request that was taken back; it could not be approved since that moment anyhow. `false` when it was not
/// taken back or has ended already.
pub async fn withdraw(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    let mut tx = app.db.tenant(tenant).await?;
    store::approvals::lock(&mut tx, id).await?;
    let approval = store::approvals::get(&mut tx, id).await?;
    let approval = approval.filter(|it| it.state == State::Pending);
    let withdrawn = approval.and_then(|it| it.withdrawn_by.clone().map(|by| (it, by)));
    let Some((approval, by)) = withdrawn else {
        return Ok(false);
    };
    // A stopped run takes its request back; an ended session revokes it.
    let (to, action) = match approval.withdrawn_cause {
        None => (State::Cancelled, "approval.cancelled"),
        Some(_) => (State::Revoked, "approval.revoked"),
    };
    let name = name_of(&approval, &by);
    let change = Transition {
        by: Some((&by, name.as_str())).filter(|_| to == State::Cancelled),
        reason: Some(approval.withdrawn_reason()),
        ..transition_when(State::Pending, to, TransitionGuard::Locked)
    };
    let Some(ended) = store::approvals::change(&mut tx, id, &change).await? else {
        return Ok(false);
    };
    let delivered = delivery::deliver(app, &mut tx, &ended, None).await?;
    let step = AuditedStep::new(action, &by).because(change.reason);
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    tracing::info!(
        %tenant,
        conversation = ended.conversation.map(field::display),
        run = ended.run.map(field::display),
        approval = %id,
        state = ended.state.into_str(),
        "a request for consent has ended without a decision or an answer"
    );
    publish_outcome(app, &ended, delivered);
    Ok(true)
}

/// Ends a request that was not decided in time; it could not be approved since its expiry anyhow.
pub async fn expire(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    settle(
        app,
        tenant,
        id,
        transition_when(State::Pending, State::Expired, TransitionGuard::Overdue),
        "approval.expired",
    )
    .await
}

/// Ends an approved request whose call could not be sent in time; `false` when time is left.
pub async fn lapse(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    settle(
        app,
        tenant,
        id,
        transition_when(State::Approved, State::Lapsed, TransitionGuard::Stale),
        "approval.lapsed",
    )
    .await
}

/// Ends a request whose executor is dead. The call may have been sent, so it is never sent again.
pub async fn give_up(app: &Arc<App>, tenant: TenantId, id: ApprovalId) -> Result<bool> {
    settle(
        app,
        tenant,
        id,
        transition_when(
            State::Executing,
            State::OutcomeUnknown,
            TransitionGuard::Lost,
        ),
        "approval.executed",
    )
    .await
}

async fn settle(
    app: &Arc<App>,
    tenant: TenantId,
    id: ApprovalId,
    change: Transition<'_>,
    action: &'static str,
) -> Result<bool> {
    let mut tx = app.db.tenant(tenant).await?;
    let Some(ended) = store::approvals::change(&mut tx, id, &change).await? else {
        return Ok(false);
    };
    let delivered = delivery::deliver(app, &mut tx, &ended, None).await?;
    let program = UserId(SYSTEM.into());
    let step = AuditedStep::new(action, &program).because(change.reason);
    audit(app, &mut tx, &ended, step).await?;
    tx.commit().await?;
    publish_outcome(app, &ended, delivered);
    Ok(true)
}

fn transition_when(from: State, to: State, when: TransitionGuard) -> Transition<'static> {
    Transition {
        from,
        to,
        when,
        reason: None,
        by: None,
        window: Duration::ZERO,
    }
}

fn transition_held<'a>(approval: &Approval, to: State, reason: Option<&'a str>) -> Transition<'a> {
    let from = if matches!(to, State::Executing | State::Revoked) {
        State::Approved
    } else {
        State::Executing
    };
    Transition {
        from,
        to,
        when: TransitionGuard::Held(approval.fence),
        reason,
        by: None,
        window: Duration::ZERO,
    }
}

fn lease_lost(approval: &Approval) -> Error {
    Error::conflict(
        ErrorCode::Conflict,
        format!("approval {} is no longer held by this replica", approval.id),
    )
}
