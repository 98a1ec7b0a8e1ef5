//! Who holds which device here: the node's own check that none has two holders.

use std::collections::{BTreeMap, BTreeSet};

use domain::ids::{AssignmentId, TeamId};
use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use protocol::mig::MigSlice;

use crate::journal::KeptDevice;
use crate::mps::Place;

/// The claims on the node's devices.
#[derive(Debug, Default)]
pub struct Claims {
    by_assignment: BTreeMap<AssignmentId, Vec<KeptDevice>>,
    /// Those whose processes have left, and that have yet to be released.
    leaving: BTreeSet<AssignmentId>,
}

impl Claims {
    /// Claims devices, all or none; otherwise names the device and who has it.
    pub fn claim(&mut self, id: AssignmentId, devices: &[KeptDevice]) -> Result<(), String> {
        for wanted in devices {
            let others = || {
                self.by_assignment
                    .iter()
                    .filter(|(other, _)| **other != id)
                    .flat_map(|(other, held)| held.iter().map(move |held| (other, held)))
                    .filter(|(_, held)| held.uuid == wanted.uuid)
            };
            if let Some((other, _)) = others().find(|(_, held)| !shares(held, wanted)) {
                return Err(format!(
                    "device {} is held by assignment {other}",
                    wanted.uuid
                ));
            }
            // What shares an instance by MPS has parts of that, and not of the device.
            let beside = others().filter(|(_, held)| {
                wanted.mode != SharingMode::Mps || Place::of(held) == Place::of(wanted)
            });
            let sum: i64 = beside.map(|(_, held)| held.gpus_milli).sum();
            if sum + wanted.gpus_milli > MILLI {
                return Err(format!("device {} has no such share left", wanted.uuid));
            }
        }
        self.by_assignment.insert(id, devices.to_vec());
        Ok(())
    }

    /// What an assignment has.
    pub fn of(&self, id: AssignmentId) -> Vec<KeptDevice> {
        self.by_assignment.get(&id).cloned().unwrap_or_default()
    }

    /// Whether anybody has a part of a device.
    pub fn hold(&self, uuid: &str) -> bool {
        let mut held = self.by_assignment.values().flatten();
        held.any(|held| held.uuid == uuid)
    }

    /// The instances of a device that are held.
    pub fn slices(&self, uuid: &str) -> Vec<MigSlice> {
        let held = self.by_assignment.values().flatten();
        held.filter(|held| held.uuid == uuid)
            .filter_map(|held| held.mig.clone())
            .collect()
    }

    /// The same but for one that an assignment holds itself.
    pub fn slices_beside(&self, id: AssignmentId, uuid: &str, own: &MigSlice) -> Vec<MigSlice> {
        let others = self.by_assignment.iter();
        let held = others.flat_map(|(other, held)| held.iter().map(move |held| (*other, held)));
        held.filter(|(_, held)| held.uuid == uuid)
            .filter(|(other, held)| *other != id || held.mig.as_ref() != Some(own))
            .filter_map(|(_, held)| held.mig.clone())
            .collect()
    }

    /// The teams that have a part of a device, but for some assignments.
    pub fn teams_on(&self, uuid: &str, but: &BTreeSet<AssignmentId>) -> Vec<TeamId> {
        let others = self
            .by_assignment
            .iter()
            .filter(|(id, _)| !but.contains(id));
        let held = others.flat_map(|(_, held)| held);
        let teams: BTreeSet<TeamId> = held
            .filter(|held| held.uuid == uuid)
            .filter_map(|held| held.team)
            .collect();
        teams.into_iter().collect()
    }

    /// How many others share a device or an instance by MPS who are not about to leave.
    pub fn sharers_beside(&self, id: AssignmentId, place: &Place) -> usize {
        let others = self.by_assignment.iter();
        let others = others.filter(|(other, _)| **other != id && !self.leaving.contains(other));
        let held = others.flat_map(|(_, held)| held);
        held.filter(|held| held.mode == SharingMode::Mps && Place::of(held) == *place)
            .count()
    }

    /// The shares whose memory nobody but us bounds.
    pub fn bounded(&self) -> Vec<(AssignmentId, KeptDevice)> {
        let all = self.by_assignment.iter();
        let held = all.flat_map(|(id, held)| held.iter().map(move |held| (*id, held)));
        let shared = |mode| matches!(mode, SharingMode::TimeSlice | SharingMode::Mps);
        held.filter(|(_, held)| shared(held.mode) && held.memory_mib > 0)
            .map(|(id, held)| (id, held.clone()))
            .collect()
    }

    /// Each share with its holder.
    pub fn all(&self) -> Vec<(AssignmentId, KeptDevice)> {
        let all = self.by_assignment.iter();
        all.flat_map(|(id, held)| held.iter().map(|held| (*id, held.clone())))
            .collect()
    }

    /// All that have something, or are about to leave.
    pub fn holders(&self) -> Vec<AssignmentId> {
        self.by_assignment.keys().copied().collect()
    }

    /// Whether an assignment has a part of a device.
    pub fn holds(&self, id: AssignmentId, uuid: &str) -> bool {
        let held = self.by_assignment.get(&id).into_iter().flatten();
        held.into_iter().any(|held| held.uuid == uuid)
    }

    /// Notes that an assignment's processes have left.
    pub fn leave(&mut self, id: AssignmentId) {
        self.leaving.insert(id);
    }

    /// Whether an assignment's processes have left that has yet to be released.
    pub fn has_left(&self, id: AssignmentId) -> bool {
        self.leaving.contains(&id)
    }

    /// Whether anybody has a part of a device who is not about to leave.
    pub fn in_use(&self, uuid: &str) -> bool {
        let mut staying = self
            .by_assignment
            .keys()
            .filter(|id| !self.leaving.contains(id));
        staying.any(|id| self.holds(*id, uuid))
    }

    /// Whether anybody shares a device by MPS.
    pub fn shared_by_mps(&self, uuid: &str) -> bool {
        let mut held = self.by_assignment.values().flatten();
        held.any(|held| held.uuid == uuid && held.mode == SharingMode::Mps)
    }

    /// Gives up what an assignment has.
    pub fn release(&mut self, id: AssignmentId) {
        self.by_assignment.remove(&id);
        self.leaving.remove(&id);
    }
}

/// Whether two shares may be of one device: both of a mode that takes turns, or instances that lie
/// beside one another. An instance is shared by MPS as a device is.
fn shares(one: &KeptDevice, other: &KeptDevice) -> bool {
    let apart = match (&one.mig, &other.mig) {
        (Some(a), Some(b)) if one.mode == SharingMode::Mps && a == b => true,
        (Some(one), Some(other)) => !one.overlaps(other),
        (None, None) => true,
        _ => false,
    };
    one.mode == other.mode && one.mode != SharingMode::Exclusive && apart
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(mode: SharingMode, gpus_milli: i64) -> Vec<KeptDevice> {
        vec![KeptDevice {
            uuid: "GPU-1".to_owned(),
            mode,
            gpus_milli,
            memory_mib: 0,
            mig: None,
            team: None,
        }]
    }

    fn slice(start: u32, size: u32) -> Vec<KeptDevice> {
        let mut held = share(SharingMode::Mig, 125 * i64::from(size));
        held[0].mig = Some(MigSlice {
            profile: format!("{size}g"),
            start,
            size,
        });
        held
    }

    #[test]
    fn instances_lie_beside_one_another_and_nothing_else_beside_them() {
        let mut claims = Claims::default();
        let id = AssignmentId::new();
        claims.claim(id, &slice(4, 4)).expect("free");
        claims
            .claim(AssignmentId::new(), &slice(0, 2))
            .expect("beside");
        assert!(claims.claim(AssignmentId::new(), &slice(3, 2)).is_err());
        let taking_turns = share(SharingMode::TimeSlice, 100);
        assert!(claims.claim(AssignmentId::new(), &taking_turns).is_err());
        let own = slice(4, 4).remove(0).mig.expect("a slice");
        assert_eq!(claims.slices_beside(id, "GPU-1", &own).len(), 1);
        assert_eq!(claims.slices("GPU-1").len(), 2);
    }

    #[test]
    fn an_instance_is_shared_by_mps_as_a_device_is() {
        let by_mps = |start, gpus_milli| {
            let mut held = slice(start, 4);
            held[0].mode = SharingMode::Mps;
            held[0].gpus_milli = gpus_milli;
            held
        };
        let mut claims = Claims::default();
        let id = AssignmentId::new();
        claims.claim(id, &by_mps(4, 600)).expect("free");
        let other = AssignmentId::new();
        claims
            .claim(other, &by_mps(4, 400))
            .expect("its other part");
        let beside = AssignmentId::new();
        claims.claim(beside, &by_mps(0, 1000)).expect("beside");
        assert!(claims.claim(AssignmentId::new(), &by_mps(4, 1)).is_err());
        let whole = share(SharingMode::Mps, 100);
        assert!(claims.claim(AssignmentId::new(), &whole).is_err());
        let place = Place::of(&by_mps(4, 1)[0]);
        assert_eq!(claims.sharers_beside(id, &place), 1);
        claims.leave(other);
        assert_eq!(claims.sharers_beside(id, &place), 0, "it is about to leave");
    }

    #[test]
    fn a_whole_device_has_one_holder_until_it_is_released() {
        let mut claims = Claims::default();
        let (one, two) = (AssignmentId::new(), AssignmentId::new());
        let whole = share(SharingMode::Exclusive, 1000);
        claims.claim(one, &whole).expect("free");
        claims.claim(one, &whole).expect("its own");
        let refused = claims.claim(two, &whole).expect_err("held");
        assert!(refused.contains(&one.to_string()), "{refused}");
        assert!(
            claims
                .claim(two, &share(SharingMode::TimeSlice, 500))
                .is_err()
        );
        claims.release(one);
        claims.claim(two, &whole).expect("free again");
    }

    #[test]
    fn slices_never_add_up_to_more_than_the_device() {
        let mut claims = Claims::default();
        let half = share(SharingMode::TimeSlice, 500);
        claims.claim(AssignmentId::new(), &half).expect("free");
        claims.claim(AssignmentId::new(), &half).expect("half free");
        assert!(
            claims
                .claim(AssignmentId::new(), &share(SharingMode::TimeSlice, 1))
                .is_err()
        );
    }
}
