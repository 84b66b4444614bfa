//! The demo's key: made once and kept in the data folder, where only its owner may read it. A deployment gets its keys
//! from the environment, so that they do not lie beside the data they protect.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use anyhow::Context as _;
use zeroize::Zeroizing;

use domain::ring::KeyRing;

const FILE: &str = "encryption-keys";

/// The ring in the folder, if there is one.
pub fn ring(data: &Path) -> anyhow::Result<Option<KeyRing>> {
    let path = data.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let ring =
        KeyRing::parse(text.trim()).map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
    Ok(Some(ring))
}

/// The ring in the folder, made if there is none.
pub fn ring_or_new(data: &Path) -> anyhow::Result<KeyRing> {
    if let Some(ring) = ring(data)? {
        return Ok(ring);
    }
    let key = Zeroizing::new(rand::random::<[u8; 32]>());
    let text = Zeroizing::new(format!("k1:{}\n", &*Zeroizing::new(hex::encode(*key))));
    write(data, &text).with_context(|| format!("cannot write a key into {}", data.display()))?;
    // The key is read back because another process may have written one first, and that key counts.
    ring(data)?.context("the key that was just written is gone")
}

/// Writes the whole file or nothing, and never over an existing file: a lost key is a lost credential.
fn write(data: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(data)?;
    let draft = data.join(format!("{FILE}.{:016x}", rand::random::<u64>()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, data.join(FILE));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::File::open(data)?.sync_all(),
    }
}
