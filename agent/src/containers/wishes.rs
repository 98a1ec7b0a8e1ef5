//! What is wanted of a container that runs or is about to: signals, the stop in its run folder, its grace
//! and the node's lease, as [`crate::supervise`] has them for processes.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::runs::{Orders, RunFolder};
use crate::{clock, lease, proc};

/// First wait, in milliseconds, before what was killed and is still there is killed again.
const KILL_AGAIN_MS: i64 = 20;
/// Longest such wait: what hangs in a driver may hang for days.
const KILL_AGAIN_MS_MAX: i64 = 1000;
/// Longest wait, in milliseconds, before the lease is read again.
const WAIT_MS_MAX: i64 = 3600 * 1000;

/// What is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It is to be asked to leave.
    Terminate,
    /// It is to be killed.
    Kill,
}

struct Stopping {
    kill_at_ms: i64,
    again_ms: i64,
    lease_over: bool,
    told: bool,
}

/// What is wanted of one container.
pub struct Wishes<'a> {
    folder: &'a RunFolder,
    orders: &'a Orders,
    boot_id: String,
    hint: Signal,
    leave: [Signal; 3],
    stopping: Option<Stopping>,
    lease_over: bool,
}

impl<'a> Wishes<'a> {
    /// Begins to listen. Signals that came before wait in the kernel until then.
    pub fn listen(folder: &'a RunFolder, orders: &'a Orders) -> io::Result<Self> {
        let listened = Self {
            folder,
            orders,
            boot_id: proc::boot_id()?,
            hint: signal(SignalKind::user_defined1())?,
            leave: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
            ],
            stopping: None,
            lease_over: false,
        };
        crate::supervise::signals()
            .thread_unblock()
            .map_err(io::Error::from)?;
        let mut listened = listened;
        listened.read_stop();
        Ok(listened)
    }

    /// Whether somebody, or the lease, has begun to stop it.
    pub fn asked(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether that was the lease.
    pub fn lease_over(&self) -> bool {
        self.stopping.as_ref().is_some_and(|s| s.lease_over)
    }

    /// Returns when something is due. Dropped before that, nothing is lost.
    pub async fn due(&mut self) -> Due {
        loop {
            let now = clock::boot_ms();
            let lease_end = self.lease_end();
            if lease_end.is_some_and(|end| end <= now) {
                self.lease_over = true;
                self.stop(self.orders.grace_ms, true);
            }
            if let Some(due) = self.stopping.as_mut().and_then(|s| s.due(now)) {
                return due;
            }
            let kill_at = self.stopping.as_ref().map(|s| s.kill_at_ms);
            let lease_end = lease_end.filter(|_| !self.lease_over);
            let at = [kill_at, lease_end].into_iter().flatten().min();
            let wait_ms = at.map_or(WAIT_MS_MAX, |at| (at - now).clamp(1, WAIT_MS_MAX));
            let wait = Duration::from_millis(wait_ms.unsigned_abs());
            let [terminated, interrupted, hung_up] = &mut self.leave;
            tokio::select! {
                _ = self.hint.recv() => self.read_stop(),
                _ = terminated.recv() => self.stop(self.orders.grace_ms, false),
                _ = interrupted.recv() => self.stop(self.orders.grace_ms, false),
                _ = hung_up.recv() => self.stop(self.orders.grace_ms, false),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn read_stop(&mut self) {
        if let Ok(Some(stop)) = self.folder.stop() {
            self.stop(stop.grace_ms, false);
        }
    }

    /// Begins to stop it; a second call can only shorten the grace.
    fn stop(&mut self, grace_ms: i64, lease_over: bool) {
        let kill_at_ms = clock::boot_ms().saturating_add(grace_ms);
        match &mut self.stopping {
            Some(stopping) => stopping.kill_at_ms = stopping.kill_at_ms.min(kill_at_ms),
            None => {
                self.stopping = Some(Stopping {
                    kill_at_ms,
                    again_ms: KILL_AGAIN_MS,
                    lease_over,
                    told: false,
                });
            }
        }
    }

    fn lease_end(&self) -> Option<i64> {
        let path = self.orders.lease.as_ref().filter(|_| !self.lease_over)?;
        Some(lease::end(path, &self.boot_id))
    }
}

impl Stopping {
    fn due(&mut self, now: i64) -> Option<Due> {
        if !std::mem::replace(&mut self.told, true) {
            return Some(Due::Terminate);
        }
        if self.kill_at_ms > now {
            return None;
        }
        self.kill_at_ms = now + self.again_ms;
        self.again_ms = (self.again_ms * 2).min(KILL_AGAIN_MS_MAX);
        Some(Due::Kill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_once_and_killed_until_it_is_gone() {
        let mut stopping = Stopping {
            kill_at_ms: 100,
            again_ms: KILL_AGAIN_MS,
            lease_over: false,
            told: false,
        };
        assert_eq!(stopping.due(0), Some(Due::Terminate));
        assert_eq!(stopping.due(99), None);
        assert_eq!(stopping.due(100), Some(Due::Kill));
        assert_eq!(stopping.due(119), None);
        assert_eq!(stopping.due(120), Some(Due::Kill));
        assert_eq!(stopping.kill_at_ms, 160, "twice as long as before");
    }
}
