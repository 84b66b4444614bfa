//! Tenants, as the operator manages them: their names, agents, limits, and how long their data is kept. Each change
//! has a line in two audit trails: the tenant's, which is deleted with it, and the operator's, which stays.

use serde::{Deserialize, Deserializer};

use domain::{
    account::Tenant,
    audit::{Fact, OPERATOR},
    clock::Clock,
    error::{Error, Result},
    ids::{AgentId, TenantId},
    retention::{MAX_CALL_DAYS, MAX_DAYS, Retention},
    usage::{Limit, Limits},
};
use store::{Db, Tx};

/// The most characters of a tenant's display name.
const MAX_DISPLAY_NAME: usize = 200;
/// The most agents that a tenant may name.
const MAX_AGENTS: usize = 1000;

/// The settings of a new tenant.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TenantRequest)]
pub struct NewTenant {
    /// 1 to 63 lower-case letters, digits or `-`. It never changes.
    pub name: String,
    /// The name for people; absent: `name`.
    #[serde(default)]
    pub display_name: Option<String>,
    /// The agents that serve it; absent: every one.
    #[serde(default)]
    pub agents: Option<Vec<String>>,
    /// Whether people without a token may get a guest's key.
    #[serde(default)]
    pub guests: bool,
    /// In place of the installation's limits of a day.
    #[serde(default)]
    pub limits: LimitsChange,
    /// In place of the installation's days.
    #[serde(default)]
    pub retention: RetentionChange,
}

/// Deserializes a field so that `null` differs from an absent field.
pub(super) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(input).map(Some)
}

/// Adds a tenant with default settings. `agents` are those that serve it; `None` means all.
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
    let mut tx = db.system_then_tenant().await?;
    store::tenants::insert(&mut tx, &tenant).await?;
    record_facts(tx, &tenant, &[("tenant.created", tenant.name.clone())]).await?;
    Ok(tenant)
}

pub async fn find_tenant(db: &Db, name: &str) -> Result<Tenant> {
    check_name(name).map_err(|_| unknown_tenant(name))?;
    let mut tx = db.system().await?;
    let tenant = store::tenants::find_by_name(&mut tx, name).await?;
    tenant.ok_or_else(|| unknown_tenant(name))
}

fn unknown_tenant(name: &str) -> Error {
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
pub async fn list_tenants_page(db: &Db, after: Option<&str>, limit: i64) -> Result<Vec<Tenant>> {
    let mut tx = db.system().await?;
    store::tenants::list_page(&mut tx, after, limit).await
}

/// Removes a tenant with all its rows: issuers, keys, conversations, audit. The operator's trail keeps a line of the
/// removal.
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

/// A change of a tenant. An absent field stays as it is; `null` resets it to its default.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    #[serde(default, deserialize_with = "given")]
    pub display_name: Option<Option<String>>,
    /// `true`: its tokens and keys are refused, and its runs are stopped. `false`: they are accepted again.
    #[serde(default)]
    pub suspended: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    pub agents: Option<Option<Vec<String>>>,
    #[serde(default)]
    pub guests: Option<bool>,
    #[serde(default)]
    pub limits: LimitsChange,
    #[serde(default)]
    pub retention: RetentionChange,
}

/// A change of a tenant's daily limits: for each, a number, `unlimited`, or `null` for the installation's.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    #[serde(default, deserialize_with = "given")]
    pub runs_per_user: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub tokens_per_user: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub runs_per_tenant: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub tokens_per_tenant: Option<Option<Limit>>,
}

/// Changes a tenant and returns whether anything is different now. Concurrent changes of different fields are
/// all kept; of the same field, the last one is.
pub async fn change_tenant(
    db: &Db,
    clock: &Clock,
    name: &str,
    change: TenantChange,
) -> Result<(Tenant, bool)> {
    check_display_name(change.display_name.as_ref().and_then(Option::as_deref))?;
    check_agents(change.agents.as_ref().and_then(Option::as_deref))?;
    change.retention.check()?;
    check_name(name).map_err(|_| unknown_tenant(name))?;
    let mut tx = db.system_then_tenant().await?;
    let mut tenant = store::tenants::lock(&mut tx, name)
        .await?
        .ok_or_else(|| unknown_tenant(name))?;
    let mut facts = Vec::new();
    if let Some(suspended) = change
        .suspended
        .filter(|suspended| *suspended == tenant.suspended_at.is_none())
    {
        tenant.suspended_at = suspended.then(|| clock.now());
        facts.push((
            if suspended {
                "tenant.suspended"
            } else {
                "tenant.resumed"
            },
            tenant.name.clone(),
        ));
    }
    let changed = apply_change(&mut tenant, change);
    if !changed.is_empty() {
        facts.push((
            "tenant.changed",
            format!("{}: {}", tenant.name, changed.join(", ")),
        ));
    }
    if facts.is_empty() {
        return Ok((tenant, false));
    }
    store::tenants::update(&mut tx, &tenant).await?;
    record_facts(tx, &tenant, &facts).await?;
    Ok((tenant, true))
}

/// Applies a change and returns the changed settings in words.
fn apply_change(tenant: &mut Tenant, change: TenantChange) -> Vec<String> {
    let mut changed = Vec::new();
    if let Some(name) = change
        .display_name
        .filter(|name| *name != tenant.display_name)
    {
        changed.push(name.as_ref().map_or_else(
            || "no display name".to_owned(),
            |name| format!("display name {name:?}"),
        ));
        tenant.display_name = name;
    }
    if let Some(agents) = change.agents.filter(|agents| *agents != tenant.agents) {
        let names = agents
            .as_ref()
            .map_or_else(|| "every one".to_owned(), |agents| agents.join(" "));
        changed.push(format!(
            "agents {}",
            names.chars().take(500).collect::<String>()
        ));
        tenant.agents = agents;
    }
    if let Some(guests) = change.guests.filter(|guests| *guests != tenant.guests) {
        let word = if guests { "guests" } else { "no guests" };
        changed.push(format!("takes {word}"));
        tenant.guests = guests;
    }
    change.retention.apply(&mut tenant.retention, &mut changed);
    change.limits.apply(&mut tenant.limits, &mut changed);
    changed
}

impl LimitsChange {
    fn apply(self, limits: &mut Limits, changed: &mut Vec<String>) {
        for (name, limit, given) in [
            (
                "runs_per_user",
                &mut limits.runs_per_user,
                self.runs_per_user,
            ),
            (
                "tokens_per_user",
                &mut limits.tokens_per_user,
                self.tokens_per_user,
            ),
            (
                "runs_per_tenant",
                &mut limits.runs_per_tenant,
                self.runs_per_tenant,
            ),
            (
                "tokens_per_tenant",
                &mut limits.tokens_per_tenant,
                self.tokens_per_tenant,
            ),
        ] {
            if let Some(given) = given.filter(|given| *given != *limit) {
                changed.push(match given {
                    None => format!("{name} as the settings have it"),
                    Some(Limit::Unlimited(_)) => format!("{name} unlimited"),
                    Some(Limit::AtMost(most)) => format!("{name} {most}"),
                });
                *limit = given;
            }
        }
    }
}

/// Writes the facts of a change into both audit trails and commits.
async fn record_facts(mut tx: Tx, tenant: &Tenant, facts: &[(&'static str, String)]) -> Result<()> {
    for (action, detail) in facts {
        let detail = format!("{detail} ({})", tenant.id);
        store::audit::record_for_operator(&mut tx, OPERATOR, action, &detail).await?;
    }
    tx.enter(tenant.id).await?;
    for (action, detail) in facts {
        store::audit::record(
            &mut tx,
            tenant.id,
            &Fact::new(OPERATOR, action).detail(detail),
        )
        .await?;
    }
    tx.commit().await
}

/// What is kept of calls, in words.
const CALLS: &str = "arguments of calls";

/// A change of a tenant's retention: for each kind of data, a number of days, `unlimited`, or `null` for the
/// installation's.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionChange {
    #[serde(default, deserialize_with = "given")]
    pub conversations: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub guest_conversations: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub runs: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub approval_arguments: Option<Option<Limit>>,
    /// A number of days from 1 to 366, or `null` to keep none and to delete what is kept.
    #[serde(default, deserialize_with = "given")]
    pub call_arguments: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub audit: Option<Option<Limit>>,
}

impl RetentionChange {
    /// Applies the change and adds the changed settings to `changed`, in words.
    pub(super) fn apply(self, own: &mut Retention, changed: &mut Vec<String>) {
        let given = self;
        for (name, limit, given) in [
            ("conversations", &mut own.conversations, given.conversations),
            (
                "guest conversations",
                &mut own.guest_conversations,
                given.guest_conversations,
            ),
            ("runs", &mut own.runs, given.runs),
            (
                "approval arguments",
                &mut own.approval_arguments,
                given.approval_arguments,
            ),
            (CALLS, &mut own.call_arguments, given.call_arguments),
            ("audit", &mut own.audit, given.audit),
        ] {
            if let Some(given) = given.filter(|given| *given != *limit) {
                changed.push(match given {
                    None if name == CALLS => format!("{name} not kept"),
                    None => format!("{name} kept as the settings have it"),
                    Some(Limit::Unlimited(_)) => format!("{name} kept for ever"),
                    Some(Limit::AtMost(days)) => format!("{name} kept {days} days"),
                });
                *limit = given;
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let change = self;
        if let Some(Some(limit)) = change.call_arguments
            && !matches!(limit, Limit::AtMost(days) if (1..=MAX_CALL_DAYS.cast_unsigned()).contains(&days))
        {
            return Err(Error::invalid(
                "retention.call_arguments",
                format!(
                    "must be a number of days from 1 to {MAX_CALL_DAYS}, or `null` to keep none"
                ),
            ));
        }
        let days = [
            ("conversations", change.conversations),
            ("guest_conversations", change.guest_conversations),
            ("runs", change.runs),
            ("approval_arguments", change.approval_arguments),
            ("audit", change.audit),
        ];
        for (name, given) in days {
            if let Some(Some(Limit::AtMost(days))) = given
                && !i32::try_from(days).is_ok_and(|days| (1..=MAX_DAYS).contains(&days))
            {
                return Err(Error::invalid(
                    format!("retention.{name}"),
                    format!("must be a number of days from 1 to {MAX_DAYS}, or `unlimited`"),
                ));
            }
        }
        Ok(())
    }
}
