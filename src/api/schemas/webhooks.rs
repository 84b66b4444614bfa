//! Schemas of webhooks and of their deliveries.

use crate::app::platform::webhooks;
use domain::schemas;

schemas! {
    /// How a test went.
    struct Pinged for webhooks::PingOutcome {
        delivered: bool,
        /// The HTTP status, if there was an answer.
        status: Option<u16>,
        error: Option<String>,
    }
}
