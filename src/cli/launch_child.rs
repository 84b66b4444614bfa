//! The step between the service and a server that is its child. The child gets fewer open files and less memory than
//! the service, and no way to gain rights, such as by a program that runs as another user. Then this process becomes
//! the child, under the same process id.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that a child may have open.
const OPEN_FILES: u64 = 4096;
/// Bytes of memory that a child may fill.
const MEMORY: u64 = 4 * 1024 * 1024 * 1024;

#[derive(clap::Args)]
pub struct Args {
    command: OsString,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// How a child is started. The file of the running program may have been replaced, so it is not named where it can be
/// helped.
pub fn launcher() -> Option<PathBuf> {
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}

/// Becomes the command; returns only when that fails.
pub fn run(args: &Args) -> ExitCode {
    let failed = match limit() {
        Ok(()) => Command::new(&args.command).args(&args.arguments).exec(),
        Err(error) => error.into(),
    };
    let _ = writeln!(
        io::stderr(),
        "chatelaine: command \"{}\" cannot be started: {failed}",
        args.command.display()
    );
    ExitCode::from(127)
}

fn limit() -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    lower(Resource::RLIMIT_NOFILE, OPEN_FILES)?;
    lower(Resource::RLIMIT_DATA, MEMORY)?;
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}

/// A limit that is lower already stays.
fn lower(resource: Resource, most: u64) -> nix::Result<()> {
    let (soft, hard) = getrlimit(resource)?;
    setrlimit(resource, soft.min(most), hard.min(most))
}
