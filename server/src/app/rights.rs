//! When the rights of somebody who reads a stream are to be read again.
//!
//! A request is judged once, a stream lives on: whoever changes a role, a membership, a session
//! or the tree of teams makes a row of the change feed, and streams look again when they hear of it.

use std::time::Duration;

use domain::ids::UserId;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::store::changes::Change;

/// Rights are read again at least this often: that a session runs out is nobody's change, and a
/// feed that cannot be read tells nothing.
pub const AGE_MAX: Duration = Duration::from_secs(60);
/// Changes of rights that a reader may lag behind before it looks again without knowing whose.
const LAG_MAX: usize = 64;

/// The noun of a change of one person's rights; it is told to nobody.
pub const NOUN: &str = "rights";

/// Whose rights a change may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// One person's.
    One(UserId),
    /// Anybody's: teams hand roles down, and one was made, moved or renamed.
    Anybody,
}

impl Whose {
    /// Whose rights `change` may have changed, if any.
    pub fn of(change: &Change) -> Option<Self> {
        match change.noun.as_str() {
            NOUN => change.user_id.map(Self::One),
            "team" => Some(Self::Anybody),
            _ => None,
        }
    }

    /// Whether those of `user` are among them.
    pub fn meets(self, user: UserId) -> bool {
        match self {
            Self::One(one) => one == user,
            Self::Anybody => true,
        }
    }
}

/// Where changes of rights are handed on to streams that do not follow the feed itself.
#[derive(Debug)]
pub struct Board {
    sender: broadcast::Sender<Whose>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(LAG_MAX).0,
        }
    }
}

impl Board {
    /// Hands a change on to whoever watches.
    pub fn tell(&self, whose: Whose) {
        // Nobody watches: nobody reads a stream.
        let _ = self.sender.send(whose);
    }

    /// Watches the rights of one person, which were read just now.
    pub fn watch(&self, user: UserId) -> Watch {
        Watch {
            user,
            receiver: self.sender.subscribe(),
            read_at: Instant::now(),
        }
    }
}

/// Watches one person's rights.
#[derive(Debug)]
pub struct Watch {
    user: UserId,
    receiver: broadcast::Receiver<Whose>,
    read_at: Instant,
}

impl Watch {
    /// Waits until they are to be read again.
    pub async fn outdated(&mut self) {
        let due = self.read_at + AGE_MAX;
        loop {
            let told = tokio::select! {
                () = tokio::time::sleep_until(due) => return,
                told = self.receiver.recv() => told,
            };
            match told {
                Ok(whose) if !whose.meets(self.user) => {}
                Ok(_) | Err(RecvError::Lagged(_)) => return,
                Err(RecvError::Closed) => return tokio::time::sleep_until(due).await,
            }
        }
    }

    /// Notes that they were read just now.
    pub fn read(&mut self) {
        self.read_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_looks_again_when_told_and_else_when_the_age_is_reached() {
        let board = Board::default();
        let (ada, bob) = (UserId::new(), UserId::new());
        let mut watch = board.watch(ada);
        for told in [Whose::One(ada), Whose::Anybody] {
            board.tell(told);
            assert!(watch.outdated().now_or_never().is_some(), "{told:?}");
        }
        board.tell(Whose::One(bob));
        assert!(watch.outdated().now_or_never().is_none());
        let Some(past) = Instant::now().checked_sub(AGE_MAX) else {
            // The machine has only just started: its clock cannot say so.
            return;
        };
        watch.read_at = past;
        watch.outdated().await;
    }
}
