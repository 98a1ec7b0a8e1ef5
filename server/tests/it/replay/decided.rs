//! What a plan decided beside what was committed of it.

use std::collections::BTreeMap;

use domain::ids::JobId;
use engine::plan::{Plan, Reason, WorkerPlace};
use serde_json::Value;
use server::scheduler::translate;

use crate::fleet::Fleet;

/// What a plan decided, or what was committed of one; by job.
#[derive(Debug, PartialEq, Eq)]
pub struct Decided {
    /// Where it starts, by rank.
    starts: BTreeMap<String, Vec<String>>,
    /// Where it grows.
    grows: BTreeMap<String, Vec<String>>,
    /// How it gives way, with how many workers it goes on, and by which rule unless it is shrunk.
    gives_way: BTreeMap<String, (&'static str, i32, String)>,
    /// Room that is kept for what waits and for what moves.
    kept: BTreeMap<String, Value>,
    /// Why it waits.
    waits: BTreeMap<String, String>,
}

impl Decided {
    /// What a plan decided; of room and reasons those of the jobs that `done` has, since nothing is
    /// kept with what has yet to leave.
    pub fn of(plan: &Plan, done: &Self) -> Self {
        let mut gives_way: BTreeMap<String, (&'static str, i32, String)> = BTreeMap::new();
        for p in &plan.preemptions {
            let after = i32::try_from(p.to_workers).expect("a gang is small");
            let told = match p.reason {
                Reason::Shrink => ("shrink", after, String::new()),
                reason if after > 0 => ("shrink", after, reason.as_str().to_owned()),
                reason => ("preemption", 0, reason.as_str().to_owned()),
            };
            gives_way.insert(p.workload.clone(), told);
        }
        for m in &plan.migrations {
            let rule = m.gainer.as_ref().map_or("drain", |_| "consolidation");
            gives_way.insert(m.workload.clone(), ("move", 0, rule.to_owned()));
        }
        let nominated = plan.nominations.iter().map(|n| (&n.workload, &n.placement));
        let moved = plan.migrations.iter().map(|m| (&m.workload, &m.placement));
        Self {
            starts: plan
                .starts
                .iter()
                .map(|s| (s.workload.clone(), places(&s.placement)))
                .collect(),
            grows: plan
                .resizes
                .iter()
                .map(|r| (r.workload.clone(), places(&r.placement)))
                .collect(),
            gives_way,
            kept: nominated
                .chain(moved)
                .filter(|(job, _)| done.kept.contains_key(*job) || done.waits.contains_key(*job))
                .map(|(job, places)| (job.clone(), kept(places)))
                .collect(),
            waits: plan
                .waiting
                .iter()
                .filter(|w| done.waits.contains_key(&w.workload))
                .map(|w| (w.workload.clone(), w.code.as_str().to_owned()))
                .collect(),
        }
    }
}

fn kept(places: &[WorkerPlace]) -> Value {
    let mut written = translate::write_nomination(places, domain::Timestamp::UNIX_EPOCH);
    written["placement"].take()
}

fn places(placement: &[WorkerPlace]) -> Vec<String> {
    let told = placement.iter().map(|place| {
        let devices = place.devices.iter();
        let devices = devices.map(|d| {
            let mig = d.mig.as_ref().zip(d.start);
            let mig = mig.map_or_else(String::new, |(profile, start)| {
                format!(":{profile}@{start}")
            });
            format!(" {}:{}:{}{mig}", d.index, d.mode, d.gpus.milli())
        });
        format!("{}{}", place.node, devices.collect::<String>())
    });
    told.collect()
}

/// How far events and evictions had come before a turn.
pub struct Mark {
    event: i64,
    eviction: i64,
}

impl Mark {
    pub async fn now(fleet: &Fleet) -> Self {
        let row = sqlx::query!(
            r#"SELECT COALESCE((SELECT max(id) FROM events), 0) AS "event!",
                      COALESCE((SELECT max(id) FROM evictions), 0) AS "eviction!""#
        )
        .fetch_one(&fleet.owner)
        .await
        .expect("numbers");
        Self {
            event: row.event,
            eviction: row.eviction,
        }
    }

    /// What was committed since.
    pub async fn since(&self, fleet: &Fleet, plan: &Plan) -> Decided {
        let moved: Vec<JobId> = plan
            .migrations
            .iter()
            .filter_map(|m| translate::job_id(&m.workload))
            .collect();
        Decided {
            starts: self.placed(fleet, "starting").await,
            grows: self.placed(fleet, "grown").await,
            gives_way: self.gave_way(fleet).await,
            kept: sqlx::query!(
                r#"SELECT id AS "id: JobId", nominated -> 'placement' AS "placement!" FROM jobs
                   WHERE nominated IS NOT NULL AND (state = 'queued' OR id = ANY ($1))"#,
                &moved as &[JobId]
            )
            .fetch_all(&fleet.owner)
            .await
            .expect("jobs")
            .into_iter()
            .map(|row| (row.id.to_string(), row.placement))
            .collect(),
            waits: sqlx::query!(
                r#"SELECT id AS "id: JobId", reason AS "reason!" FROM jobs
                   WHERE state = 'queued' AND waiting IS NOT NULL"#
            )
            .fetch_all(&fleet.owner)
            .await
            .expect("jobs")
            .into_iter()
            .map(|row| (row.id.to_string(), row.reason))
            .collect(),
        }
    }

    /// Where workers were placed of jobs that took a step of this kind, in order of rank.
    async fn placed(&self, fleet: &Fleet, step: &str) -> BTreeMap<String, Vec<String>> {
        let rows = sqlx::query!(
            r#"SELECT a.job_id AS "job: JobId", n.name AS node,
                      COALESCE(string_agg(' ' || d.index || ':' || s.mode || ':' || s.gpus_milli
                          || COALESCE(':' || s.mig_profile || '@' || lower(s.slots), ''), '' ORDER BY d.index), '')
                          AS "devices!"
               FROM events AS e
               JOIN events AS w ON w.id > $1 AND w.subject = 'assignment' AND w.to_state = 'granted' AND w.job_id = e.job_id
               JOIN assignments AS a ON a.id = w.subject_id
               JOIN nodes AS n ON n.id = a.node_id
               LEFT JOIN assignment_devices AS s ON s.assignment_id = a.id
               LEFT JOIN devices AS d ON d.id = s.device_id
               WHERE e.id > $1 AND e.subject = 'job'
                 AND CASE $2 WHEN 'grown' THEN e.reason = 'grown' ELSE e.to_state = $2 AND e.from_state = 'queued' END
               GROUP BY a.job_id, a.worker, n.name
               ORDER BY a.job_id, a.worker"#,
            self.event,
            step,
        )
        .fetch_all(&fleet.owner)
        .await
        .expect("places");
        let mut placed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows {
            let place = format!("{}{}", row.node, row.devices);
            placed.entry(row.job.to_string()).or_default().push(place);
        }
        placed
    }

    async fn gave_way(&self, fleet: &Fleet) -> BTreeMap<String, (&'static str, i32, String)> {
        let rows = sqlx::query!(
            r#"SELECT job_id AS "job: JobId", kind, workers_after, rule FROM evictions WHERE id > $1"#,
            self.eviction
        )
        .fetch_all(&fleet.owner)
        .await
        .expect("evictions");
        let told = |kind: &str, after: i32, rule: String| match kind {
            // A plan says of a guarantee or a priority that takes ranks only that it shrinks.
            "shrink" if matches!(rule.as_str(), "reclaim" | "priority") => {
                ("shrink", after, String::new())
            }
            "shrink" => ("shrink", after, rule),
            "move" => ("move", after, rule),
            _ => ("preemption", after, rule),
        };
        rows.into_iter()
            .map(|row| {
                (
                    row.job.to_string(),
                    told(&row.kind, row.workers_after, row.rule),
                )
            })
            .collect()
    }
}
