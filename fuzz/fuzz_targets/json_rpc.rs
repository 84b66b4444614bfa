//! Messages of servers: whatever a line says, what is taken from it is JSON, and it answers somebody or is nobody's.
#![no_main]

use mcp::fuzzing::{body, line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(words) = body(data) {
        assert!(words.len() <= 128 * 1024);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    let (answer, passes) = line(text);
    if let Some(answer) = answer {
        assert!(passes, "who asked hears that there is an answer");
        serde_json::from_str::<serde_json::Value>(answer.get()).expect("it was read as JSON");
    }
});
