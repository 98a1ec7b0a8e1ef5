//! Heartbeats that were sent and not yet answered.

use std::collections::VecDeque;

use crate::clock;

/// Most heartbeats that are remembered; older ones renew nothing any more.
const UNANSWERED_MAX: usize = 64;

/// The heartbeats of one connection.
#[derive(Debug, Default)]
pub struct Heartbeats {
    last: u64,
    sent: VecDeque<(u64, i64)>,
}

impl Heartbeats {
    /// Numbers a heartbeat that is sent now.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.sent.push_back((self.last, clock::boot_ms()));
        if self.sent.len() > UNANSWERED_MAX {
            self.sent.pop_front();
        }
        self.last
    }

    /// When an answered heartbeat was sent; `None` for one that was never sent or is long past.
    pub fn answered(&mut self, number: u64) -> Option<i64> {
        while self.sent.front().is_some_and(|(sent, _)| *sent < number) {
            self.sent.pop_front();
        }
        let (sent, at_ms) = *self.sent.front()?;
        (sent == number).then(|| {
            self.sent.pop_front();
            at_ms
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_answered_once_and_only_if_it_was_sent() {
        let mut heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.next(), 1);
        assert_eq!(heartbeats.next(), 2);
        assert!(heartbeats.answered(2).is_some());
        assert_eq!(heartbeats.answered(1), None);
        assert_eq!(heartbeats.answered(2), None);
        assert_eq!(heartbeats.answered(9), None);
    }
}
