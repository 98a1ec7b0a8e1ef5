//! Samples of all nodes: written together, some times a second. They are evidence for people, not facts: what
//! cannot be written is let fall, and counts as unknown.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use chrono::TimeDelta;
use domain::Timestamp;
use domain::ids::{AssignmentId, DeviceId, NodeId};
use protocol::samples::DeviceSample;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::app::{App, telemetry};
use crate::store::samples::{self, Sample, Work};
use crate::store::{self, Tx};

/// Messages that wait to be written: a burst of all nodes of a large fleet.
const WAITING_MAX: usize = 16_384;
/// Samples are gathered for so long, or until there are so many.
const GATHER: Duration = Duration::from_millis(250);
const GATHERED_MAX: usize = 50_000;
/// Devices and assignments of which is known what they are; then it is learnt anew.
const KNOWN_MAX: usize = 500_000;

/// What a node said.
pub struct Told {
    node: NodeId,
    received: Instant,
    samples: Vec<DeviceSample>,
}

/// Starts the writer; it ends when `over` is cancelled.
pub fn start(app: App, over: CancellationToken) -> mpsc::Sender<Told> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = over.cancelled() => {}
            () = write(app, receiver) => {}
        }
    });
    sender
}

/// Hands samples to the writer; where it is far behind they are let fall.
pub fn put(writer: &mpsc::Sender<Told>, node: NodeId, samples: Vec<DeviceSample>) {
    let told = Told {
        node,
        received: Instant::now(),
        samples,
    };
    if let Err(mpsc::error::TrySendError::Full(told)) = writer.try_send(told) {
        let count = u64::try_from(told.samples.len()).unwrap_or(u64::MAX);
        metrics::counter!("allotment_samples_lost").increment(count);
    }
}

async fn write(app: App, mut waiting: mpsc::Receiver<Told>) {
    let mut known = Known::default();
    while let Some(first) = waiting.recv().await {
        let gathered = gather(first, &mut waiting).await;
        match known.write(&app, &gathered).await {
            Ok(written) => {
                let count = u64::try_from(written).unwrap_or(u64::MAX);
                metrics::counter!("allotment_samples_written").increment(count);
            }
            Err(error) => {
                let lost: usize = gathered.iter().map(|told| told.samples.len()).sum();
                tracing::warn!(%error, lost, "samples could not be written");
                metrics::counter!("allotment_samples_lost")
                    .increment(u64::try_from(lost).unwrap_or(u64::MAX));
            }
        }
    }
}

async fn gather(first: Told, waiting: &mut mpsc::Receiver<Told>) -> Vec<Told> {
    let until = Instant::now() + GATHER;
    let mut count = first.samples.len();
    let mut gathered = vec![first];
    while count < GATHERED_MAX
        && let Ok(Some(told)) = tokio::time::timeout_at(until, waiting.recv()).await
    {
        count += told.samples.len();
        gathered.push(told);
    }
    gathered
}

/// What devices and assignments are, as far as it was asked.
#[derive(Default)]
struct Known {
    devices: HashMap<(NodeId, String), DeviceId>,
    work: HashMap<AssignmentId, (NodeId, Work)>,
    /// Up to when there are partitions for certain.
    room_until: Option<Timestamp>,
}

impl Known {
    async fn write(&mut self, app: &App, gathered: &[Told]) -> Result<usize, sqlx::Error> {
        let mut tx = app.db.begin_system().await?;
        let now = store::clock(&mut tx).await?;
        if self.room_until.is_none_or(|until| now >= until) {
            telemetry::tend(&mut tx, app, now).await?;
            tx.commit().await?;
            self.room_until = Some(now + TimeDelta::hours(1));
            tx = app.db.begin_system().await?;
        }
        self.learn(&mut tx, gathered).await?;
        let rows: Vec<Sample> = gathered
            .iter()
            .flat_map(|told| self.rows(told, now))
            .collect();
        samples::write(&mut tx, &rows).await?;
        tx.commit().await?;
        Ok(rows.len())
    }

    /// Asks what those are that were not heard of yet.
    async fn learn(&mut self, tx: &mut Tx, gathered: &[Told]) -> Result<(), sqlx::Error> {
        if self.devices.len() + self.work.len() > KNOWN_MAX {
            self.devices.clear();
            self.work.clear();
        }
        let all = || {
            gathered
                .iter()
                .flat_map(|told| told.samples.iter().map(|sample| (told.node, sample)))
        };
        let strange: BTreeSet<(NodeId, &String)> = all()
            .map(|(node, sample)| (node, &sample.uuid))
            .filter(|(node, uuid)| !self.devices.contains_key(&(*node, (*uuid).clone())))
            .collect();
        if !strange.is_empty() {
            let (nodes, uuids): (Vec<NodeId>, Vec<String>) = strange
                .into_iter()
                .map(|(node, uuid)| (node, uuid.clone()))
                .unzip();
            for named in samples::devices(tx, &nodes, &uuids).await? {
                self.devices.insert((named.node, named.uuid), named.device);
            }
        }
        let strange: BTreeSet<AssignmentId> = all()
            .flat_map(|(_, sample)| sample.work.iter().map(|work| work.assignment))
            .filter(|id| !self.work.contains_key(id))
            .collect();
        if !strange.is_empty() {
            let strange: Vec<AssignmentId> = strange.into_iter().collect();
            for (node, work) in samples::work(tx, &strange).await? {
                self.work.insert(work.assignment, (node, work));
            }
        }
        Ok(())
    }

    /// A message's rows. What names a device or work that is not its node's is let fall.
    fn rows(&self, told: &Told, now: Timestamp) -> Vec<Sample> {
        let waited = TimeDelta::from_std(told.received.elapsed()).unwrap_or_default();
        let mut rows = Vec::with_capacity(told.samples.len() * 2);
        for sample in &told.samples {
            let Some(device) = self.devices.get(&(told.node, sample.uuid.clone())) else {
                continue;
            };
            let age = i64::try_from(sample.age_ms).unwrap_or(i64::MAX);
            let at = now - waited - TimeDelta::milliseconds(age);
            rows.push(Sample {
                at,
                device: *device,
                work: None,
                readings: sample.readings,
            });
            for work in &sample.work {
                if let Some((node, of)) = self.work.get(&work.assignment)
                    && *node == told.node
                {
                    rows.push(Sample {
                        at,
                        device: *device,
                        work: Some(*of),
                        readings: work.readings,
                    });
                }
            }
        }
        rows
    }
}
