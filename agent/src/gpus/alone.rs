//! Calls into the driver that may hang, each on a thread of its own: one that hangs costs one thread,
//! whoever asks again meanwhile is told so at once, and nobody else waits.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The calls that have not come back yet, by what they are about.
#[derive(Debug, Clone, Default)]
pub struct Alone {
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

impl Alone {
    /// Begins a call; nothing where one about the same has not come back yet, or no thread can be had.
    pub fn begin<T: Send + 'static>(
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

    fn under_way(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_is_begun_once_and_keeps_no_other_from_its_answer() {
        let alone = Alone::default();
        let (release, hangs) = sync_channel::<()>(0);
        let first = alone.begin("GPU-1", move || hangs.recv().is_ok());
        let first = first.expect("begun");
        assert!(alone.begin("GPU-1", || true).is_none(), "it hangs");
        let other = alone.begin("GPU-2", || 7).expect("begun");
        assert_eq!(other.recv(), Ok(7));
        release.send(()).expect("it waits");
        assert_eq!(first.recv(), Ok(true));
        assert!(alone.begin("GPU-1", || true).is_some());
    }
}
