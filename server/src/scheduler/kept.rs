//! Room that a plan keeps for work whose victims or movers have yet to leave, as it is stored.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use domain::Timestamp;
use domain::ids::JobId;
use domain::state::JobState;
use engine::plan::{Plan, WorkerPlace};
use serde_json::Value;

use super::translate;
use super::world::Mirror;
use crate::app::App;

/// What is to be stored of kept room: what the plan nominates, what it moves, and what it gives up.
pub fn changes(app: &App, mirror: &Mirror, plan: &Plan) -> Vec<(JobId, Option<Value>)> {
    let placements: BTreeMap<JobId, &[WorkerPlace]> = plan
        .nominations
        .iter()
        .map(|n| (&n.workload, n.placement.as_slice()))
        .chain(
            plan.migrations
                .iter()
                .map(|m| (&m.workload, m.placement.as_slice())),
        )
        .filter_map(|(workload, placement)| Some((translate::job_id(workload)?, placement)))
        .collect();
    let grace = mirror
        .records
        .pools
        .iter()
        .map(|pool| translate::policy(pool).preemption.grace_seconds)
        .max()
        .unwrap_or(0);
    let until = mirror.now
        + TimeDelta::seconds(grace)
        + TimeDelta::milliseconds(app.config.timers.start_window_ms);
    let mut changes = Vec::new();
    for (id, job) in &mirror.records.jobs {
        let kept = job.row.nominated.as_ref();
        match placements.get(id) {
            Some(placement) => {
                let same =
                    kept.filter(|kept| kept["placement"] == fresh(placement, until)["placement"]);
                // Room once kept is kept until the same moment, else it would be kept for ever.
                if same.is_none() {
                    changes.push((*id, Some(fresh(placement, until))));
                }
            }
            None if kept.is_some()
                && job.row.state == JobState::Queued
                && job.attempt.is_none() =>
            {
                changes.push((*id, None));
            }
            None => {}
        }
    }
    changes
}

fn fresh(placement: &[WorkerPlace], until: Timestamp) -> Value {
    translate::write_nomination(placement, until)
}
