//! What devices do, and what that draws: load by their processes, power by load, energy by power and time.

use std::time::Instant;

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::{Energy, Library};
use crate::border::Answer;
use crate::machine::Device;

/// Compute slices of a device that MIG cuts.
const COMPUTE_SLICES: u32 = 7;

impl Library {
    /// The share of time with a kernel running on a device, in percent: what the file says, or else
    /// what its processes make of it.
    pub(crate) fn load_percent(&mut self, uuid: &str) -> Answer<u32> {
        let devices = &self.machine()?.devices;
        let device = devices.iter().find(|device| device.uuid == uuid);
        let told = device.map_or(0, |device| device.telemetry.utilization_gpu_percent);
        if told > 0 {
            return Ok(told);
        }
        let on = self.processes_on(uuid)?;
        let cut = self.cuts()?.of(uuid);
        // Work on an instance keeps that many of the device's slices busy.
        let slices = |id: u32| {
            let instance = cut.instances.iter().find(|instance| instance.id == id);
            instance.map_or(0, |instance| instance.slices)
        };
        let load: u32 = on
            .iter()
            .map(|(process, on)| match on {
                Some((instance, _)) => process.load_percent * slices(*instance) / COMPUTE_SLICES,
                None => process.load_percent,
            })
            .sum();
        Ok(load.min(100))
    }

    /// Whether a kernel runs on a device.
    pub(crate) fn busy(&mut self, handle: nvmlDevice_t) -> Answer<bool> {
        let uuid = self.device(handle)?.uuid.clone();
        Ok(self.load_percent(&uuid)? > 0)
    }

    /// The power that a device draws.
    pub(crate) fn power_mw(&mut self, handle: nvmlDevice_t) -> Answer<u32> {
        let uuid = self.device(handle)?.uuid.clone();
        let load = self.load_percent(&uuid)?;
        Ok(power_mw(self.device(handle)?, load))
    }

    /// Energy that a device has used, in millijoules: its power over the time gone by.
    pub(crate) fn energy_mj(&mut self, handle: nvmlDevice_t) -> Answer<u64> {
        self.settle_energy();
        let device = self.device(handle)?;
        let used_uj = self
            .energy
            .get(&device.uuid)
            .map_or(0, |energy| energy.used_uj);
        let used_mj = u64::try_from(used_uj / 1_000).unwrap_or(u64::MAX);
        Ok(device.telemetry.energy_mj.saturating_add(used_mj))
    }

    /// Adds what each device used since last time at the power it has had since then.
    pub(super) fn settle_energy(&mut self) {
        let Some(loaded) = &self.loaded else { return };
        let uuids: Vec<String> = loaded
            .machine
            .devices
            .iter()
            .map(|d| d.uuid.clone())
            .collect();
        let loads = uuids.iter().map(|uuid| self.load_percent(uuid));
        let loads: Vec<u32> = loads.map(Answer::unwrap_or_default).collect();
        let Some(loaded) = &self.loaded else { return };
        let now = Instant::now();
        for (device, load) in loaded.machine.devices.iter().zip(loads) {
            let energy = self.energy.entry(device.uuid.clone()).or_insert(Energy {
                used_uj: 0,
                until: now,
            });
            let elapsed_ms = now.duration_since(energy.until).as_millis();
            energy.used_uj += elapsed_ms * u128::from(power_mw(device, load));
            energy.until +=
                std::time::Duration::from_millis(u64::try_from(elapsed_ms).unwrap_or(0));
        }
    }
}

/// The share of time in which memory is read or written, at a load: work that computes half the time moves
/// memory in half of that.
pub(crate) fn memory_percent(load_percent: u32) -> u32 {
    load_percent / 2
}

/// The power that a device draws at a load: idle a tenth of its limit, and at full load all of it.
pub(crate) fn power_mw(device: &Device, load_percent: u32) -> u32 {
    let idle = device.power_limit_mw / 10;
    let more = (device.power_limit_mw - idle) / 100 * load_percent;
    device.telemetry.power_mw.unwrap_or(idle + more)
}
