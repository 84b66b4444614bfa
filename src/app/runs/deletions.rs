//! The list of users whose data was deleted, in a file that is kept apart from the database. A database that is restored
//! to an earlier time has those users again; `chatelaine restored` deletes them once more.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use nix::{
    sys::statvfs::statvfs,
    unistd::{AccessFlags, access},
};
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

use domain::{
    error::{Error, Result},
    ids::{TenantId, UserId},
};

/// A deletion may end so long after its line was written: it takes many transactions. To repeat one that had ended does no
/// harm but to a user who came back at once.
const LONGEST: Duration = Duration::hours(1);

/// One line: a deletion that was about to be made.
#[derive(Debug, Deserialize, Serialize)]
pub struct Deletion {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub tenant: TenantId,
    pub user: UserId,
}

/// Adds a line, and waits until it is on the disk. Several processes may add to one file.
pub async fn append(list: PathBuf, deletion: Deletion) -> Result<()> {
    let write = move || {
        // After a line that a crash has cut, this one stands alone.
        let line = format!("\n{}\n", serde_json::to_string(&deletion)?);
        write(&list, &line)
    };
    let written = tokio::task::spawn_blocking(write).await;
    written.map_err(Error::internal)?.map_err(Error::Internal)
}

/// Refuses a list to which no line can be added. Changes nothing.
pub fn examine(list: &Path) -> anyhow::Result<()> {
    if list.exists() {
        open(list).map(drop)?;
    }
    let folder = match list.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !list.exists() {
        access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
            .with_context(|| format!("no file can be made in {}", folder.display()))?;
    }
    // A device has no room of its own.
    let is_device = fs::metadata(list).is_ok_and(|found| !found.is_file());
    let has_room = statvfs(folder).map_or(true, |room| room.blocks_available() > 0);
    anyhow::ensure!(
        is_device || has_room,
        "the disk of {} is full",
        list.display()
    );
    Ok(())
}

/// Refuses to go on with a list to which no line can be added: adds an empty one, which says nothing.
pub fn probe(list: &Path) -> anyhow::Result<()> {
    write(list, "\n").context("users cannot be deleted then; set it to a file that can be written")
}

fn open(list: &Path) -> anyhow::Result<fs::File> {
    let file = OpenOptions::new().create(true).append(true).open(list);
    file.with_context(|| named(list))
}

fn named(list: &Path) -> String {
    format!(
        "CHATELAINE_DELETIONS_FILE: cannot write to {}",
        list.display()
    )
}

/// Adds text, and waits until it is on the disk.
fn write(list: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = open(list)?;
    file.write_all(text.as_bytes())
        .with_context(|| named(list))?;
    file.sync_data().with_context(|| named(list))
}

/// The deletions that a database of the time `at` does not know, in the order of the file.
pub fn read_since(list: &Path, at: OffsetDateTime) -> anyhow::Result<Vec<Deletion>> {
    let text =
        fs::read_to_string(list).with_context(|| format!("cannot read {}", list.display()))?;
    let mut found = Vec::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
    {
        let deletion: Deletion = match serde_json::from_str(line) {
            // A crash or a full disk has cut it, so its deletion was not begun.
            Err(cut) if cut.is_eof() => continue,
            read => read.with_context(|| {
                format!(
                    "{}:{}: this is no line of a list of deletions",
                    list.display(),
                    number + 1
                )
            })?,
        };
        if deletion.at >= at - LONGEST {
            found.push(deletion);
        }
    }
    Ok(found)
}
