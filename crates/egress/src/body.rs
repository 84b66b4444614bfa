//! The body of a response, read within the size and time limits of its request.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

use super::{
    Limits,
    error::{EgressError, ErrorKind},
};

/// The running timers of a request: its deadline, and the longest time without a byte.
pub(super) struct ResponseTimeouts {
    deadline: Option<(Duration, Pin<Box<Sleep>>)>,
    idle: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl ResponseTimeouts {
    pub(super) fn new(limits: &Limits) -> Self {
        let timer = |limit: Duration| (limit, Box::pin(sleep(limit)));
        Self {
            deadline: limits.deadline.map(timer),
            idle: limits.idle.map(timer),
        }
    }

    /// Ready with the error when one of the timers has run out.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<ErrorKind> {
        if let Some((limit, timer)) = &mut self.deadline
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(ErrorKind::Deadline(*limit));
        }
        if let Some((limit, timer)) = &mut self.idle
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(ErrorKind::Idle(*limit));
        }
        Poll::Pending
    }

    /// Restarts the timer for silence. Called when bytes have come.
    pub(super) fn reset_idle(&mut self) {
        if let Some((limit, timer)) = &mut self.idle {
            timer.as_mut().reset(Instant::now() + *limit);
        }
    }
}

/// A stream of the chunks of a response body. It ends after the first error: the body is too large, too slow or broken.
pub struct Body {
    inner: Option<Incoming>,
    host: String,
    timeouts: ResponseTimeouts,
    max: usize,
    /// Bytes read so far.
    read: usize,
}

impl Body {
    pub(super) fn new(
        inner: Incoming,
        host: String,
        timeouts: ResponseTimeouts,
        max: usize,
    ) -> Self {
        Self {
            inner: Some(inner),
            host,
            timeouts,
            max,
            read: 0,
        }
    }

    /// Reads the whole body.
    pub async fn bytes(mut self) -> Result<Bytes, EgressError> {
        let Some(first) = self.next().await.transpose()? else {
            return Ok(Bytes::new());
        };
        let Some(second) = self.next().await.transpose()? else {
            return Ok(first);
        };
        let mut whole = BytesMut::from(first);
        whole.extend_from_slice(&second);
        while let Some(chunk) = self.next().await {
            whole.extend_from_slice(&chunk?);
        }
        Ok(whole.freeze())
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ErrorKind>>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        loop {
            let Poll::Ready(frame) = Pin::new(&mut *inner).poll_frame(cx) else {
                return Poll::Ready(Some(Err(ready!(self.timeouts.poll_expired(cx)))));
            };
            self.timeouts.reset_idle();
            let Some(frame) = frame else {
                return Poll::Ready(None);
            };
            let frame = frame.map_err(|error| ErrorKind::Broken {
                host: self.host.clone(),
                cause: super::error::innermost_cause(&error),
            });
            match frame.map(http_body::Frame::into_data) {
                Err(error) => return Poll::Ready(Some(Err(error))),
                Ok(Ok(chunk)) if chunk.is_empty() => {}
                Ok(Ok(chunk)) => {
                    self.read += chunk.len();
                    let fits = self.read <= self.max;
                    return Poll::Ready(Some(if fits {
                        Ok(chunk)
                    } else {
                        Err(ErrorKind::TooLarge(self.max))
                    }));
                }
                Ok(Err(_trailers)) => {}
            }
        }
    }
}

impl Stream for Body {
    type Item = Result<Bytes, EgressError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(self.poll_chunk(cx));
        if !matches!(item, Some(Ok(_))) {
            // Dropping a body that was not read to its end closes the connection.
            self.inner = None;
        }
        Poll::Ready(item.map(|chunk| chunk.map_err(ErrorKind::sent)))
    }
}
