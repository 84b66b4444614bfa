//! A Postgres of a test's own, whose files it copies and puts back, which it promotes and upgrades.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use chatelaine::cli::private_postgres::PrivatePostgres;
use domain::{config::Environment, secret::Secret};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::process::Command;
use url::Url;

pub struct OwnPostgres {
    folder: TempDir,
    server: Option<PrivatePostgres>,
    /// The same after each start.
    pub url: Secret,
    /// The folder of the programs of Postgres.
    programs: PathBuf,
}

impl OwnPostgres {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Root's server runs as another user, who must pass through.
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let server = Self::run(&folder).await;
        let mut postgres = Self {
            url: server.url().clone(),
            folder,
            server: Some(server),
            programs: PathBuf::new(),
        };
        let programs = "select setting from pg_config where name = 'BINDIR'";
        let programs: String = sqlx::query_scalar(programs)
            .fetch_one(&mut postgres.as_superuser().await)
            .await
            .unwrap();
        postgres.programs = programs.into();
        postgres
    }

    async fn run(folder: &TempDir) -> PrivatePostgres {
        let folder = folder.path().join("postgres");
        let started = PrivatePostgres::start(&folder, &Environment::from_process()).await;
        started.unwrap()
    }

    pub async fn start_again(&mut self) {
        self.server = Some(Self::run(&self.folder).await);
    }

    pub async fn stop(&mut self) {
        self.server.take().unwrap().stop().await.unwrap();
    }

    /// Ends the server at once, as a crash would.
    pub async fn crash(&mut self) {
        let pid = fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.lines().next().unwrap().parse().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT).unwrap();
        self.stop().await;
    }

    /// A copy of the files. The server must be stopped.
    pub async fn copy(&self, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        finish(Command::new("cp").arg("-a").arg(self.data()).arg(&copy)).await;
        copy
    }

    /// Puts such a copy in the place of the files. The server must be stopped.
    pub fn put_back(&self, copy: &Path) {
        fs::remove_dir_all(self.data()).unwrap();
        fs::rename(copy, self.data()).unwrap();
    }

    /// Lets a standby with the files of the stopped server take over.
    pub async fn fail_over(&mut self) {
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "").unwrap();
        let owner = fs::metadata(self.data()).unwrap();
        chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
        self.start_again().await;
        let has_promoted: bool = sqlx::query_scalar("select pg_promote()")
            .fetch_one(&mut self.as_superuser().await)
            .await
            .unwrap();
        assert!(has_promoted);
    }

    /// Moves everything into a new cluster, as an upgrade to another version does. The server must be stopped.
    pub async fn upgrade(&self) {
        let new = self.folder.path().join("new");
        let owner = fs::metadata(self.data()).unwrap();
        fs::create_dir(&new).unwrap();
        chown(&new, Some(owner.uid()), Some(owner.gid())).unwrap();
        let data = new.join("data");
        let mut initdb = self.program("initdb", &new);
        initdb.args(["--username=postgres", "--auth=peer", "--encoding=UTF8"]);
        finish(initdb.args(["--no-locale", "-D"]).arg(&data)).await;
        let mut upgrade = self.program("pg_upgrade", &new);
        upgrade.args(["--username=postgres", "--old-datadir"]);
        upgrade.arg(self.data()).arg("--new-datadir").arg(&data);
        upgrade.arg("--old-bindir").arg(&self.programs);
        upgrade.arg("--new-bindir").arg(&self.programs);
        finish(upgrade.arg("--socketdir").arg(&new)).await;
        self.put_back(&data);
    }

    /// Dumps the database into a file.
    pub async fn dump(&self) -> PathBuf {
        let file = self.folder.path().join("dump");
        let mut dump = Command::new(self.programs.join("pg_dump"));
        dump.args(["--format=custom", "--file"]).arg(&file);
        finish(dump.arg(self.superuser())).await;
        file
    }

    /// Restores such a file over the tables that are there.
    pub async fn restore(&self, dump: &Path) {
        let mut restore = Command::new(self.programs.join("pg_restore"));
        restore.args(["--clean", "--if-exists", "--dbname"]);
        finish(restore.arg(self.superuser()).arg(dump)).await;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("postgres/data")
    }

    fn superuser(&self) -> String {
        let mut url = Url::parse(self.url.expose()).unwrap();
        url.set_username("postgres").unwrap();
        url.into()
    }

    async fn as_superuser(&self) -> PgConnection {
        PgConnection::connect(&self.superuser()).await.unwrap()
    }

    /// A program of Postgres that works with the files, so that it must be the server's user.
    fn program(&self, name: &str, folder: &Path) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if nix::unistd::geteuid().is_root() {
            let owner = fs::metadata(self.data()).unwrap();
            command.uid(owner.uid()).gid(owner.gid());
        }
        command.current_dir(folder);
        command
    }
}

async fn finish(command: &mut Command) {
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C");
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
    assert!(output.status.success(), "{command:?}: {said:?}");
}
