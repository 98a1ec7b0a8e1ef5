//! Slows down who guesses passwords: by name and address together, in bounded memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::AppError;

/// Wrong passwords before a wait begins: typing errors pass unnoticed.
const FREE_FAILURES: u32 = 5;
/// Longest wait; longer ones would let a stranger lock a person out.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// A pair is forgotten after so long without a failure.
const FORGET_AFTER: Duration = Duration::from_secs(900);
/// Most pairs remembered; about 1 MiB.
const PAIRS_MAX: usize = 10_000;

/// Failures by name and address. Time is the machine's monotonic clock: nothing here bills or
/// decides on work, and each replica counts for itself.
#[derive(Debug, Default)]
pub struct Throttle {
    pairs: Mutex<HashMap<(String, Option<IpAddr>), Failures>>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn wait(self) -> Duration {
        let over = self.count.saturating_sub(FREE_FAILURES);
        if over == 0 {
            return Duration::ZERO;
        }
        WAIT_MAX.min(Duration::from_secs(1 << over.min(16)))
    }
}

impl Throttle {
    /// Refuses while a wait is on.
    pub fn check(&self, name: &str, address: Option<IpAddr>, now: Instant) -> Result<(), AppError> {
        let pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(failures) = pairs.get(&(name.to_owned(), address)) else {
            return Ok(());
        };
        let left = failures
            .wait()
            .saturating_sub(now.duration_since(failures.last));
        if left.is_zero() {
            return Ok(());
        }
        Err(AppError::TooMany {
            retry_after_seconds: left.as_secs() + 1,
        })
    }

    /// Notes a wrong password.
    pub fn failed(&self, name: &str, address: Option<IpAddr>, now: Instant) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.len() >= PAIRS_MAX {
            pairs.retain(|_, f| now.duration_since(f.last) < FORGET_AFTER);
        }
        if pairs.len() >= PAIRS_MAX {
            // Still full: under a flood the oldest pair gives way, so that memory stays bounded.
            let oldest = pairs
                .iter()
                .min_by_key(|(_, f)| f.last)
                .map(|(pair, _)| pair.clone());
            if let Some(oldest) = oldest {
                pairs.remove(&oldest);
            }
        }
        let failures = pairs.entry((name.to_owned(), address)).or_insert(Failures {
            count: 0,
            last: now,
        });
        if now.duration_since(failures.last) >= FORGET_AFTER {
            failures.count = 0;
        }
        failures.count += 1;
        failures.last = now;
    }

    /// Forgets the failures of who has signed in.
    pub fn succeeded(&self, name: &str, address: Option<IpAddr>) {
        self.pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(name.to_owned(), address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_begin_after_five_failures_double_and_end() {
        let throttle = Throttle::default();
        let start = Instant::now();
        for _ in 0..FREE_FAILURES {
            throttle.failed("ada", None, start);
            assert!(throttle.check("ada", None, start).is_ok());
        }
        throttle.failed("ada", None, start);
        assert!(throttle.check("ada", None, start).is_err());
        let elsewhere = Some(IpAddr::from([10, 0, 0, 1]));
        assert!(throttle.check("ada", elsewhere, start).is_ok());
        assert!(
            throttle
                .check("ada", None, start + Duration::from_secs(2))
                .is_ok()
        );
        throttle.succeeded("ada", None);
        assert!(throttle.check("ada", None, start).is_ok());
    }

    #[test]
    fn memory_is_bounded_under_a_flood_of_names() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for n in 0..PAIRS_MAX + 10 {
            throttle.failed(&n.to_string(), None, now);
        }
        assert!(throttle.pairs.lock().expect("not poisoned").len() <= PAIRS_MAX);
    }
}
