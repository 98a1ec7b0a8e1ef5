//! Control groups: how CPU and memory limits of a job are enforced and device files barred, by
//! version 2 or 1 of the kernel's interface, or not at all.

mod nested;
mod together;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::device_program;
use super::devices::{self, DeviceFile};
use crate::proc::Process;

pub use nested::OutOfMemory;
pub use together::share_mib;

/// Most processes and threads of one job: a fork bomb ends here and a job that starts a
/// thread per core and file does not.
const PIDS_MAX: u32 = 32 * 1024;
/// One job has at most one such part of the numbers that the kernel gives to processes: on many
/// machines there are no more than 32,768, and a bomb must leave enough to end it.
const PIDS_PART: u32 = 4;
/// Numbers for processes where the kernel does not say how many there are: its smallest default.
const PIDS_OF_KERNEL: u32 = 32 * 1024;
/// Processes that are held by descriptors at once; a supervisor may have 1024 descriptors.
const HELD_MAX: usize = 256;
/// The period over which CPU time is shared out, in microseconds; the kernel's default.
const CPU_PERIOD_MICROS: i64 = 100_000;
/// The kernel refuses a smaller quota, in microseconds.
const CPU_QUOTA_MICROS_MIN: i64 = 1000;
/// Tries to remove a group whose last process is still on its way out.
const REMOVE_TRIES: u32 = 20;
/// Wait between them.
const REMOVE_WAIT: Duration = Duration::from_millis(10);
/// The controller of version 1 that bars device files.
const DEVICES: &str = "devices";

/// What a job may use; 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time, in thousandths of a core.
    pub cpus_milli: i64,
    /// Memory, in MiB.
    pub memory_mib: i64,
}

/// The interface that this machine lets us use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "version")]
pub enum Cgroups {
    /// One hierarchy: the folder that holds our groups.
    V2 {
        /// That folder.
        parent: PathBuf,
        /// Whether the kernel asks programs of ours about device files.
        #[serde(default)]
        devices: bool,
    },
    /// A hierarchy per controller.
    V1 {
        /// The folder of each that we use.
        parents: Vec<Parent>,
    },
    /// Limits are not enforced.
    None,
}

/// A version 1 controller with the folder that holds our groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its name, such as `memory`.
    pub controller: String,
    /// That folder.
    pub folder: PathBuf,
}

impl Cgroups {
    /// Finds the best interface that works here; with none, says why in a sentence.
    pub fn detect(name: &str) -> (Self, Option<String>) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let v2 = detect_v2(&mounts, name);
        let v1 = || detect_v1(&mounts, name);
        match v2.or_else(|_| v1()) {
            Ok(found) => (found, None),
            Err(error) => (
                Self::None,
                Some(format!(
                    "CPU and memory limits are not enforced on this node: control groups cannot be used ({error})"
                )),
            ),
        }
    }

    /// The word for it in an inventory.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "v2",
            Self::V1 { .. } => "v1",
            Self::None => "none",
        }
    }

    /// The group of a job, made or not.
    pub fn group(&self, name: &str) -> Group {
        let folders = match self {
            Self::V2 { parent, .. } => vec![parent.join(name)],
            Self::V1 { parents } => {
                let mut folders: Vec<PathBuf> =
                    parents.iter().map(|p| p.folder.join(name)).collect();
                // Controllers may share a hierarchy.
                folders.dedup();
                folders
            }
            Self::None => Vec::new(),
        };
        Group {
            folders,
            v2: matches!(self, Self::V2 { .. }),
        }
    }

    /// Whether groups bar device files here.
    pub fn bars_devices(&self) -> bool {
        match self {
            Self::V2 { devices, .. } => *devices,
            Self::V1 { parents } => parents.iter().any(|p| p.controller == DEVICES),
            Self::None => false,
        }
    }

    /// Makes the group of a job and sets its limits. With `own` it bars all device files but these
    /// and those that all programs need.
    pub fn create(
        &self,
        name: &str,
        limits: &Limits,
        own: Option<&[DeviceFile]>,
    ) -> io::Result<Group> {
        let group = self.group(name);
        for folder in &group.folders {
            match fs::create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error);
                }
                _ => {}
            }
        }
        let limited = match self {
            Self::V2 { parent, .. } => limit_v2(&parent.join(name), limits),
            Self::V1 { parents } => parents
                .iter()
                .try_for_each(|p| limit_v1(&p.controller, &p.folder.join(name), limits)),
            Self::None => Ok(()),
        };
        let barred = limited.and_then(|()| own.map_or(Ok(()), |own| self.bar(name, own)));
        if let Err(error) = barred {
            group.remove();
            return Err(error);
        }
        Ok(group)
    }

    fn bar(&self, name: &str, own: &[DeviceFile]) -> io::Result<()> {
        let open = devices::all(own);
        match self {
            Self::V2 { parent, .. } => device_program::bar(&parent.join(name), &open),
            Self::V1 { parents } => {
                let mut parents = parents.iter().filter(|p| p.controller == DEVICES);
                parents.try_for_each(|p| devices::bar_v1(&p.folder.join(name), &open))
            }
            Self::None => Ok(()),
        }
    }
}

/// The control group of one job.
#[derive(Debug, Clone)]
pub struct Group {
    folders: Vec<PathBuf>,
    v2: bool,
}

impl Group {
    /// Opens what a process writes "0" to in order to enter the group.
    pub fn doors(&self) -> io::Result<Vec<File>> {
        self.folders
            .iter()
            .map(|folder| {
                OpenOptions::new()
                    .write(true)
                    .open(folder.join("cgroup.procs"))
            })
            .collect()
    }

    /// Kills all processes in the group, once; repeat until it is empty.
    pub fn kill(&self) {
        for folder in &self.folders {
            if self.v2 && fs::write(folder.join("cgroup.kill"), "1").is_ok() {
                continue;
            }
            for folder in nested::all(folder) {
                for some in processes_in(&folder).chunks(HELD_MAX) {
                    kill_held(&folder, some);
                }
            }
        }
    }

    /// Whether no process is in it.
    pub fn empty(&self) -> bool {
        let all = self.folders.iter().flat_map(|folder| nested::all(folder));
        all.collect::<Vec<_>>().iter().all(|folder| {
            fs::read_to_string(folder.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
                || !folder.exists()
        })
    }

    /// How many of its processes the kernel killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        self.folders
            .iter()
            .filter_map(|folder| fs::read_to_string(folder.join(file)).ok())
            .flat_map(|text| text.lines().filter_map(read_oom_kill).collect::<Vec<_>>())
            .sum()
    }

    /// Removes it. One that cannot be removed is left: it is empty and costs nothing.
    pub fn remove(&self) {
        // A container runtime makes groups below, and leaves some: the deepest go first.
        let all = self.folders.iter().flat_map(|folder| nested::all(folder));
        for folder in all.collect::<Vec<_>>().iter().rev() {
            for _ in 0..REMOVE_TRIES {
                match fs::remove_dir(folder) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        std::thread::sleep(REMOVE_WAIT);
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Kills processes by descriptors that were opened before the group was asked again whether they
/// are in it: who came to one of their numbers later is in another place.
fn kill_held(folder: &Path, pids: &[i32]) {
    let held: Vec<(i32, Process)> = pids
        .iter()
        .filter_map(|pid| Some((*pid, Process::hold(*pid, |_| true).ok()??)))
        .collect();
    let still: BTreeSet<i32> = processes_in(folder).into_iter().collect();
    let members = held.iter().filter(|(pid, _)| still.contains(pid));
    members.for_each(|(_, process)| process.signal(Signal::SIGKILL));
}

fn processes_in(folder: &Path) -> Vec<i32> {
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    processes
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| *pid > 0)
        .collect()
}

fn read_oom_kill(line: &str) -> Option<u64> {
    line.strip_prefix("oom_kill ")?.trim().parse().ok()
}

fn detect_v2(mounts: &str, name: &str) -> io::Result<Cgroups> {
    let root = mounted(mounts, "cgroup2", None)
        .ok_or_else(|| io::Error::other("version 2 is not mounted"))?;
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
    let has = |wanted: &str| controllers.split_whitespace().any(|c| c == wanted);
    if !has("cpu") || !has("memory") {
        return Err(io::Error::other(
            "version 2 has no cpu and memory controllers",
        ));
    }
    let parent = root.join(name);
    let mut down_to = root.clone();
    make_parent(&parent)?;
    // Each folder hands the controllers to those below it.
    enable(&down_to, has("pids"))?;
    for part in Path::new(name).components() {
        down_to.push(part);
        enable(&down_to, has("pids"))?;
    }
    set_if_there(&parent, "pids.max", together::pids_max(pids_of_kernel()))?;
    let devices = can_bar(&parent);
    Ok(Cgroups::V2 { parent, devices })
}

/// Whether a program of ours can bar a group from device files: tried on one that is gone after it.
fn can_bar(parent: &Path) -> bool {
    let attempt = parent.join("attempt");
    let made = match fs::create_dir(&attempt) {
        Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
        Ok(()) => true,
    };
    let barred = made && device_program::bar(&attempt, &devices::all(&[])).is_ok();
    let _ = fs::remove_dir(&attempt);
    barred
}

/// A job passes to its own group, whose name it knows, and cannot list those of others.
fn make_parent(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // One that was handed to us as it is, who are not root then, keeps its mode.
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o711));
    Ok(())
}

fn enable(folder: &Path, pids: bool) -> io::Result<()> {
    let control = folder.join("cgroup.subtree_control");
    fs::write(&control, "+cpu +memory")?;
    if pids {
        fs::write(&control, "+pids")?;
    }
    Ok(())
}

fn detect_v1(mounts: &str, name: &str) -> io::Result<Cgroups> {
    let mut parents = Vec::new();
    for (controller, needed) in [
        ("memory", true),
        ("cpu", true),
        ("cpuacct", false),
        ("pids", false),
        (DEVICES, false),
    ] {
        let made = mounted(mounts, "cgroup", Some(controller))
            .ok_or_else(|| io::Error::other(format!("no {controller} controller is mounted")))
            .and_then(|root| {
                let folder = root.join(name);
                make_parent(&folder)?;
                // Reading back what a fresh group says shows that the mount is not a stub.
                OpenOptions::new()
                    .write(true)
                    .open(folder.join("cgroup.procs"))?;
                if controller == "pids" {
                    set_if_there(&folder, "pids.max", together::pids_max(pids_of_kernel()))?;
                }
                Ok(Parent {
                    controller: controller.to_owned(),
                    folder,
                })
            });
        match made {
            Ok(parent) => parents.push(parent),
            Err(error) if needed => return Err(error),
            Err(_) => {}
        }
    }
    Ok(Cgroups::V1 { parents })
}

/// Where a hierarchy is mounted, by its type and, for version 1, its controller.
fn mounted(mounts: &str, kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, fs_type, options) = (
            fields.next()?,
            fields.next()?,
            fields.next()?,
            fields.next()?,
        );
        let fits = fs_type == kind
            && controller.is_none_or(|wanted| options.split(',').any(|option| option == wanted));
        fits.then(|| PathBuf::from(path))
    })
}

fn limit_v2(folder: &Path, limits: &Limits) -> io::Result<()> {
    if limits.memory_mib > 0 {
        set(folder, "memory.max", bytes(limits.memory_mib))?;
        // Without swap the limit would only slow a job down; absent where swap is not built in.
        set_if_there(folder, "memory.swap.max", 0)?;
        // One killed process would leave the rest of the job hanging.
        set_if_there(folder, "memory.oom.group", 1)?;
    }
    if limits.cpus_milli > 0 {
        let quota = format!("{} {CPU_PERIOD_MICROS}", cpu_quota(limits.cpus_milli));
        set(folder, "cpu.max", quota)?;
    }
    set_if_there(folder, "pids.max", pids_max())
}

fn limit_v1(controller: &str, folder: &Path, limits: &Limits) -> io::Result<()> {
    match controller {
        "memory" if limits.memory_mib > 0 => {
            set(folder, "memory.limit_in_bytes", bytes(limits.memory_mib))?;
            set_if_there(
                folder,
                "memory.memsw.limit_in_bytes",
                bytes(limits.memory_mib),
            )
        }
        "cpu" if limits.cpus_milli > 0 => {
            set(folder, "cpu.cfs_period_us", CPU_PERIOD_MICROS)?;
            set(folder, "cpu.cfs_quota_us", cpu_quota(limits.cpus_milli))
        }
        "pids" => set_if_there(folder, "pids.max", pids_max()),
        _ => Ok(()),
    }
}

/// Most processes and threads of one job on this machine, and of one team's user where there are
/// no control groups.
pub fn pids_max() -> u32 {
    pids_max_of_job(pids_of_kernel())
}

fn pids_max_of_job(of_kernel: u32) -> u32 {
    PIDS_MAX.min(of_kernel / PIDS_PART).max(1)
}

fn pids_of_kernel() -> u32 {
    fs::read_to_string("/proc/sys/kernel/pid_max")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(PIDS_OF_KERNEL)
}

fn bytes(mib: i64) -> i64 {
    mib.saturating_mul(1024 * 1024)
}

fn cpu_quota(cpus_milli: i64) -> i64 {
    (cpus_milli.saturating_mul(CPU_PERIOD_MICROS) / 1000).max(CPU_QUOTA_MICROS_MIN)
}

/// Writes a setting of a group.
pub(super) fn set(folder: &Path, file: &str, value: impl ToString) -> io::Result<()> {
    let mut opened = OpenOptions::new().write(true).open(folder.join(file))?;
    opened.write_all(value.to_string().as_bytes())
}

fn set_if_there(folder: &Path, file: &str, value: impl ToString) -> io::Result<()> {
    match set(folder, file, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
";

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let at = |kind, controller| mounted(HYBRID, kind, controller);
        assert_eq!(
            at("cgroup", Some("memory")),
            Some("/sys/fs/cgroup/memory".into())
        );
        assert_eq!(
            at("cgroup", Some("cpu")),
            Some("/sys/fs/cgroup/cpu,cpuacct".into())
        );
        assert_eq!(at("cgroup", Some("pids")), None);
        assert_eq!(at("cgroup2", None), Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn a_cpu_quota_is_exact_and_never_below_what_the_kernel_takes() {
        assert_eq!(cpu_quota(1500), 150_000);
        assert_eq!(cpu_quota(1), CPU_QUOTA_MICROS_MIN);
    }

    #[test]
    fn jobs_leave_the_machine_numbers_for_its_own_processes() {
        let small = 32 * 1024;
        assert_eq!(pids_max_of_job(small), 8192);
        assert_eq!(together::pids_max(small), 16_384);
        assert_eq!(pids_max_of_job(4 * 1024 * 1024), PIDS_MAX);
    }

    #[test]
    fn kills_for_want_of_memory_are_counted() {
        let line = |text: &str| read_oom_kill(text);
        assert_eq!(line("oom_kill 3"), Some(3));
        assert_eq!(line("oom_kill_disable 0"), None);
        assert_eq!(line("oom_group_kill 1"), None);
    }
}
