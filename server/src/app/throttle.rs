//! Slows down who guesses passwords, in bounded memory and without locking the owner of a name out.
//!
//! Failures are counted by name and origin. An origin is an address or, as in OWASP's device
//! cookies, a browser that has signed in with that name before and carries a proof of it: whoever
//! guesses from the same address, as behind one proxy, does not slow that browser. Guesses at one
//! name from many addresses are slowed together, and less; an address from which the name
//! has signed in before is not counted among them. Addresses are not slowed over all names: behind one may
//! stand everybody, and how many hashes are computed at once is bounded elsewhere.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::AppError;

/// A count is forgotten after so long without a failure.
const FORGET_AFTER: Duration = Duration::from_secs(900);
/// Most counts, and most welcome addresses, remembered; about 1 MiB each.
const REMEMBERED_MAX: usize = 10_000;
/// How long an address stays welcome after a name has signed in from it.
const WELCOME_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// From where somebody tries a password.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An address, where it is known.
    Address(Option<IpAddr>),
    /// Somebody who has proved before to be the owner of the name: a browser or a session.
    Proved(String),
}

/// What is counted of a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Count {
    From(Origin),
    /// From all addresses that are not welcome.
    Anywhere,
}

/// How failures become waits.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Failures before a wait begins: typing errors pass unnoticed.
    free: u32,
    /// Longest wait.
    wait_max: Duration,
}

/// From an origin that nothing is known of.
const STRANGER: Pace = Pace {
    free: 5,
    wait_max: Duration::from_secs(300),
};
/// From where the owner has signed in: shorter waits. Each failure there begins one anew, whoever's
/// it is; a proof alone tells the owner from a stranger at the same address.
const WELCOME: Pace = Pace {
    free: 5,
    wait_max: Duration::from_secs(30),
};
/// From many addresses together: shorter waits, since its owner at a new address is among them.
const ANYWHERE: Pace = Pace {
    free: 50,
    wait_max: Duration::from_secs(30),
};

/// Failures by name. Time is the machine's monotonic clock: nothing here bills or
/// decides on work, and each replica counts for itself.
#[derive(Debug, Default)]
pub struct Throttle {
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    failures: HashMap<(String, Count), Failures>,
    welcome: HashMap<(String, Option<IpAddr>), Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn left(self, pace: Pace, now: Instant) -> Duration {
        let over = self.count.saturating_sub(pace.free);
        if over == 0 {
            return Duration::ZERO;
        }
        let wait = pace.wait_max.min(Duration::from_secs(1 << over.min(16)));
        wait.saturating_sub(now.duration_since(self.last))
    }
}

impl Memory {
    fn welcomes(&self, name: &str, origin: &Origin, now: Instant) -> bool {
        match origin {
            Origin::Proved(_) => true,
            Origin::Address(address) => self
                .welcome
                .get(&(name.to_owned(), *address))
                .is_some_and(|since| now.duration_since(*since) < WELCOME_FOR),
        }
    }

    /// What counts of an attempt, each with its pace.
    fn counts(&self, name: &str, origin: &Origin, now: Instant) -> Vec<(Count, Pace)> {
        let own = Count::From(origin.clone());
        if self.welcomes(name, origin, now) {
            vec![(own, WELCOME)]
        } else {
            vec![(own, STRANGER), (Count::Anywhere, ANYWHERE)]
        }
    }
}

impl Throttle {
    /// Refuses while a wait is on.
    pub fn check(&self, name: &str, origin: &Origin, now: Instant) -> Result<(), AppError> {
        let memory = self.lock();
        let waits = memory
            .counts(name, origin, now)
            .into_iter()
            .filter_map(|(count, pace)| {
                let failures = memory.failures.get(&(name.to_owned(), count))?;
                Some(failures.left(pace, now))
            });
        let left = waits.max().unwrap_or_default();
        if left.is_zero() {
            return Ok(());
        }
        Err(AppError::TooMany {
            retry_after_seconds: left.as_secs() + 1,
        })
    }

    /// Notes a wrong password.
    pub fn failed(&self, name: &str, origin: &Origin, now: Instant) {
        let mut memory = self.lock();
        for (count, _) in memory.counts(name, origin, now) {
            let key = (name.to_owned(), count);
            make_room(&mut memory.failures, &key, now, FORGET_AFTER, |f| f.last);
            let failures = memory.failures.entry(key).or_insert(Failures {
                count: 0,
                last: now,
            });
            if now.duration_since(failures.last) >= FORGET_AFTER {
                failures.count = 0;
            }
            failures.count += 1;
            failures.last = now;
        }
    }

    /// Forgets the failures of who has signed in, and remembers from where.
    pub fn succeeded(&self, name: &str, origin: &Origin, now: Instant) {
        let mut memory = self.lock();
        for (count, _) in memory.counts(name, origin, now) {
            let key = (name.to_owned(), count);
            match (&key.1, memory.failures.get_mut(&key)) {
                // Of all others together, only what was counted for this attempt is taken back.
                (Count::Anywhere, Some(all)) => all.count = all.count.saturating_sub(1),
                _ => drop(memory.failures.remove(&key)),
            }
        }
        if let Origin::Address(address) = origin {
            let key = (name.to_owned(), *address);
            make_room(&mut memory.welcome, &key, now, WELCOME_FOR, |at| *at);
            memory.welcome.insert(key, now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a map within its bound before `key` is put in: what is stale goes, else the oldest.
fn make_room<K: Clone + Eq + Hash, V>(
    map: &mut HashMap<K, V>,
    key: &K,
    now: Instant,
    stale_after: Duration,
    at: impl Fn(&V) -> Instant,
) {
    if map.len() < REMEMBERED_MAX || map.contains_key(key) {
        return;
    }
    map.retain(|_, value| now.duration_since(at(value)) < stale_after);
    if map.len() < REMEMBERED_MAX {
        return;
    }
    let oldest = map.iter().min_by_key(|(_, value)| at(value));
    if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
        map.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> Origin {
        Origin::Address(Some(IpAddr::from([10, 0, 0, last])))
    }

    #[test]
    fn waits_begin_after_five_failures_double_and_end() {
        let throttle = Throttle::default();
        let start = Instant::now();
        for _ in 0..STRANGER.free {
            throttle.failed("ada", &at(1), start);
            assert!(throttle.check("ada", &at(1), start).is_ok());
        }
        throttle.failed("ada", &at(1), start);
        assert!(throttle.check("ada", &at(1), start).is_err());
        assert!(throttle.check("ada", &at(2), start).is_ok());
        let later = start + Duration::from_secs(2);
        assert!(throttle.check("ada", &at(1), later).is_ok());
        throttle.succeeded("ada", &at(1), start);
        assert!(throttle.check("ada", &at(1), start).is_ok());
    }

    #[test]
    fn who_goes_on_guessing_from_elsewhere_takes_no_turn_from_an_address_that_is_welcome() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let owner = at(1);
        throttle.succeeded("ada", &owner, start);
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            let guesser = at(2);
            if throttle.check("ada", &guesser, now).is_ok() {
                throttle.failed("ada", &guesser, now);
            }
            assert!(throttle.check("ada", &owner, now).is_ok(), "{second} s");
        }
    }

    #[test]
    fn who_guesses_at_the_owners_address_does_not_slow_a_browser_that_is_known() {
        let throttle = Throttle::default();
        let now = Instant::now();
        let browser = Origin::Proved("a browser".to_owned());
        for _ in 0..1_000 {
            throttle.failed("ada", &at(1), now);
        }
        assert!(throttle.check("ada", &at(1), now).is_err());
        assert!(throttle.check("ada", &browser, now).is_ok());
        for _ in 0..=WELCOME.free {
            throttle.failed("ada", &browser, now);
        }
        assert!(
            throttle.check("ada", &browser, now).is_err(),
            "it, too, may be another's hand"
        );
    }

    #[test]
    fn an_address_that_signed_in_before_waits_shortly_and_is_not_slowed_by_others() {
        let throttle = Throttle::default();
        let now = Instant::now();
        throttle.succeeded("ada", &at(1), now);
        for _ in 0..50 {
            throttle.failed("ada", &at(1), now);
        }
        let soon = now + WELCOME.wait_max;
        assert!(throttle.check("ada", &at(1), now).is_err());
        assert!(throttle.check("ada", &at(1), soon).is_ok());
        for last in 2..=60 {
            throttle.failed("ada", &at(last), soon);
        }
        assert!(
            throttle.check("ada", &at(200), soon).is_err(),
            "a name is tried from everywhere"
        );
        assert!(throttle.check("ada", &at(1), soon).is_ok());
        assert!(
            throttle
                .check("ada", &at(200), soon + ANYWHERE.wait_max)
                .is_ok()
        );
        assert!(throttle.check("bob", &at(200), soon).is_ok());
    }

    #[test]
    fn memory_is_bounded_under_a_flood_of_names() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for n in 0..REMEMBERED_MAX + 10 {
            throttle.failed(&n.to_string(), &at(1), now);
            throttle.succeeded(&format!("s{n}"), &at(1), now);
        }
        let memory = throttle.lock();
        assert!(memory.failures.len() <= REMEMBERED_MAX);
        assert!(memory.welcome.len() <= REMEMBERED_MAX);
    }
}
