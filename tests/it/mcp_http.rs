//! Servers over HTTP: published ones in both eras, and one that does exactly what a test says.

mod answers; // what an answer says of a call
mod calls; // what becomes of a call
mod connections; // opened once, left alone, closed
mod listing; // tools, page by page
mod real; // published servers
mod results; // what a tool brought back
mod schemas; // what a tool may ask for
mod sessions; // lost and repaired
mod stream; // events, whatever the bytes
