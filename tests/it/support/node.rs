//! Programs for Node with the packages that `tests/servers/install.sh` installs.

use serde_json::Value;
use tokio::process::Command;

use super::{client::Client, servers::folder};

/// Runs a module as somebody; what it prints, as JSON. `URL` and `TOKEN` are in its environment.
pub async fn run(module: &str, url: &str, client: &Client) -> Value {
    let program = Command::new("node")
        .args(["--input-type=module", "--eval", module])
        // Packages are looked up from here.
        .current_dir(folder())
        .env("URL", url)
        .env("TOKEN", client.token())
        .env("OPENAI_API_KEY", client.token())
        .env("OPENAI_BASE_URL", format!("{url}/v1"))
        .env("AI_SDK_LOG_WARNINGS", "false")
        .kill_on_drop(true)
        .output();
    let output = program.await.unwrap();
    let (out, trouble) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{trouble}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{trouble}"))
}
