//! The web client is built into the program. `make web` builds it, and it may be absent, because a build must work
//! without Node.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script its folders by the environment"
)]

use std::{
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=web/dist");
    let out = env::var("OUT_DIR").expect("cargo names the folder of what is generated");
    fs::write(Path::new(&out).join("web.rs"), embedded()?)
}

/// The list of the files of `web/dist` as an expression: name, content, and the content compressed in two ways.
fn embedded() -> io::Result<String> {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    let folder = PathBuf::from(root).join("web/dist");
    let mut files: Vec<PathBuf> = match fs::read_dir(&folder) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    files.sort();
    let mut list = "&[\n".to_owned();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let gzip = folder.join(format!("{name}.gz"));
        let brotli = folder.join(format!("{name}.br"));
        if gzip.exists() && brotli.exists() {
            let [body, gzip, brotli] =
                [&file, &gzip, &brotli].map(|path| path.display().to_string());
            writeln!(
                list,
                "    File {{ name: {name:?}, body: include_bytes!({body:?}), gzip: include_bytes!({gzip:?}), \
                 brotli: include_bytes!({brotli:?}) }},",
            )
            .expect("a string can be written to");
        }
    }
    list.push_str("]\n");
    Ok(list)
}
