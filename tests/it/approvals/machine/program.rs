//! The real thing: the program's own functions on a real Postgres, with nobody else at work. No job sweeps or
//! executes; the steps of a test do.

use std::{sync::Arc, time::Duration};

use chatelaine::app::{
    App, Background,
    accounts::add_tenant,
    platform::keys,
    tools::approvals::{
        self, ApprovalRequest, Ballot, Requested,
        execution::{self, Claimed, PermittedCall},
    },
};
use domain::{
    approval::{Approval, State},
    clock::Clock,
    config::{Config, Environment},
    error::{Error, Result},
    ids::{AgentId, ApprovalId, RunId, ServerId, TenantId, UserId},
    json::Json,
    message::ToolResult,
    policy::{CallFacts, CallUsage, Decision, LimitedCall, Origin, decide},
    principal::{Audience, Principal},
    ring::KeyRing,
    tool::Tool,
};
use futures_util::future::join_all;
use serde_json::{Map, Value, json, value::RawValue};
use sqlx::{AssertSqlSafe, PgConnection};
use store::audit::AuditRow;
use tempfile::TempDir;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{
    OF_TENANT, OF_USER, PEOPLE, TOOLS,
    model::{Action, Answer, Call, Held, Request, View},
    pack,
};
use crate::support::db::TestDb;

/// Leases and windows end when a test says so.
const LONG: Duration = Duration::from_secs(3600);

/// Where all calls of a tenant come from: a command in a conversation. Both have the id of the tenant.
const ORIGIN: [&str; 2] = [
    "insert into conversations (tenant_id, id, agent, user_id) values ($1, $1, 'bank', 'ann')",
    "insert into runs (tenant_id, id, conversation_id, ordinal, agent, user_id, principal, kind, status)
     values ($1, $1, $1, 1, 'bank', 'ann', '{}', 'command', 'queued')",
];

/// The program, put together and not at work.
pub struct Program {
    app: Arc<App>,
    /// What would work on what the use cases leave behind.
    _idle: Background,
    test: TestDb,
    folder: TempDir,
}

impl Program {
    pub async fn new() -> Self {
        let (test, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
        let env = Environment::default();
        let config = Config {
            data: folder.path().join("data"),
            packs: folder.path().join("packs"),
            public_url: "http://chatelaine.test".to_owned(),
            ring: Some(KeyRing::parse_one(&"5e".repeat(32)).unwrap()),
            approvals_per_user: u32::try_from(OF_USER).unwrap(),
            approvals_per_tenant: u32::try_from(OF_TENANT).unwrap(),
            approval_window: LONG,
            run_lease: LONG,
            ..Config::from_environment(&env).unwrap()
        };
        write_pack(&folder, false);
        let (app, idle) = App::build(config, &env, test.db.clone()).unwrap();
        keys::replica_keys::register(&app.keys, app.replica)
            .await
            .unwrap();
        Self {
            app,
            _idle: idle,
            test,
            folder,
        }
    }

    /// Says how strict the pack is from now on.
    pub fn set_strict(&self, strict: bool) {
        write_pack(&self.folder, strict);
        self.app.packs.reload();
    }

    /// A tenant of its own for one life of requests.
    pub async fn real(&self) -> RealRequests {
        self.set_strict(false);
        let name = format!("t{}", Uuid::now_v7().simple());
        let tenant = add_tenant(&self.test.db, &Clock::System, &name, None, false)
            .await
            .unwrap()
            .id;
        let mut connection = self.test.as_tenant(tenant).await;
        for row in ORIGIN {
            sqlx::query(row)
                .bind(tenant.0)
                .execute(&mut connection)
                .await
                .unwrap();
        }
        let connection = Mutex::new(connection);
        let real = RealRequests {
            app: self.app.clone(),
            db: self.test.db.clone(),
            tenant,
            connection,
            kept: Vec::new(),
        };
        // Everybody has been seen: a vote of somebody who was not does not count.
        let mut tx = real.db.tenant(tenant).await.unwrap();
        for (at, person) in PEOPLE.iter().enumerate() {
            let roles: Vec<&str> = person.roles.iter().copied().chain(["employee"]).collect();
            let principal = real.person(at, &roles);
            store::users::put(&mut tx, &principal, None).await.unwrap();
        }
        tx.commit().await.unwrap();
        real
    }
}

fn write_pack(folder: &TempDir, strict: bool) {
    let folder = folder.path().join("packs/bank");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("agent-pack.yaml"), pack(strict)).unwrap();
}

/// One tenant, and what is remembered of its requests.
pub struct RealRequests {
    app: Arc<App>,
    db: store::Db,
    tenant: TenantId,
    connection: Mutex<PgConnection>,
    kept: Vec<Kept>,
}

struct Kept {
    id: ApprovalId,
    args_sha256: [u8; 32],
    arguments: Json,
    /// What each claim was answered, so that number `n` has the fence `n + 1`.
    claims: Vec<Claimed>,
    started: usize,
}

/// What the database holds, and the rows themselves for what must never change in them.
pub struct Seen {
    pub view: View,
    /// Of each request, what is written once and, when it is at its end, everything but what is found out later.
    pub fixed: Vec<(Value, Option<Value>)>,
}

impl RealRequests {
    fn person(&self, at: usize, roles: &[&str]) -> Principal {
        let claims: Map<String, Value> = [("roles".to_owned(), json!(roles))].into_iter().collect();
        let user = UserId(PEOPLE[at].name.into());
        Principal {
            tenant: self.tenant,
            user,
            claims: Arc::new(claims),
            locale: None,
            authenticated: true,
            key: None,
            audience: Audience::default(),
        }
    }

    /// Who they are when they decide. They ask as employees, before they were given their roles.
    fn decider(&self, at: usize) -> Principal {
        self.person(at, PEOPLE[at].roles)
    }

    pub async fn delete_conversation(&self) {
        let mut connection = self.connection.lock().await;
        sqlx::query("delete from conversations")
            .execute(&mut *connection)
            .await
            .unwrap();
    }

    pub async fn ask(&mut self, call: Call) -> Answer {
        let principal = self.person(call.by, &["employee"]);
        let (agent, server) = (
            AgentId::parse("bank").unwrap(),
            ServerId::parse("bank").unwrap(),
        );
        let pack = self.app.packs.get(&agent).unwrap();
        let (access, spec) = (principal.access(&pack), &pack.servers[0]);
        let arguments = format!(r#"{{"amount":"{}.00"}}"#, call.amount);
        let given = Json::parse(&arguments).unwrap();
        let facts = CallFacts {
            arguments: &given,
            claims: &principal.claims,
            origin: Origin::Chat,
            now: self.app.clock.now(),
            vars: &pack.vars,
            exceeded: &[],
            only_reads: false,
        };
        let limited = LimitedCall {
            agent: &agent,
            server: &server,
            tool: TOOLS[call.tool].name,
            user: &principal.user,
            who: &access,
        };
        let usage = CallUsage::new(spec, &limited, &facts);
        let mut tx = self.db.tenant(self.tenant).await.unwrap();
        let used = store::call_limits::read(&mut tx, &usage.sums).await;
        drop(tx);
        let exceeded = usage.list_exceeded(&used.unwrap());
        let facts = CallFacts {
            exceeded: &exceeded,
            ..facts
        };
        let policy = match decide(spec, &access, limited.tool, &facts) {
            Decision::Approve(policy) => policy,
            Decision::Refuse(_) => return Answer::Refused("denied"),
            other => panic!("every tool of the pack needs consent: {other:?}"),
        };
        let tool = Tool {
            name: TOOLS[call.tool].name.to_owned(),
            title: None,
            description: "Moves money.".to_owned(),
            input_schema: RawValue::from_string(r#"{"type":"object"}"#.to_owned()).unwrap(),
            output_schema: None,
            annotations: None,
            icons: None,
            meta: None,
            hash: None,
        };
        let asked = ApprovalRequest {
            principal: &principal,
            agent: &agent,
            server: &server,
            tool: &tool,
            policy,
            counts_requester: false,
            arguments: &arguments,
            credential: "/0",
            run: Some(RunId(self.tenant.0)),
            call_id: "call",
            origin: Origin::Chat,
            is_shown: false,
        };
        match approvals::request(&self.app, asked).await {
            Ok(Requested {
                approval,
                begins_with: Some(_),
                ..
            }) => {
                let Approval {
                    id, args_sha256, ..
                } = approval;
                self.kept.push(Kept {
                    id,
                    args_sha256,
                    arguments: given,
                    claims: Vec::new(),
                    started: 0,
                });
                Answer::Kept(self.kept.len() - 1, true)
            }
            Ok(Requested { approval, .. }) => Answer::Kept(self.number(approval.id), false),
            Err(error) => refused(&error),
        }
    }

    fn number(&self, id: ApprovalId) -> usize {
        self.kept
            .iter()
            .position(|kept| kept.id == id)
            .expect("every request was asked for here")
    }

    /// Does all of it at once.
    pub async fn act(&mut self, at: usize, actions: &[Action], newest: usize) -> Vec<Answer> {
        let done = join_all(actions.iter().map(|action| self.one(at, *action, newest))).await;
        let mut answers = Vec::new();
        for (action, (answer, claimed)) in actions.iter().zip(done) {
            self.kept[at].claims.extend(claimed);
            self.kept[at].started += usize::from(
                matches!(action, Action::Hold(_, Held::Start)) && answer == Answer::Was(true),
            );
            answers.push(answer);
        }
        assert!(self.kept[at].started <= 1, "request {at} was sent twice");
        if actions
            .iter()
            .any(|action| matches!(action, Action::Hold(_, Held::PutOff)))
        {
            // The pause is of some seconds; here only the steps say when it is over.
            let set = "lease_until = (lease_until at time zone 'utc' + interval '1 h') at time zone 'utc'";
            self.set(
                at,
                set,
                "lease_until > statement_timestamp() - interval '30 min'",
            )
            .await;
        }
        answers
    }

    async fn one(&self, at: usize, action: Action, newest: usize) -> (Answer, Option<Claimed>) {
        let (app, tenant, kept) = (&self.app, self.tenant, &self.kept[at]);
        let answer = match action {
            Action::Decide {
                by,
                choice,
                right_hash,
            } => {
                let args_sha256 = if right_hash {
                    kept.args_sha256
                } else {
                    [7; 32]
                };
                let decided = async {
                    let approver = approvals::approver(app, &self.decider(by)).await?;
                    approvals::decide(
                        app,
                        &approver,
                        kept.id,
                        Ballot {
                            choice,
                            reason: None,
                            args_sha256,
                        },
                    )
                    .await
                };
                state(decided.await)
            }
            Action::Cancel { by } => {
                state(approvals::cancel(app, &self.decider(by), kept.id).await)
            }
            Action::Record { by, happened } => {
                let recorded = async {
                    let approver = approvals::approver(app, &self.decider(by)).await?;
                    approvals::record(app, &approver, kept.id, happened, Some("looked it up")).await
                };
                state(recorded.await)
            }
            Action::Claim => {
                let claimed = execution::claim(app, tenant, kept.id).await.unwrap();
                return (Answer::Was(claimed.is_some()), claimed);
            }
            Action::Hold(back, held) if back < newest => {
                let claimed = &kept.claims[newest - back - 1];
                self.hold(held, claimed, &kept.arguments).await
            }
            Action::Hold(..) => Answer::Done,
            Action::Expire => was(execution::expire(app, tenant, kept.id).await),
            Action::Lapse => was(execution::lapse(app, tenant, kept.id).await),
            Action::GiveUp => was(execution::give_up(app, tenant, kept.id).await),
            Action::Overdue => {
                self.set(
                    at,
                    "expires_at = statement_timestamp() - interval '1 s'",
                    "true",
                )
                .await
            }
            Action::WindowOver => {
                self.set(
                    at,
                    "lapses_at = statement_timestamp() - interval '1 s'",
                    "lapses_at is not null",
                )
                .await
            }
            Action::LeaseOver => {
                self.set(
                    at,
                    "lease_until = statement_timestamp() - interval '1 day'",
                    "lease_until is not null",
                )
                .await
            }
            Action::LimitOver => {
                // After whoever looks at the sums, or before.
                let sql = "begin;
                           select from limit_sums for update;
                           update limit_uses set at = at - interval '31 days';
                           commit";
                let mut connection = self.connection.lock().await;
                sqlx::raw_sql(sql).execute(&mut *connection).await.unwrap();
                Answer::Done
            }
        };
        (answer, None)
    }

    async fn hold(&self, held: Held, approval: &Claimed, arguments: &Json) -> Answer {
        let app = &self.app;
        let done = match held {
            Held::Beat => return was(execution::heartbeat(app, approval).await),
            Held::Start => {
                let line = AuditRow {
                    id: approval.audit_id(),
                    ..AuditRow::new(approval.tenant, app.clock.now(), "program", "tool.call")
                };
                let pack = app.packs.get(&approval.agent).unwrap();
                let (requester, server) = (approval.principal.clone(), pack.servers[0].clone());
                let permitted = PermittedCall::new(pack, requester, &server, arguments.clone());
                let started = execution::start(app, approval, &permitted, &line).await;
                return was(started.map(|withdrawn| withdrawn.is_none()));
            }
            Held::Revoke => execution::revoke(app, approval, "it changed").await,
            Held::PutOff => execution::postpone(app, approval).await,
            Held::Finish(status) => {
                let result = ToolResult::new("call", status, "so it went");
                execution::finish(app, approval, &result).await
            }
        };
        done.map_or_else(|error| refused(&error), |()| Answer::Done)
    }

    /// Changes a row behind the program's back, as the clock would.
    async fn set(&self, at: usize, set: &str, when: &str) -> Answer {
        let sql = format!("update approvals set {set} where tenant_id = $2 and id = $1 and {when}");
        let mut connection = self.connection.lock().await;
        sqlx::query(AssertSqlSafe(sql))
            .bind(self.kept[at].id.0)
            .bind(self.tenant.0)
            .execute(&mut *connection)
            .await
            .unwrap();
        Answer::Done
    }

    /// What the limits count at the moment.
    async fn used(&self) -> usize {
        let sql = "select coalesce(sum(amount), 0)::int8 from limit_uses
                   where tenant_id = $1 and at > statement_timestamp() - interval '30 days'";
        let mut connection = self.connection.lock().await;
        let used = sqlx::query_scalar::<_, i64>(sql).bind(self.tenant.0);
        usize::try_from(used.fetch_one(&mut *connection).await.unwrap()).unwrap()
    }

    /// With the badges of this person.
    pub async fn look(&self, person: usize) -> Seen {
        let (rows, trail) = self.rows().await;
        let mut system = self.db.system().await.unwrap();
        let due = store::approvals::list_due(&mut system, i64::from(u16::MAX))
            .await
            .unwrap();
        drop(system);
        let own = due
            .into_iter()
            .filter(|(tenant, ..)| *tenant == self.tenant);
        let mut due: Vec<(usize, State)> =
            own.map(|(_, id, state)| (self.number(id), state)).collect();
        due.sort_by_key(|(at, _)| *at);
        let person = self.decider(person);
        let own = approvals::own_open_count(&self.app, &person).await.unwrap();
        let badges = (
            own,
            approvals::decidable_count(&self.app, &person)
                .await
                .unwrap(),
        );
        let view = View {
            requests: rows.iter().map(request).collect(),
            trail,
            due,
            badges,
            used: self.used().await,
        };
        Seen {
            view,
            fixed: rows.into_iter().map(fixed).collect(),
        }
    }

    async fn rows(&self) -> (Vec<Value>, Vec<(String, String, String)>) {
        let mut connection = self.connection.lock().await;
        let rows = sqlx::query_scalar(
            "select to_jsonb(a) || jsonb_build_object(
                      'overdue', expires_at <= clock_timestamp(), 'window_over', lapses_at <= clock_timestamp(),
                      'lease_over', lease_until < clock_timestamp(), 'late_answer', evidence is not null,
                      'votes', (select coalesce(jsonb_object_agg(approver, choice), '{}') from approval_votes v
                                where v.tenant_id = $1 and v.approval_id = a.id),
                      'voters', (select count(*) from approval_votes v where v.tenant_id = $1 and v.approval_id = a.id))
             from approvals a where tenant_id = $1 order by id",
        );
        let rows = rows
            .bind(self.tenant.0)
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        let trail = sqlx::query_as(
            "select action, actor, outcome from audit where action like 'approval.%' order by id",
        );
        (rows, trail.fetch_all(&mut *connection).await.unwrap())
    }
}

fn request(row: &Value) -> Request {
    let request: Request = serde_json::from_value(row.clone()).unwrap();
    assert_eq!(
        row["voters"],
        json!(request.votes.len()),
        "somebody voted twice"
    );
    request
}

/// What is never written again, and what is not once the request is at its end.
fn fixed(row: Value) -> (Value, Option<Value>) {
    const ONCE: [&str; 17] = [
        "tenant_id",
        "id",
        "code",
        "agent",
        "server",
        "tool",
        "about",
        "fingerprint",
        "args_sha256",
        "sealed",
        "credential",
        "requester",
        "principal",
        "approvers",
        "min_approvals",
        "self_approval",
        "created_at",
    ];
    const LATER: [&str; 12] = [
        "evidence",
        "late_answer",
        "recorded_happened",
        "recorded_note",
        "recorded_by",
        "recorded_at",
        "changed_at",
        // what the steps of a test move about
        "expires_at",
        "overdue",
        "lapses_at",
        "window_over",
        "lease_over",
    ];
    let Value::Object(row) = row else {
        panic!("a row is an object")
    };
    let open = ["pending", "approved", "executing"]
        .iter()
        .any(|state| row["state"] == *state);
    let once = row
        .iter()
        .filter(|(column, _)| ONCE.contains(&column.as_str()));
    let once = Value::Object(
        once.map(|(column, value)| (column.clone(), value.clone()))
            .collect(),
    );
    let end = row
        .into_iter()
        .filter(|(column, _)| !LATER.contains(&column.as_str()));
    (once, (!open).then(|| Value::Object(end.collect())))
}

fn state(done: Result<Approval>) -> Answer {
    done.map_or_else(
        |error| refused(&error),
        |approval| Answer::Is(approval.state),
    )
}

fn was(done: Result<bool>) -> Answer {
    done.map_or_else(|error| refused(&error), Answer::Was)
}

fn refused(error: &Error) -> Answer {
    if let Error::Internal(cause) = error {
        panic!("{cause:#}");
    }
    Answer::Refused(match error {
        Error::Conflict(..) => "conflict",
        other => other.code().as_str(),
    })
}
