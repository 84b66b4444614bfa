//! The pieces of the answer that are ready for the client, within the client's limits.

use super::{
    Turn,
    answer_text::{AnswerStyle, Piece},
};

impl Turn {
    /// Adds a piece to those that are ready; of the run's own text what the limits allow.
    pub(super) fn add(&mut self, piece: Piece, is_limited: bool) {
        let text = match (piece, self.style) {
            (Piece::Text(text), _) => text,
            (Piece::Break, AnswerStyle::Text(_)) => "\n\n".to_owned(),
            (_, AnswerStyle::Text(_)) => return,
            (piece, AnswerStyle::Typed) => return self.add_typed(piece, is_limited),
        };
        let text = if is_limited {
            self.limiter.pass(&text)
        } else {
            text
        };
        self.add_text(text);
    }

    fn add_typed(&mut self, piece: Piece, is_limited: bool) {
        if is_limited {
            // A text ends here, so what may have been the beginning of a stop text is none.
            let held = self.limiter.flush();
            self.add_text(held);
            if self.limiter.reason().is_some() {
                return;
            }
        }
        if matches!(piece, Piece::Break | Piece::Reset) {
            self.is_apart = !self.sent.is_empty();
        }
        self.ready.push_back(piece);
    }

    pub(super) fn add_text(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_apart) {
            self.sent.push_str("\n\n");
        }
        self.sent.push_str(&text);
        match self.ready.back_mut() {
            Some(Piece::Text(last)) => last.push_str(&text),
            _ => self.ready.push_back(Piece::Text(text)),
        }
    }
}
