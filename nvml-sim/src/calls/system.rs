//! Start and end, versions, and the way from an index or a name to a device's handle.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::border::{Answer, Refusal, put, put_text, read_text};
use crate::library::{MIG, current, lock};
use crate::machine::PciAddress;

/// The library's own version: that of the driver's generation, with NVML's prefix.
fn nvml_version(driver: &str) -> String {
    format!("12.{driver}")
}

fn count() -> Answer<c_uint> {
    let library = current()?;
    let devices = &library.machine()?.devices;
    c_uint::try_from(devices.len()).map_err(|_| Refusal::Unknown)
}

fn by_index(index: c_uint) -> Answer<nvmlDevice_t> {
    current()?
        .find(|at, _| at == index as usize)
        .map_err(|refusal| match refusal {
            // An index past the end is a wrong argument to NVML, an unknown name is not found.
            Refusal::NotFound => Refusal::InvalidArgument,
            other => other,
        })
}

fn by_pci(text: &str) -> Answer<nvmlDevice_t> {
    let address: PciAddress = text.parse().map_err(|_| Refusal::InvalidArgument)?;
    current()?.find(|_, device| device.pci == address)
}

nvml_calls! {
    /// Starts the library and reads the machine.
    fn nvmlInit_v2() { lock().open() }

    /// The same under its first name.
    fn nvmlInit() { lock().open() }

    /// The same with flags, which matter only to a driver.
    fn nvmlInitWithFlags(_flags: c_uint) { lock().open() }

    /// Ends one user's use of the library.
    fn nvmlShutdown() { lock().close() }

    /// The driver's version.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, &current()?.machine()?.driver_version)
    }

    /// The library's version.
    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, &nvml_version(&current()?.machine()?.driver_version))
    }

    /// CUDA's version.
    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) {
        put(version, current()?.machine()?.cuda_version)
    }

    /// CUDA's version.
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) {
        put(version, current()?.machine()?.cuda_version)
    }

    /// The command of a process that runs on this host.
    fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) {
        drop(current()?);
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| Refusal::NotFound)?;
        put_text(name, length, command.trim_end())
    }

    /// How many devices there are.
    fn nvmlDeviceGetCount_v2(to: *mut c_uint) { put(to, count()?) }

    /// The same under its first name.
    fn nvmlDeviceGetCount(to: *mut c_uint) { put(to, count()?) }

    /// The device with an index.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut nvmlDevice_t) { put(to, by_index(index)?) }

    /// The same under its first name.
    fn nvmlDeviceGetHandleByIndex(index: c_uint, to: *mut nvmlDevice_t) { put(to, by_index(index)?) }

    /// The device with a UUID.
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut nvmlDevice_t) {
        let uuid = read_text(uuid)?;
        let mut library = current()?;
        let found = if uuid.starts_with(MIG) {
            library.find_mig(uuid)
        } else {
            library.find(|_, device| device.uuid == uuid)
        };
        put(to, found?)
    }

    /// The device with a serial number.
    fn nvmlDeviceGetHandleBySerial(serial: *const c_char, to: *mut nvmlDevice_t) {
        let serial = read_text(serial)?;
        put(to, current()?.find(|_, device| device.serial.as_deref() == Some(serial))?)
    }

    /// The device at an address of the PCI bus.
    fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, to: *mut nvmlDevice_t) {
        put(to, by_pci(read_text(address)?)?)
    }

    /// The same under its first name.
    fn nvmlDeviceGetHandleByPciBusId(address: *const c_char, to: *mut nvmlDevice_t) {
        put(to, by_pci(read_text(address)?)?)
    }

    /// How many devices the operator has hidden from use: none.
    fn nvmlGetExcludedDeviceCount(to: *mut c_uint) { put(to, 0) }
}

/// The words for an error number, as NVML prints them.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let words = match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires restart",
        17 => c"The operating system has blocked the request.",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"The requested vgpu operation is not available on target device, because ECC is enabled",
        23 => c"Insufficient Resources",
        24 => c"Frequency Not Supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"No GPUs found",
        29 => c"Invalid State",
        _ => c"Unknown Error",
    };
    words.as_ptr()
}
