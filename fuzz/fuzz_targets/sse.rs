//! Streams of events: they come out the same however the bytes are cut.
#![no_main]

use mcp::fuzzing::events;
use futures_executor::block_on;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((size, body)) = data.split_first() else { return };
    let whole = block_on(events(vec![body.to_vec()]));
    let pieces = body.chunks(usize::from(*size % 16) + 1).map(<[u8]>::to_vec).collect();
    assert_eq!(block_on(events(pieces)), whole);
});
