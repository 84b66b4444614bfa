//! Schemas of runs and of the events that they send.

use crate::app::runs;
use domain::{ids::ConversationId, run::Run, schemas};

schemas! {
    /// What would be started.
    struct RunCheck for runs::starting::RunCheck {
        agent_name: String,
        /// What the model would read.
        message: String,
        /// The servers that the run would have, whether or not they can be reached now.
        servers: Vec<String>,
        /// Personal servers that it would have if its user had connected them.
        not_connected: Vec<String>,
    }
    /// A run with what came of it.
    struct RunView for runs::RunView {
        #[serde(flatten)]
        run: Run,
        /// The same as `conversation_id`.
        session_id: ConversationId,
        /// What the agent said last, once it has ended.
        result: Option<String>,
    }
}
