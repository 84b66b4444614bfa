//! A tenant's secrets, which entries and packs name as `{"$secret": "name"}`. They are written and never read back.
//!
//! An admin who may change an entry need not know the secrets in it. So an entry that would send a secret to a new
//! host is refused until the secret is entered again ([`check_secrets`]).

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::app::{
    App,
    servers::registry::{announce_change, check_capacity, find_agents, secret_context, snapshot},
};
use domain::{
    error::{Error, ErrorCode, Result},
    header,
    ids::TenantId,
    principal::Admin,
    registry::{
        ConfigValue, Entry, EntryId, SecretName, ServerRef, host_of, settings::SettingOwner,
    },
    secret::Secret,
};
use store::{Tx, audit::AuditRow, secrets::StoredSecret};

/// The most bytes of a secret.
const MAX_SECRET: usize = 8192;
const TRIES: u8 = 5;

/// A secret as its admins see it, without its value.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct SecretView {
    pub name: String,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

pub async fn list_secrets(app: &App, admin: &Admin) -> Result<Vec<SecretView>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let rows = store::secrets::list(&mut tx).await?;
    Ok(rows
        .into_iter()
        .map(|row| SecretView {
            name: row.name,
            updated_at: row.updated_at,
        })
        .collect())
}

/// Checks a value that is to be stored, which `field` holds.
fn check_value(field: &str, value: &Secret) -> Result<()> {
    if value.expose().is_empty() || value.expose().len() > MAX_SECRET {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            field,
            format!("must have 1 to {MAX_SECRET} bytes"),
        ));
    }
    if !header::can_carry(value.expose()) {
        let reason =
            "holds a line break or another character that a header cannot carry; remove it";
        return Err(Error::invalid(field, reason));
    }
    Ok(())
}

/// Creates or replaces a secret.
pub async fn put_secret(app: &App, admin: &Admin, name: &str, value: &Secret) -> Result<()> {
    let name = SecretName::parse(name).map_err(|reason| Error::invalid("name", reason))?;
    check_value("value", value)?;
    for _ in 0..TRIES {
        let mut tx = app.db.tenant(admin.tenant()).await?;
        let before = store::secrets::find(&mut tx, name.as_str()).await?;
        drop(tx);
        let is_new = before.is_none();
        let (id, version) =
            before.map_or_else(|| (Uuid::now_v7(), 1), |(id, version)| (id, version + 1));
        let row = StoredSecret {
            id,
            version,
            ..new_row(app, name.as_str())
        };
        let row = seal(app, admin.tenant(), row, value).await?;
        let mut tx = app.db.tenant(admin.tenant()).await?;
        if is_new {
            check_capacity(store::secrets::count(&mut tx).await?, "secrets")?;
        }
        if store::secrets::put(&mut tx, admin.tenant(), &row).await? {
            audit(app, &mut tx, admin, "secret.stored", &row.name).await?;
            tx.commit().await?;
            announce_change(app, admin.tenant()).await;
            return Ok(());
        }
    }
    let reason = "others are changing this secret; try again".to_owned();
    Err(Error::Busy {
        reason,
        retry_after: std::time::Duration::from_secs(1),
    })
}

/// The row of a new secret, not sealed yet.
fn new_row(app: &App, name: &str) -> StoredSecret {
    StoredSecret {
        id: Uuid::now_v7(),
        name: name.to_owned(),
        sealed: Vec::new(),
        version: 1,
        updated_at: app.clock.now(),
        setting: None,
    }
}

async fn seal(
    app: &App,
    tenant: TenantId,
    row: StoredSecret,
    value: &Secret,
) -> Result<StoredSecret> {
    let context = secret_context(tenant, &row);
    let sealed = app.keys.seal(tenant, &context, value).await?;
    Ok(StoredSecret { sealed, ..row })
}

/// The most characters of a secret's name that say what it is for; the rest makes it one of a kind.
const PURPOSE: usize = 50;

/// Seals a value that was typed for a key of a server, under a name that no other secret has.
pub(super) async fn seal_typed(
    app: &App,
    tenant: TenantId,
    owner: &SettingOwner,
    server: &str,
    key: &str,
    value: &Secret,
) -> Result<StoredSecret> {
    check_value(&format!("config.{key}"), value)?;
    let owner = match owner {
        SettingOwner::Agent(id) => id.as_str(),
        SettingOwner::Capability(name) => name,
    };
    let purpose = format!("{owner}.{server}.{key}");
    let purpose = purpose
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "_.-".contains(*c));
    let purpose: String = purpose.take(PURPOSE).collect();
    let unique = hex::encode(rand::random::<[u8; 6]>());
    let row = new_row(app, &format!("{purpose}.{unique}"));
    seal(app, tenant, row, value).await
}

/// Writes secrets that were typed for a setting. They are removed with it.
pub(super) async fn insert_typed(
    app: &App,
    tx: &mut Tx,
    admin: &Admin,
    setting: Uuid,
    secrets: &[StoredSecret],
) -> Result<()> {
    for secret in secrets {
        check_capacity(store::secrets::count(tx).await?, "secrets")?;
        let row = StoredSecret {
            setting: Some(setting),
            ..secret.clone()
        };
        store::secrets::put(tx, admin.tenant(), &row).await?;
        audit(app, tx, admin, "secret.stored", &row.name).await?;
    }
    Ok(())
}

/// Finds the secrets that were typed for a setting and that nothing but the setting names.
pub(super) async fn list_typed(
    app: &App,
    tenant: TenantId,
    id: Uuid,
    owner: &SettingOwner,
    server: &str,
) -> Result<Vec<String>> {
    let mut tx = app.db.tenant(tenant).await?;
    let names = store::secrets::list_names_of_setting(&mut tx, id).await?;
    drop(tx);
    let mut unused = Vec::new();
    for name in names {
        if list_users(app, tenant, &name, Some((owner, server)))
            .await?
            .is_empty()
        {
            unused.push(name);
        }
    }
    Ok(unused)
}

/// Removes secrets that nothing names any more.
pub(super) async fn delete_typed(
    app: &App,
    tx: &mut Tx,
    admin: &Admin,
    names: &[String],
) -> Result<()> {
    for name in names {
        if store::secrets::delete(tx, name).await? {
            audit(app, tx, admin, "secret.removed", name).await?;
        }
    }
    Ok(())
}

/// Removes a secret. One that an entry or an agent names is a conflict that says which.
pub async fn remove_secret(app: &App, admin: &Admin, name: &str) -> Result<()> {
    let unknown = || Error::not_found(format!("secret {name:?}"));
    SecretName::parse(name).map_err(|_| unknown())?;
    let users = list_users(app, admin.tenant(), name, None).await?;
    let mut tx = app.db.tenant(admin.tenant()).await?;
    if !store::secrets::delete(&mut tx, name).await? {
        return Err(unknown());
    }
    if !users.is_empty() {
        // The deletion is rolled back.
        return Err(Error::conflict(
            ErrorCode::SecretInUse,
            format!(
                "secret {name:?} is used by {}; remove it from there first",
                users.join(", ")
            ),
        ));
    }
    audit(app, &mut tx, admin, "secret.removed", name).await?;
    tx.commit().await?;
    announce_change(app, admin.tenant()).await;
    Ok(())
}

/// What names a secret, but for one setting.
async fn list_users(
    app: &App,
    tenant: TenantId,
    name: &str,
    but: Option<(&SettingOwner, &str)>,
) -> Result<Vec<String>> {
    // Memory may be behind the rows, so they are read again.
    app.registry.snapshots.invalidate(&tenant).await;
    let snapshot = snapshot(app, tenant).await?;
    let entries = snapshot
        .entries
        .values()
        .filter(|entry| entry.secrets().any(|used| used == name));
    let mut users: Vec<String> = entries
        .map(|entry| format!("MCP server '{}'", entry.id))
        .collect();
    let names = |reference: &ServerRef| {
        let values = reference
            .levels
            .iter()
            .flat_map(|level| level.config.values())
            .flatten();
        values
            .filter_map(ConfigValue::secret)
            .any(|used| used.as_str() == name)
    };
    let agents = find_agents(app, tenant, |pack, reference| {
        names(reference)
            || pack
                .entries
                .iter()
                .any(|entry| entry.secrets().any(|used| used == name))
    });
    users.extend(
        agents
            .await?
            .into_iter()
            .map(|agent| format!("agent {agent}")),
    );
    for setting in &snapshot.settings {
        if but == Some((&setting.owner, setting.server.as_str())) {
            continue;
        }
        let mut named = setting.config.values().flatten();
        let user = setting.owner.to_string();
        let is_named = named.any(|value| value.secret().is_some_and(|used| used.as_str() == name));
        if is_named && !users.contains(&user) {
            users.push(user);
        }
    }
    Ok(users)
}

/// Writes the audit line of a change. It names the secret and never holds its value, not even as a hash.
async fn audit(
    app: &App,
    tx: &mut Tx,
    admin: &Admin,
    action: &'static str,
    name: &str,
) -> Result<()> {
    let line = AuditRow {
        server: name.to_owned(),
        ..AuditRow::new(
            admin.tenant(),
            app.clock.now(),
            admin.user().as_str(),
            action,
        )
    };
    store::audit::insert(tx, admin.tenant(), &[line]).await
}

/// How long after its entry a secret may be sent to hosts that have not had it.
const SECRET_IS_NEW: time::Duration = time::Duration::hours(1);

/// Refuses to send a secret of the tenant to a host that no entry has sent it to yet, unless it was entered a moment
/// ago.
/// `also`: the secrets that a setting passes to the entry.
pub(super) async fn check_secrets(
    app: &App,
    tenant: TenantId,
    entry: &Entry,
    also: &[&SecretName],
) -> Result<()> {
    let hosts = hosts_of(entry);
    // Memory may be behind the rows, so they are read again.
    app.registry.snapshots.invalidate(&tenant).await;
    let snapshot = snapshot(app, tenant).await?;
    let mut of_packs = secrets_of_packs(app, tenant).await?;
    for setting in &snapshot.settings {
        let named = setting.config.values().flatten();
        let named = named.filter_map(ConfigValue::secret);
        of_packs.extend(named.map(|name| (setting.entry.clone(), name.as_str().to_owned())));
    }
    let named = |entry: &Entry, name: &str| {
        let by_pack = (entry.id.clone(), name.to_owned());
        entry.secrets().any(|used| used == name) || of_packs.contains(&by_pack)
    };
    let mut tx = app.db.tenant(tenant).await?;
    for secret in store::secrets::list(&mut tx).await? {
        let name = secret.name.as_str();
        let is_new = app.clock.now() - secret.updated_at < SECRET_IS_NEW;
        let is_set = also.iter().any(|other| other.as_str() == name);
        if is_new || !(is_set || named(entry, name)) {
            continue;
        }
        let senders = snapshot.entries.values().filter(|known| named(known, name));
        let known: BTreeSet<String> = senders.flat_map(|known| hosts_of(known)).collect();
        if let Some(host) = hosts.difference(&known).next() {
            return Err(Error::unfit(
                ErrorCode::SecretNeeded,
                "url",
                format!(
                    "would send the secret {name:?} to {host}, which has not had it; enter the secret again \
                     (PUT /v1/secrets/{name}) and repeat this within an hour"
                ),
            ));
        }
    }
    Ok(())
}

/// The hosts that an entry sends its values to.
fn hosts_of(entry: &Entry) -> BTreeSet<String> {
    let token_url = entry.definition.auth.as_ref().map(|auth| &auth.token_url);
    std::iter::once(&entry.definition.url)
        .chain(token_url)
        .map(|address| host_of(address).unwrap_or_else(|| address.clone()))
        .collect()
}

/// The secrets that the tenant's packs pass to entries.
async fn secrets_of_packs(app: &App, tenant: TenantId) -> Result<BTreeSet<(EntryId, String)>> {
    let found = Mutex::new(BTreeSet::new());
    find_agents(app, tenant, |_, reference| {
        let values = reference
            .levels
            .iter()
            .flat_map(|level| level.config.values())
            .flatten();
        for secret in values.filter_map(ConfigValue::secret) {
            let used = (reference.entry.clone(), secret.as_str().to_owned());
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(used);
        }
        false
    })
    .await?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}
