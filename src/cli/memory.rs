//! What is in this process's memory is nobody else's: keys, credentials, conversations.

use nix::sys::resource::{Resource, setrlimit};

/// A crash leaves no copy of the memory on a disk, and other processes of the same user cannot look into it.
/// A machine that does not allow this is told about and served all the same.
pub fn keep_out_of_core_dumps() {
    let done = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    #[cfg(target_os = "linux")]
    let done = done.and_then(|()| nix::sys::prctl::set_dumpable(false));
    if let Err(error) = done {
        tracing::warn!(%error, "a crash of this process may leave its memory in a core dump");
    }
}
