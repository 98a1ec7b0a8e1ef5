//! Writes a world as a scenario file: JSON, which is YAML too, in the order of its rows.

use domain::spec::{NvlinkRule, PerWorker, Topology};
use domain::{Timestamp, time};
use serde_json::{Map, Number, Value, json};

use crate::world::{
    Booking, Node, NodeState, Placed, Pool, Quota, Service, Stopped, Team, Workload, WorkloadState,
    World,
};

/// Writes a file that `parse` reads back to an equal world. What a node's agent can
/// drive is not part of scenario files and is left out.
pub fn write(world: &World) -> String {
    let file = json!({
        "now": when(world.now),
        "cycle_seconds": world.cycle_seconds,
        "pools": world.pools.iter().map(pool).collect::<Vec<_>>(),
        "nodes": world.nodes.iter().map(node).collect::<Vec<_>>(),
        "classes": world.classes.iter().map(|c| json!({
            "name": c.name, "priority": c.priority, "preemptible": c.preemptible,
        })).collect::<Vec<_>>(),
        "teams": world.teams.iter().map(team).collect::<Vec<_>>(),
        "workloads": world.workloads.iter().map(workload).collect::<Vec<_>>(),
        "services": world.services.iter().map(service).collect::<Vec<_>>(),
        "bookings": world.bookings.iter().map(booking).collect::<Vec<_>>(),
    });
    serde_json::to_string_pretty(&file).expect("a tree of plain values is always written")
}

fn when(at: Timestamp) -> String {
    time::format(at)
}

/// A number of thousandths, exact, as text of a JSON number.
fn milli(amount: i64) -> Value {
    let text = domain::MilliGpu::from_milli(amount).to_string();
    Value::Number(text.parse::<Number>().expect("a decimal is a number"))
}

fn pool(pool: &Pool) -> Value {
    let mut keys = json!({ "name": pool.name });
    let policy = serde_json::to_value(&pool.policy).expect("words and numbers are always written");
    if let (Value::Object(keys), Value::Object(policy)) = (&mut keys, policy) {
        keys.extend(policy);
    }
    keys
}

fn node(node: &Node) -> Value {
    let mig: Map<String, Value> = node
        .mig
        .iter()
        .map(|(index, instances)| {
            let written = instances.iter().map(|i| match i.start {
                Some(start) => format!("{}@{start}", i.profile),
                None => i.profile.clone(),
            });
            (index.to_string(), json!(written.collect::<Vec<_>>()))
        })
        .collect();
    json!({
        "name": node.name,
        "pool": node.pool,
        "state": match node.state {
            NodeState::Ready => "ready",
            NodeState::Cordoned | NodeState::Unhealthy => "cordoned",
            NodeState::Draining => "draining",
            NodeState::Unreachable => "unreachable",
        },
        "gpus": node.gpus,
        "gpu_model": node.gpu_model,
        "gpu_memory_mib": node.gpu_memory_mib,
        "cpus": milli(node.cpus.milli()),
        "memory_mib": node.memory_mib,
        "nvlink": node.nvlink,
        "numa": node.numa,
        "mig": mig,
        "failed": node.failed,
        "labels": node.labels,
    })
}

fn team(team: &Team) -> Value {
    let quotas: Map<String, Value> = team
        .quotas
        .iter()
        .map(|(pool, row)| (pool.clone(), quota(row)))
        .collect();
    let past: Map<String, Value> = team
        .past_use
        .iter()
        .map(|(pool, amount)| (pool.clone(), milli(*amount)))
        .collect();
    json!({
        "name": team.name,
        "parent": team.parent,
        "quotas": quotas,
        "past_use": past,
        "max_per_user": team.max_per_user,
        "stopped": match team.stopped {
            Stopped::None => "none",
            Stopped::Borrowing => "borrowing",
            Stopped::All => "all",
        },
        "preemptions_this_hour": team.preemptions_this_hour,
    })
}

fn quota(quota: &Quota) -> Value {
    json!({
        "guaranteed": quota.guaranteed,
        "limit": quota.limit,
        "lend_limit": quota.lend_limit,
        "weight": milli(quota.weight_milli),
    })
}

fn workload(work: &Workload) -> Value {
    let mut written = json!({
        "name": work.name,
        "team": work.team,
        "user": work.user,
        "kind": work.kind,
        "class": work.class,
        "submitted": when(work.submitted),
        "not_before": work.not_before.map(when),
        "after": work.after,
        "pools": work.pools,
        "workers": work.workers,
        "min_workers": work.min_workers,
        "per_worker": per_worker(&work.per_worker),
        "selector": work.selector,
        "topology": topology(&work.topology),
        "nvlink": nvlink(work.nvlink),
        "anti_affinity": work.anti_affinity,
        "node": work.node,
        "time_limit_seconds": work.time_limit_seconds,
        "predicted_seconds": work.predicted_seconds,
        "preemptible": work.preemptible,
        "checkpoint_seconds": work.checkpoint_seconds,
        "restart_seconds": work.restart_seconds,
        "service": work.service,
        "state": match work.state {
            WorkloadState::Waiting => "waiting",
            WorkloadState::Running => "running",
            WorkloadState::Leaving => "leaving",
            WorkloadState::Suspended => "suspended",
        },
        "started": work.started.map(when),
        "leaves_at": work.leaves_at.map(when),
        "preemptions_today": work.preemptions_today,
    });
    let fields = written
        .as_object_mut()
        .expect("it is written as an object above");
    fields.insert("placed".to_owned(), placement(&work.placed));
    if let Some(kept) = &work.nominated {
        let kept = json!({"placement": placement(&kept.placement), "until": when(kept.until)});
        fields.insert("nominated".to_owned(), kept);
    }
    written
}

fn per_worker(asked: &PerWorker) -> Value {
    json!({
        "gpus": asked.gpus,
        "gpu_model": asked.gpu_model,
        "gpu_memory_mib": asked.gpu_memory_mib,
        "mig_profile": asked.mig_profile,
        "sharing": asked.sharing,
        "cpus": asked.cpus,
        "memory_mib": asked.memory_mib,
    })
}

fn topology(topology: &Topology) -> Value {
    json!({"require": topology.require, "prefer": topology.prefer})
}

fn nvlink(rule: NvlinkRule) -> Value {
    json!(rule.as_str())
}

fn placement(placed: &[Placed]) -> Value {
    let workers = placed.iter().map(|worker| {
        let devices = worker.devices.iter().map(|device| {
            json!({
                "index": device.index,
                "mode": device.mode,
                "gpus": device.gpus,
                "memory_mib": device.memory_mib,
                "mig": device.mig,
                "start": device.start,
            })
        });
        json!({"node": worker.node, "devices": devices.collect::<Vec<_>>()})
    });
    Value::Array(workers.collect())
}

fn service(service: &Service) -> Value {
    json!({
        "name": service.name,
        "team": service.team,
        "min_replicas": service.min_replicas,
        "max_replicas": (service.max_replicas != u32::MAX).then_some(service.max_replicas),
    })
}

fn booking(booking: &Booking) -> Value {
    json!({
        "name": booking.name,
        "team": booking.team,
        "pool": booking.pool,
        "gpus": booking.gpus,
        "from": when(booking.from),
        "to": when(booking.to),
    })
}
