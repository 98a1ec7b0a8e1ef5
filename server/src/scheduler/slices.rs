//! MIG instances between rows and the engine's words: those that nodes report, and those that work holds.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::ids::DeviceId;
use domain::sharing::SharingMode;
use engine::plan::DevicePlace;
use engine::world::{Laid, MigInstance, PlacedDevice};
use protocol::mig::{Layout, MigSlice};

use super::world::{NodeRecord, Records};
use crate::lifecycle::LifecycleError;
use crate::store::world::{DeviceRow, LiveShare};

/// What is held of each device.
pub type Held<'r> = BTreeMap<DeviceId, Vec<&'r LiveShare>>;

/// What work holds, by device.
pub fn held(records: &Records) -> Held<'_> {
    let mut held = Held::new();
    let workers = records.jobs.values().flat_map(|job| &job.workers);
    let live = workers.filter(|(worker, _)| worker.phase.live());
    for share in live.flat_map(|(_, shares)| shares) {
        held.entry(share.device_id).or_default().push(share);
    }
    held
}

/// The devices of a node that are in MIG mode, with their instances. What is held is there, or will be
/// at any moment; of what the node reports only that counts which can lie beside it.
pub fn of_node(record: &NodeRecord, held: &Held<'_>) -> BTreeMap<u32, Vec<MigInstance>> {
    let devices = record.devices.iter();
    devices
        .filter_map(|(index, device)| Some((*index, of_device(device, held)?)))
        .collect()
}

/// The devices of a node that it is about to cut by a layout, and as what.
pub fn laid(record: &NodeRecord) -> BTreeMap<u32, Laid> {
    let devices = record.devices.iter();
    let laid = devices.filter_map(|(index, device)| {
        // One that cannot be read is as one that is not there: its node tells it anew.
        let layout: Layout = serde_json::from_value(device.layout.clone()?).ok()?;
        Some((*index, layout))
    });
    laid.map(|(index, layout)| match layout.mig {
        true => (index, Laid::Into(layout.profiles)),
        false => (index, Laid::Whole),
    })
    .collect()
}

fn of_device(device: &DeviceRow, held: &Held<'_>) -> Option<Vec<MigInstance>> {
    let shares = held.get(&device.id).map_or(&[][..], Vec::as_slice);
    if shares.iter().any(|share| share.mode != SharingMode::Mig) {
        // Given out otherwise: its node switches it.
        return None;
    }
    if shares.is_empty() && device.mig.is_none() {
        return None;
    }
    let of_share = |share: &&LiveShare| {
        slice(
            &device.model,
            share.mig_profile.as_deref()?,
            share.slot.unsigned_abs(),
        )
    };
    let mut slices: Vec<MigSlice> = shares.iter().filter_map(of_share).collect();
    let told: Vec<MigSlice> = device
        .mig
        .clone()
        .and_then(|told| serde_json::from_value(told).ok())
        .unwrap_or_default();
    for told in told {
        // A driver may call things otherwise than the table: its words are those of the planner from here on,
        // and its agent goes by slices and engines.
        let named = engine::alike(&device.model, &told.profile, Some(told.size));
        let known = named.and_then(|name| slice(&device.model, name, told.start));
        slices.extend(known.filter(|known| slices.iter().all(|other| !other.overlaps(known))));
    }
    slices.sort_by_key(|slice| slice.start);
    let instance = |slice: MigSlice| MigInstance {
        profile: slice.profile,
        start: Some(slice.start),
    };
    Some(slices.into_iter().map(instance).collect())
}

/// The instance that a plan gives of a device of that model; nothing in any other mode.
pub fn granted(model: &str, wanted: &DevicePlace) -> Result<Option<MigSlice>, LifecycleError> {
    let (Some(profile), Some(start)) = (&wanted.mig, wanted.start) else {
        return Ok(None);
    };
    match slice(model, profile, start) {
        Some(slice) => Ok(Some(slice)),
        // The device was replaced by one of another model since the plan was made.
        None => Err(LifecycleError::Missed(format!(
            "an instance {profile}@{start} of a {model}"
        ))),
    }
}

/// An instance that a worker holds, as the engine has it.
pub fn placed(index: u32, gpus: MilliGpu, share: &LiveShare) -> PlacedDevice {
    PlacedDevice {
        index,
        mode: SharingMode::Mig,
        gpus,
        memory_mib: None,
        mig: share.mig_profile.clone(),
        start: Some(share.slot.unsigned_abs()),
    }
}

fn slice(model: &str, profile: &str, start: u32) -> Option<MigSlice> {
    let size = engine::slices_at(model, profile, start)?;
    Some(MigSlice {
        profile: profile.to_owned(),
        start,
        size,
    })
}

#[cfg(test)]
mod tests {
    use domain::ids::{AssignmentId, NodeId};
    use domain::state::DeviceHealth;
    use serde_json::json;

    use super::*;

    fn device(mig: Option<serde_json::Value>) -> DeviceRow {
        DeviceRow {
            id: DeviceId::new(),
            node_id: NodeId::new(),
            index: 0,
            model: "A100-80GB".to_owned(),
            memory_mib: 81_920,
            health: DeviceHealth::Healthy,
            mig,
            layout: None,
        }
    }

    fn share(device: &DeviceRow, mode: SharingMode, profile: &str, slot: i32) -> LiveShare {
        LiveShare {
            assignment_id: AssignmentId::new(),
            device_id: device.id,
            index: 0,
            mode,
            gpus_milli: 500,
            memory_mib: 0,
            mig_profile: (mode == SharingMode::Mig).then(|| profile.to_owned()),
            slot,
        }
    }

    fn names(device: &DeviceRow, shares: &[LiveShare]) -> Option<Vec<String>> {
        let held = Held::from([(device.id, shares.iter().collect())]);
        let instances = of_device(device, &held)?;
        let name = |i: MigInstance| format!("{}@{}", i.profile, i.start.unwrap_or(99));
        Some(instances.into_iter().map(name).collect())
    }

    #[test]
    fn what_is_held_counts_before_what_is_told() {
        let told = json!([
            {"profile": "1g.10gb", "start": 0, "size": 1},
            {"profile": "2g.20gb", "start": 4, "size": 2},
            {"profile": "1g.11gb+me", "start": 1, "size": 1},
            {"profile": "9g.unknown", "start": 6, "size": 1}
        ]);
        let cut = device(Some(told));
        let three = share(&cut, SharingMode::Mig, "3g.40gb", 4);
        let both = names(&cut, &[three]).expect("in MIG mode");
        let named = ["1g.10gb@0", "1g.10gb+me@1", "3g.40gb@4"];
        assert_eq!(
            both, named,
            "also what a driver calls otherwise than the table"
        );
        let whole = share(&cut, SharingMode::Exclusive, "", 0);
        assert_eq!(names(&cut, &[whole]), None);
        assert_eq!(names(&device(None), &[]), None);
        let granted = device(None);
        let one = share(&granted, SharingMode::Mig, "1g.10gb", 6);
        assert_eq!(names(&granted, &[one]), Some(vec!["1g.10gb@6".to_owned()]));
        assert_eq!(names(&device(Some(json!([]))), &[]), Some(Vec::new()));
    }

    #[test]
    fn an_instance_that_a_model_cannot_have_there_is_not_granted() {
        let wanted = |start| DevicePlace {
            index: 0,
            mode: SharingMode::Mig,
            mig: Some("3g.40gb".to_owned()),
            start: Some(start),
            gpus: MilliGpu::from_milli(500),
            memory_mib: None,
        };
        let slice = granted("A100-80GB", &wanted(4)).expect("it can");
        assert_eq!(slice.map(|slice| slice.size), Some(4));
        assert!(granted("A100-80GB", &wanted(1)).is_err());
        assert!(granted("L40S", &wanted(4)).is_err());
    }
}
