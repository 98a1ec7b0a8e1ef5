//! Refused enrolments: written down up to a bound, since who asks needs no certificate and may ask
//! without end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Refusals that one replica writes down in a minute: every mistake that people make, and of an
/// attack enough to see it. At most 43,200 rows a day.
const WRITTEN_PER_MINUTE: u32 = 30;
const MINUTE: Duration = Duration::from_secs(60);

/// What was refused in this minute. Time is the machine's monotonic clock: nothing here bills or
/// decides on work, and each replica counts for itself.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    began: Option<Instant>,
    written: u32,
    unwritten: u64,
}

impl Refusals {
    /// Notes a refusal. If it is to be written down: how many before it were not.
    pub fn note(&self, now: Instant) -> Option<u64> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts
            .began
            .is_none_or(|began| now.duration_since(began) >= MINUTE)
        {
            counts.began = Some(now);
            counts.written = 0;
        }
        if counts.written >= WRITTEN_PER_MINUTE {
            counts.unwritten += 1;
            return None;
        }
        counts.written += 1;
        Some(std::mem::take(&mut counts.unwritten))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_with_the_first_refusal_of_the_next_minute() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..WRITTEN_PER_MINUTE {
            assert_eq!(refusals.note(now), Some(0));
        }
        assert_eq!((refusals.note(now), refusals.note(now)), (None, None));
        assert_eq!(refusals.note(now + MINUTE), Some(2));
        assert_eq!(refusals.note(now + MINUTE), Some(0));
    }
}
