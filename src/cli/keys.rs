//! `chatelaine keys`: rotation of the key ring while replicas serve. The keys themselves come from the
//! environment, as for `serve`; no command prints or stores one.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write},
};

use crate::app::platform::keys::{
    Keys, folder,
    rewrap::{self, BATCH},
    rotation::{self, KekView},
};
use domain::{clock, config::Config, ids::KekId};
use store::{Db, keks::KekState};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the keys, what they are needed for, and what to do next
    List,
    /// Register a key of the environment, so that a replica with a different key of the same id does not
    /// start
    Add {
        #[arg(value_parser = KekId::parse)]
        key: KekId,
    },
    /// Let a key seal in place of the one that does; every replica must have it
    Promote {
        #[arg(value_parser = KekId::parse)]
        key: KekId,
    },
    /// Bring along what older keys protect; may be stopped and run again at any time
    Rewrap {
        /// Records in one transaction
        #[arg(long, default_value_t = BATCH, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        batch: u16,
    },
    /// Mark a key as not needed, so that it may leave the environment; refused while it is
    Retire {
        #[arg(value_parser = KekId::parse)]
        key: KekId,
    },
}

/// The vault, with the keys of the settings.
pub(super) fn open(db: &Db, config: &Config) -> anyhow::Result<Keys> {
    let ring = match &config.ring {
        Some(ring) => Some(ring.clone()),
        None => folder::ring(&config.data)?,
    };
    Ok(Keys::new(db.clone(), ring))
}

pub async fn run(
    command: Command,
    db: &Db,
    config: &Config,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let keys = open(db, config)?;
    match command {
        Command::List => {
            let (views, stale) = rotation::list(&keys).await?;
            write!(out, "{}{}", table(&views), next_steps(&views))?;
            if stale > 0 {
                writeln!(
                    out,
                    "{stale} records are sealed with an older key of their tenant: chatelaine keys rewrap"
                )?;
            }
        }
        Command::Add { key } => match rotation::add(&keys, &key).await? {
            KekState::Added => {
                writeln!(
                    out,
                    "key {key} is known; once every replica has it: chatelaine keys promote {key}"
                )?;
            }
            state => writeln!(
                out,
                "key {key} was known before; it is {}",
                state.into_str()
            )?,
        },
        Command::Promote { key } => {
            rotation::promote(&keys, &key).await?;
            writeln!(
                out,
                "key {key} seals; replicas follow within 30 s. Next: chatelaine keys rewrap"
            )?;
        }
        Command::Rewrap { batch } => rewrap(&keys, batch, out).await?,
        Command::Retire { key } => {
            rotation::retire(&keys, &key).await?;
            writeln!(
                out,
                "key {key} is retired; it may leave the environment of every replica"
            )?;
        }
    }
    Ok(())
}

/// Seals everything anew with the newest key. Shows the progress where a person watches.
async fn rewrap(keys: &Keys, batch: u16, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let (started, shows_progress) = (clock::instant(), io::stderr().is_terminal());
    let rewrapped = rewrap::rewrap(keys, batch, |progress| {
        if shows_progress {
            let total = progress.total.max(progress.seen);
            let _ = write!(io::stderr(), "\r{} of {total} records", progress.seen);
        }
    })
    .await;
    if shows_progress {
        let _ = writeln!(io::stderr());
    }
    let counts = rewrapped?;
    let took = clock::instant() - started;
    writeln!(
        out,
        "{} tenant keys wrapped anew, {} of {} records sealed anew in {:.1} s",
        counts.tenant_keys,
        counts.records,
        counts.total,
        took.as_secs_f64(),
    )?;
    if counts.unopenable > 0 {
        writeln!(
            out,
            "{} records cannot be opened; they are kept, and credentials are marked as quarantined: \
             `chatelaine credentials retry` tries those again",
            counts.unopenable
        )?;
    }
    if counts.locked > 0 {
        writeln!(
            out,
            "{} records are sealed with a key of their tenant that cannot be read; they stay as they are: \
             `chatelaine doctor` names the tenants",
            counts.locked
        )?;
    }
    Ok(())
}

/// The keys as a table, one line for each.
fn table(views: &[KekView]) -> String {
    let mut lines = vec![
        [
            "key",
            "state",
            "in the ring",
            "tenant keys",
            "records",
            "check value",
        ]
        .map(str::to_owned),
    ];
    for view in views {
        let known = view.known.as_ref();
        lines.push([
            view.id.to_string(),
            known
                .map_or("new", |known| known.state.into_str())
                .to_owned(),
            view.fits
                .map_or("no", |fits| if fits { "yes" } else { "WRONG" })
                .to_owned(),
            view.needed.tenant_keys.to_string(),
            view.needed.records.to_string(),
            known.map_or_else(String::new, |known| hex::encode(&known.check_value[..4])),
        ]);
    }
    let mut text = String::new();
    for line in &lines {
        for (column, cell) in line.iter().enumerate() {
            let width = lines
                .iter()
                .map(|line| line[column].len())
                .max()
                .unwrap_or_default();
            let _ = write!(text, "{cell:width$}  ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The next steps for the operator, one line for each.
fn next_steps(views: &[KekView]) -> String {
    let mut text = String::new();
    for KekView {
        id,
        known,
        fits,
        needed,
    } in views
    {
        let state = known.as_ref().map(|known| known.state);
        let line = match (state, fits) {
            (_, Some(false)) => {
                format!("{id}: this is not the key that the database knows; put the right one back")
            }
            (None, _) => format!("{id} is new: chatelaine keys add {id}"),
            (Some(KekState::Sealing), None) => {
                format!("{id} seals and is not in this ring: add it")
            }
            (_, None) if needed.tenant_keys > 0 => {
                format!("{id} is needed and is not in this ring: add it")
            }
            (Some(KekState::Opening), _) if needed.tenant_keys > 0 => {
                format!("{id} protects what it sealed before: chatelaine keys rewrap")
            }
            (Some(KekState::Opening), _) => {
                format!("{id} is not needed any more: chatelaine keys retire {id}")
            }
            (Some(KekState::Retired), Some(true)) => {
                format!("{id} is retired: it may leave the environment")
            }
            _ => continue,
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}
