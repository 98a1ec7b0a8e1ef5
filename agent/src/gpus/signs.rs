//! What a device shows of how it does: memory errors, rows, clocks, lanes, and what would recover it.

use domain::state::DeviceHealth;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use serde::Serialize;

use super::policy::HealthPolicy;

/// The signs of one device at one moment; what its driver does not tell is absent, or as if well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Signs {
    /// Memory errors that could not be corrected, ever.
    pub ecc_uncorrected: Option<u64>,
    /// A row of memory waits for a reset to be remapped.
    pub rows_pending: bool,
    /// A row of memory could not be remapped.
    pub rows_failed: bool,
    /// What recovers the device, by NVML's number; 0 is nothing.
    pub recovery_action: u64,
    /// Why its clocks are as they are, as NVML's mask.
    pub clocks_event_reasons: u64,
    /// PCIe lanes in use, and the most that device and slot have.
    pub pcie_width: Option<(u32, u32)>,
}

/// Hardware slows the clocks: slowdown, heat, power brake. What software does for power is normal.
const THROTTLED: [(u64, &str); 3] = [
    (0x40, "heat"),
    (0x80, "the power brake"),
    (0x08, "a hardware slowdown"),
];

/// A state of a device with what it is for it, in words.
pub type State = (DeviceHealth, String);

impl Signs {
    /// The states that they show by themselves, the first that is as bad as any telling the most.
    pub fn states(&self, policy: &HealthPolicy) -> Vec<State> {
        use DeviceHealth::{Failed, Suspect};
        let mut states = Vec::new();
        let mut show = |health, words: &str| states.push((health, words.to_owned()));
        if self.rows_failed {
            show(Failed, "a row of its memory could not be remapped");
        }
        if self.rows_pending {
            show(
                Suspect,
                "a row of its memory waits for a reset to be remapped",
            );
        }
        match self.recovery_action {
            0 => {}
            1 => show(Failed, "its driver asks for a reset of the device"),
            2 => show(Failed, "its driver asks for a restart of the node"),
            4 => show(Suspect, "its driver asks for a reset once it is idle"),
            other => show(
                Suspect,
                &format!("its driver asks for recovery action {other}"),
            ),
        }
        if let Some((width, most)) = self.pcie_width
            && width < most
            && let Some(health) = policy.pcie_width.health()
        {
            show(health, &format!("it uses {width} of {most} PCIe lanes"));
        }
        states
    }

    /// By what hardware slows the device down now, if it does.
    pub fn slowed_by(&self) -> Option<&'static str> {
        let throttled = THROTTLED
            .iter()
            .find(|(bit, _)| self.clocks_event_reasons & bit != 0);
        throttled.map(|(_, by)| *by)
    }

    /// What is worth saying of them to people who look, by the same words.
    pub fn words(&self, policy: &HealthPolicy) -> Vec<String> {
        let errors = self.ecc_uncorrected.filter(|errors| *errors > 0);
        let errors = errors.map(|errors| format!("{errors} uncorrectable memory errors ever"));
        let slowed = self.slowed_by().map(|by| format!("{by} slows it down"));
        let states = self.states(policy).into_iter().map(|(_, words)| words);
        errors.into_iter().chain(states).chain(slowed).collect()
    }
}

/// Of memory errors that have become more, in words.
pub fn more_errors(more: u64, all: u64) -> String {
    format!("uncorrectable memory errors: {more} more, {all} in all")
}

/// Reads the signs of a device.
pub fn read(device: &Device<'_>) -> Signs {
    let fields = [
        NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
        NVML_FI_DEV_REMAPPED_PENDING,
        NVML_FI_DEV_REMAPPED_FAILURE,
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    ]
    .map(FieldId);
    let samples = device.field_values_for(&fields).unwrap_or_default();
    let field = |at: usize| {
        let sample = samples.get(at)?.as_ref().ok()?;
        number(sample.value.as_ref().ok()?)
    };
    let width = device.current_pcie_link_width().ok();
    Signs {
        ecc_uncorrected: field(0),
        rows_pending: field(1).is_some_and(|rows| rows > 0),
        rows_failed: field(2).is_some_and(|rows| rows > 0),
        recovery_action: field(3).unwrap_or(0),
        clocks_event_reasons: device
            .current_throttle_reasons()
            .map_or(0, |reasons| reasons.bits()),
        pcie_width: width.zip(device.max_pcie_link_width().ok()),
    }
}

fn number(value: &SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(number) => Some(u64::from(*number)),
        SampleValue::U64(number) => Some(*number),
        SampleValue::I64(number) => u64::try_from(*number).ok(),
        SampleValue::F64(_) => None,
    }
}
