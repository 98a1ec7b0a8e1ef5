//! Programs that stand for work on a device: whoever has `NVML_SIM_MEMORY_MIB` in its environment
//! shows as a process on the devices of its `CUDA_VISIBLE_DEVICES`, with so much memory.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::machine::{Process, ProcessKind};

/// How much memory such a program says that it holds on each of its devices.
const MEMORY_VARIABLE: &str = "NVML_SIM_MEMORY_MIB";
/// What tells it from one that goes past the shared server of a device.
const SHARED_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// How long one look serves: a reading of eight devices asks many times at once.
const LOOK_LASTS: Duration = Duration::from_millis(100);

/// The programs as last seen.
pub(crate) struct Workers {
    seen: Vec<Process>,
    at: Option<Instant>,
}

impl Workers {
    pub const fn new() -> Self {
        Self {
            seen: Vec::new(),
            at: None,
        }
    }

    /// The programs that run now.
    pub fn look(&mut self) -> &[Process] {
        if self.at.is_none_or(|at| at.elapsed() >= LOOK_LASTS) {
            self.seen = declared();
            self.at = Some(Instant::now());
        }
        &self.seen
    }
}

fn declared() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found: BTreeMap<u32, Vec<Process>> = pids
        .filter_map(|pid| Some((pid, of_environment(pid, &fs::read(environment(pid)).ok()?)?)))
        .collect();
    // What a program starts has the same environment; it is the program that holds the memory.
    let inherited = |pid: u32| parent(pid).is_some_and(|above| found.contains_key(&above));
    let mut all: Vec<Process> = Vec::new();
    for (pid, processes) in &found {
        if !inherited(*pid) {
            all.extend(processes.iter().cloned());
        }
    }
    all
}

fn environment(pid: u32) -> String {
    format!("/proc/{pid}/environ")
}

fn of_environment(pid: u32, text: &[u8]) -> Option<Vec<Process>> {
    let value = |name: &str| {
        text.split(|byte| *byte == 0).find_map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            pair.strip_prefix(name)?.strip_prefix('=')
        })
    };
    let memory_used_mib = value(MEMORY_VARIABLE)?.parse().ok()?;
    let kind = match value(SHARED_VARIABLE) {
        Some(_) => ProcessKind::Mps,
        None => ProcessKind::Compute,
    };
    let devices = value("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let on = |uuid: &str| Process {
        pid,
        uuid: uuid.to_owned(),
        kind,
        memory_used_mib,
    };
    let named = devices.split(',').filter(|uuid| !uuid.is_empty());
    Some(named.map(on).collect())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_on_the_devices_that_it_sees_with_the_memory_that_it_names() {
        let text = b"A=b\0NVML_SIM_MEMORY_MIB=700\0CUDA_VISIBLE_DEVICES=GPU-1,MIG-2\0";
        let found = of_environment(7, text).expect("it declares itself");
        let told: Vec<(&str, u64)> = found
            .iter()
            .map(|p| (p.uuid.as_str(), p.memory_used_mib))
            .collect();
        assert_eq!(told, [("GPU-1", 700), ("MIG-2", 700)]);
        assert!(of_environment(7, b"CUDA_VISIBLE_DEVICES=GPU-1\0").is_none());
    }
}
