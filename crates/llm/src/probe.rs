//! Asks an endpoint for the list of its models. That costs nothing, and shows whether it can be reached, whether it takes
//! the key, and mostly whether it has the model.

use std::time::Duration;

use http::{StatusCode, header};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use tokio::time::timeout;

use super::{
    ModelError,
    provider::{key_header, models_request},
    transport::{read_refusal, send_error},
};
use domain::{json, pack::Llm};

/// The most bytes of a list of models.
const MAX_LIST: usize = 4 << 20;

/// What an endpoint said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// The time by the clock of the endpoint, if it said it.
    pub date: Option<OffsetDateTime>,
    /// Whether the model is in the list; `None` for an endpoint that lists none.
    pub has_model: Option<bool>,
}

/// Asks the endpoint of a pack, within this time for each of the answer's parts. `client` as for [`super::Models::new`].
pub async fn probe(
    client: &reqwest::Client,
    llm: &Llm,
    limit: Duration,
) -> Result<Probe, ModelError> {
    let (url, headers) = models_request(llm).ok_or(ModelError::NoModel)?;
    let mut get = client.get(url).header(header::ACCEPT, "application/json");
    for (name, value) in headers {
        get = get.header(*name, *value);
    }
    if let Some((name, value)) = key_header(llm)? {
        get = get.header(name, value);
    }
    let sent = timeout(limit, get.send())
        .await
        .map_err(|_| ModelError::TimedOut)?;
    let mut response = sent.map_err(|error| send_error(&error).error)?;
    let date = response.headers().get(header::DATE);
    let date = date.and_then(|date| OffsetDateTime::parse(date.to_str().ok()?, &Rfc2822).ok());
    let lists_none = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
    if lists_none.contains(&response.status()) {
        return Ok(Probe {
            date,
            has_model: None,
        });
    }
    if !response.status().is_success() {
        return Err(read_refusal(response, limit, llm.api_key.as_ref())
            .await
            .error);
    }
    let mut body = Vec::new();
    while body.len() < MAX_LIST
        && let Ok(Ok(Some(chunk))) = timeout(limit, response.chunk()).await
    {
        body.extend_from_slice(&chunk);
    }
    let list = std::str::from_utf8(&body)
        .ok()
        .and_then(|text| json::read_value(text).ok());
    Ok(Probe {
        date,
        has_model: list.and_then(|list| is_listed(&list, &llm.model)),
    })
}

/// Whether a model is in a list: `data[].id` of OpenAI and Anthropic, `models[].name` of Gemini (`models/NAME`) and Ollama
/// (`NAME:latest`).
fn is_listed(list: &Value, model: &str) -> Option<bool> {
    let models = list["data"].as_array().or(list["models"].as_array())?;
    if models.is_empty() {
        return None;
    }
    let names = models.iter().filter_map(|one| {
        let name = one["id"].as_str().or(one["name"].as_str())?;
        Some(name.strip_prefix("models/").unwrap_or(name))
    });
    let model = model.strip_prefix("models/").unwrap_or(model);
    let mut names = names.map(|name| name.strip_suffix(":latest").unwrap_or(name));
    Some(names.any(|name| name == model.strip_suffix(":latest").unwrap_or(model)))
}
