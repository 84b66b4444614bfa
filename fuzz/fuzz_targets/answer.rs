//! Answers of servers to calls: nothing but an error of JSON-RPC to our request says that a call was not carried out.
#![no_main]

use mcp::fuzzing::refuses;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    if !refuses(data) {
        return;
    }
    // A body with half of a surrogate pair, or with more nesting than this reader takes, is mended before it is read.
    let Ok(answer) = serde_json::from_str::<Value>(&String::from_utf8_lossy(data)) else { return };
    assert_eq!(answer["jsonrpc"], "2.0");
    assert!(answer["id"].is_null() || answer["id"].as_f64() == Some(1.0), "the answer to another request");
    assert!(answer["result"].is_null() && answer["method"].is_null());
    assert!(answer["error"]["code"].is_i64());
});
