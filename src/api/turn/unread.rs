//! Events of a conversation since its client's last turn that answer no question of the client, such as the outcomes
//! of approvals.

use std::collections::HashMap;

use uuid::Uuid;

use super::{AnswerStyle, Piece, answer_text::AnswerText};
use crate::{
    app::chat::{conversations::ConversationEvent, transcript::UnreadEvents},
    domain::{
        event::{Event, EventKind},
        ids::RunId,
        message::{Part, Role},
    },
};

/// The pieces that tell of events, and the last event that they tell of. A run that the program has started to report
/// something is told when it has ended.
pub(in crate::api) fn pieces_of(unread: UnreadEvents) -> (Vec<Piece>, Option<i64>) {
    let until = first_open_report(&unread.events);
    let events = unread.events.into_iter();
    let events = events.take_while(|event| until.is_none_or(|until| event.seq < until));
    let mut text = AnswerText::new(RunId(Uuid::nil()), AnswerStyle::Typed, false);
    let (mut pieces, mut told) = (Vec::new(), None);
    for event in events {
        told = Some(event.seq);
        pieces.extend(text.news(&ConversationEvent::Durable(event.into())));
    }
    (pieces, told)
}

/// The event that opened the first report that has not ended.
fn first_open_report(events: &[Event]) -> Option<i64> {
    let mut open = HashMap::new();
    for event in events {
        match &event.kind {
            EventKind::Message(message) if message.role == Role::System => {
                let is_outcome = |part: &Part| {
                    matches!(
                        part,
                        Part::Approval(_) | Part::AgentCallback(_) | Part::CallOutcome(_)
                    )
                };
                if let Some(run) = message
                    .run_id
                    .filter(|_| message.parts.iter().any(is_outcome))
                {
                    open.entry(run).or_insert(event.seq);
                }
            }
            EventKind::Run { run_id, status, .. } if status.is_final() => {
                open.remove(run_id);
            }
            _ => {}
        }
    }
    open.into_values().min()
}
