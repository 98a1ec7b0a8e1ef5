//! Programs that stand for work on a device: whoever has `NVML_SIM_MEMORY_MIB` in its environment
//! shows as a process on the devices of its `CUDA_VISIBLE_DEVICES`, with so much memory, and with the
//! load that `NVML_SIM_LOAD` names, one number or a curve.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::machine::{Process, ProcessKind};

/// How much memory such a program says that it holds on each of its devices.
const MEMORY_VARIABLE: &str = "NVML_SIM_MEMORY_MIB";
/// The load that it says it is: percents with the seconds that each lasts, as `80x30,20x10`, over
/// again from its start; one percent alone lasts for ever.
const LOAD_VARIABLE: &str = "NVML_SIM_LOAD";
/// What tells it from one that goes past the shared server of a device.
const SHARED_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The place of a program's start, in ticks since the machine's, behind its name in its `stat`.
const START_FIELD: usize = 19;
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
    let of = |pid: u32| {
        let text = fs::read(environment(pid)).ok()?;
        Some((pid, of_environment(pid, &text, || age(pid))?))
    };
    let found: BTreeMap<u32, Vec<Process>> = pids.filter_map(of).collect();
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

fn of_environment(
    pid: u32,
    text: &[u8],
    age: impl Fn() -> Option<Duration>,
) -> Option<Vec<Process>> {
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
    let load_percent = value(LOAD_VARIABLE).map_or(0, |curve| load(curve, age));
    let devices = value("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let on = |uuid: &str| Process {
        pid,
        uuid: uuid.to_owned(),
        kind,
        memory_used_mib,
        load_percent,
    };
    let named = devices.split(',').filter(|uuid| !uuid.is_empty());
    Some(named.map(on).collect())
}

/// The load of a curve at an age; what is no curve is no load.
fn load(curve: &str, age: impl Fn() -> Option<Duration>) -> u32 {
    let step = |part: &str| {
        let (percent, secs) = part.split_once('x')?;
        Some((percent.parse::<u32>().ok()?, secs.parse::<u64>().ok()?))
    };
    let percent = match curve.parse::<u32>() {
        Ok(percent) => percent,
        Err(_) => {
            let steps: Option<Vec<(u32, u64)>> = curve.split(',').map(step).collect();
            let steps = steps.unwrap_or_default();
            let whole: u64 = steps.iter().map(|(_, secs)| secs).sum();
            let age = age().unwrap_or_default().as_secs();
            let mut at = age.checked_rem(whole).unwrap_or_default();
            let now = steps.iter().find(|(_, secs)| {
                let here = at < *secs;
                at = at.saturating_sub(*secs);
                here
            });
            now.map_or(0, |(percent, _)| *percent)
        }
    };
    percent.min(100)
}

/// How long a program has run.
fn age(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let started: u64 = rest.split(' ').nth(START_FIELD)?.parse().ok()?;
    let up = fs::read_to_string("/proc/uptime").ok()?;
    let up: u64 = up.split('.').next()?.parse().ok()?;
    // SAFETY: a question without memory.
    let ticks = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    Some(Duration::from_secs(
        up.saturating_sub(started.checked_div(ticks)?),
    ))
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
        let no_age = || None;
        let found = of_environment(7, text, no_age).expect("it declares itself");
        let told: Vec<(&str, u64)> = found
            .iter()
            .map(|p| (p.uuid.as_str(), p.memory_used_mib))
            .collect();
        assert_eq!(told, [("GPU-1", 700), ("MIG-2", 700)]);
        assert!(of_environment(7, b"CUDA_VISIBLE_DEVICES=GPU-1\0", no_age).is_none());
    }

    #[test]
    fn a_load_is_one_number_or_a_curve_that_begins_anew() {
        let at = |curve: &str, secs| load(curve, || Some(Duration::from_secs(secs)));
        assert_eq!(at("70", 5), 70);
        assert_eq!(at("170", 5), 100);
        let told = [0, 29, 30, 39, 40].map(|secs| at("80x30,20x10", secs));
        assert_eq!(told, [80, 80, 20, 20, 80]);
        assert_eq!(at("0x0", 3), 0);
        assert_eq!(at("much", 3), 0);
    }
}
