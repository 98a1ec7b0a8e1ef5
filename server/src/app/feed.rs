//! The change feed for people: each sees that something of its own changed, and reads it again.
//!
//! One reader per replica follows the feed and hands every change on; each subscriber passes
//! what its asker may see. A notification between replicas is a hint; polling is the truth.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use domain::ids::{JobId, NodeId, TeamId};
use serde::Serialize;
use sqlx::postgres::PgListener;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::rights::{self, Whose};
use super::streams::{Kind, Seat};
use super::{App, AppError, Asker, sessions};
use crate::store::changes::{self, Change, Position};

/// Changes that a subscriber may lag behind before it is told to read everything again.
const LAG_MAX: usize = 1_024;
/// A look at the feed is followed by a rest of so many times its length.
const RESTS: u32 = 3;
/// Changes read at once.
const BATCH: i64 = 1_000;
/// Most changes that a returning subscriber is given one by one.
const RESUME_MAX: i64 = 1_000;
/// At least so long between two hints that work of other teams changed: in a busy cluster it
/// changes all the time, and whoever looks at a queue is served by a look every other second.
const OTHERS_INTERVAL: Duration = Duration::from_secs(2);
/// At least so long between two notifications to other replicas: committing one takes a lock
/// of the whole database.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(10);

/// Where changes are handed on.
#[derive(Debug)]
pub struct Feed {
    sender: broadcast::Sender<Change>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(LAG_MAX).0,
        }
    }
}

/// That something changed which the asker may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FeedItem {
    /// Where it stands in the feed; sent back as `Last-Event-ID` it resumes there.
    #[serde(skip)]
    pub id: String,
    /// `job`, `attempt`, `assignment`, `node`, `device`, `team`, `quota`, `pool`, `class`, `booking` or
    /// `window`; `queue` when work of others changed, whose queues may be in another order now; `reset`
    /// when changes were missed and everything is to be read again.
    pub noun: String,
    /// The job that it is or belongs to.
    pub job: Option<JobId>,
    /// The node that it is or lies on.
    pub node: Option<NodeId>,
    /// Whose it is.
    pub team: Option<TeamId>,
}

/// Follows the feed until `stop`, and hands every settled change on.
pub async fn run(app: App, stop: CancellationToken) {
    let tick = app.config.timers.tick;
    let mut position = None;
    while !stop.is_cancelled() {
        let begun = Instant::now();
        match follow(&app, position).await {
            Ok(next) => position = Some(next),
            Err(error) => {
                tracing::warn!(error = %error, "change feed cannot be read, trying again")
            }
        }
        // A part of the time at the most: where much changes each look finds more.
        tokio::time::sleep(begun.elapsed() * RESTS).await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = app.wake.feed.notified() => {}
            () = tokio::time::sleep(tick) => {}
        }
    }
}

/// Hands on what has settled since `position`; the position after it.
async fn follow(app: &App, position: Option<Position>) -> Result<Position, sqlx::Error> {
    let Some(mut position) = position else {
        let mut tx = app.db.begin_system().await?;
        let head = changes::head(&mut tx).await?;
        tx.commit().await?;
        return Ok(head);
    };
    loop {
        let mut tx = app.db.begin_system().await?;
        let batch = changes::settled(&mut tx, position, BATCH).await?;
        tx.commit().await?;
        let full = i64::try_from(batch.len()).is_ok_and(|read| read == BATCH);
        for change in batch {
            position = change.position;
            if let Some(whose) = Whose::of(&change) {
                app.rights.tell(whose);
            }
            // Nobody listens: the change is in the database for whoever comes.
            let _ = app.feed.sender.send(change);
        }
        if !full {
            return Ok(position);
        }
    }
}

/// Wakes this replica's loops when another replica says that something changed.
pub async fn listen(app: App, stop: CancellationToken) {
    let pause = app.config.timers.tick;
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => {}
            heard = hear(&app) => {
                if let Err(error) = heard {
                    tracing::warn!(error = %error, "no notifications from other replicas, polling goes on");
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

async fn hear(app: &App) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(app.db.system_pool()).await?;
    listener.listen(changes::CHANNEL).await?;
    while let Some(notification) = listener.try_recv().await? {
        // What this replica said itself, it has acted upon already.
        if notification.payload() != app.replica.to_string() {
            app.wake.local();
        }
    }
    Ok(())
}

/// Tells the other replicas that something changed, at most once per interval.
pub async fn relay(app: App, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.wake.relay.notified() => {}
        }
        if let Err(error) = notify(&app).await {
            tracing::warn!(error = %error, "other replicas were not notified, they poll");
        }
        tokio::time::sleep(NOTIFY_INTERVAL).await;
    }
}

async fn notify(app: &App) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    changes::notify(&mut tx, &app.replica.to_string()).await?;
    tx.commit().await
}

/// One person's view of the feed.
pub struct Subscription {
    app: App,
    asker: Asker,
    _seat: Seat,
    receiver: broadcast::Receiver<Change>,
    waiting: VecDeque<FeedItem>,
    passed: Option<Position>,
    rights_read: Instant,
    others: OthersWork,
}

/// Work that its reader may not see: that some of it changed is told now and then, and no more of it.
#[derive(Debug, Default)]
struct OthersWork {
    changed: bool,
    told_at: Option<Instant>,
}

impl OthersWork {
    /// How long it is until a change may be told; nothing where there is none.
    fn left(&self, now: Instant) -> Option<Duration> {
        let since = self.told_at.map(|at| now.saturating_duration_since(at));
        let left = since.map_or(Duration::ZERO, |since| {
            OTHERS_INTERVAL.saturating_sub(since)
        });
        self.changed.then_some(left)
    }

    /// Takes the change that may be told by now.
    fn take(&mut self, now: Instant) -> Option<FeedItem> {
        self.left(now).filter(Duration::is_zero)?;
        self.changed = false;
        self.told_at = Some(now);
        Some(hint("queue", None))
    }
}

/// Subscribes; with the id of the last item that was received, what came after it comes first.
pub async fn subscribe(
    app: &App,
    asker: Asker,
    last: Option<&str>,
) -> Result<Subscription, AppError> {
    authorise(&asker, Action::StreamEvents, Target::Platform)?;
    let most = app.config.limits.event_streams_per_person;
    let seat = app.streams.take(asker.user_id, Kind::Events, most)?;
    // Received from here on, so that nothing falls between what is replayed and what comes.
    let receiver = app.feed.sender.subscribe();
    let mut subscription = Subscription {
        app: app.clone(),
        asker,
        _seat: seat,
        receiver,
        waiting: VecDeque::new(),
        passed: None,
        rights_read: Instant::now(),
        others: OthersWork::default(),
    };
    if let Some(last) = last {
        subscription.resume(parse(last)?).await?;
    }
    Ok(subscription)
}

impl Subscription {
    /// The next item; nothing more when the asker's session is over.
    pub async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if let Some(item) = self.waiting.pop_front() {
                return Some(item);
            }
            let now = Instant::now();
            if let Some(item) = self.others.take(now) {
                return Some(item);
            }
            let rights = rights::AGE_MAX.saturating_sub(self.rights_read.elapsed());
            let left = self
                .others
                .left(now)
                .map_or(rights, |left| left.min(rights));
            let received = tokio::time::timeout(left, self.receiver.recv()).await;
            match received {
                Err(_) if left < rights => {}
                Err(_) => self.asker = self.rights_again().await?,
                Ok(Ok(change)) => {
                    // In the order of the feed: what comes after is passed by the new rights.
                    if Whose::of(&change).is_some_and(|whose| whose.meets(self.asker.user_id)) {
                        self.asker = self.rights_again().await?;
                    }
                    let known = self.passed.is_some_and(|passed| change.position <= passed);
                    match visible(&self.asker, &change) {
                        Some(item) if !known => return Some(item),
                        Some(_) => {}
                        None => self.others.changed |= of_work(&change),
                    }
                }
                Ok(Err(RecvError::Lagged(_))) => {
                    self.asker = self.rights_again().await?;
                    return Some(reset(self.passed));
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    async fn rights_again(&mut self) -> Option<Asker> {
        self.rights_read = Instant::now();
        let _turn = self.app.streams.look().await;
        match sessions::again(&self.app, &self.asker).await {
            Ok(asker) => Some(asker),
            Err(error) => {
                tracing::info!(error = %error, user.id = %self.asker.user_id, "event stream ends with its session");
                None
            }
        }
    }

    async fn resume(&mut self, last: Position) -> Result<(), AppError> {
        let mut tx = self.app.db.begin_system().await?;
        let oldest = changes::oldest(&mut tx).await?;
        let missed = changes::settled(&mut tx, last, RESUME_MAX).await?;
        tx.commit().await?;
        let cut = i64::try_from(missed.len()).is_ok_and(|read| read == RESUME_MAX);
        if cut || oldest.is_none_or(|oldest| last < oldest) {
            self.waiting.push_back(reset(None));
            return Ok(());
        }
        self.passed = missed.last().map(|change| change.position);
        let hidden = |change: &Change| of_work(change) && visible(&self.asker, change).is_none();
        self.others.changed |= missed.iter().any(hidden);
        self.waiting.extend(
            missed
                .iter()
                .filter_map(|change| visible(&self.asker, change)),
        );
        Ok(())
    }
}

fn reset(position: Option<Position>) -> FeedItem {
    hint("reset", position)
}

/// Whether it is work that changed.
fn of_work(change: &Change) -> bool {
    change.noun == "job"
}

/// An item that tells what to read again, and nothing of anybody.
fn hint(noun: &str, position: Option<Position>) -> FeedItem {
    FeedItem {
        id: position.map(write).unwrap_or_default(),
        noun: noun.to_owned(),
        job: None,
        node: None,
        team: None,
    }
}

/// What an asker may know of a change. Of other teams' work it learns only that a node's use
/// changed, as the fleet page shows it: neither whose it is nor what.
fn visible(asker: &Asker, change: &Change) -> Option<FeedItem> {
    if change.noun == rights::NOUN {
        return None;
    }
    let own = asker.platform_role.is_some()
        || change
            .team_id
            .is_none_or(|team| asker.teams.contains_key(&team));
    let id = write(change.position);
    if own {
        return Some(FeedItem {
            id,
            noun: change.noun.clone(),
            job: change.job_id,
            node: change.node_id,
            team: change.team_id,
        });
    }
    let node = change.node_id.filter(|_| change.noun == "assignment")?;
    Some(FeedItem {
        id,
        noun: "node".to_owned(),
        job: None,
        node: Some(node),
        team: None,
    })
}

fn write(position: Position) -> String {
    format!("{}-{}", position.xid, position.id)
}

fn parse(text: &str) -> Result<Position, AppError> {
    text.split_once('-')
        .and_then(|(xid, id)| {
            Some(Position {
                xid: xid.parse().ok()?,
                id: id.parse().ok()?,
            })
        })
        .filter(|position| position.xid >= 0 && position.id >= 0)
        .ok_or_else(|| {
            AppError::invalid(
                "Last-Event-ID",
                text,
                "the id of the last event that was received",
            )
        })
}

#[cfg(test)]
mod tests {
    use domain::ids::{RequestId, SessionId, UserId};
    use domain::role::{PlatformRole, TeamRole};

    use super::*;

    fn asker(platform_role: Option<PlatformRole>, team: TeamId) -> Asker {
        Asker {
            user_id: UserId::new(),
            name: "ada".parse().expect("a name"),
            platform_role,
            teams: [(team, TeamRole::Viewer)].into(),
            ancestors: Vec::new(),
            session_id: SessionId::new(),
            request_id: RequestId::new(),
        }
    }

    fn change(noun: &str, team: Option<TeamId>) -> Change {
        Change {
            position: Position { xid: 7, id: 9 },
            at: domain::Timestamp::UNIX_EPOCH,
            noun: noun.to_owned(),
            team_id: team,
            job_id: team.map(|_| JobId::new()),
            node_id: (noun == "assignment").then(NodeId::new),
            user_id: None,
        }
    }

    #[test]
    fn of_other_teams_work_only_the_nodes_use_is_told() {
        let own = asker(None, TeamId::new());
        let other = Some(TeamId::new());
        assert_eq!(visible(&own, &change("job", other)), None);
        let item = visible(&own, &change("assignment", other)).expect("the node's use");
        assert_eq!(
            (item.noun.as_str(), item.job, item.team),
            ("node", None, None)
        );
        assert!(item.node.is_some());
    }

    #[test]
    fn that_work_of_others_changed_is_told_now_and_then_and_nothing_of_it() {
        let begin = Instant::now();
        let mut others = OthersWork::default();
        assert_eq!((others.left(begin), others.take(begin)), (None, None));
        others.changed = true;
        let told = others.take(begin).expect("the first at once");
        assert_eq!(told, hint("queue", None));
        assert_eq!((told.job, told.node, told.team), (None, None, None));
        others.changed = true;
        let soon = begin + OTHERS_INTERVAL / 2;
        assert_eq!(others.take(soon), None, "not so soon again");
        assert_eq!(others.left(soon), Some(OTHERS_INTERVAL / 2));
        assert!(others.take(begin + OTHERS_INTERVAL).is_some());
        assert_eq!(others.take(begin + OTHERS_INTERVAL * 2), None, "told once");
    }

    #[test]
    fn own_work_and_the_platforms_eyes_see_it_whole() {
        let team = TeamId::new();
        let item = visible(&asker(None, team), &change("job", Some(team))).expect("its own");
        assert!(item.job.is_some());
        let auditor = asker(Some(PlatformRole::Auditor), TeamId::new());
        assert!(visible(&auditor, &change("job", Some(team))).is_some_and(|n| n.job.is_some()));
    }

    #[test]
    fn a_position_is_written_and_read_the_same() {
        let position = Position { xid: 12, id: 345 };
        assert_eq!(parse(&write(position)).ok(), Some(position));
        for bad in ["", "12", "a-b", "1-2-3", "-1-2"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
