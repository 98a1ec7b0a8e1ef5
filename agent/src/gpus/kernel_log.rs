//! Xid errors from before the agent began: read from the kernel's log, since NVML tells of none that is past.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::Snapshot;
use super::health::Health;
use crate::clock;

/// How much of the log is read: the largest that kernels are built with.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Longest record of the kernel's.
const RECORD_BYTES_MAX: usize = 8 * 1024;
/// How the driver begins to tell of one.
const MARK: &str = "NVRM: Xid (PCI:";

/// An Xid error of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Past<'a> {
    /// When, in microseconds since the machine started.
    boot_micros: i64,
    pci: &'a str,
    code: u64,
}

/// Makes findings of the errors that are not known yet; why the log cannot be read, if it cannot.
pub fn take_past(path: &Path, health: &Health, devices: &Snapshot) -> Option<String> {
    let log = match read(path) {
        Ok(log) => log,
        Err(error) => {
            let path = path.display();
            return Some(format!(
                "Xid errors from before the agent began are not known: {path}: {error}"
            ));
        }
    };
    let until = health.xids_until_micros();
    let now = clock::boot_micros();
    for past in String::from_utf8_lossy(&log).lines().filter_map(parse) {
        let device = devices.devices.iter();
        let mut device = device.filter(|d| slot(&d.pci_bus_id) == slot(past.pci));
        if let Some(device) = device.next()
            && (until + 1..=now).contains(&past.boot_micros)
        {
            health.note_past_xid(&device.uuid, past.code, past.boot_micros);
        }
    }
    health.note_xids_until(now);
    None
}

/// Reads what the log has now: of the kernel's own file one record at a time, without waiting for more.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let how = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let mut file = how?;
    let mut log = Vec::new();
    let mut record = [0; RECORD_BYTES_MAX];
    while log.len() < BYTES_MAX {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(bytes) => log.extend_from_slice(&record[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What was next was overwritten meanwhile: the one after it comes.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(log)
}

/// Reads a record such as `4,812,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=x`.
fn parse(line: &str) -> Option<Past<'_>> {
    let (head, text) = line.split_once(';')?;
    let boot_micros = head.split(',').nth(2)?.parse().ok()?;
    let (pci, rest) = text.strip_prefix(MARK)?.split_once("): ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some(Past {
        boot_micros,
        pci,
        code: rest[..digits].parse().ok()?,
    })
}

/// An address without function and leading zeros, as both sides write it.
fn slot(address: &str) -> String {
    let place = address.split('.').next().unwrap_or_default();
    place.trim_start_matches('0').to_lowercase()
}

#[cfg(test)]
mod tests {
    use protocol::wire;

    use super::super::policy::HealthPolicy;
    use super::*;

    fn devices() -> Snapshot {
        let device = |uuid: &str, pci_bus_id: &str| wire::Device {
            uuid: uuid.to_owned(),
            pci_bus_id: pci_bus_id.to_owned(),
            ..wire::Device::default()
        };
        Snapshot {
            devices: vec![
                device("GPU-1", "00000000:3B:00.0"),
                device("GPU-2", "00000000:5E:00.0"),
            ],
            ..Snapshot::default()
        }
    }

    #[test]
    fn errors_from_before_the_agent_began_are_found_once_and_not_those_of_jobs() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("kmsg");
        let text = "6,1,100,-;Linux version 6.1\n\
                    4,2,2000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n \
                    SUBSYSTEM=pci\n\
                    4,3,2000001,-;NVRM: Xid (PCI:0000:5e:00): 31, pid=77, name=python\n";
        std::fs::write(&log, text).expect("written");
        let file = folder.path().join("health.json");
        let load = |boot: &str| Health::load(HealthPolicy::default(), file.clone(), boot);
        let health = load("boot-1");
        assert_eq!(take_past(&log, &health, &devices()), None);
        let found = health.findings("GPU-1");
        assert_eq!(found[0].reason, "Xid 79: fallen off the bus");
        assert_eq!(found[0].boot_micros, Some(2_000_000));
        assert!(health.findings("GPU-2").is_empty(), "an application's");
        // A person has cleared it: the next life of the agent does not find it anew.
        assert!(health.clear("GPU-1", found[0].number));
        let health = load("boot-1");
        assert_eq!(take_past(&log, &health, &devices()), None);
        assert!(health.findings("GPU-1").is_empty());
        // In another boot the clock has begun anew.
        let health = load("boot-2");
        assert_eq!(take_past(&log, &health, &devices()), None);
        assert_eq!(health.findings("GPU-1").len(), 1);
    }

    #[test]
    fn a_log_that_cannot_be_read_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("health.json");
        let health = Health::load(HealthPolicy::default(), file, "boot");
        let told = take_past(&folder.path().join("none"), &health, &devices());
        assert!(told.expect("told").contains("are not known"));
    }
}
