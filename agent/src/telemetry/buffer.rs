//! Samples that wait to be sent: while the server cannot be reached the newest minutes are kept, and no more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::samples::AGE_MAX_MS;
use protocol::wire;
use tokio::sync::Notify;

/// Most samples that are kept: ten minutes of a node with 16 devices at a sample a second.
const KEPT_MAX: usize = 16 * 600;
/// Left of the age at which the server takes none any more, for the way to it.
const ON_THE_WAY: Duration = Duration::from_secs(30);

/// The samples that wait, oldest first.
#[derive(Debug, Default)]
pub struct Buffer {
    waiting: Mutex<VecDeque<(Instant, wire::DeviceSample)>>,
    news: Notify,
}

impl Buffer {
    /// Puts samples that were taken at a moment; the oldest give way.
    pub fn put(&self, taken: Instant, samples: Vec<wire::DeviceSample>) {
        {
            let mut waiting = self.waiting();
            waiting.extend(samples.into_iter().map(|sample| (taken, sample)));
            let excess = waiting.len().saturating_sub(KEPT_MAX);
            waiting.drain(..excess);
        }
        self.news.notify_one();
    }

    /// Waits until there may be something to take.
    pub async fn filled(&self) {
        self.news.notified().await;
    }

    /// Takes the oldest, as old as they are now; what is too old for the server is let fall.
    pub fn take(&self, most: usize, now: Instant) -> Vec<wire::DeviceSample> {
        let mut waiting = self.waiting();
        let age_max = Duration::from_millis(AGE_MAX_MS).saturating_sub(ON_THE_WAY);
        let age = |taken: Instant| now.saturating_duration_since(taken);
        let aged = waiting.partition_point(|(taken, _)| age(*taken) > age_max);
        waiting.drain(..aged);
        let count = waiting.len().min(most);
        let taken = waiting.drain(..count).map(|(taken, mut sample)| {
            sample.age_ms = u64::try_from(age(taken).as_millis()).unwrap_or(u64::MAX);
            sample
        });
        taken.collect()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Instant, wire::DeviceSample)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(uuid: &str) -> wire::DeviceSample {
        wire::DeviceSample {
            uuid: uuid.to_owned(),
            ..wire::DeviceSample::default()
        }
    }

    #[test]
    fn samples_go_once_oldest_first_as_old_as_they_are() {
        let (buffer, begin) = (Buffer::default(), Instant::now());
        buffer.put(begin, vec![sample("a"), sample("b")]);
        buffer.put(begin + Duration::from_secs(15), vec![sample("c")]);
        let now = begin + Duration::from_secs(20);
        let ages = |samples: Vec<wire::DeviceSample>| -> Vec<(String, u64)> {
            samples.into_iter().map(|s| (s.uuid, s.age_ms)).collect()
        };
        let first = ages(buffer.take(2, now));
        assert_eq!(first, [("a".to_owned(), 20_000), ("b".to_owned(), 20_000)]);
        assert_eq!(ages(buffer.take(2, now)), [("c".to_owned(), 5_000)]);
        assert!(buffer.take(2, now).is_empty());
    }

    #[test]
    fn what_is_too_old_or_too_much_is_let_fall() {
        let (buffer, begin) = (Buffer::default(), Instant::now());
        buffer.put(begin, vec![sample("old")]);
        let later = begin + Duration::from_millis(AGE_MAX_MS);
        buffer.put(later, vec![sample("new"); KEPT_MAX + 1]);
        let taken = buffer.take(usize::MAX, later);
        assert_eq!(taken.len(), KEPT_MAX);
        assert!(taken.iter().all(|sample| sample.uuid == "new"));
    }
}
