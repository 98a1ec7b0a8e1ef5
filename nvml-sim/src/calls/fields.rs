//! Field values: numbered single readings, each with an answer of its own.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings as sys;
use sys::field_id::*;
use sys::nvmlDevice_t;

use crate::border::{Answer, Refusal};
use crate::library::{Library, current};
use crate::machine::Architecture;
use crate::topology::link_count;

/// A reading in the type that NVML gives it.
enum Reading {
    Number(c_uint),
    Counter(c_ulonglong),
}

/// The most fields of one call; NVML knows fewer than 300 of them.
const FIELDS_MAX: c_int = 1024;

/// One link's bandwidth in one direction in MB/s, by generation.
fn link_mbps(version: u32) -> Option<c_uint> {
    match version {
        3 => Some(25_781),
        4 => Some(26_562),
        5 => Some(53_125),
        _ => None,
    }
}

fn read(library: &mut Library, handle: nvmlDevice_t, field: c_uint) -> Answer<Reading> {
    if field == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION {
        return library.energy_mj(handle).map(Reading::Counter);
    }
    if matches!(field, NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT) {
        return library.power_mw(handle).map(Reading::Number);
    }
    let device = library.device(handle)?;
    let telemetry = &device.telemetry;
    let rows = telemetry.remapped_rows;
    Ok(match field {
        NVML_FI_DEV_ECC_CURRENT | NVML_FI_DEV_ECC_PENDING => Reading::Number(1),
        NVML_FI_DEV_ECC_SBE_VOL_TOTAL => Reading::Counter(telemetry.ecc.corrected_volatile),
        NVML_FI_DEV_ECC_DBE_VOL_TOTAL => Reading::Counter(telemetry.ecc.uncorrected_volatile),
        NVML_FI_DEV_ECC_SBE_AGG_TOTAL => Reading::Counter(telemetry.ecc.corrected_aggregate),
        NVML_FI_DEV_ECC_DBE_AGG_TOTAL => Reading::Counter(telemetry.ecc.uncorrected_aggregate),
        NVML_FI_DEV_REMAPPED_COR => Reading::Number(rows.correctable),
        NVML_FI_DEV_REMAPPED_UNC => Reading::Number(rows.uncorrectable),
        NVML_FI_DEV_REMAPPED_PENDING => Reading::Number(c_uint::from(rows.pending)),
        NVML_FI_DEV_REMAPPED_FAILURE => Reading::Number(c_uint::from(rows.failed)),
        NVML_FI_DEV_NVLINK_LINK_COUNT if link_count(device) > 0 => {
            Reading::Number(link_count(device))
        }
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON if link_count(device) > 0 => Reading::Number(
            device
                .nvlink_version
                .and_then(link_mbps)
                .ok_or(Refusal::NotSupported)?,
        ),
        NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED if device.mig_instances_max > 0 => {
            Reading::Number(c_uint::from(matches!(
                device.architecture,
                Architecture::Hopper | Architecture::Blackwell
            )))
        }
        NVML_FI_DEV_POWER_MAX_LIMIT
        | NVML_FI_DEV_POWER_DEFAULT_LIMIT
        | NVML_FI_DEV_POWER_CURRENT_LIMIT
        | NVML_FI_DEV_POWER_REQUESTED_LIMIT => Reading::Number(device.power_limit_mw),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Reading::Number(telemetry.recovery_action),
        _ => return Err(Refusal::NotSupported),
    })
}

/// Fills one entry of the caller's list; its own code says whether the value is good.
fn fill(library: &mut Library, device: nvmlDevice_t, entry: &mut sys::nvmlFieldValue_t) {
    // The reading's age for people; nothing is decided by it.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros();
    entry.timestamp = i64::try_from(now).unwrap_or(i64::MAX);
    entry.latencyUsec = 0;
    match read(library, device, entry.fieldId) {
        Ok(Reading::Number(number)) => {
            entry.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
            entry.value = sys::nvmlValue_t {
                ullVal: c_ulonglong::from(number),
            };
            entry.nvmlReturn = 0;
        }
        Ok(Reading::Counter(counter)) => {
            entry.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            entry.value = sys::nvmlValue_t { ullVal: counter };
            entry.nvmlReturn = 0;
        }
        Err(refusal) => entry.nvmlReturn = refusal as sys::nvmlReturn_t,
    }
}

nvml_calls! {
    /// Reads the numbered values that the caller lists.
    fn nvmlDeviceGetFieldValues(device: nvmlDevice_t, count: c_int, values: *mut sys::nvmlFieldValue_t) {
        let mut library = current()?;
        library.device(device)?;
        if values.is_null() || !(1..=FIELDS_MAX).contains(&count) {
            return Err(Refusal::InvalidArgument);
        }
        for place in 0..count as usize {
            // SAFETY: the caller vouches for `count` entries, with the field's number set.
            let mut entry = unsafe { values.add(place).read_unaligned() };
            fill(&mut library, device, &mut entry);
            // SAFETY: as above.
            unsafe { values.add(place).write_unaligned(entry) };
        }
        Ok(())
    }
}
