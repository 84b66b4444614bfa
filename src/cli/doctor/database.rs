//! The database, and what must fit what is in it: keys, issuers, and the claims that packs name.

use super::{
    super::{check, private_postgres::PrivatePostgres},
    Installation, LoadedPacks, Outcome,
};
use crate::app::{
    accounts,
    platform::{data_identity, keys::replica_keys, replicas},
};
use domain::{
    error::Result,
    finding::{Code, Finding},
};
use store::{Db, diagnosis};

pub(super) async fn check(here: &Installation, packs: &LoadedPacks) -> Outcome {
    let mut outcome = Outcome::default();
    let config = &here.config;
    let Some(url) = &config.database_url else {
        check_private(here, &mut outcome);
        return outcome;
    };
    let found = diagnosis::examine(url, &config.direct_database, config.database_connections);
    let found = found.await;
    outcome.findings.extend(found.findings);
    for (check, because) in found.skipped {
        outcome.skip(check, because);
    }
    if !found.has_tables {
        outcome.skip("keys and issuers in the database", "it cannot be read");
        return outcome;
    }
    let db = match Db::connect_to_read(url).await {
        Ok(db) => db,
        Err(error) => {
            outcome.skip("keys and issuers in the database", format!("{error:#}"));
            return outcome;
        }
    };
    if here.has_readable_keys() {
        let examined = replica_keys::examine(&db, config.ring.as_ref()).await;
        take(&mut outcome, "keys", examined);
    } else {
        outcome.skip("keys", "they cannot be read from the settings");
    }
    let examined = accounts::issuers::examine(&db, &here.egress, &here.env).await;
    take(&mut outcome, "issuers", examined);
    let examined = replicas::examine(&db).await;
    take(&mut outcome, "replicas", examined);
    let examined = data_identity::examine(&db, config).await;
    take(&mut outcome, "whether the database was restored", examined);
    db.close().await;
    for problem in check::warn_of_unseen_claims(&packs.report, config).await {
        outcome
            .findings
            .push(super::packs::finding(Code::PacksDoubtful, &problem));
    }
    outcome
}

fn take(outcome: &mut Outcome, check: &'static str, examined: Result<Vec<Finding>>) {
    match examined {
        Ok(findings) => outcome.findings.extend(findings),
        Err(error) => outcome.skip(check, error.to_string()),
    }
}

/// Without a database of the operator's, `serve` starts one.
fn check_private(here: &Installation, outcome: &mut Outcome) {
    let variable = here.env.database_variable();
    outcome.skip(
        "database",
        format!("{variable} names none, and no private Postgres is started for this"),
    );
    if here.faulty.contains(&variable) {
        return;
    }
    outcome.add(
        Code::DatabasePrivate,
        "DATABASE_URL is not set, so a private Postgres is used, which is made for trying things",
        "set DATABASE_URL to a Postgres that has backups",
    );
    let folder = here.config.data.join("postgres");
    if let Err(error) = PrivatePostgres::check_programs(&folder, &here.env) {
        outcome.add(Code::DatabaseProgram, format!("{error:#}"), "");
    }
}
