//! Whether a node's clock is right: its heartbeats say what it shows, and that is set against our own. Nothing goes
//! by it; who runs the node should know.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::app::App;
use crate::store::leases::Beat;
use crate::store::nodes;

/// What a clock may be off by before it is told, in milliseconds: as for one that jumps, time services
/// step clocks by less in peace, and a heartbeat that waited on its way seems to be late.
const OFF_MS_MIN: i64 = 60_000;
/// One that was off is right again below this part of it: at the edge it would be told with each heartbeat.
const RIGHT_PART: i64 = 2;

/// What a connection has told of its node's clock.
#[derive(Debug, Default)]
pub struct Clock {
    /// How far it was ahead when that was last written; before the first heartbeat nobody knows what is written.
    told: Option<Option<i64>>,
}

impl Clock {
    /// Takes a heartbeat in; what is new is written beside all else, and once more by the next connection where
    /// that fails.
    pub fn look(&mut self, app: &App, beat: Beat, at_micros: i64) {
        let Some(ours_ms) = now_ms() else {
            return;
        };
        let Some(news) = self.news(at_micros / 1000 - ours_ms) else {
            return;
        };
        let app = app.clone();
        tokio::spawn(async move {
            if let Err(error) = write(&app, beat, news).await {
                tracing::warn!(node.id = %beat.node_id, %error, "what a node's clock is off by could not be written");
            }
        });
    }

    /// What to write, if anything: whether it is off, and not by how much with each heartbeat, unless that has
    /// become another.
    fn news(&mut self, ahead_ms: i64) -> Option<Option<i64>> {
        let before = self.told.flatten();
        let least = match before {
            Some(_) => OFF_MS_MIN / RIGHT_PART,
            None => OFF_MS_MIN,
        };
        let off = (ahead_ms.abs() >= least).then_some(ahead_ms);
        let other = match (before, off) {
            (Some(before), Some(now)) => before.abs_diff(now) >= OFF_MS_MIN.unsigned_abs(),
            (None, None) => false,
            _ => true,
        };
        let news = other || self.told.is_none();
        news.then(|| {
            self.told = Some(off);
            off
        })
    }
}

async fn write(app: &App, beat: Beat, ahead_ms: Option<i64>) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    if nodes::set_clock_ahead(&mut tx, beat.node_id, beat.incarnation, ahead_ms).await? {
        match ahead_ms {
            Some(ahead_ms) => {
                tracing::warn!(node.id = %beat.node_id, ahead_ms, "a node's clock is wrong");
            }
            None => tracing::info!(node.id = %beat.node_id, "a node's clock is right"),
        }
    }
    tx.commit().await
}

/// Milliseconds since 1970 by this machine's clock: what machines show is compared, and the database's may be
/// that of another day.
fn now_ms() -> Option<i64> {
    let age = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(age.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_off_is_told_once_and_again_when_it_is_right_or_off_by_another_amount() {
        let mut clock = Clock::default();
        assert_eq!(
            clock.news(400),
            Some(None),
            "what was written before is not known"
        );
        assert_eq!(clock.news(-900), None);
        assert_eq!(clock.news(3_600_000), Some(Some(3_600_000)));
        assert_eq!(clock.news(3_601_000), None);
        assert_eq!(clock.news(-3_600_000), Some(Some(-3_600_000)));
        assert_eq!(
            clock.news(-45_000),
            Some(Some(-45_000)),
            "it is not right yet"
        );
        assert_eq!(clock.news(-20_000), Some(None));
        assert_eq!(
            clock.news(45_000),
            None,
            "at the edge it does not come and go"
        );
    }
}
