//! The answers of a port to its machines, which wait here to be taken.

use std::collections::VecDeque;

use evenfall_core::{Sent, StampedBy, Timestamp, Token};

use crate::{Answer, Counters};

/// Answers that may wait. A loop takes the answers after every 256 transmits. A caller that never
/// takes them loses the oldest.
const ANSWERS_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Answers(VecDeque<Answer>);

impl Answers {
    /// A transmit with a token has left, by this process' own clock, or will never leave.
    pub(crate) fn left(
        &mut self,
        owner: usize,
        token: Token,
        at: Option<Timestamp>,
        counters: &mut Counters,
    ) {
        self.sent(owner, Sent { token, at, stamped_by: StampedBy::User }, counters);
    }

    /// A transmit with a token has left, or will never leave.
    pub(crate) fn sent(&mut self, owner: usize, sent: Sent, counters: &mut Counters) {
        if self.0.len() >= ANSWERS_MAX {
            self.0.pop_front();
            counters.answers_dropped += 1;
        }
        self.0.push_back(Answer::Sent(owner, sent));
    }

    pub(crate) fn take(&mut self, out: &mut Vec<Answer>) {
        out.extend(self.0.drain(..));
    }
}
