//! Counts the sealed values in the database by the version of the tenant's key, and seals them again with a newer
//! one.
//!
//! A value of seven bytes or less has no content: it was erased, or was empty from the start.
//!
//! A new column with sealed values only needs a line in `kinds!`. `tests/it/keys` finds such columns in the catalog
//! of the database.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Tx;
use domain::error::{Error, Result};

/// A sealed value, with the parts of its context. Parts that its kind does not use are empty.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub kind: Kind,
    pub id: Uuid,
    pub user: String,
    pub agent: String,
    /// The server of a credential, an approval or an elicitation; the name of a value of another kind.
    pub name: String,
    pub version: i64,
    pub sealed: Vec<u8>,
}

/// One line for each kind: its table and column, the column with the version of the key, the parts of its context
/// (user, agent, name, version), and other columns to set when it is sealed again.
macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $kind:ident = $name:literal: $table:literal $column:literal $key:literal
            for ($user:literal, $agent:literal, $named:literal, $version:literal) $($also:literal)?;
    )+) => {
        /// The kind of a sealed value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumString, strum::IntoStaticStr)]
        #[strum(const_into_str)]
        pub enum Kind {
            $($(#[$doc])* #[strum(serialize = $name)] $kind,)+
        }

        /// Counts the values that are sealed with each version of the tenant's key.
        pub async fn count_by_version(tx: &mut Tx) -> Result<BTreeMap<u32, u64>> {
            let rows = sqlx::query!(
                r#"select version as "version!", count(*) as "count!" from (select null::int as version where false"#
                $(+ " union all select " + $key + " from " + $table + " where tenant_id = $1 and length(" + $column + ") > 7")+
                + ") used where version is not null group by version",
                tx.tenant()?.0,
            )
            .fetch_all(tx.conn())
            .await?;
            let count = |version: i32, count: i64| (version.cast_unsigned(), count.cast_unsigned());
            Ok(rows.into_iter().map(|row| count(row.version, row.count)).collect())
        }

        /// Finds values of the tenant that are not sealed with this version of its key, at most `limit`, in the order
        /// of kind and id, after `after`.
        pub async fn list_not_sealed_with(
            tx: &mut Tx,
            version: u32,
            after: Option<(Kind, Uuid)>,
            limit: i64,
        ) -> Result<Vec<Sealed>> {
            let rows = sqlx::query!(
                r#"select kind as "kind!", id as "id!", user_id as "user!", agent as "agent!", name as "name!",
                          version as "version!", sealed as "sealed!"
                   from (select '' as kind, null::uuid as id, '' as user_id, '' as agent, '' as name,
                                1::bigint as version, ''::bytea as sealed where false"#
                $(+ " union all select '" + $name + "', id, " + $user + ", " + $agent + ", " + $named + ", " + $version
                  + ", " + $column + " from " + $table + " where tenant_id = $5 and length(" + $column + ") > 7 and " + $key + " <> $1")+
                + ") old where $2::text is null or (kind, id) > ($2, $3::uuid) order by kind, id limit $4",
                version.cast_signed(),
                after.map(|(kind, _)| kind.into_str()),
                after.map(|(_, id)| id),
                limit,
                tx.tenant()?.0,
            )
            .fetch_all(tx.conn())
            .await?;
            rows.into_iter()
                .map(|row| {
                    Ok(Sealed {
                        kind: row.kind.parse().map_err(Error::internal)?,
                        id: row.id,
                        user: row.user,
                        agent: row.agent,
                        name: row.name,
                        version: row.version,
                        sealed: row.sealed,
                    })
                })
                .collect()
        }

        /// Replaces values of one kind by the same values sealed again. A value that has changed since it was read
        /// stays as it is. Returns how many were replaced.
        pub async fn reseal(tx: &mut Tx, kind: Kind, read: &[Sealed], resealed: &[Vec<u8>]) -> Result<u64> {
            let ids: Vec<Uuid> = read.iter().map(|row| row.id).collect();
            let before: Vec<Vec<u8>> = read.iter().map(|row| row.sealed.clone()).collect();
            let tenant = tx.tenant()?.0;
            let query = match kind {
                $(Kind::$kind => sqlx::query!(
                    "update " + $table + " t set " + $column + " = n.resealed" $(+ $also)?
                        + " from unnest($2::uuid[], $3::bytea[], $4::bytea[]) n (id, before, resealed)
                           where t.tenant_id = $1 and t.id = n.id and t." + $column + " = n.before",
                    tenant,
                    &ids,
                    &before,
                    resealed,
                ),)+
            };
            Ok(query.execute(tx.conn()).await?.rows_affected())
        }
    };
}

kinds! {
    /// The arguments of a call that waits for approval.
    Approval = "approval": "approvals" "sealed" "tenant_key_version" for ("requester", "agent", "server", "1");
    /// The values that a user entered for a personal server. A quarantined credential becomes active again, because it
    /// could be opened.
    Credential = "credential": "credentials" "sealed" "tenant_key_version"
        for ("user_id", "agent", "server", "generation")
        ", state = case when t.state = 'quarantined' then 'active' else t.state end,
           reason = case when t.state = 'quarantined' then null else t.reason end";
    /// The values that a user entered last, beside the credential, until the server's first call shows whether they are
    /// good.
    CredentialCandidate = "credential_candidate": "credentials" "candidate" "candidate_key_version"
        for ("user_id", "agent", "server", "candidate_generation");
    /// A call that waits for its user's answers.
    Elicitation = "elicitation": "elicitations" "sealed" "tenant_key_version" for ("user_id", "agent", "server", "1");
    /// The answers so far of the user of such a call.
    ElicitationEntered = "elicitation_entered": "elicitations" "entered" "entered_key_version"
        for ("user_id", "agent", "server", "1");
    /// The sensitive values of a server's definition.
    Entry = "entry": "mcp_servers" "sealed" "tenant_key_version" for ("''", "''", "entry", "version");
    /// An answer in a flow that no run has read yet.
    FlowAnswer = "flow_answer": "flows" "answer" "answer_key_version" for ("user_id", "agent", "''", "1");
    /// The values entered so far in a flow.
    FlowEntered = "flow_entered": "flows" "entered" "entered_key_version" for ("user_id", "agent", "''", "1");
    /// The arguments of a call that a tenant keeps to try policies with.
    KeptCall = "kept_call": "kept_calls" "sealed" "tenant_key_version" for ("user_id", "agent", "server", "1");
    /// The scope of a tree of runs.
    RunScope = "run_scope": "runs" "scope" "scope_key_version" for ("''", "''", "''", "1");
    /// A tenant's secret.
    Secret = "secret": "secrets" "sealed" "tenant_key_version" for ("''", "''", "name", "version");
    /// The key with which the messages of a webhook are signed.
    Webhook = "webhook": "webhooks" "sealed" "tenant_key_version" for ("''", "''", "''", "1");
}
