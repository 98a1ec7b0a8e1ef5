//! Account of the processes on a device: what each has used. Of processes that nobody asked about while they
//! ran nothing is known: the library looks when it is asked, where a driver always does.

use std::ffi::c_uint;
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings as sys;
use sys::nvmlDevice_t;

use crate::border::{Answer, Refusal, put, put_list};
use crate::library::{Library, current, memory_percent};

const MIB: u64 = 1024 * 1024;
/// How many processes account is kept of; the oldest go first.
const ENTRIES_MAX: usize = 4000;

/// What is known of one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    started_us: u64,
    last_us: u64,
    running: bool,
    memory_mib_max: u64,
    load_percent: u32,
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// Looks at the processes of a device that account is kept of; its UUID.
fn look(library: &mut Library, device: nvmlDevice_t) -> Answer<String> {
    let uuid = library.device(device)?.uuid.clone();
    let cut = library.cuts()?.of(&uuid);
    if cut.on {
        return Err(Refusal::NotSupported);
    }
    if !cut.accounting {
        return Ok(uuid);
    }
    let now = now_us();
    let on = library.processes_on(&uuid)?;
    let of_device = library.accounts.iter_mut();
    for (_, account) in of_device.filter(|((of, _), _)| *of == uuid) {
        account.running = false;
    }
    for (process, _) in on {
        let key = (uuid.clone(), process.pid);
        let account = library.accounts.entry(key).or_insert(Account {
            started_us: now,
            last_us: now,
            running: true,
            memory_mib_max: 0,
            load_percent: 0,
        });
        account.running = true;
        account.last_us = now;
        account.memory_mib_max = account.memory_mib_max.max(process.memory_used_mib);
        account.load_percent = process.load_percent.min(100);
    }
    while library.accounts.len() > ENTRIES_MAX {
        let oldest = library.accounts.iter().min_by_key(|(_, a)| a.last_us);
        let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
            break;
        };
        library.accounts.remove(&oldest);
    }
    Ok(uuid)
}

fn stats(account: &Account) -> sys::nvmlAccountingStats_t {
    let time_us = account.last_us - account.started_us;
    sys::nvmlAccountingStats_t {
        gpuUtilization: account.load_percent,
        memoryUtilization: memory_percent(account.load_percent),
        maxMemoryUsage: account.memory_mib_max * MIB,
        // Of one that runs the time is not known yet.
        time: if account.running { 0 } else { time_us / 1000 },
        startTime: account.started_us,
        isRunning: c_uint::from(account.running),
        reserved: [0; 5],
    }
}

nvml_calls! {
    /// Whether account is kept of a device's processes.
    fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, to: *mut sys::nvmlEnableState_t) {
        let library = current()?;
        let uuid = &library.device(device)?.uuid;
        put(to, c_uint::from(library.cuts()?.of(uuid).accounting))
    }

    /// Sets whether it is.
    fn nvmlDeviceSetAccountingMode(device: nvmlDevice_t, mode: sys::nvmlEnableState_t) {
        let mut library = current()?;
        let uuid = library.device(device)?.uuid.clone();
        library.change("nvmlDeviceSetAccountingMode", |machine, cuts| {
            let device = machine.devices.iter().find(|device| device.uuid == uuid);
            cuts.set_accounting(device.ok_or(Refusal::GpuIsLost)?, mode != 0)
        })
    }

    /// The processes that account is kept of.
    fn nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut c_uint, to: *mut c_uint) {
        let mut library = current()?;
        let uuid = look(&mut library, device)?;
        let of_device = library.accounts.keys().filter(|(of, _)| *of == uuid);
        put_list(to, count, of_device.map(|(_, pid)| *pid).collect())
    }

    /// What one of them has used.
    fn nvmlDeviceGetAccountingStats(device: nvmlDevice_t, pid: c_uint, to: *mut sys::nvmlAccountingStats_t) {
        let mut library = current()?;
        let uuid = look(&mut library, device)?;
        let account = library.accounts.get(&(uuid, pid)).ok_or(Refusal::NotFound)?;
        put(to, stats(account))
    }

    /// How many of them are kept.
    fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, to: *mut c_uint) {
        current()?.device(device)?;
        put(to, c_uint::try_from(ENTRIES_MAX).map_err(|_| Refusal::Unknown)?)
    }

    /// Forgets those that run no more.
    fn nvmlDeviceClearAccountingPids(device: nvmlDevice_t) {
        let mut library = current()?;
        let uuid = look(&mut library, device)?;
        library.accounts.retain(|(of, _), account| *of != uuid || account.running);
        Ok(())
    }
}
