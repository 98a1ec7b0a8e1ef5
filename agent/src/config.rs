//! The agent's settings: a TOML file, and flags that win over it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::report::{TEXT_CHARS_MAX, WORK_ROOTS_MAX, kept_whole};
use serde::Deserialize;

use crate::containers::settings::Settings;
use crate::gpus::cut::MigPolicy;
use crate::gpus::policy::HealthPolicy;
use crate::proc;
use crate::supervise::cgroup;

/// Where state lies by default.
pub const STATE_DIR: &str = "/var/lib/allotment-agent";
/// Most device files and folders of them that all jobs may open: a machine has a handful of kinds.
const DEVICE_FILES_MAX: usize = 64;
/// Longest pace of samples: means of minutes need one in each.
const SAMPLE_SECONDS_MAX: u64 = 60;
/// A day, in seconds.
pub const SECONDS_PER_DAY: u64 = 24 * 3600;

/// The settings, as written in the file. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the agent keeps its identity, journal, logs and the jobs' folders.
    pub state_dir: PathBuf,
    /// The server's address for agents, when it is no longer that of the enrolment.
    pub server: Option<String>,
    /// Where other workers reach this node; by default its address on the way to the server.
    pub address: Option<String>,
    /// The library that GPUs are read through; by default libnvidia-ml.so.1.
    pub nvml_library: Option<PathBuf>,
    /// Run jobs as ourselves when we are not root. There is no isolation between teams then.
    pub allow_unisolated: bool,
    /// Where checkpoints lie; by default `checkpoints` below the state folder.
    pub checkpoint_root: Option<PathBuf>,
    /// Whether that folder is the same on all nodes.
    pub checkpoints_shared: bool,
    /// For how many days the checkpoints of a job that is not here are kept after they were last
    /// written; 0 is for ever. On shared storage that is the same for all nodes.
    pub checkpoints_days_max: u32,
    /// Folders below which a job's `working_directory` may lie.
    pub work_roots: Vec<PathBuf>,
    /// CPUs to offer, in place of all that the machine has: for a node that keeps some
    /// back, and for a simulated one.
    pub cpus: Option<u32>,
    /// Memory to offer, in MiB, likewise; by default what jobs may have together.
    pub memory_mib: Option<i64>,
    /// How much memory jobs may have together, in MiB, where there are control groups; by default all that the
    /// machine has but a thirty-second part.
    pub jobs_memory_mib_max: Option<i64>,
    /// How much of one job's output is kept.
    pub log_bytes_max: u64,
    /// How much all logs may take together; the oldest go first.
    pub logs_bytes_max: u64,
    /// For how many days logs are kept.
    pub logs_days_max: u32,
    /// How much of what one job leaves in its output folder is kept, in bytes.
    pub result_bytes_max: u64,
    /// How much all results may take together; the oldest go first.
    pub results_bytes_max: u64,
    /// For how many days results are kept.
    pub results_days_max: u32,
    /// How often GPUs are looked at, in seconds.
    pub inventory_seconds: u64,
    /// How often what devices do is sampled, in seconds.
    pub sample_seconds: u64,
    /// Where the agent tells scrapers what devices do, such as `127.0.0.1:9400`; by default nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// How far the agent goes with MIG: `dynamic` changes the mode of idle devices, makes instances as
    /// jobs ask and unmakes those that nobody has; `static` uses the instances that are there; `never`
    /// does not drive MIG.
    pub mig: MigPolicy,
    /// A file of mig-parted's format by which devices are cut while nobody has a part of them, whatever
    /// jobs ask; `mig` must be `static` then. What its configuration does not name stays as it is.
    pub mig_layout: Option<PathBuf>,
    /// The configuration of that file that holds here.
    pub mig_config: Option<String>,
    /// The file that the driver lets those read who may cut devices without being root; by default
    /// /proc/driver/nvidia/capabilities/mig/config.
    pub mig_capability: Option<PathBuf>,
    /// Whether instances stay when their job has left. What another team's job left in a device's memory
    /// is wiped by the driver when an instance is made, so that one that stays is not wiped.
    pub mig_keep: bool,
    /// For how many seconds a job may hold more memory of a shared device than its share before it is
    /// stopped; it is warned in its log at once.
    pub memory_grace_seconds: u64,
    /// The control program of MPS; by default /usr/bin/nvidia-cuda-mps-control. Where there is none,
    /// devices are not shared so.
    pub mps_control: Option<PathBuf>,
    /// Whether jobs of several teams may share a device by MPS where their pool lets them: its daemon is
    /// root's then and serves the users of all, which MPS does not keep apart.
    pub mps_across_teams: bool,
    /// How much memory of the machine a daemon of MPS and its servers may have, in MiB, where there are
    /// control groups; 0 is no bound.
    pub mps_memory_mib_max: i64,
    /// Whether each job has `/tmp`, `/var/tmp`, `/dev/shm`, System V and POSIX objects and a list of
    /// processes of its own, as root.
    pub private_tmp: bool,
    /// Device files that all jobs may open beside those of their GPUs, such as those of InfiniBand; of
    /// a folder, those that lie in it.
    pub device_files: Vec<PathBuf>,
    /// The folder of the GPUs' device files.
    pub dev_root: PathBuf,
    /// The folder in which the driver tells which device files let a process use a MIG instance.
    pub driver_root: PathBuf,
    /// The control group that holds those of the jobs.
    pub cgroup_parent: String,
    /// Free room below which no job is started, in bytes.
    pub disk_bytes_min: u64,
    /// What is made of what devices show.
    pub health: HealthPolicy,
    /// How jobs run as containers.
    pub containers: Settings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from(STATE_DIR),
            server: None,
            address: None,
            nvml_library: None,
            allow_unisolated: false,
            checkpoint_root: None,
            checkpoints_shared: false,
            checkpoints_days_max: 0,
            work_roots: Vec::new(),
            cpus: None,
            memory_mib: None,
            jobs_memory_mib_max: None,
            log_bytes_max: 64 * 1024 * 1024,
            logs_bytes_max: 10 * 1024 * 1024 * 1024,
            logs_days_max: 14,
            result_bytes_max: 1024 * 1024 * 1024,
            results_bytes_max: 20 * 1024 * 1024 * 1024,
            results_days_max: 14,
            inventory_seconds: 5,
            sample_seconds: 15,
            metrics_listen: None,
            mig: MigPolicy::default(),
            mig_layout: None,
            mig_config: None,
            mig_capability: None,
            mig_keep: false,
            memory_grace_seconds: 30,
            mps_control: None,
            mps_across_teams: false,
            mps_memory_mib_max: 4096,
            private_tmp: true,
            device_files: Vec::new(),
            dev_root: PathBuf::from("/dev"),
            driver_root: PathBuf::from("/proc/driver"),
            cgroup_parent: "allotment".to_owned(),
            disk_bytes_min: 256 * 1024 * 1024,
            health: HealthPolicy::default(),
            containers: Settings::default(),
        }
    }
}

/// Why settings are refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path} cannot be read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file is not such settings; the parser names key and line.
    #[error("{path} is refused")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: Box<toml::de::Error>,
    },
    /// A value cannot be.
    #[error(transparent)]
    Refused(#[from] domain::FieldError),
}

impl Config {
    /// Reads the file, or takes the defaults where there is none.
    pub fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|source| ConfigError::Malformed {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Checks what no type can.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |field: &str, value: String, remedy: &str| {
            Err(domain::FieldError::new(field, value, remedy).into())
        };
        if let Some(root) = self.work_roots.iter().find(|root| !root.is_absolute()) {
            return refuse("work_roots", root.display().to_string(), "absolute paths");
        }
        if let Some(address) = self.address.as_ref().filter(|text| !is_address(text)) {
            let remedy = "an IP address or a host name, without a port";
            return refuse("address", address.clone(), remedy);
        }
        for (field, paths) in [
            ("device_files", self.device_files.as_slice()),
            ("dev_root", std::slice::from_ref(&self.dev_root)),
            ("driver_root", std::slice::from_ref(&self.driver_root)),
        ] {
            if let Some(path) = paths.iter().find(|path| !path.is_absolute()) {
                return refuse(field, path.display().to_string(), "absolute paths");
            }
        }
        if self.device_files.len() > DEVICE_FILES_MAX {
            let count = self.device_files.len().to_string();
            let remedy = format!("at most {DEVICE_FILES_MAX} files or folders");
            return refuse("device_files", count, &remedy);
        }
        let told_whole = |root: &&PathBuf| root.to_str().is_some_and(kept_whole);
        if let Some(root) = self.work_roots.iter().find(|root| !told_whole(root)) {
            let remedy = format!("at most {TEXT_CHARS_MAX} printable characters");
            return refuse("work_roots", root.display().to_string(), &remedy);
        }
        if self.work_roots.len() > WORK_ROOTS_MAX {
            let count = self.work_roots.len().to_string();
            return refuse(
                "work_roots",
                count,
                &format!("at most {WORK_ROOTS_MAX} folders"),
            );
        }
        if self.inventory_seconds == 0 {
            return refuse("inventory_seconds", "0".to_owned(), "at least 1");
        }
        if !(1..=SAMPLE_SECONDS_MAX).contains(&self.sample_seconds) {
            let remedy = format!("1 to {SAMPLE_SECONDS_MAX}");
            return refuse("sample_seconds", self.sample_seconds.to_string(), &remedy);
        }
        if self.cpus == Some(0) {
            return refuse("cpus", "0".to_owned(), "at least 1");
        }
        for (field, mib) in [
            ("memory_mib", self.memory_mib),
            ("jobs_memory_mib_max", self.jobs_memory_mib_max),
        ] {
            if let Some(mib) = mib.filter(|mib| *mib <= 0) {
                return refuse(field, mib.to_string(), "more than 0");
            }
        }
        if self.mps_memory_mib_max < 0 {
            let mib = self.mps_memory_mib_max.to_string();
            return refuse("mps_memory_mib_max", mib, "0 or more");
        }
        self.health.check()?;
        self.containers.check()?;
        match (&self.mig_layout, &self.mig_config) {
            (Some(path), None) => {
                let remedy = "the name of a configuration in mig_config as well";
                return refuse("mig_layout", path.display().to_string(), remedy);
            }
            (None, Some(name)) => {
                let remedy = "the file that has it in mig_layout as well";
                return refuse("mig_config", name.clone(), remedy);
            }
            (Some(_), Some(_)) if self.mig != MigPolicy::Static => {
                let remedy = "static where mig_layout is set: jobs do not cut such devices";
                return refuse("mig", self.mig.as_str().to_owned(), remedy);
            }
            _ => {}
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if self.cgroup_parent.is_empty()
            || !self.cgroup_parent.chars().all(plain)
            || self.cgroup_parent.starts_with('/')
            || self.cgroup_parent.split('/').any(|part| part == "..")
        {
            return refuse(
                "cgroup_parent",
                self.cgroup_parent.clone(),
                "a relative path of letters, digits, '-', '_', '.' and '/'",
            );
        }
        Ok(())
    }

    /// The same, and what the machine must have for it.
    pub fn check_here(&self) -> Result<(), ConfigError> {
        self.check()?;
        Ok(self.health.check_machine()?)
    }

    /// How much memory jobs may have together.
    pub fn jobs_memory_mib(&self) -> i64 {
        let machine = || cgroup::share_mib(proc::machine_memory_mib());
        self.jobs_memory_mib_max.unwrap_or_else(machine)
    }

    /// How old checkpoints may become, if they have an age at all.
    pub fn checkpoints_age_max(&self) -> Option<Duration> {
        let days = u64::from(self.checkpoints_days_max);
        (days > 0).then(|| Duration::from_secs(days * SECONDS_PER_DAY))
    }

    /// For how long a job may hold more than its share.
    pub fn memory_grace(&self) -> Duration {
        Duration::from_secs(self.memory_grace_seconds)
    }

    /// How often what devices do is sampled.
    pub fn sample_pace(&self) -> Duration {
        Duration::from_secs(self.sample_seconds)
    }

    /// How often GPUs are looked at.
    pub fn inventory_pace(&self) -> Duration {
        Duration::from_secs(self.inventory_seconds)
    }
}

/// Whether a text is an address by which other machines could reach this one: of IP, or a name as DNS has them.
fn is_address(text: &str) -> bool {
    const NAME_CHARS_MAX: usize = 253;
    const LABEL_CHARS_MAX: usize = 63;
    let label = |label: &str| {
        (1..=LABEL_CHARS_MAX).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Digits and dots alone are an address of IP, or none.
    let numbers = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse::<std::net::IpAddr>().is_ok()
        || (!numbers && text.len() <= NAME_CHARS_MAX && text.split('.').all(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        let config = Config::read(Some(file.path()))?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn an_empty_file_is_all_defaults() {
        assert_eq!(read("").expect("read"), Config::default());
    }

    #[test]
    fn an_address_is_one_of_ip_or_a_name() {
        for address in [
            "10.0.0.7",
            "fd00::7",
            "gpu-07",
            "gpu-07.rack3.example.org",
            "7up",
        ] {
            let told = read(&format!("address = '{address}'")).expect(address);
            assert_eq!(told.address.as_deref(), Some(address));
        }
    }

    #[test]
    fn an_unknown_key_and_a_wrong_value_are_named() {
        let unknown = read("statedir = '/x'").expect_err("refused");
        let unknown = format!("{:#}", anyhow::Error::from(unknown));
        assert!(
            unknown.contains("statedir") && unknown.contains("line 1"),
            "{unknown}"
        );
        for (text, field) in [
            ("work_roots = ['data']", "work_roots"),
            (r#"work_roots = ["/a\nb"]"#, "work_roots"),
            ("address = 'here, and there'", "address"),
            ("address = 'gpu-07:8443'", "address"),
            ("address = '10.0.0.300'", "address"),
            ("address = ''", "address"),
            ("inventory_seconds = 0", "inventory_seconds"),
            ("sample_seconds = 61", "sample_seconds"),
            ("cgroup_parent = '../x'", "cgroup_parent"),
            ("device_files = ['dev/fuse']", "device_files"),
            ("dev_root = 'dev'", "dev_root"),
            ("memory_mib = -1", "memory_mib"),
            ("jobs_memory_mib_max = 0", "jobs_memory_mib_max"),
            ("mps_memory_mib_max = -1", "mps_memory_mib_max"),
            ("[health.xid]\nmany = 'job'", "health.xid"),
            ("[health]\nprobe = ['check']", "health.probe"),
            ("[health]\nprobe_uid = 0", "health.probe_uid"),
            ("[health]\npcie_width = 'job'", "health.pcie_width"),
            ("[health.xid]\n079 = 'job'", "health.xid"),
            ("[health]\nxid_teams = 1", "health.xid_teams"),
            ("[health]\nxid_teams = 100", "health.xid_teams"),
            (
                "[health]\nxid_window_seconds = 0",
                "health.xid_window_seconds",
            ),
            ("[health]\nkernel_log = 'kmsg'", "health.kernel_log"),
            ("[health]\nwell_readings = 0", "health.well_readings"),
            (
                "[health]\nthrottle_seconds = 99999999",
                "health.throttle_seconds",
            ),
            (
                "[health]\nidle_memory_mib_max = -1",
                "health.idle_memory_mib_max",
            ),
            (
                "[health]\nidle_memory_mib_max = 9999999",
                "health.idle_memory_mib_max",
            ),
            (
                "[health]\nallowed_programs = ['']",
                "health.allowed_programs",
            ),
            (
                "[health]\nallowed_programs = ['nvidia-persistenced']",
                "health.allowed_programs",
            ),
            ("[health]\nprobe_uid = 4294967295", "health.probe_uid"),
            ("[health]\nprobe_seconds = 0", "health.probe_seconds"),
            ("mig_layout = '/a'\nmig = 'static'", "mig_layout"),
            ("mig_config = 'all-balanced'", "mig_config"),
            ("mig_layout = '/a'\nmig_config = 'b'", "mig"),
        ] {
            let error = read(text).expect_err("refused").to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
