//! Schemas of tools and arguments for them: neither compiling nor checking needs more stack than the program gives them. A
//! line break ends the schema. What takes too long is libFuzzer's to notice.
#![no_main]

use domain::{json::Json, tool_schema::{MAX_BYTES, ToolSchema}};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

/// As in `mcp::schemas`.
const STACK: usize = 16 * 1024 * 1024;

fuzz_target!(|text: &str| {
    let (schema, arguments) = text.split_once('\n').unwrap_or((text, "{}"));
    let Ok(schema) = serde_json::from_str::<Box<RawValue>>(schema) else { return };
    let arguments = Json::parse(arguments).unwrap_or(Json::Null);
    let size = schema.get().len();
    let work = move || {
        let compiled = ToolSchema::compile(&schema);
        assert!(compiled.is_err() || size <= MAX_BYTES);
        if let Err(reason) = compiled.and_then(|schema| schema.check(&arguments)) {
            assert!(!reason.is_empty() && reason.len() < 16 * 1024);
        }
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work).expect("there is room");
    thread.join().expect("nothing panics");
});
