//! What goes with a request: its headers, and how long it and its answer may take.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest};

use super::{CONTROL, Client, MAX_STREAM, SESSION_ID};
use crate::{error::Failure, interceptor::PendingRequest, live_questions};
use domain::{secret::Secret, server::Timeouts};
use egress::Limits;

/// The headers of a pack, ready to send; the error names the header and never its value.
pub(crate) fn headers(of: &[(String, Secret)]) -> Result<HeaderMap, Failure> {
    const OURS: [&str; 6] = [
        "accept",
        "content-type",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
        "host",
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in of {
        let bad = |why: &str| Failure::Misconfigured(format!("header {name:?} {why}"));
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| bad("is not a valid header name"))?;
        if OURS.contains(&parsed.as_str()) {
            return Err(bad("belongs to the protocol; leave it out"));
        }
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| bad("has a value with characters that a header cannot carry"))?;
        value.set_sensitive(true);
        headers.append(parsed, value);
    }
    Ok(headers)
}

impl Client {
    pub(super) fn headers(
        &self,
        session: Option<&str>,
        extra: HashMap<HeaderName, HeaderValue>,
    ) -> Result<HeaderMap, Failure> {
        let mut headers = self.shared.headers.clone();
        headers.extend(extra);
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        if let Some(session) = session {
            let id = HeaderValue::from_str(session);
            headers.insert(
                SESSION_ID,
                id.map_err(|_| Failure::NotSent("the session has no usable id".to_owned()))?,
            );
        }
        Ok(headers)
    }

    pub(super) fn limits(
        &self,
        message: &ClientJsonRpcMessage,
        pending: Option<&PendingRequest>,
    ) -> Limits {
        let Timeouts {
            connect, request, ..
        } = self.shared.timeouts;
        let deadline = match (message, pending) {
            // The one who asked waits no longer than `request`, and for their user; this closes what they left behind.
            (ClientJsonRpcMessage::Request(_), Some(pending)) => {
                let asking = pending
                    .asking
                    .as_ref()
                    .map(|_| live_questions::TIME_LIMIT)
                    .unwrap_or_default();
                Some(request + asking + CONTROL)
            }
            (ClientJsonRpcMessage::Request(asked), _)
                if matches!(asked.request, ClientRequest::SubscriptionsListenRequest(_)) =>
            {
                return self.endless();
            }
            (ClientJsonRpcMessage::Request(_), _) => Some(connect),
            _ => Some(CONTROL),
        };
        Limits {
            deadline,
            max_body: MAX_STREAM,
            ..self.wait_limits()
        }
    }

    /// Of a stream of what a server has to say: as long as it is not silent for longer than the pack bears.
    pub(super) fn endless(&self) -> Limits {
        Limits {
            deadline: None,
            max_body: usize::MAX,
            idle: self.shared.timeouts.stream_idle,
            ..self.wait_limits()
        }
    }

    pub(super) fn wait_limits(&self) -> Limits {
        Limits {
            connect: self.shared.timeouts.connect,
            idle: None,
            ..Limits::default()
        }
    }
}
