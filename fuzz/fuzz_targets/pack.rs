//! Packs in every dialect: any bytes in place of a file are a report, never a panic, and no value of the environment
//! is in it.
#![no_main]

use std::{fs, sync::LazyLock};

use domain::config::Environment;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const FILES: [&str; 5] =
    ["agent-pack.yaml", "workspace.yaml", "agent.yaml", "core/mcp/tools.yaml", "core/skills/search/skill.yaml"];
const SECRET: &str = "hunter2-hunter2-hunter2";

static FOLDERS: LazyLock<[TempDir; FILES.len()]> = LazyLock::new(|| {
    FILES.map(|file| {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        folder
    })
});

fuzz_target!(|data: &[u8]| {
    let Some((which, text)) = data.split_first() else { return };
    let which = usize::from(*which) % FILES.len();
    let folder = FOLDERS[which].path();
    fs::write(folder.join(FILES[which]), text).expect("there is room");
    let env = Environment::default().with("TOKEN", SECRET).with("URL", "https://example.com/mcp");
    let report = packs::check(folder, &env, None);
    assert!(!report.to_string().contains(SECRET));
});
