//! Compiles and applies schemas on a few separate threads with a stack of a known size, so that a server's schema can
//! neither block a worker of the runtime nor overflow its stack. Small arguments of a small schema are checked at once.

use std::{
    sync::{Arc, LazyLock},
    thread,
};

use moka::future::Cache;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, oneshot};

use domain::{json::Json, tool::Tool, tool_schema::ToolSchema};

/// The size of the stack of each thread, in bytes.
const STACK: usize = 16 * 1024 * 1024;
/// The threads that may run at once in this process.
static THREADS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(4)));

/// The result of [`examine`], by the hash of the schema. A list is read again before each approved call, and hardly ever
/// has another schema than before.
static EXAMINED: LazyLock<Cache<[u8; 32], Examined>> = LazyLock::new(|| {
    Cache::builder()
        .max_capacity(MAX_EXAMINED)
        .weigher(|_, examined: &Examined| {
            let texts = match examined {
                Ok(unchecked) => unchecked.iter().map(String::len).sum(),
                Err(reason) => reason.len(),
            };
            u32::try_from(texts + ENTRY).unwrap_or(u32::MAX)
        })
        .build()
});
/// The most bytes of [`EXAMINED`], and those of an entry without its texts.
const MAX_EXAMINED: u64 = 4 << 20;
const ENTRY: usize = 200;

/// The rules of a schema that only the server checks, or why it cannot be used.
type Examined = Result<Arc<[String]>, String>;

/// Checks that the schema of a tool's arguments can be used. Returns the rules in it that only the server checks.
pub async fn examine(tool: &Arc<Tool>) -> Examined {
    let hash = Sha256::digest(tool.input_schema.get()).into();
    if let Some(known) = EXAMINED.get(&hash).await {
        return known;
    }
    let of_thread = tool.clone();
    let schema = run(move || ToolSchema::compile(&of_thread.input_schema)).await?;
    let examined: Examined = schema.map(|schema| schema.unchecked().into());
    EXAMINED.insert(hash, examined.clone()).await;
    examined
}

/// Compiles the schema of a tool's arguments; the error says why it cannot be used.
pub async fn compile(tool: Arc<Tool>) -> Result<Arc<ToolSchema>, String> {
    run(move || ToolSchema::compile(&tool.input_schema).map(Arc::new)).await?
}

/// Compiles the schema of an answer format; the error says why it cannot be used.
pub async fn compile_format(schema: Box<RawValue>) -> Result<Arc<ToolSchema>, String> {
    run(move || ToolSchema::compile(&schema).map(Arc::new)).await?
}

/// Checks arguments against a schema. The error names at most five reasons.
pub async fn check(schema: Arc<ToolSchema>, arguments: &Json) -> Result<(), String> {
    if schema.is_quick(arguments) {
        return schema.check(arguments);
    }
    let arguments = arguments.clone();
    run(move || schema.check(&arguments)).await?
}

/// Runs `work` on a thread of its own, once one may be started.
async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let failed = |_| "the schema could not be applied".to_owned();
    let permit = THREADS.clone().acquire_owned().await;
    let (done, result) = oneshot::channel();
    thread::Builder::new()
        .name("schema".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let _permit = permit;
            // Fails when the caller has left.
            let _ = done.send(work());
        })
        .map_err(|error| format!("the schema could not be applied: {error}"))?;
    result.await.map_err(failed)
}
