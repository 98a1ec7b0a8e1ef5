//! The fleet and a node of it.

use chrono::Duration;
use domain::sharing::SharingMode;
use domain::state::{DeviceHealth, NodeIntent, Reachability};
use web::draw::{Device, Holder, Share};
use web::messages::Phrase;
use web::parts::{EventLine, State};
use web::shell::Section;
use web::views::*;

use super::{minutes_ago, now, shell, team};

pub fn share(team_name: &str, job: &str, milli: u32, mode: SharingMode) -> Share {
    Share {
        holder: Holder::Known {
            team: team(team_name),
            job: Some((job.into(), job.into())),
        },
        milli,
        mode,
        used_percent: None,
    }
}

pub fn device(index: u32, shares: Vec<Share>) -> Device {
    Device {
        index,
        health: DeviceHealth::Healthy,
        why: None,
        out: false,
        shares,
    }
}

fn h100_devices() -> Vec<Device> {
    let mut devices: Vec<Device> = (0..8)
        .map(|index| match index {
            0..4 => device(
                index,
                vec![share(
                    "vision",
                    "pano-depth-v2",
                    1000,
                    SharingMode::Exclusive,
                )],
            ),
            4 => device(
                index,
                vec![Share {
                    holder: Holder::Other,
                    milli: 1000,
                    mode: SharingMode::Exclusive,
                    used_percent: None,
                }],
            ),
            _ => device(index, vec![]),
        })
        .collect();
    devices[6].health = DeviceHealth::Suspect;
    devices[7].health = DeviceHealth::Failed;
    devices
}

fn a100_devices() -> Vec<Device> {
    (0..8)
        .map(|index| match index {
            0 => device(
                index,
                vec![
                    share("speech", "asr", 500, SharingMode::TimeSlice),
                    share("platform", "lint", 250, SharingMode::TimeSlice),
                ],
            ),
            1..3 => device(
                index,
                vec![share("speech", "asr-large", 1000, SharingMode::Exclusive)],
            ),
            _ => device(index, vec![]),
        })
        .collect()
}

fn ready() -> State {
    State::node(NodeIntent::Open, Reachability::Ready)
}

pub fn fleet() -> FleetView {
    let draining = State::node(NodeIntent::Draining, Reachability::Ready);
    let mut l40s: Vec<Device> = (0..4).map(|index| device(index, vec![])).collect();
    l40s.iter_mut().for_each(|device| device.out = true);
    let offer = |mode: &str, available| ModeOffer {
        mode: mode.into(),
        available,
    };
    let pool = |name: &str, model: &str, nodes: Vec<FleetNode>| FleetPool {
        retired: 0,
        name: name.into(),
        gpu_model: Some(model.into()),
        modes: vec![offer("exclusive", true), offer("time_slice", true)],
        nodes,
        overpromised: None,
    };
    let node = |name: &str, state, devices| FleetNode {
        name: name.into(),
        state,
        devices,
    };
    let mut h100 = pool(
        "h100",
        "H100-80GB",
        vec![node("h100-1", ready(), h100_devices())],
    );
    h100.modes.push(offer("mig", false));
    h100.overpromised = Some((8000, 7000));
    FleetView {
        shell: shell(Section::Fleet, "/fleet"),
        pools: vec![
            h100,
            pool(
                "a100",
                "A100-80GB",
                vec![node("a100-1", ready(), a100_devices())],
            ),
            pool("l40s", "L40S", vec![node("l40s-1", draining, l40s)]),
        ],
        adds_nodes: true,
    }
}

pub fn node() -> NodeView {
    let devices = h100_devices();
    NodeView {
        shell: shell(Section::Fleet, "/nodes/h100-1"),
        name: "h100-1".into(),
        pool: "h100".into(),
        state: ready(),
        heard_at: Some(now() - Duration::seconds(3)),
        agent_version: Some("0.1.0".into()),
        driver_version: Some("580.95.05".into()),
        cpus_milli: 112_000,
        memory_mib: 2_097_152,
        labels: vec![("rack".into(), "r3".into())],
        runners: vec!["process".into()],
        modes: vec!["exclusive".into(), "time_slice".into()],
        notes: vec![NodeNote::NoIsolation],
        disk_full: Some((812, 1024)),
        clock_ahead: Some(-3720),
        warnings: vec!["jobs share the machine's /tmp, since private_tmp is false".into()],
        utilisation: Some(super::jobs::utilisation()),
        work: vec![
            NodeWork {
                device: 0,
                holder: devices[0].shares[0].holder.clone(),
                milli: 1000,
                mode: "exclusive".into(),
                since: Some(minutes_ago(112)),
            },
            NodeWork {
                device: 4,
                holder: Holder::Other,
                milli: 1000,
                mode: "exclusive".into(),
                since: None,
            },
        ],
        devices: devices
            .into_iter()
            .map(|cell| NodeDevice {
                since: minutes_ago(90),
                cleared: false,
                found: match cell.health {
                    DeviceHealth::Suspect => vec![NodeFinding {
                        number: 1_764_000_000_000_000,
                        reason: "Xid 92: too many single-bit errors".into(),
                    }],
                    _ => Vec::new(),
                },
                clearable: true,
                uuid: format!("GPU-5e0b1c2d-0000-4000-8000-00000000000{}", cell.index),
                model: "NVIDIA H100 80GB HBM3".into(),
                memory_mib: 81_559,
                numa: Some(cell.index / 4),
                clique: Some(0),
                mode: Some("exclusive".into()),
                laying: match cell.index {
                    0 => Some(Laying::Into(vec!["3g.40gb".into(), "4g.40gb".into()])),
                    1 => Some(Laying::Into(Vec::new())),
                    2 => Some(Laying::Whole),
                    _ => None,
                },
                cell,
            })
            .collect(),
        events: vec![EventLine {
            at: minutes_ago(300),
            state: ready(),
            code: "enrolled".into(),
            actor: Some("admin".into()),
            detail: Some(Phrase::literal("driver 580.95.05")),
        }],
        newest: None,
        older: Some("/nodes/gpu-01?cursor=x".into()),
        intent_reason: None,
        deadline_at: Some(now() + Duration::hours(2)),
        actions: vec![NodeAction::Cordon, NodeAction::Drain],
        leaving: Some(Leaving {
            moves: 4000,
            stays: 1000,
        }),
    }
}
