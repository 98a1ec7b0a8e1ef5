//! The world in memory: rows of the database, loaded once and kept up to date by the change feed.
//!
//! Every refresh reads in one snapshot: what changed, then those objects. What had not settled
//! is read again by the next refresh, so that nothing is missed and nothing waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use domain::ids::{AssignmentId, JobId, NodeId};
use domain::policy::{PoolPolicy, Strategy};
use domain::spec::JobSpec;

use super::translate::policy;
use crate::store::arrays::{self, LiveArray};
use crate::store::bookings::{self, Booking};
use crate::store::changes::{self, Position};
use crate::store::past::{self, Evictions, Gone, LastNode, PastUse};
use crate::store::windows::{self, Window};
use crate::store::world::{
    self as rows, ClassRow, DeviceRow, LiveAssignment, LiveAttempt, LiveJob, LiveShare, NodeRow,
    PoolRow, QuotaRow, TeamRow,
};
use crate::store::{Database, Tx, clock};

/// A node with its devices.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRecord {
    /// The node.
    pub row: NodeRow,
    /// Its devices by index, the one that counts at each.
    pub devices: BTreeMap<u32, DeviceRow>,
}

/// A job that has not ended, with everything that it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    /// The job.
    pub row: LiveJob,
    /// Its spec, or why it cannot be read.
    pub spec: Result<JobSpec, String>,
    /// Its live attempt.
    pub attempt: Option<LiveAttempt>,
    /// Its workers that hold their places, by rank, with their shares.
    pub workers: Vec<(LiveAssignment, Vec<LiveShare>)>,
    /// When it gave way, as a whole or in part.
    pub evictions: Vec<Timestamp>,
    /// Where its last run was, while it waits.
    pub last_nodes: Vec<LastNode>,
}

/// Everything that a plan depends on, as rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// Pools.
    pub pools: Vec<PoolRow>,
    /// Classes.
    pub classes: Vec<ClassRow>,
    /// Teams.
    pub teams: Vec<TeamRow>,
    /// Quotas, as they are while no window is open.
    pub quotas: Vec<QuotaRow>,
    /// Weekly windows.
    pub windows: Vec<Window>,
    /// Bookings that have not ended.
    pub bookings: Vec<Booking>,
    /// Nodes.
    pub nodes: BTreeMap<NodeId, NodeRecord>,
    /// Jobs that have not ended.
    pub jobs: BTreeMap<JobId, JobRecord>,
    /// Arrays that have not ended.
    pub arrays: BTreeMap<JobId, LiveArray>,
}

/// The records with the place in the feed up to which they are right.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// The records.
    pub records: Records,
    extent: Extent,
    /// The database's time of the last refresh.
    pub now: Timestamp,
    position: Position,
    /// What has ended, as of then.
    gone: Option<(Timestamp, Arc<Vec<Gone>>)>,
}

/// What of the world a mirror shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it.
    Everything,
    /// The fleet and the rules: where much is submitted, nobody who asks for these reads that.
    Fleet,
}

/// What a plan may know of the past, which time changes and no row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// Evictions of the last hour, where a pool limits them.
    pub evictions: Vec<Evictions>,
    /// Faded use by pool, where a pool remembers.
    pub past_use: BTreeMap<String, Vec<PastUse>>,
    /// What has ended in the last week, where a pool keeps room for its like.
    pub gone: Arc<Vec<Gone>>,
}

/// Between two refreshes of a mirror that trusts the feed: half of what the feed is kept for, so
/// that nothing unread is ever swept.
const AWAY_MAX: chrono::TimeDelta = chrono::TimeDelta::seconds(changes::KEPT_SECONDS / 2);

/// Kinds of past work that are read: as many as the engine tells apart.
#[allow(clippy::cast_possible_wrap)]
const KINDS_MAX: i64 = engine::world::PASTS_MAX as i64;

/// Evictions per team are counted over so many seconds.
const EVICTION_HOUR: Duration = Duration::from_secs(3600);

/// What has ended counts for so long: a week has every day of people's habits in it once.
const HISTORY: Duration = Duration::from_secs(7 * 24 * 3600);
/// What has ended is counted anew after so long: it is a mix over days, and no count of one hour.
const HISTORY_FRESH_FOR: chrono::TimeDelta = chrono::TimeDelta::minutes(5);

/// What a refresh found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refresh {
    /// Nothing changed.
    Same,
    /// Something changed.
    Changed,
}

impl Mirror {
    /// Loads everything in one snapshot.
    pub async fn load(db: &Database) -> Result<Self, sqlx::Error> {
        Self::load_extent(db, Extent::Everything).await
    }

    /// Loads the fleet and the rules, without any work.
    pub async fn load_fleet(db: &Database) -> Result<Self, sqlx::Error> {
        Self::load_extent(db, Extent::Fleet).await
    }

    async fn load_extent(db: &Database, extent: Extent) -> Result<Self, sqlx::Error> {
        let mut tx = db.begin_system().await?;
        rows::one_snapshot(&mut tx).await?;
        let position = changes::head(&mut tx).await?;
        let now = clock(&mut tx).await?;
        let records = load(&mut tx, extent, now).await?;
        tx.commit().await?;
        Ok(Self {
            records,
            extent,
            now,
            position,
            gone: None,
        })
    }

    /// Brings the records up to date by the feed.
    pub async fn refresh(&mut self, db: &Database) -> Result<Refresh, sqlx::Error> {
        let mut tx = db.begin_system().await?;
        rows::one_snapshot(&mut tx).await?;
        let refresh = self.apply(&mut tx).await?;
        tx.commit().await?;
        Ok(refresh)
    }

    /// The same, and then compares with a full load in the same snapshot. What differed is
    /// named, and the full load is kept.
    pub async fn check(&mut self, db: &Database) -> Result<Vec<String>, sqlx::Error> {
        let mut tx = db.begin_system().await?;
        rows::one_snapshot(&mut tx).await?;
        self.apply(&mut tx).await?;
        let fresh = load(&mut tx, self.extent, self.now).await?;
        tx.commit().await?;
        let differences = self.records.differences(&fresh);
        self.records = fresh;
        Ok(differences)
    }

    /// Reads what the pools' policies want to know of the past.
    pub async fn recall(&mut self, db: &Database) -> Result<Memory, sqlx::Error> {
        let mut memory = Memory::default();
        let policies = self
            .records
            .pools
            .iter()
            .map(|row| (&row.name, policy(row)));
        let pools: Vec<(&String, PoolPolicy)> = policies.collect();
        let limits = pools
            .iter()
            .any(|(_, p)| p.preemption.max_per_team_hour.is_some());
        let mixes = pools
            .iter()
            .any(|(_, p)| p.strategy == Strategy::LeastFragmentation);
        let half_lives = || {
            pools
                .iter()
                .filter_map(|(name, p)| Some((*name, p.usage_half_life_seconds?)))
        };
        if !limits && !mixes && half_lives().next().is_none() {
            return Ok(memory);
        }
        let mut tx = db.begin_system().await?;
        if mixes {
            let fresh = |at: Timestamp| self.now < at + HISTORY_FRESH_FOR;
            let known = self.gone.take().filter(|(at, _)| fresh(*at));
            let (at, gone) = match known {
                Some(known) => known,
                None => {
                    let since = self.now - HISTORY;
                    let gone = past::gone_since(&mut tx, since, KINDS_MAX).await?;
                    (self.now, Arc::new(gone))
                }
            };
            memory.gone = Arc::clone(&gone);
            self.gone = Some((at, gone));
        }
        if limits {
            memory.evictions = past::evictions_since(&mut tx, self.now - EVICTION_HOUR).await?;
        }
        for (pool, seconds) in half_lives() {
            let used = past::past_use(&mut tx, pool, seconds, self.now).await?;
            memory.past_use.insert(pool.clone(), used);
        }
        tx.commit().await?;
        Ok(memory)
    }

    async fn apply(&mut self, tx: &mut Tx) -> Result<Refresh, sqlx::Error> {
        let head = changes::head(tx).await?;
        let now = clock(tx).await?;
        if now - self.now > AWAY_MAX {
            // What changed meanwhile may have been swept out of the feed.
            self.records = load(tx, self.extent, now).await?;
            self.now = now;
            self.position = self.position.max(head);
            return Ok(Refresh::Changed);
        }
        let work = self.extent == Extent::Everything;
        let touched = changes::touched(tx, self.position, work).await?;
        self.now = now;
        self.position = self.position.max(head);
        self.records.bookings.retain(|b| b.ends_at > now);
        if touched == changes::Touched::default() {
            return Ok(Refresh::Same);
        }
        if touched.pools {
            self.records.pools = rows::pools(tx).await?;
        }
        if touched.classes {
            self.records.classes = rows::classes(tx).await?;
        }
        if touched.teams {
            self.records.teams = rows::teams(tx).await?;
            self.records.quotas = rows::quotas(tx).await?;
        }
        // Both name their teams, which may have other names now.
        if touched.windows || touched.teams {
            self.records.windows = windows::all(tx, None).await?;
        }
        if touched.bookings || touched.teams {
            self.records.bookings = bookings::standing(tx, None, now).await?;
        }
        if !touched.jobs.is_empty() {
            let jobs = load_jobs(tx, Some(&touched.jobs)).await?;
            replace(&mut self.records.jobs, &touched.jobs, jobs);
            // With each element that is new its array has one less to come.
            let arrays = touched.jobs.iter().map(|id| id.array().unwrap_or(*id));
            let mut arrays: Vec<JobId> = arrays.filter(|id| id.is_array()).collect();
            arrays.dedup();
            if !arrays.is_empty() {
                let read = load_arrays(tx, Some(&arrays)).await?;
                replace(&mut self.records.arrays, &arrays, read);
            }
        }
        if !touched.nodes.is_empty() {
            let nodes = load_nodes(tx, Some(&touched.nodes)).await?;
            replace(&mut self.records.nodes, &touched.nodes, nodes);
        }
        self.forget_empty_retired_nodes(tx).await?;
        Ok(Refresh::Changed)
    }

    /// A retired node is known only while it holds work, and its last work's end is a change of
    /// a job, not of the node.
    async fn forget_empty_retired_nodes(&mut self, tx: &mut Tx) -> Result<(), sqlx::Error> {
        let retired: Vec<NodeId> = self
            .records
            .nodes
            .values()
            .filter(|node| node.row.intent == domain::state::NodeIntent::Retired)
            .map(|node| node.row.id)
            .collect();
        if !retired.is_empty() {
            let nodes = load_nodes(tx, Some(&retired)).await?;
            replace(&mut self.records.nodes, &retired, nodes);
        }
        Ok(())
    }
}

impl Records {
    /// The names of objects that differ between two sets of records.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let whole = [
            ("pools", self.pools != other.pools),
            ("classes", self.classes != other.classes),
            ("teams", self.teams != other.teams),
            ("quotas", self.quotas != other.quotas),
            ("windows", self.windows != other.windows),
            ("bookings", self.bookings != other.bookings),
        ];
        found.extend(
            whole
                .into_iter()
                .filter(|(_, differs)| *differs)
                .map(|(name, _)| name.to_owned()),
        );
        found.extend(differing(&self.nodes, &other.nodes).map(|id| format!("node {id}")));
        found.extend(differing(&self.jobs, &other.jobs).map(|id| format!("job {id}")));
        found.extend(differing(&self.arrays, &other.arrays).map(|id| format!("array {id}")));
        found
    }
}

/// The keys whose values differ, or that only one side has.
fn differing<'m, K: Ord + Copy, V: PartialEq>(
    one: &'m BTreeMap<K, V>,
    other: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = K> + 'm {
    let changed = one
        .iter()
        .filter(|(key, value)| other.get(key) != Some(value))
        .map(|(key, _)| *key);
    let added = other.keys().filter(|key| !one.contains_key(key)).copied();
    changed.chain(added)
}

/// Puts what was read of these keys in place of what was known of them.
fn replace<K: Ord, V>(known: &mut BTreeMap<K, V>, keys: &[K], read: BTreeMap<K, V>) {
    for key in keys {
        known.remove(key);
    }
    known.extend(read);
}

async fn load(tx: &mut Tx, extent: Extent, now: Timestamp) -> Result<Records, sqlx::Error> {
    let (jobs, arrays) = match extent {
        Extent::Everything => (load_jobs(tx, None).await?, load_arrays(tx, None).await?),
        Extent::Fleet => (BTreeMap::new(), BTreeMap::new()),
    };
    Ok(Records {
        pools: rows::pools(tx).await?,
        classes: rows::classes(tx).await?,
        teams: rows::teams(tx).await?,
        quotas: rows::quotas(tx).await?,
        windows: windows::all(tx, None).await?,
        bookings: bookings::standing(tx, None, now).await?,
        nodes: load_nodes(tx, None).await?,
        jobs,
        arrays,
    })
}

async fn load_nodes(
    tx: &mut Tx,
    ids: Option<&[NodeId]>,
) -> Result<BTreeMap<NodeId, NodeRecord>, sqlx::Error> {
    let mut nodes: BTreeMap<NodeId, NodeRecord> = rows::nodes(tx, ids)
        .await?
        .into_iter()
        .map(|row| {
            (
                row.id,
                NodeRecord {
                    row,
                    devices: BTreeMap::new(),
                },
            )
        })
        .collect();
    for device in rows::devices(tx, ids).await? {
        let Ok(index) = u32::try_from(device.index) else {
            continue;
        };
        if let Some(node) = nodes.get_mut(&device.node_id) {
            // The first of an index is the one that counts: the query puts it there.
            node.devices.entry(index).or_insert(device);
        }
    }
    Ok(nodes)
}

async fn load_arrays(
    tx: &mut Tx,
    ids: Option<&[JobId]>,
) -> Result<BTreeMap<JobId, LiveArray>, sqlx::Error> {
    let arrays = arrays::live(tx, ids).await?.into_iter();
    Ok(arrays.map(|array| (array.id, array)).collect())
}

async fn load_jobs(
    tx: &mut Tx,
    ids: Option<&[JobId]>,
) -> Result<BTreeMap<JobId, JobRecord>, sqlx::Error> {
    let mut jobs = BTreeMap::new();
    for mut row in rows::jobs(tx, ids).await? {
        let spec = serde_json::from_value(row.spec.take()).map_err(|e| e.to_string());
        let record = JobRecord {
            row,
            spec,
            attempt: None,
            workers: Vec::new(),
            evictions: Vec::new(),
            last_nodes: Vec::new(),
        };
        jobs.insert(record.row.id, record);
    }
    for attempt in rows::attempts(tx, ids).await? {
        if let Some(job) = jobs.get_mut(&attempt.job_id) {
            job.attempt = Some(attempt);
        }
    }
    let mut shares: BTreeMap<AssignmentId, Vec<LiveShare>> = BTreeMap::new();
    for share in rows::shares(tx, ids).await? {
        shares.entry(share.assignment_id).or_default().push(share);
    }
    for assignment in rows::assignments(tx, ids).await? {
        if let Some(job) = jobs.get_mut(&assignment.job_id) {
            let held = shares.remove(&assignment.id).unwrap_or_default();
            job.workers.push((assignment, held));
        }
    }
    for past in past::evictions(tx, ids).await? {
        if let Some(job) = jobs.get_mut(&past.job_id) {
            job.evictions.push(past.at);
        }
    }
    for last in past::last_nodes(tx, ids).await? {
        if let Some(job) = jobs.get_mut(&last.job_id) {
            job.last_nodes.push(last);
        }
    }
    Ok(jobs)
}
