//! The settings of traces: the standard variables of OpenTelemetry, as far as they are supported. What is not is
//! refused, so that nobody waits for traces that never come.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use super::{Config, OTLP_HEADERS, parsing::number};
use crate::secret::Secret;

/// Where traces go, and which.
pub struct Traces {
    /// The whole address, perhaps with a key in its query.
    pub endpoint: Secret,
    pub headers: Vec<(String, Secret)>,
    pub timeout: Duration,
    /// What each trace says of this process.
    pub resource: Vec<(String, String)>,
    pub sampler: Sampler,
    /// For [`RootSampler::Ratio`]: from 0 to 1.
    pub ratio: f64,
}

/// Which traces are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// A trace that another program has begun is kept if that program keeps it.
    pub is_parent_based: bool,
    pub root: RootSampler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootSampler {
    AlwaysOn,
    AlwaysOff,
    Ratio,
}

impl Config {
    /// Where traces go; `None` when there are none.
    pub fn traces(&self) -> Option<Traces> {
        if self.is_otel_disabled || !self.traces_exporter {
            return None;
        }
        let endpoint = match (&self.otlp_traces_endpoint, &self.otlp_endpoint) {
            (Some(whole), _) => whole.clone(),
            (None, Some(base)) => {
                Secret::new(format!("{}/v1/traces", base.expose().trim_end_matches('/')))
            }
            (None, None) => return None,
        };
        let headers = if self.otlp_traces_headers.is_empty() {
            &self.otlp_headers
        } else {
            &self.otlp_traces_headers
        };
        let mut resource = self.resource_attributes.clone();
        let named = resource.iter().any(|(name, _)| name == "service.name");
        if !self.service_name.is_empty() || !named {
            resource.retain(|(name, _)| name != "service.name");
            let name = Some(&self.service_name).filter(|name| !name.is_empty());
            let name = name.map_or("chatelaine", String::as_str);
            resource.push(("service.name".to_owned(), name.to_owned()));
        }
        Some(Traces {
            endpoint,
            headers: headers.clone(),
            timeout: self.otlp_timeout,
            resource,
            sampler: self.traces_sampler,
            ratio: self.traces_sampler_arg,
        })
    }
}

/// An address, or none.
pub(super) fn http_address(value: &str) -> Result<Option<Secret>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    match Url::parse(value) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Err(format!(
            "write the address without a user; {OTLP_HEADERS} holds credentials"
        )),
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(Some(Secret::new(url))),
        _ => Err("write an address such as http://collector:4318".to_owned()),
    }
}

pub(super) fn protocol(value: &str) -> Result<(), String> {
    if value == "http/protobuf" {
        return Ok(());
    }
    Err(format!(
        "{value:?} is not spoken here; write `http/protobuf`, and an address whose port is that of OTLP over HTTP, usually 4318"
    ))
}

/// Names and percent-encoded values, with commas between them. The error repeats no value.
pub(super) fn attributes(value: &str) -> Result<Vec<(String, String)>, String> {
    let pairs = value
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty());
    let read = pairs.map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let name = name.trim();
        (!name.is_empty()).then(|| (name.to_owned(), value.into_owned()))
    });
    read.collect::<Option<_>>()
        .ok_or_else(|| "write `NAME=VALUE,NAME=VALUE`".to_owned())
}

/// Names and values of headers.
pub(super) fn headers(value: &str) -> Result<Vec<(String, Secret)>, String> {
    let is_name = |name: &str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let is_value = |value: &str| value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let pairs = attributes(value)?;
    if !pairs
        .iter()
        .all(|(name, value)| is_name(name) && is_value(value))
    {
        return Err("write names and values that a header may have".to_owned());
    }
    let secret = |(name, value): (String, String)| (name, Secret::new(value));
    Ok(pairs.into_iter().map(secret).collect())
}

pub(super) fn milliseconds(value: &str) -> Result<Duration, String> {
    number(value).map(Duration::from_millis)
}

pub(super) fn sampler(value: &str) -> Result<Sampler, String> {
    let root = value.strip_prefix("parentbased_");
    Ok(Sampler {
        is_parent_based: root.is_some(),
        root: match root.unwrap_or(value) {
            "always_on" => RootSampler::AlwaysOn,
            "always_off" => RootSampler::AlwaysOff,
            "traceidratio" => RootSampler::Ratio,
            _ => {
                return Err(format!(
                    "{value:?} is not supported; write `always_on`, `always_off` or `traceidratio`, or one of them after `parentbased_`"
                ));
            }
        },
    })
}

pub(super) fn ratio(value: &str) -> Result<f64, String> {
    let ratio = value.parse().ok();
    ratio
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| format!("{value:?} is not a number from 0 to 1"))
}

pub(super) fn exports_traces(value: &str) -> Result<bool, String> {
    match value {
        "otlp" => Ok(true),
        "none" => Ok(false),
        other => Err(format!("{other:?} is neither `otlp` nor `none`")),
    }
}

/// `true` or `false`, in any case.
pub(super) fn is_disabled(value: &str) -> Result<bool, String> {
    let value = value.to_ascii_lowercase();
    value
        .parse()
        .map_err(|_| format!("{value:?} is neither `true` nor `false`"))
}
