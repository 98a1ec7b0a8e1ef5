//! What the sensors show: load, heat, power, clocks and errors.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlPstates_t};

use crate::border::{Answer, Refusal, check_version, put, version_word};
use crate::library::{current, memory_percent};
use crate::machine::Device;

/// An idle card in a cooled room.
const IDLE_TEMPERATURE_C: u32 = 32;
/// The temperatures at which these cards stop, slow down, and would harm memory or chip.
const THRESHOLDS_C: [c_uint; 4] = [92, 89, 95, 87];
/// The lowest limit that an operator may set, as a share of the highest in percent.
const POWER_LIMIT_MIN_PERCENT: u32 = 28;
/// Clocks of a card without work, as a share of the highest in percent.
const IDLE_CLOCK_PERCENT: u32 = 17;

pub(crate) fn temperature_c(device: &Device) -> u32 {
    device.telemetry.temperature_c.unwrap_or(IDLE_TEMPERATURE_C)
}

fn max_clock(device: &Device, kind: sys::nvmlClockType_t) -> Answer<c_uint> {
    match kind {
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS
        | sys::nvmlClockType_enum_NVML_CLOCK_SM
        | sys::nvmlClockType_enum_NVML_CLOCK_VIDEO => Ok(device.clocks_max_mhz.graphics),
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(device.clocks_max_mhz.memory),
        _ => Err(Refusal::InvalidArgument),
    }
}

fn clock(handle: nvmlDevice_t, kind: sys::nvmlClockType_t) -> Answer<c_uint> {
    let mut library = current()?;
    let highest = max_clock(library.device(handle)?, kind)?;
    // Memory of these cards runs at its full clock whether or not there is work.
    if library.busy(handle)? || kind == sys::nvmlClockType_enum_NVML_CLOCK_MEM {
        Ok(highest)
    } else {
        Ok(highest * IDLE_CLOCK_PERCENT / 100)
    }
}

/// Data centre cards with persistence stay in their highest state, with work or without.
const PERFORMANCE_STATE: nvmlPstates_t = sys::nvmlPStates_enum_NVML_PSTATE_0;

fn clocks_event_reasons(handle: nvmlDevice_t) -> Answer<c_ulonglong> {
    let mut library = current()?;
    let reasons = library.device(handle)?.telemetry.clocks_event_reasons;
    let busy = library.busy(handle)?;
    Ok(reasons.unwrap_or_else(|| c_ulonglong::from(!busy)))
}

nvml_calls! {
    /// The share of time with a kernel running, and with memory in use.
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, to: *mut sys::nvmlUtilization_t) {
        let mut library = current()?;
        let device = library.device(device)?;
        if library.cuts()?.of(&device.uuid).on {
            // A device that is cut tells of no load.
            return Err(Refusal::NotSupported);
        }
        let (uuid, told) = (device.uuid.clone(), device.telemetry.utilization_memory_percent);
        let gpu = library.load_percent(&uuid)?;
        let memory = if told > 0 { told } else { memory_percent(gpu) };
        put(to, sys::nvmlUtilization_t { gpu, memory })
    }

    /// The chip's temperature.
    fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: sys::nvmlTemperatureSensors_t, to: *mut c_uint) {
        let library = current()?;
        let device = library.device(device)?;
        if sensor != sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return Err(Refusal::InvalidArgument);
        }
        put(to, temperature_c(device))
    }

    /// The chip's temperature, in a structure with a version.
    fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, to: *mut sys::nvmlTemperature_v1_t) {
        let library = current()?;
        let device = library.device(device)?;
        check_version(to, 1)?;
        put(to, sys::nvmlTemperature_v1_t {
            version: version_word::<sys::nvmlTemperature_v1_t>(1),
            sensorType: sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU,
            temperature: c_int::try_from(temperature_c(device)).map_err(|_| Refusal::Unknown)?,
        })
    }

    /// The temperature at which something happens.
    fn nvmlDeviceGetTemperatureThreshold(
        device: nvmlDevice_t,
        kind: sys::nvmlTemperatureThresholds_t,
        to: *mut c_uint,
    ) {
        current()?.device(device)?;
        put(to, *THRESHOLDS_C.get(kind as usize).ok_or(Refusal::NotSupported)?)
    }

    /// The power drawn.
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.power_mw(device)?)
    }

    /// Whether power is managed: it is.
    fn nvmlDeviceGetPowerManagementMode(device: nvmlDevice_t, to: *mut sys::nvmlEnableState_t) {
        current()?.device(device)?;
        put(to, 1)
    }

    /// The power limit that is set.
    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.device(device)?.power_limit_mw)
    }

    /// The power limit in force.
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.device(device)?.power_limit_mw)
    }

    /// The power limit that the card comes with.
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.device(device)?.power_limit_mw)
    }

    /// The lowest and the highest power limit.
    fn nvmlDeviceGetPowerManagementLimitConstraints(device: nvmlDevice_t, low: *mut c_uint, high: *mut c_uint) {
        let limit = current()?.device(device)?.power_limit_mw;
        put(low, limit / 100 * POWER_LIMIT_MIN_PERCENT)?;
        put(high, limit)
    }

    /// The energy used since the driver, here the library, was loaded.
    fn nvmlDeviceGetTotalEnergyConsumption(device: nvmlDevice_t, to: *mut c_ulonglong) {
        put(to, current()?.energy_mj(device)?)
    }

    /// A clock.
    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: sys::nvmlClockType_t, to: *mut c_uint) {
        put(to, clock(device, kind)?)
    }

    /// A clock's highest value.
    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: sys::nvmlClockType_t, to: *mut c_uint) {
        put(to, max_clock(current()?.device(device)?, kind)?)
    }

    /// The performance state.
    fn nvmlDeviceGetPerformanceState(device: nvmlDevice_t, to: *mut nvmlPstates_t) {
        current()?.device(device)?;
        put(to, PERFORMANCE_STATE)
    }

    /// The performance state, under its older name.
    fn nvmlDeviceGetPowerState(device: nvmlDevice_t, to: *mut nvmlPstates_t) {
        current()?.device(device)?;
        put(to, PERFORMANCE_STATE)
    }

    /// Why the clocks are as they are.
    fn nvmlDeviceGetCurrentClocksEventReasons(device: nvmlDevice_t, to: *mut c_ulonglong) {
        put(to, clocks_event_reasons(device)?)
    }

    /// Why the clocks are as they are, under the older name.
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: nvmlDevice_t, to: *mut c_ulonglong) {
        put(to, clocks_event_reasons(device)?)
    }

    /// Memory errors, corrected (0) or not (1), since the driver was loaded (0) or ever (1).
    fn nvmlDeviceGetTotalEccErrors(
        device: nvmlDevice_t,
        kind: sys::nvmlMemoryErrorType_t,
        counter: sys::nvmlEccCounterType_t,
        to: *mut c_ulonglong,
    ) {
        let library = current()?;
        let ecc = library.device(device)?.telemetry.ecc;
        put(to, match (kind, counter) {
            (0, 0) => ecc.corrected_volatile,
            (1, 0) => ecc.uncorrected_volatile,
            (0, 1) => ecc.corrected_aggregate,
            (1, 1) => ecc.uncorrected_aggregate,
            _ => return Err(Refusal::InvalidArgument),
        })
    }

    /// Rows of memory taken out of use.
    fn nvmlDeviceGetRemappedRows(
        device: nvmlDevice_t,
        correctable: *mut c_uint,
        uncorrectable: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint,
    ) {
        let library = current()?;
        let device = library.device(device)?;
        if !library.cuts()?.of(&device.uuid).instances.is_empty() {
            return Err(Refusal::NotSupported);
        }
        let rows = device.telemetry.remapped_rows;
        put(correctable, rows.correctable)?;
        put(uncorrectable, rows.uncorrectable)?;
        put(pending, c_uint::from(rows.pending))?;
        put(failed, c_uint::from(rows.failed))
    }
}
