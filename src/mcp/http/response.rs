//! What came with an answer.

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, header};

use crate::egress::{Body, EgressError};

pub(super) async fn collect(mut body: Body, max: usize) -> Result<Bytes, EgressError> {
    let Some(first) = body.next().await.transpose()? else {
        return Ok(Bytes::new());
    };
    let mut whole = bytes::BytesMut::from(first);
    while let Some(chunk) = body.next().await.transpose()? {
        if whole.len() + chunk.len() > max {
            return Err(EgressError {
                kind: crate::egress::ErrorKind::TooLarge(max),
                sent: true,
            });
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// The media type without its parameters.
pub(super) fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

pub(super) fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
