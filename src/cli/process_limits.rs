//! Limits of this process at the operating system: no copies of its memory, and enough open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub(super) const TOO_FEW_FILES: &str = "fewer connections than CHATELAINE_MAX_CONNECTIONS are possible; raise the limit of open files (ulimit -n)";

/// Forbids copies of the memory, which holds keys, credentials and conversations: a crash writes none to disk, and
/// other processes of the same user cannot read it. Where the system does not allow that, the log says so and the
/// service starts all the same.
pub fn disable_core_dumps() {
    let result = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    #[cfg(target_os = "linux")]
    let result = result.and_then(|()| nix::sys::prctl::set_dumpable(false));
    if let Err(error) = result {
        tracing::warn!(
            error = error.to_string(),
            "a crash of this process may leave its memory in a core dump"
        );
    }
}

/// Raises the number of files that this process may open as far as the system allows. Returns how many connections of
/// clients to accept: `wanted`, but at most half of that number.
pub fn raise_file_limit(wanted: usize) -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(Ok(soft), |()| Ok(hard))
    });
    let allowed = files.map_or(usize::MAX, |files| {
        usize::try_from(files / 2).unwrap_or(usize::MAX)
    });
    if allowed < wanted {
        tracing::warn!(connections = allowed, "{TOO_FEW_FILES}");
    }
    wanted.min(allowed)
}
