//! What a device shows of how it does: memory errors, rows, clocks, lanes, and what would recover it.

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use serde::Serialize;

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

impl Signs {
    /// What is worth saying of them, in words for people.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(errors) = self.ecc_uncorrected.filter(|errors| *errors > 0) {
            words.push(format!("{errors} uncorrectable memory errors ever"));
        }
        if self.rows_pending {
            words.push("a row waits for a reset to be remapped".to_owned());
        }
        if self.rows_failed {
            words.push("a row could not be remapped".to_owned());
        }
        if self.recovery_action > 0 {
            words.push(format!(
                "its driver asks for recovery action {}",
                self.recovery_action
            ));
        }
        if let Some((width, most)) = self.pcie_width.filter(|(width, most)| width < most) {
            words.push(format!("{width} of {most} PCIe lanes"));
        }
        words
    }
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
