//! Finds the Postgres server of this machine. Distributions keep its programs outside of `PATH`, in a folder for each
//! version. Only the version that made the data can read it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

const MISSING: &str = "no Postgres server on this machine: install it \
    (Debian and Ubuntu: `apt-get install postgresql`, Fedora: `dnf install postgresql-server`, \
    macOS: `brew install postgresql`), or set DATABASE_URL to one that runs";

/// Folders that hold one folder per version, each with a `bin`.
const PARENTS: [&str; 5] = [
    "/usr/lib/postgresql",
    "/usr",
    "/opt/homebrew/opt",
    "/usr/local/opt",
    "/Applications/Postgres.app/Contents/Versions",
];

/// A folder with `postgres`, `initdb` and `pg_ctl` of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    pub folder: PathBuf,
    pub major: u32,
}

impl Binaries {
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Finds the binaries to use: of the version that made the data (`wanted`), else the first on `path`, else the newest.
pub(super) fn find(path: Option<&str>, wanted: Option<u32>) -> anyhow::Result<Binaries> {
    choose(find_on_path(path).chain(find_installed()), wanted)
}

pub fn choose(
    found: impl Iterator<Item = Binaries>,
    wanted: Option<u32>,
) -> anyhow::Result<Binaries> {
    let mut others = Vec::new();
    for binaries in found {
        if wanted.is_none_or(|major| major == binaries.major) {
            return Ok(binaries);
        }
        others.push(binaries.major.to_string());
    }
    match wanted {
        Some(major) if !others.is_empty() => bail!(
            "the data was made by Postgres {major}, and this machine has {}: install version {major} \
             (Debian and Ubuntu: `apt-get install postgresql-{major}`), or move the data away to begin anew",
            others.join(", ")
        ),
        _ => bail!(MISSING),
    }
}

fn find_on_path(path: Option<&str>) -> impl Iterator<Item = Binaries> {
    path.unwrap_or_default()
        .split(':')
        .filter(|folder| !folder.is_empty())
        .filter_map(|folder| read_binaries(Path::new(folder)))
}

/// The installed versions in the usual places, newest first.
fn find_installed() -> impl Iterator<Item = Binaries> {
    let mut found: Vec<Binaries> = PARENTS
        .iter()
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flatten()
        .filter_map(|version| read_binaries(&version.ok()?.path().join("bin")))
        .collect();
    found.sort_by_key(|binaries| std::cmp::Reverse(binaries.major));
    found.into_iter()
}

/// The server in `folder`, if there is one. A link on `PATH` may point at `initdb` alone, so the folder of its target
/// counts.
fn read_binaries(folder: &Path) -> Option<Binaries> {
    let folder = fs::canonicalize(folder.join("initdb"))
        .ok()?
        .parent()?
        .to_owned();
    let complete = ["postgres", "pg_ctl"]
        .iter()
        .all(|name| folder.join(name).is_file());
    if !complete {
        return None;
    }
    let major = version_of(&folder.join("postgres")).ok()?;
    Some(Binaries { folder, major })
}

/// `postgres (PostgreSQL) 15.18 (Debian …)` → 15.
fn version_of(postgres: &Path) -> anyhow::Result<u32> {
    let output = Command::new(postgres).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split(' ').nth(2).context("no version in its answer")?;
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse()?)
}
