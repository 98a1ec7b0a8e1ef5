//! Calls into the driver that may hang, each on a thread of its own: one that hangs costs one thread,
//! whoever asks again meanwhile is told so at once, and nobody else waits.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The calls that have not come back yet, by what they are about.
#[derive(Debug, Clone, Default)]
pub struct Alone {
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

impl Alone {
    /// Begins a call; nothing where one about the same has not come back yet, or no thread can be had.
    fn begin<T: Send + 'static>(
        &self,
        about: &str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        if !self.under_way().insert(about.to_owned()) {
            return None;
        }
        let (sender, receiver) = sync_channel(1);
        let (own, key) = (self.clone(), about.to_owned());
        let thread = std::thread::Builder::new().name("device".to_owned());
        let spawned = thread.spawn(move || {
            let answer = call();
            own.under_way().remove(&key);
            // Nobody may wait any more.
            let _ = sender.send(answer);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "a device cannot be asked: no thread");
            self.under_way().remove(about);
            return None;
        }
        Some(receiver)
    }

    /// Begins a call that is waited for so long and no longer.
    pub fn ask<T: Send + 'static>(
        &self,
        about: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Asked<T> {
        Asked {
            answer: self.begin(about, call),
            begun: Instant::now(),
            deadline: Instant::now() + limit,
        }
    }

    /// The same for who waits beside other things; nothing where it hangs.
    pub async fn wait<T: Send + 'static>(
        &self,
        about: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // Nobody may wait any more.
        let begun = self.begin(about, move || drop(sender.send(call())));
        begun?;
        tokio::time::timeout(limit, receiver).await.ok()?.ok()
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that was begun.
pub struct Asked<T> {
    answer: Option<Receiver<T>>,
    begun: Instant,
    deadline: Instant,
}

/// How a call stands that is not waited for to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing<T> {
    /// It has come back.
    Answered(T),
    /// It may yet come back.
    UnderWay,
    /// It hangs: its time is over, or it never began.
    Hangs,
}

impl<T> Asked<T> {
    /// How it stands after so long a wait at most.
    pub fn look(&self, wait: Duration) -> Standing<T> {
        let Some(answer) = &self.answer else {
            return Standing::Hangs;
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        match answer.recv_timeout(wait.min(left)) {
            Ok(answer) => Standing::Answered(answer),
            Err(RecvTimeoutError::Timeout) if wait < left => Standing::UnderWay,
            // The call has panicked, or its time is over.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Standing::Hangs,
        }
    }

    /// When it was begun.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// For how much longer it may take.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Its answer; nothing where it hangs.
    pub fn answer(self) -> Option<T> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.answer?.recv_timeout(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_is_begun_once_and_keeps_no_other_from_its_answer() {
        const LIMIT: Duration = Duration::from_secs(60);
        let alone = Alone::default();
        let (release, hangs) = sync_channel::<()>(0);
        let first = alone.ask("GPU-1", LIMIT, move || hangs.recv().is_ok());
        assert_eq!(
            alone.ask("GPU-1", LIMIT, || true).answer(),
            None,
            "it hangs"
        );
        assert_eq!(alone.ask("GPU-2", LIMIT, || 7).answer(), Some(7));
        release.send(()).expect("it waits");
        assert_eq!(first.answer(), Some(true));
        assert_eq!(alone.ask("GPU-1", LIMIT, || 8).answer(), Some(8));
    }

    #[test]
    fn a_call_that_takes_long_is_looked_at_until_its_time_is_over() {
        const LIMIT: Duration = Duration::from_secs(60);
        let alone = Alone::default();
        let (release, hangs) = sync_channel::<()>(0);
        let slow = alone.ask("GPU-1", LIMIT, move || hangs.recv().is_ok());
        assert_eq!(slow.look(Duration::ZERO), Standing::UnderWay);
        let again = alone.ask("GPU-1", LIMIT, || true);
        assert_eq!(again.look(LIMIT), Standing::Hangs, "it was not begun");
        release.send(()).expect("it waits");
        assert_eq!(slow.look(LIMIT), Standing::Answered(true));
        let (_release, hangs) = sync_channel::<()>(0);
        let over = alone.ask("GPU-2", Duration::ZERO, move || hangs.recv().is_ok());
        assert_eq!(over.look(LIMIT), Standing::Hangs);
    }

    #[tokio::test]
    async fn a_call_that_hangs_is_waited_for_so_long_and_no_longer() {
        let alone = Alone::default();
        let (release, hangs) = sync_channel::<()>(0);
        let call = move || hangs.recv().is_ok();
        assert_eq!(alone.wait("GPU-1", Duration::ZERO, call).await, None);
        release.send(()).expect("it waits");
    }
}
