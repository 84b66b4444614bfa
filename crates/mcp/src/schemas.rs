//! Compiles and applies the schemas of tools on a few threads of their own, with a stack of a known size. So
//! a server's schema neither blocks a worker of the runtime nor overflows its stack. Small arguments of a small schema
//! need no thread.

use std::{
    sync::{Arc, LazyLock},
    thread,
};

use serde_json::value::RawValue;
use tokio::sync::{Semaphore, oneshot};

use domain::{json::Json, tool::Tool, tool_schema::ToolSchema};

const STACK: usize = 16 * 1024 * 1024;
/// Threads at once, in the whole process.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(4)));

/// Compiles the schema of a tool's arguments; the error says why it cannot be used.
pub async fn compile(tool: Arc<Tool>) -> Result<Arc<ToolSchema>, String> {
    run(move || ToolSchema::compile(&tool.input_schema).map(Arc::new)).await?
}

/// Compiles the schema of an answer; the error says why it cannot be used.
pub async fn compile_format(schema: Box<RawValue>) -> Result<Arc<ToolSchema>, String> {
    run(move || ToolSchema::compile(&schema).map(Arc::new)).await?
}

/// Why arguments do not fit a schema, at most five reasons.
pub async fn check(schema: Arc<ToolSchema>, arguments: &Json) -> Result<(), String> {
    if schema.is_quick(arguments) {
        return schema.check(arguments);
    }
    let arguments = arguments.clone();
    run(move || schema.check(&arguments)).await?
}

async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let failed = |_| "the schema could not be applied".to_owned();
    let place = PLACES.clone().acquire_owned().await;
    let (done, result) = oneshot::channel();
    thread::Builder::new()
        .name("schema".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let _place = place;
            // Nobody may wait for it any more.
            let _ = done.send(work());
        })
        .map_err(|error| format!("the schema could not be applied: {error}"))?;
    result.await.map_err(failed)
}
