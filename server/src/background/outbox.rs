//! What is in the outbox goes out: by e-mail, or to webhooks, with tries that are bounded and kept.
//!
//! Every replica runs the loop. What is due is claimed in a transaction of its own, sent outside of any, and what came
//! of it is written in a third: a replica that dies with a claim leaves it to the others once it ends. So each delivery
//! is tried by one replica at a time and arrives at least once; its id tells the receiver which it has had.

mod mail;
mod post;
mod words;

use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use domain::notice::DeliveryState;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::store::outbox::{self, Claimed, Outcome};
use crate::store::{self, webhooks};

/// Deliveries that a replica has on their way at once: slow receivers keep so many others from their turn at most.
const AT_ONCE: i64 = 16;
/// A claim outlives each of the two ways by far: nobody else tries while one is being tried.
const CLAIM_SECONDS: i64 = 120;
/// Tries before a delivery is dead: with the pauses between them it is tried for about half a day.
const TRIES_MAX: i32 = 20;
/// The pause after the first try; doubled after each.
const PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The longest pause: a receiver that is back hears within an hour.
const PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// What sends, kept for as long as the server runs.
#[derive(Debug, Clone)]
pub struct Senders {
    post: post::Poster,
    mail: Arc<mail::Mailer>,
}

impl Senders {
    /// Makes them by the configuration.
    pub fn new(app: &App) -> anyhow::Result<Self> {
        Ok(Self {
            post: post::Poster::new(&app.config.webhooks)?,
            mail: Arc::new(mail::Mailer::new(&app.config.mail)?),
        })
    }
}

/// Why a try came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// HTTP's status, where there was an answer.
    status: Option<u16>,
    /// In words.
    detail: String,
    /// Whether another try would come to the same.
    for_good: bool,
}

impl Failed {
    /// What may pass.
    fn now(detail: impl Into<String>) -> Self {
        Self {
            status: None,
            detail: detail.into(),
            for_good: false,
        }
    }
}

/// Sends what is due until `over` is cancelled.
pub async fn run(app: App, senders: Senders, over: CancellationToken) {
    loop {
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep(app.config.timers.tick) => {}
        }
        // What is on its way when the server stops is tried again by another.
        let sent = tokio::select! {
            () = over.cancelled() => return,
            sent = round(&app, &senders) => sent,
        };
        if let Err(error) = sent {
            tracing::warn!(reconciler = "outbox", %error, "what is due could not be sent");
        }
    }
}

/// Tries everything that is due now, once; how many deliveries.
pub async fn round(app: &App, senders: &Senders) -> Result<usize, sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    let due = outbox::claim(&mut tx, AT_ONCE, CLAIM_SECONDS).await?;
    tx.commit().await?;
    let count = due.len();
    let mut tries = JoinSet::new();
    for claimed in due {
        let (app, senders) = (app.clone(), senders.clone());
        tries.spawn(async move { take(&app, &senders, claimed).await });
    }
    let mut outcome = Ok(count);
    while let Some(tried) = tries.join_next().await {
        let tried = tried.unwrap_or_else(|error| Err(sqlx::Error::Io(error.into())));
        if let Err(error) = tried {
            outcome = Err(error);
        }
    }
    outcome
}

async fn take(app: &App, senders: &Senders, claimed: Claimed) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    let keys = match claimed.webhook_id {
        Some(webhook) => webhooks::keys(&mut tx, webhook).await?,
        None => Vec::new(),
    };
    let now = store::clock(&mut tx).await?;
    tx.commit().await?;
    let begun = Instant::now();
    let sent = match &claimed.email {
        Some(address) => senders.mail.send(address, &claimed).await,
        None => senders.post.send(&claimed, &keys, now).await,
    };
    let took_ms = i32::try_from(begun.elapsed().as_millis()).unwrap_or(i32::MAX);
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    let outcome = judge(sent, &claimed, now, took_ms);
    outbox::record(&mut tx, &claimed, &outcome).await?;
    tx.commit().await?;
    match outcome.state {
        DeliveryState::Delivered => tracing::debug!(delivery.id = %claimed.id, "delivered"),
        DeliveryState::Waiting => {
            tracing::info!(delivery.id = %claimed.id, number = claimed.number, "not delivered yet");
        }
        DeliveryState::Dead => {
            tracing::warn!(delivery.id = %claimed.id, number = claimed.number, "not delivered, and not tried again");
        }
    }
    Ok(())
}

/// Longest account of a try that is kept.
const DETAIL_CHARS_MAX: usize = 300;

fn judge(
    sent: Result<Option<u16>, Failed>,
    claimed: &Claimed,
    now: Timestamp,
    took_ms: i32,
) -> Outcome {
    let (state, status, detail) = match sent {
        Ok(status) => (DeliveryState::Delivered, status, String::new()),
        Err(failed) if failed.for_good || claimed.tries >= TRIES_MAX => {
            (DeliveryState::Dead, failed.status, failed.detail)
        }
        Err(failed) => (DeliveryState::Waiting, failed.status, failed.detail),
    };
    let printable = |c: char| if domain::error::printable(c) { c } else { ' ' };
    Outcome {
        state,
        due_at: now + pause(claimed.tries, rand::random()),
        status: status.map(i32::from),
        detail: detail
            .chars()
            .map(printable)
            .take(DETAIL_CHARS_MAX)
            .collect(),
        took_ms,
    }
}

/// The pause after so many tries: doubled with each, and between half of that and all of it, so that what failed
/// together is not tried together.
fn pause(tries: i32, random: u32) -> chrono::TimeDelta {
    let doublings = u32::try_from(tries - 1).unwrap_or(0).min(16);
    let whole = (PAUSE_FIRST * 2u32.pow(doublings)).min(PAUSE_MAX);
    let half = whole / 2;
    let ms = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
    let jitter = Duration::from_millis(u64::from(random) % (ms + 1));
    chrono::TimeDelta::from_std(half + jitter).unwrap_or(chrono::TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_spread() {
        let seconds = |tries, random| pause(tries, random).num_milliseconds();
        assert_eq!(seconds(1, 0), 5_000);
        assert_eq!(seconds(1, 5_000), 10_000);
        assert_eq!(seconds(2, 0), 10_000);
        for tries in 1..=TRIES_MAX {
            for random in [0, 1, u32::MAX / 2, u32::MAX] {
                assert!((5_000..=3_600_000).contains(&seconds(tries, random)));
            }
        }
        assert_eq!(seconds(TRIES_MAX, 0), 1_800_000);
    }
}
