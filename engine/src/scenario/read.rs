//! The readers of a scenario's sections, but for pools and workloads.

use domain::MilliCpu;
use domain::MilliGpu;
use domain::spec::CLASS_DEFAULT;

use super::amounts::{
    COUNT_MAX, CPUS_MAX, DEVICES_MAX, MEMORY_MIB_MAX, NODES_MAX, PAST_USE_MAX, POOLS_MAX,
    PRIORITY_MAX, SECONDS_MAX, TEAMS_MAX, WEIGHT_MAX, WORKLOADS_MAX,
};
use super::fields::{Field, Fields, Read};
use super::read_pool::pool;
use super::read_workload::workload;
use super::tree::{Node as Tree, Value};
use crate::world::{
    Booking, Class, MigInstance, Node, NodeState, Quota, Service, Stopped, Team,
    WEIGHT_MILLI_DEFAULT, World,
};

/// Most labels, instances or rows of one object.
const ENTRIES_MAX: usize = 1_000;

/// Reads the whole file.
pub(super) fn world(root: &Tree) -> Read<World> {
    let fields = Fields::root(root)?;
    let world = World {
        now: fields.require("now")?.time()?,
        cycle_seconds: fields.or("cycle_seconds", 1, |f| f.integer(1, SECONDS_MAX))?,
        pools: fields.require("pools")?.list(POOLS_MAX, pool)?,
        nodes: fields.require("nodes")?.list(NODES_MAX, node)?,
        classes: fields.or("classes", vec![Class::new(CLASS_DEFAULT, 0, true)], |f| {
            f.list(TEAMS_MAX, class)
        })?,
        teams: fields.require("teams")?.list(TEAMS_MAX, team)?,
        workloads: fields.require("workloads")?.list(WORKLOADS_MAX, workload)?,
        services: fields.or("services", Vec::new(), |f| f.list(WORKLOADS_MAX, service))?,
        bookings: fields.or("bookings", Vec::new(), |f| f.list(WORKLOADS_MAX, booking))?,
        history: Vec::new(),
        ahead: Vec::new(),
    };
    fields.finish()?;
    Ok(world)
}

fn node(field: Field<'_>) -> Read<Node> {
    let fields = field.fields()?;
    let gpus = fields.require("gpus")?.count(0, DEVICES_MAX)?;
    let gpu_memory = if gpus > 0 {
        Some(fields.require("gpu_memory_mib")?)
    } else {
        fields.get("gpu_memory_mib")
    };
    let index = |f: Field<'_>| f.count(0, DEVICES_MAX - 1);
    let sets = |f: Field<'_>| f.list(ENTRIES_MAX, |f| f.list(ENTRIES_MAX, index));
    let node = Node {
        name: fields.require("name")?.text()?,
        pool: fields.require("pool")?.text()?,
        state: fields.or("state", NodeState::Ready, |f| {
            f.word(&[
                ("ready", NodeState::Ready),
                ("cordoned", NodeState::Cordoned),
                ("draining", NodeState::Draining),
                ("unreachable", NodeState::Unreachable),
            ])
        })?,
        gpus,
        gpu_model: fields.optional("gpu_model", Field::text)?,
        gpu_memory_mib: gpu_memory.map_or(Ok(0), |f| {
            f.integer(if gpus > 0 { 1 } else { 0 }, MEMORY_MIB_MAX)
        })?,
        cpus: fields.require("cpus")?.cpus()?,
        memory_mib: fields.require("memory_mib")?.integer(0, MEMORY_MIB_MAX)?,
        nvlink: fields.or("nvlink", Vec::new(), sets)?,
        numa: fields.or("numa", Vec::new(), sets)?,
        mig: fields.or("mig", Default::default(), mig)?,
        failed: fields.or("failed", Vec::new(), |f| f.list(ENTRIES_MAX, index))?,
        labels: fields.or("labels", Default::default(), |f| {
            f.map(ENTRIES_MAX, Field::text)
        })?,
        drives: None,
        mps_across_teams: true,
        mig_static: false,
        mig_layout: Default::default(),
    };
    debug_assert!(
        node.cpus <= MilliCpu::whole(CPUS_MAX),
        "the reader bounds it"
    );
    fields.finish()?;
    Ok(node)
}

fn mig(field: Field<'_>) -> Read<std::collections::BTreeMap<u32, Vec<MigInstance>>> {
    let whole = field.clone();
    let devices = field.map(ENTRIES_MAX, |f| f.list(ENTRIES_MAX, instance))?;
    let indexed = devices.into_iter().map(|(index, instances)| {
        let number = index
            .parse()
            .ok()
            .filter(|n: &u32| i64::from(*n) < DEVICES_MAX);
        number.map(|n| (n, instances)).ok_or_else(|| {
            whole.refuse(format!(
                "indices of devices as keys, such as 0, not {}",
                domain::error::quote(&index)
            ))
        })
    });
    indexed.collect()
}

/// An instance as `3g.40gb`, `3g.40gb@4` or `{profile: 3g.40gb, start: 4}`.
fn instance(field: Field<'_>) -> Read<MigInstance> {
    if matches!(field.node.value, Value::Map(_)) {
        let fields = field.fields()?;
        let instance = MigInstance {
            profile: fields.require("profile")?.text()?,
            start: fields.optional("start", |f| f.count(0, DEVICES_MAX))?,
        };
        fields.finish()?;
        return Ok(instance);
    }
    let refused = field.clone();
    let text = field.text()?;
    let Some((profile, start)) = text.split_once('@') else {
        return Ok(MigInstance {
            profile: text,
            start: None,
        });
    };
    let start = start
        .parse()
        .map_err(|_| refused.refuse("a profile, or profile@start such as 3g.40gb@4"))?;
    Ok(MigInstance {
        profile: profile.to_owned(),
        start: Some(start),
    })
}

fn class(field: Field<'_>) -> Read<Class> {
    let fields = field.fields()?;
    let class = Class {
        name: fields.require("name")?.text()?,
        priority: fields.or("priority", 0, |f| f.integer(-PRIORITY_MAX, PRIORITY_MAX))?,
        preemptible: fields.or("preemptible", true, Field::flag)?,
    };
    fields.finish()?;
    Ok(class)
}

fn team(field: Field<'_>) -> Read<Team> {
    let fields = field.fields()?;
    let team = Team {
        name: fields.require("name")?.text()?,
        parent: fields.optional("parent", Field::text)?,
        quotas: fields.or("quotas", Default::default(), |f| f.map(POOLS_MAX, quota))?,
        past_use: fields.or("past_use", Default::default(), |f| {
            f.map(POOLS_MAX, past_use)
        })?,
        max_per_user: fields.or("max_per_user", Default::default(), |f| {
            f.map(POOLS_MAX, Field::gpus)
        })?,
        stopped: fields.or("stopped", Stopped::None, |f| {
            f.word(&[
                ("none", Stopped::None),
                ("borrowing", Stopped::Borrowing),
                ("all", Stopped::All),
            ])
        })?,
        preemptions_this_hour: fields.or("preemptions_this_hour", Default::default(), |f| {
            f.map(POOLS_MAX, |f| f.count(0, COUNT_MAX))
        })?,
    };
    fields.finish()?;
    Ok(team)
}

/// Thousandths of a GPU-second; a number of seconds may have three decimals.
fn past_use(field: Field<'_>) -> Read<i64> {
    let refused = field.clone();
    let remedy = "a number of GPU-seconds from 0 to 10^12 with at most three decimals";
    let Value::Scalar { text, plain: true } = &field.node.value else {
        return Err(refused.refuse(remedy));
    };
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.len() <= 15 && s.bytes().all(|b| b.is_ascii_digit());
    let decimals = if decimals == "0" {
        decimals
    } else {
        decimals.trim_end_matches('0')
    };
    let decimals = if decimals.is_empty() { "0" } else { decimals };
    if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
        return Err(refused.refuse(remedy));
    }
    let milli = format!("{whole}{decimals:0<3}")
        .parse::<i64>()
        .map_err(|_| refused.refuse(remedy))?;
    if milli > PAST_USE_MAX * 1000 {
        Err(refused.refuse(remedy))
    } else {
        Ok(milli)
    }
}

fn quota(field: Field<'_>) -> Read<Quota> {
    if field.node.null() {
        return Ok(Quota::guaranteed(MilliGpu::ZERO));
    }
    let fields = field.fields()?;
    let quota = Quota {
        guaranteed: fields.or("guaranteed", MilliGpu::ZERO, Field::gpus)?,
        limit: fields.optional("limit", Field::gpus)?,
        lend_limit: fields.optional("lend_limit", Field::gpus)?,
        weight_milli: fields.or("weight", WEIGHT_MILLI_DEFAULT, |f| f.milli(WEIGHT_MAX))?,
    };
    fields.finish()?;
    Ok(quota)
}

fn service(field: Field<'_>) -> Read<Service> {
    let fields = field.fields()?;
    let service = Service {
        name: fields.require("name")?.text()?,
        team: fields.require("team")?.text()?,
        min_replicas: fields.or("min_replicas", 0, |f| f.count(0, COUNT_MAX))?,
        max_replicas: fields.or("max_replicas", u32::MAX, |f| f.count(0, COUNT_MAX))?,
    };
    fields.finish()?;
    Ok(service)
}

fn booking(field: Field<'_>) -> Read<Booking> {
    let fields = field.fields()?;
    let booking = Booking {
        name: fields.require("name")?.text()?,
        team: fields.require("team")?.text()?,
        pool: fields.require("pool")?.text()?,
        gpus: fields.require("gpus")?.gpus()?,
        from: fields.require("from")?.time()?,
        to: fields.require("to")?.time()?,
    };
    fields.finish()?;
    Ok(booking)
}
