//! `chatelaine openapi`: the document that `/openapi.json` serves.

use crate::api;

pub fn run() -> anyhow::Result<()> {
    super::print_line(&serde_json::to_string_pretty(&api::openapi())?);
    Ok(())
}
