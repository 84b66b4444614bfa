//! Tenants, as the operator manages them. Each change is written down twice: in the tenant's trail, which goes with
//! it, and in the operator's, which stays.

mod change;

use serde::{Deserialize, Deserializer};

use self::change::record;
pub use self::change::{LimitsChange, TenantChange, change_tenant};
use super::retention_change::RetentionChange;
use crate::{
    domain::{
        account::Tenant,
        audit::OPERATOR,
        clock::Clock,
        error::{Error, Result},
        ids::{AgentId, TenantId},
        retention::Retention,
        usage::Limits,
    },
    store::{self, Db},
};

/// Characters of what people call a tenant.
const MAX_DISPLAY_NAME: usize = 200;
/// Agents that a tenant may name.
const MAX_AGENTS: usize = 1000;

/// A tenant to be made.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// 1 to 63 lower-case letters, digits or `-`. It does not change.
    pub name: String,
    /// What people call it; absent: by its name.
    #[serde(default)]
    pub display_name: Option<String>,
    /// The agents that serve it; absent: every one.
    #[serde(default)]
    pub agents: Option<Vec<String>>,
    /// Whether somebody without a token may ask for a guest's.
    #[serde(default)]
    pub guests: bool,
    /// In place of the installation's limits of a day.
    #[serde(default)]
    pub limits: LimitsChange,
    /// In place of the installation's days.
    #[serde(default)]
    pub retention: RetentionChange,
}

/// Distinguishes `null` from an absent field.
pub(super) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(input).map(Some)
}

/// Adds a tenant. `agents`: those that serve it; absent: every one.
pub async fn add_tenant(
    db: &Db,
    clock: &Clock,
    name: &str,
    agents: Option<Vec<AgentId>>,
    guests: bool,
) -> Result<Tenant> {
    let agents = agents.map(|agents| agents.iter().map(ToString::to_string).collect());
    let (name, limits) = (name.to_owned(), LimitsChange::default());
    let retention = RetentionChange::default();
    create_tenant(
        db,
        clock,
        NewTenant {
            name,
            display_name: None,
            agents,
            guests,
            limits,
            retention,
        },
    )
    .await
}

/// Adds a tenant. A name that is taken is a conflict.
pub async fn create_tenant(db: &Db, clock: &Clock, new: NewTenant) -> Result<Tenant> {
    check_name(&new.name)?;
    check_display_name(new.display_name.as_deref())?;
    check_agents(new.agents.as_deref())?;
    new.retention.check()?;
    let NewTenant {
        name,
        display_name,
        agents,
        guests,
        limits,
        retention,
    } = new;
    let (id, created_at) = (TenantId::new(), clock.now());
    let limits = Limits {
        runs_per_user: limits.runs_per_user.flatten(),
        tokens_per_user: limits.tokens_per_user.flatten(),
        runs_per_tenant: limits.runs_per_tenant.flatten(),
        tokens_per_tenant: limits.tokens_per_tenant.flatten(),
    };
    let mut kept = Retention::default();
    retention.apply(&mut kept, &mut Vec::new());
    let tenant = Tenant {
        id,
        name,
        display_name,
        agents,
        guests,
        suspended_at: None,
        limits,
        retention: kept,
        created_at,
    };
    let mut tx = db.system().await?;
    store::tenants::insert(&mut tx, &tenant).await?;
    record(tx, &tenant, &[("tenant.created", tenant.name.clone())]).await?;
    Ok(tenant)
}

pub async fn find_tenant(db: &Db, name: &str) -> Result<Tenant> {
    check_name(name).map_err(|_| unknown(name))?;
    let mut tx = db.system().await?;
    let tenant = store::tenants::by_name(&mut tx, name).await?;
    tenant.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Error {
    Error::not_found(format!(
        "tenant {:?}",
        name.chars().take(80).collect::<String>()
    ))
}

pub async fn list_tenants(db: &Db) -> Result<Vec<Tenant>> {
    let mut tx = db.system().await?;
    store::tenants::list(&mut tx).await
}

/// Whether the tokens of recent people of any tenant had this claim; `None` when nobody came with a token.
pub async fn has_been_claimed(db: &Db, claim: &str) -> Result<Option<bool>> {
    let mut had_tokens = None;
    for tenant in list_tenants(db).await? {
        let mut tx = db.tenant(tenant.id).await?;
        match store::users::has_been_claimed(&mut tx, claim).await? {
            Some(true) => return Ok(Some(true)),
            other => had_tokens = had_tokens.or(other),
        }
    }
    Ok(had_tokens)
}

/// Tenants by name, those after `after` only.
pub async fn page_of_tenants(db: &Db, after: Option<&str>, limit: i64) -> Result<Vec<Tenant>> {
    let mut tx = db.system().await?;
    store::tenants::page(&mut tx, after, limit).await
}

/// Removes a tenant with all that it has: issuers, keys, conversations, audit. That it was removed stays in the
/// operator's trail.
pub async fn remove_tenant(db: &Db, id: TenantId) -> Result<()> {
    let mut tx = db.system().await?;
    store::audit::record_for_operator(&mut tx, OPERATOR, "tenant.removed", &id.to_string()).await?;
    if !store::tenants::delete(&mut tx, id).await? {
        return Err(Error::not_found("tenant"));
    }
    tx.commit().await
}

fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = name.len() <= 63
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || byte == b'-');
    if fits {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    let rule = "use 1 to 63 lower-case letters, digits or `-`, starting with a letter or digit";
    Err(Error::invalid(
        "name",
        format!("{shown:?} is no tenant name: {rule}"),
    ))
}

fn check_display_name(name: Option<&str>) -> Result<()> {
    let fits = |name: &str| {
        !name.trim().is_empty()
            && name.chars().count() <= MAX_DISPLAY_NAME
            && !name.chars().any(char::is_control)
    };
    if name.is_none_or(fits) {
        return Ok(());
    }
    let rule = format!(
        "must have 1 to {MAX_DISPLAY_NAME} characters, not all blank and none a control character"
    );
    Err(Error::invalid("display_name", rule))
}

fn check_agents(agents: Option<&[String]>) -> Result<()> {
    let agents = agents.unwrap_or_default();
    if agents.len() > MAX_AGENTS {
        return Err(Error::invalid(
            "agents",
            format!("must name at most {MAX_AGENTS} agents"),
        ));
    }
    let parsed = agents
        .iter()
        .try_for_each(|agent| AgentId::parse(agent).map(drop));
    parsed.map_err(|reason| Error::invalid("agents", reason))
}
