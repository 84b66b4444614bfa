//! What came with an answer.

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, header};

use egress::{Body, EgressError};

/// Blanks before JSON that are read.
const MAX_BLANK: usize = 1024;
/// What some servers write before JSON, as editors do before text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The whole body, without a byte order mark.
pub(super) async fn collect(mut body: Body, max: usize) -> Result<Bytes, EgressError> {
    let Some(first) = body.next().await.transpose()? else {
        return Ok(Bytes::new());
    };
    collect_from(BytesMut::from(first), body, max).await
}

/// The whole body if it begins as a JSON object does, whatever its server calls it. Nothing else is waited for.
pub(super) async fn collect_object(
    mut body: Body,
    max: usize,
) -> Result<Option<Bytes>, EgressError> {
    let mut head = BytesMut::new();
    while let Some(chunk) = body.next().await.transpose()? {
        head.extend_from_slice(&chunk);
        let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
        match text.trim_ascii_start().first() {
            Some(b'{') => {
                return collect_from(head, body, max).await.map(Some);
            }
            None if head.len() < MAX_BLANK => {}
            _ if BYTE_ORDER_MARK.starts_with(&head) => {}
            _ => break,
        }
    }
    Ok(None)
}

async fn collect_from(
    mut whole: BytesMut,
    mut body: Body,
    max: usize,
) -> Result<Bytes, EgressError> {
    while let Some(chunk) = body.next().await.transpose()? {
        if whole.len() + chunk.len() > max {
            return Err(EgressError {
                kind: egress::ErrorKind::TooLarge(max),
                sent: true,
            });
        }
        whole.extend_from_slice(&chunk);
    }
    if whole.starts_with(BYTE_ORDER_MARK) {
        whole.advance(BYTE_ORDER_MARK.len());
    }
    Ok(whole.freeze())
}

/// The media type without its parameters, in small letters: its case says nothing (RFC 9110, section 8.3.1).
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media_type = value.split(';').next()?.trim();
    (!media_type.is_empty()).then(|| media_type.to_ascii_lowercase())
}

pub(super) fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
