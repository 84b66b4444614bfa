//! Messages of servers: whatever a line says, what is taken from it is JSON.
#![no_main]

use mcp::fuzzing::{body, line};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Builder;

fuzz_target!(|data: &[u8]| {
    if let Some(words) = body(data) {
        assert!(words.len() <= 128 * 1024);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    if let Some(answer) = runtime.block_on(async { line(text) }) {
        serde_json::from_str::<serde_json::Value>(answer.get()).expect("it was read as JSON");
    }
});
