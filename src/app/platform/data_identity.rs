//! Whether the database has the data with which replicas worked last ([`domain::data_identity`]). Nobody works with other
//! data until an operator has said what it is.
//!
//! A replica writes the row when it starts, every few seconds, and within a second of whatever else was written. It
//! remembers the newest state that it has seen, also in a file of its data folder. The private Postgres is not asked
//! about: it is made for trying things, and may be moved and upgraded.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::app::App;
use domain::{
    config::Config,
    data_identity::{Age, DataIdentity, KnownData, Place, Verdict, Witness, compare},
    error::{Error, ErrorCode, Result},
    finding::{Code, Finding},
};
use store::{Db, Tx, data_identity};

const FILE: &str = "database.json";
/// How soon a replica that starts asks again whether one at work vouches for the database.
const AGAIN: Duration = Duration::from_secs(2);
/// So many bytes of the log are written by less than a call that was approved and made.
const ADVANCE: i64 = 8 * 1024;

/// What this process has seen of the database.
pub struct SeenData {
    /// `None` for a private Postgres.
    file: Option<PathBuf>,
    latest: Mutex<Option<Witness>>,
}

impl SeenData {
    pub fn new(config: &Config) -> Self {
        Self {
            file: config.database_url.as_ref().map(|_| config.data.join(FILE)),
            latest: Mutex::default(),
        }
    }

    /// The newest state that this process has seen, or one before it. It is read before the database is: a replica that
    /// shares the folder may write both in between.
    fn witness(&self) -> Option<Witness> {
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.or_else(|| read_file(self.file.as_ref()?))
    }

    fn is_alive(&self) -> bool {
        self.witness().is_some_and(|witness| witness.is_alive)
    }

    /// Remembers a state that was committed.
    fn remember(&self, place: Place, age: Age) -> Witness {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let witness = latest.filter(|known| known.place == place && known.age > age);
        *latest.insert(witness.unwrap_or(Witness {
            place,
            age,
            is_alive: true,
        }))
    }
}

fn read_file(file: &Path) -> Option<Witness> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Without the file the next start does not notice a volume that was put back, which is no reason not to work.
fn write_file(file: &Path, witness: Witness) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(&witness)?)?;
    std::fs::rename(new, file)
}

/// Commits that this replica works with the database. Refuses data that is not what it was; a replica that is at work
/// stops then, and says to the others if only a witness can know it.
pub async fn commit(app: &App, mut tx: Tx) -> Result<()> {
    let Some(file) = app.seen_data.file.as_ref() else {
        return tx.commit().await;
    };
    data_identity::lock(&mut tx).await?;
    let witness = app.seen_data.witness();
    let (row, now) = look(&mut tx).await?;
    let verdict = compare(row.as_ref(), &now, witness);
    let Some(reason) = describe(verdict) else {
        let age = data_identity::put(&mut tx, &now).await?;
        tx.commit().await?;
        let is_first = !app.seen_data.is_alive();
        let witness = app.seen_data.remember(now.place, age);
        if let Err(error) = write_file(file, witness)
            && is_first
        {
            let file = file.display();
            let error = error.to_string();
            tracing::warn!(error, %file, "a start cannot notice that the volume of the database was put back");
        }
        return Ok(());
    };
    if verdict == Verdict::Recovered && is_another_at_work(app, &mut tx).await? {
        return Err(Error::Busy {
            reason,
            retry_after: AGAIN,
        });
    }
    store::replicas::delete(&mut tx, app.replica).await?;
    if verdict == Verdict::Behind {
        data_identity::mark_behind(&mut tx).await?;
    }
    tx.commit().await?;
    if app.seen_data.is_alive() {
        tracing::error!(reason, "stopping");
        app.shutdown.cancel();
    }
    Err(Error::conflict(ErrorCode::Conflict, reason))
}

/// A replica that was at work when the timeline changed knows whether the log went back, and writes the new one.
async fn is_another_at_work(app: &App, tx: &mut Tx) -> Result<bool> {
    let replicas = store::replicas::list(tx).await?;
    let mut others = replicas.iter().filter(|one| one.id != app.replica);
    Ok(others.any(|one| !one.silent))
}

/// Looks whether the database still has the data, and writes the row again when something else was written since.
pub async fn follow(app: &App) -> Result<()> {
    if app.seen_data.file.is_none() {
        return Ok(());
    }
    let witness = app.seen_data.witness();
    let (row, now) = app.db.look(|tx| Box::pin(look(tx))).await?;
    let verdict = compare(row.as_ref(), &now, witness);
    match row {
        Some(row)
            if verdict == Verdict::Same
                && row.identity.timeline == now.timeline
                && now.position - row.identity.position < ADVANCE =>
        {
            app.seen_data.remember(now.place, row.age);
            Ok(())
        }
        _ => commit(app, app.db.system().await?).await,
    }
}

async fn look(tx: &mut Tx) -> Result<(Option<KnownData>, DataIdentity)> {
    Ok((
        data_identity::get(tx).await?,
        data_identity::read(tx).await?,
    ))
}

/// What is wrong with the data, for an operator; `None` if nothing is.
fn describe(verdict: Verdict) -> Option<String> {
    let why = match verdict {
        Verdict::Same => return None,
        Verdict::Recovered => {
            "its log is on a later timeline, and no replica was at work when that began"
        }
        Verdict::Behind => "it does not have what a replica has seen in it",
        Verdict::Other(why) => why,
    };
    Some(format!(
        "the database is not as replicas have left it: {why}. If it was restored to an earlier time, stop all replicas and \
         execute `chatelaine restored --at TIME`, so that nothing is done twice; if nothing is missing in it, because it \
         was moved or upgraded or a standby took over, `chatelaine restored --same-data`"
    ))
}

/// What is wrong with the data as `serve` on this machine would find it.
pub async fn examine(db: &Db, config: &Config) -> Result<Vec<Finding>> {
    let witness = SeenData::new(config).witness();
    let mut tx = db.system().await?;
    let (row, now) = look(&mut tx).await?;
    let verdict = compare(row.as_ref(), &now, witness);
    let replicas = store::replicas::list(&mut tx).await?;
    if verdict == Verdict::Recovered && replicas.iter().any(|replica| !replica.silent) {
        return Ok(Vec::new());
    }
    let found = describe(verdict).map(|why| Finding::new(Code::DatabaseRestored, why, ""));
    Ok(found.into_iter().collect())
}
