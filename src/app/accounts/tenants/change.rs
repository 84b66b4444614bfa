//! Changes of a tenant: which fields an operator gives, and what is checked and recorded.

use serde::Deserialize;

use super::{check_agents, check_display_name, check_name, given, unknown};
use crate::{
    app::accounts::retention_change::RetentionChange,
    domain::{
        account::Tenant,
        audit::{Fact, OPERATOR},
        clock::Clock,
        error::Result,
        usage::{Limit, Limits},
    },
    store::{self, Db, Tx},
};

/// A change of a tenant. An absent field stays as it is; `null` resets it to its default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    #[serde(default, deserialize_with = "given")]
    pub display_name: Option<Option<String>>,
    /// `true`: its tokens and keys are refused, what runs is stopped. `false`: as before.
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

/// The same for the limits of a day: a number, `unlimited`, or `null` for the installation's.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
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

/// Changes a tenant, and says whether anything is different now. Concurrent changes of different fields are
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
    check_name(name).map_err(|_| unknown(name))?;
    let mut tx = db.system().await?;
    let mut tenant = store::tenants::lock(&mut tx, name)
        .await?
        .ok_or_else(|| unknown(name))?;
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
    let changed = apply(&mut tenant, change);
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
    record(tx, &tenant, &facts).await?;
    Ok((tenant, true))
}

/// Applies a change; returns what has changed, in words.
pub(super) fn apply(tenant: &mut Tenant, change: TenantChange) -> Vec<String> {
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

/// Writes down what is done to a tenant, for its admins and for the operator, and does it.
pub(super) async fn record(
    mut tx: Tx,
    tenant: &Tenant,
    facts: &[(&'static str, String)],
) -> Result<()> {
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
