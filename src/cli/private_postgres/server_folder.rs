//! The folder of a private Postgres, and the user that it runs as.
//!
//! ```text
//! <folder>/          the starter's: lock, log, pg_hba.conf, pg_ident.conf
//! <folder>/data/     the server's, 0700
//! <folder>/socket/   the server's, 0700 (in /tmp when the path would be too long for a socket)
//! ```
//!
//! Postgres refuses to run as root. Started by root it runs as the owner of the data, if there is data, else as
//! `postgres`, else as `nobody`. If that user cannot reach the folder (below `/root`, for example), the data lies below
//! `FALLBACK_FOLDER`, in a folder named after the one asked for, so that the next start finds it.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use nix::{
    sys::statvfs::statvfs,
    unistd::{Uid, User, geteuid},
};
use sha2::{Digest, Sha256};

/// The parent of root's databases whose own folder the server's user cannot reach.
const FALLBACK_FOLDER: &str = "/var/lib/chatelaine";
/// Linux allows 107 bytes and macOS 103 for a socket's path; `/.s.PGSQL.5432` takes 14 of them.
const LONGEST_SOCKET_FOLDER: usize = 88;
const LONGEST_LOG: u64 = 1024 * 1024;

/// The folder and the user of a private Postgres.
#[derive(Debug)]
pub(super) struct ServerFolder {
    pub folder: PathBuf,
    /// The user that the server runs as, when that is not the user of this process.
    server_user: Option<Owner>,
    /// Whether the folder was made for one start. Then it belongs to the server's user and is removed at the end.
    throwaway: bool,
}

/// A user of the system and its group.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl ServerFolder {
    /// Prepares `folder`, or the one that takes its place.
    pub(super) fn at(folder: &Path) -> anyhow::Result<Self> {
        let folder = make_absolute(folder)?;
        if !geteuid().is_root() {
            make_folder(&folder, 0o700)?;
            let owner = fs::metadata(&folder)?.uid();
            ensure!(
                owner == geteuid().as_raw(),
                "{} belongs to another user (id {owner}): start as that user or as root, or set CHATELAINE_DATA to \
                 another folder",
                folder.display()
            );
            return Ok(Self {
                folder,
                server_user: None,
                throwaway: false,
            });
        }
        let (folder, owner) = choose_folder_for_root(folder)?;
        make_folder(&folder, 0o711)?;
        Ok(Self {
            folder,
            server_user: Some(owner),
            throwaway: false,
        })
    }

    /// A new folder for a server whose data is thrown away: in memory where there is room, else in `/tmp`.
    /// Creating and dropping a database costs a disk's file system more than it costs Postgres.
    pub(super) fn throwaway() -> anyhow::Result<Self> {
        let server_user = if geteuid().is_root() {
            Some(find_unprivileged_user()?)
        } else {
            None
        };
        let server_folder = Self {
            folder: make_new_folder(memory_folder().unwrap_or("/tmp"))?,
            server_user,
            throwaway: true,
        };
        server_folder.change_owner(&server_folder.folder)?;
        Ok(server_folder)
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(super) fn is_throwaway(&self) -> bool {
        self.throwaway
    }

    /// The version that made the data, if there is any.
    pub(super) fn version(&self) -> anyhow::Result<Option<u32>> {
        version_of(&self.folder)
    }

    /// A command that runs as the server's user, in a folder that this user may enter, and with no variables of this
    /// process's environment.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LC_ALL", "C");
        if let Some(owner) = self.server_user {
            command.uid(owner.uid).gid(owner.gid);
        }
        command
    }

    /// Makes an empty folder that belongs to the server's user.
    pub(super) fn make_for_server(&self, folder: &Path) -> anyhow::Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        DirBuilder::new()
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        self.change_owner(folder)
    }

    /// Makes the folder of the socket: here, or in `/tmp` when the path would be too long for a socket.
    pub(super) fn make_socket_folder(&self) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join("socket");
        if folder.as_os_str().len() <= LONGEST_SOCKET_FOLDER {
            self.make_for_server(&folder)?;
            return Ok(folder);
        }
        let folder = make_new_folder("/tmp")?;
        self.change_owner(&folder)?;
        Ok(folder)
    }

    /// Hands a path over to the server's user.
    fn change_owner(&self, path: &Path) -> anyhow::Result<()> {
        match self.server_user {
            Some(owner) => chown(path, Some(owner.uid), Some(owner.gid)).with_context(|| {
                format!("cannot hand {} over to user {}", path.display(), owner.uid)
            }),
            None => Ok(()),
        }
    }

    /// Writes a file that the server reads. An existing file is removed first, so nothing is written through a link.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }

    /// Opens the lock file. The process that runs the server holds its lock as long as it lives.
    pub(super) fn lock_file(&self) -> anyhow::Result<File> {
        let path = self.folder.join("lock");
        File::open(&path)
            .or_else(|_| {
                OpenOptions::new()
                    .read(true)
                    .append(true)
                    .create(true)
                    .mode(0o644)
                    .open(&path)
            })
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// Opens the log of the server. A log longer than [`LONGEST_LOG`] is emptied first.
    pub(super) fn log_file(&self) -> anyhow::Result<File> {
        let path = self.folder.join("log");
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        if file.metadata()?.len() > LONGEST_LOG {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// The names of the system's users who may log in: the server's user, and root, who may do anything anyway.
    pub(super) fn users(&self) -> anyhow::Result<Vec<String>> {
        let uid = self
            .server_user
            .map_or_else(geteuid, |owner| Uid::from_raw(owner.uid));
        let user = User::from_uid(uid)?.with_context(|| {
            format!("user id {uid} has no name on this machine, which Postgres needs; start as a user of the system")
        })?;
        let mut names = vec![user.name];
        if !uid.is_root() {
            names.push("root".to_owned());
        }
        Ok(names)
    }
}

/// Finds the user that the server runs as when root starts it.
fn find_unprivileged_user() -> anyhow::Result<Owner> {
    for name in ["postgres", "_postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Owner {
                uid: user.uid.as_raw(),
                gid: user.gid.as_raw(),
            });
        }
    }
    bail!(
        "started by root, the private Postgres needs a user `postgres` or `nobody` to run as; there is neither"
    )
}

/// Chooses the folder when root starts the server: the folder itself if the server's user can reach it, else one below
/// [`FALLBACK_FOLDER`].
fn choose_folder_for_root(folder: PathBuf) -> anyhow::Result<(PathBuf, Owner)> {
    if let Some(owner) = owner_of_data(&folder) {
        ensure!(
            can_reach(&folder, owner)?,
            "{} holds a database that its user (id {}) can no longer reach: open the folders above it (chmod o+x)",
            folder.display(),
            owner.uid
        );
        return Ok((folder, owner));
    }
    let elsewhere = Path::new(FALLBACK_FOLDER)
        .join(&hex::encode(Sha256::digest(folder.as_os_str().as_bytes()))[..16]);
    if let Some(owner) = owner_of_data(&elsewhere) {
        return Ok((elsewhere, owner));
    }
    let owner = find_unprivileged_user()?;
    if can_reach(&folder, owner)? {
        return Ok((folder, owner));
    }
    tracing::info!(asked = %folder.display(), used = %elsewhere.display(), "the server's user cannot reach the folder");
    make_folder(Path::new(FALLBACK_FOLDER), 0o755)?;
    Ok((elsewhere, owner))
}

/// The owner of the data folder, if there is one.
fn owner_of_data(folder: &Path) -> Option<Owner> {
    let data = fs::metadata(folder.join("data")).ok()?;
    (data.uid() != 0).then(|| Owner {
        uid: data.uid(),
        gid: data.gid(),
    })
}

/// Whether a user may pass through every folder above `folder`, judging by the permission bits.
pub fn can_reach(folder: &Path, user: Owner) -> anyhow::Result<bool> {
    for above in folder.ancestors().skip(1) {
        let meta = fs::metadata(above)?;
        let bit = match () {
            () if meta.uid() == user.uid => 0o100,
            () if meta.gid() == user.gid => 0o010,
            () => 0o001,
        };
        if meta.mode() & bit == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The major version of Postgres that made the data in a folder; `None` without data.
pub(super) fn version_of(folder: &Path) -> anyhow::Result<Option<u32>> {
    match fs::read_to_string(folder.join("data/PG_VERSION")) {
        Ok(text) => {
            Ok(Some(text.trim().parse().context(
                "PG_VERSION of the private Postgres is not a number",
            )?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot read the private Postgres's folder"),
    }
}

/// The path without links and dots. The folders above it are made.
fn make_absolute(folder: &Path) -> anyhow::Result<PathBuf> {
    let folder = std::path::absolute(folder)?;
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        bail!(
            "{} cannot hold a database: name a folder of its own",
            folder.display()
        );
    };
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    Ok(fs::canonicalize(parent)?.join(name))
}

fn make_folder(folder: &Path, mode: u32) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(folder)
        .with_context(|| format!("cannot make {}", folder.display()))
}

/// A folder that the system keeps in memory, if it has room for the databases of a test run.
fn memory_folder() -> Option<&'static str> {
    const MIN_FREE_BYTES: u64 = 4 << 30;
    let memory = "/dev/shm";
    let free = statvfs(memory).ok()?;
    (free.blocks_available() * free.fragment_size() >= MIN_FREE_BYTES).then_some(memory)
}

/// Makes a folder below `parent` that only its owner may enter. A name that is taken is an error.
fn make_new_folder(parent: &str) -> anyhow::Result<PathBuf> {
    let name = format!("chatelaine-{:016x}", rand::random::<u64>());
    let folder = Path::new(parent).join(name);
    DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}
