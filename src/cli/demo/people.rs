//! The demo's tenant and its users: a guest, an employee, a member of finance, their manager, and an admin.

use std::{collections::BTreeMap, fs, io::Write as _, os::unix::fs::OpenOptionsExt as _};

use time::Duration;

use crate::{
    app::accounts::{self, development::DevelopmentUser},
    cli::{chat::DemoNotes, serve::Service},
    domain::{clock::Clock, config::Config, error::Error},
    store::Db,
};

const TENANT: &str = "demo";
const LIFE: Duration = Duration::days(30);

/// Makes sure of the tenant and gives each user a token; the terminal client finds them in the data folder.
pub async fn create_people(
    db: &Db,
    service: &Service,
    config: &Config,
) -> anyhow::Result<DemoNotes> {
    let clock = Clock::System;
    let tenant = match accounts::find_tenant(db, TENANT).await {
        Err(Error::NotFound(_)) => accounts::add_tenant(db, &clock, TENANT, None, true).await?,
        found => found?,
    };
    let mut tokens = BTreeMap::new();
    for (user, person) in people() {
        let now = clock.now();
        let token =
            accounts::development::token(db, &config.data, &tenant, &person, now..now + LIFE)
                .await?;
        tokens.insert(user.to_owned(), token.expose().to_owned());
    }
    let tenant = service.app.accounts.tenant_for_guests(TENANT).await?;
    let (guest, _) = service.app.accounts.create_guest(tenant).await?;
    tokens.insert("guest".to_owned(), guest.expose().to_owned());
    let agent = service
        .app
        .library
        .snapshot()
        .packs()
        .next()
        .map(|pack| pack.id().to_string())
        .unwrap_or_default();
    let notes = DemoNotes {
        url: format!("http://{}", service.address).parse()?,
        agent,
        tokens,
    };
    write_private(&notes, config)?;
    Ok(notes)
}

fn people() -> [(&'static str, DevelopmentUser); 4] {
    let person = |user: &str, name: &str, roles: &[&str]| DevelopmentUser {
        user: user.to_owned(),
        name: Some(name.to_owned()),
        email: Some(format!("{user}@example.org")),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        ..DevelopmentUser::default()
    };
    [
        ("employee", person("erin", "Erin", &["employee"])),
        ("finance", person("fred", "Fred", &["employee", "finance"])),
        (
            "manager",
            person("mona", "Mona", &["employee", "finance-manager"]),
        ),
        (
            "admin",
            DevelopmentUser {
                admin: true,
                ..person("alice", "Alice", &[])
            },
        ),
    ]
}

/// For our own eyes only: the file holds tokens.
fn write_private(notes: &DemoNotes, config: &Config) -> anyhow::Result<()> {
    let path = config.data.join(DemoNotes::FILE);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&serde_json::to_vec_pretty(notes)?)?;
    Ok(())
}
