//! The transitions in SQL against the one list of them in `domain`.

use std::time::Duration;

use domain::{approval::State, ids::ApprovalId};
use sqlx::AssertSqlSafe;
use store::approvals::{self, Transition, TransitionGuard};

use crate::support::db::TestDb;

/// A row of the tenant in a state, with every time in the past.
async fn put(test: &TestDb, tenant: domain::ids::TenantId, state: State) -> ApprovalId {
    let id = ApprovalId::new();
    let sql = format!(
        "insert into approvals (tenant_id, id, code, state, agent, server, tool, about, fingerprint, args_sha256, sealed,
                                credential, requester, principal, call_id, follow_up, approvers, min_approvals,
                                self_approval, expires_at, lapses_at, lease_until)
         values ('{tenant}', '{id}', '{id}', '{}', 'bank', 'bank', 'send_money', '{{\"description\": \"\"}}',
                 sha256('a'), sha256('{id}'), '\\x01000100000001', '/0', 'ann',
                 '{{\"tenant\": \"{tenant}\", \"user\": \"ann\", \"claims\": {{}}, \"locale\": null, \"authenticated\": true}}',
                 'call', true, '{{cfo}}', 1, true, now() - interval '1 s', now() - interval '1 s', now() - interval '1 s')",
        state.into_str()
    );
    sqlx::query(AssertSqlSafe(sql))
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
    id
}

async fn tenant(test: &TestDb) -> domain::ids::TenantId {
    let tenant = test.tenant("acme").await;
    let sql = "insert into keks (id, check_value, state) values ('k1', decode(repeat('00', 16), 'hex'), 'sealing')";
    sqlx::query(sql)
        .execute(&mut test.as_system().await)
        .await
        .unwrap();
    let sql = "insert into tenant_keys (tenant_id, id, version, kek_id, wrapped, state)
               values ($1, $1, 1, 'k1', '', 'sealing')";
    sqlx::query(sql)
        .bind(tenant.0)
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
    tenant
}

fn change(from: State, to: State, when: TransitionGuard) -> Transition<'static> {
    Transition {
        from,
        to,
        when,
        reason: None,
        by: None,
        window: Duration::from_secs(1),
    }
}

#[tokio::test]
async fn a_row_makes_the_transitions_of_the_list_and_no_others() {
    let test = TestDb::new().await;
    let tenant = tenant(&test).await;
    for state in State::ALL {
        let id = put(&test, tenant, state).await;
        for from in State::ALL {
            for to in State::ALL {
                // Not committed: the row is the same for each attempt.
                let mut tx = test.db.tenant(tenant).await.unwrap();
                let changed =
                    approvals::change(&mut tx, id, &change(from, to, TransitionGuard::Locked))
                        .await;
                let legal = from.can_become(to);
                match changed {
                    Ok(Some(approval)) => {
                        assert!(
                            legal && from == state && approval.state == to,
                            "{state:?}: {from:?} → {to:?}"
                        );
                    }
                    Ok(None) => assert!(legal && from != state, "{state:?}: {from:?} → {to:?}"),
                    Err(_) => assert!(!legal, "{state:?}: {from:?} → {to:?}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn what_is_done_by_the_clock_or_under_a_fence_is_not_done_otherwise() {
    let test = TestDb::new().await;
    let tenant = tenant(&test).await;
    let cases = [
        (
            State::Pending,
            State::Expired,
            TransitionGuard::Overdue,
            "expires_at = statement_timestamp() + interval '1 hour'",
        ),
        (
            State::Approved,
            State::Lapsed,
            TransitionGuard::Stale,
            "lapses_at = statement_timestamp() + interval '1 hour'",
        ),
        (
            State::Approved,
            State::Lapsed,
            TransitionGuard::Stale,
            "lease_until = statement_timestamp() + interval '1 hour'",
        ),
        (
            State::Executing,
            State::OutcomeUnknown,
            TransitionGuard::Lost,
            "lease_until = statement_timestamp() + interval '1 hour'",
        ),
        (
            State::Approved,
            State::Executing,
            TransitionGuard::Held(0),
            "fence = 1",
        ),
        (
            State::Executing,
            State::Succeeded,
            TransitionGuard::Held(0),
            "fence = 1",
        ),
    ];
    for (from, to, when, unless) in cases {
        let id = put(&test, tenant, from).await;
        let mut tx = test.db.tenant(tenant).await.unwrap();
        let done = approvals::change(&mut tx, id, &change(from, to, when))
            .await
            .unwrap();
        assert!(done.is_some(), "{from:?} → {to:?}");
        drop(tx);
        sqlx::query(AssertSqlSafe(format!(
            "update approvals set {unless} where tenant_id = '{tenant}' and id = '{id}'"
        )))
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
        let mut tx = test.db.tenant(tenant).await.unwrap();
        let done = approvals::change(&mut tx, id, &change(from, to, when))
            .await
            .unwrap();
        assert!(done.is_none(), "{from:?} → {to:?} although {unless}");
    }
}

#[tokio::test]
async fn only_one_of_many_claims_an_approved_call() {
    let test = TestDb::new().await;
    let tenant = tenant(&test).await;
    let id = put(&test, tenant, State::Approved).await;
    let sql =
        format!("update approvals set lapses_at = now() + interval '1 hour' where id = '{id}'");
    sqlx::query(AssertSqlSafe(sql))
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
    let claim = async || {
        let mut tx = test.db.tenant(tenant).await.unwrap();
        let replica = domain::ids::ReplicaId::new();
        let claimed = approvals::claim(&mut tx, id, replica, Duration::from_secs(60))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        claimed
    };
    let claims = futures_util::future::join_all((0..8).map(|_| claim())).await;
    assert_eq!(claims.iter().flatten().count(), 1);
}
