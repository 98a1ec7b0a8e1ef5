//! The machine without its devices: rights, kernel, clock, folders, disk, control groups, runtimes.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::bail;
use nix::unistd::{AccessFlags, access};

use super::{Finding, Need, State};
use crate::config::Config;
use crate::gpus::layout::Layout;
use crate::inventory::NO_ISOLATION;
use crate::supervise::cgroup::Cgroups;
use crate::{folders, identity};

/// The oldest kernel on which jobs start: paths are opened below their roots by `openat2`.
const KERNEL_MIN: (u32, u32) = (5, 6);
/// The oldest kernel on which a whole control group is ended at once.
const KERNEL_KILLS_GROUPS: (u32, u32) = (5, 14);
/// Room below which a day of logs and checkpoints may fill the disk, as a multiple of the room below
/// which no job starts.
const ROOM_TIMES: u64 = 16;
const BYTES_PER_MIB: u64 = 1024 * 1024;
pub(super) fn look(config: &Config) -> Vec<Finding> {
    let root = nix::unistd::geteuid().is_root();
    let release = nix::sys::utsname::uname()
        .map(|told| told.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    vec![
        settings(config),
        rights(root, config.allow_unisolated),
        kernel(&release),
        clock(synchronised()),
        state_folder(&config.state_dir),
        disk(config),
        control_groups(config),
        super::runtime::container_runtime(config, root),
    ]
}

fn settings(config: &Config) -> Finding {
    let found = Finding::ok("settings", Need::Needed, "they can be used");
    let remedy = "change that in the agent's settings";
    if let Err(error) = usable(config) {
        return Finding {
            seen: format!("{error:#}"),
            ..found.but(State::Missing, remedy)
        };
    }
    let named = [
        ("work_roots", &config.work_roots),
        ("device_files", &config.device_files),
    ];
    let all = named
        .into_iter()
        .flat_map(|(key, paths)| paths.iter().map(move |path| (key, path)));
    let absent: Vec<String> = all
        .filter(|(_, path)| !path.exists())
        .map(|(key, path)| format!("{key}: {} is not there", path.display()))
        .collect();
    match absent.is_empty() {
        true => found,
        false => Finding {
            seen: absent.join("; "),
            ..found.but(State::Warning, remedy)
        },
    }
}

/// What an agent asks of its settings before it starts.
fn usable(config: &Config) -> anyhow::Result<()> {
    config.check_here()?;
    Layout::of(config)?;
    if let Some(server) = &config.server {
        identity::encrypted(server)?;
    }
    if let Some(root) = config
        .checkpoint_root
        .as_deref()
        .filter(|root| root.exists())
    {
        folders::check_unwritable(&root.canonicalize()?)?;
    }
    if let Some(address) = config.metrics_listen {
        match TcpListener::bind(address) {
            Ok(_) => {}
            // The agent that runs here may be who listens.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => bail!("metrics_listen: {address} cannot be listened on: {error}"),
        }
    }
    Ok(())
}

fn rights(root: bool, allow_unisolated: bool) -> Finding {
    let found = |seen| Finding::ok("rights", Need::Needed, seen);
    match (root, allow_unisolated) {
        (true, _) => found("root"),
        (false, true) => found(NO_ISOLATION).but(
            State::Warning,
            "run the agent as root where teams are to be kept apart",
        ),
        (false, false) => found("not root, so that jobs of all teams would run as one user").but(
            State::Missing,
            "run the agent as root, or accept that with allow_unisolated = true",
        ),
    }
}

fn kernel(release: &str) -> Finding {
    let found = Finding::ok("kernel", Need::Needed, release);
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || parts.next().and_then(|part| part.parse().ok());
    let (Some(major), Some(minor)) = (next(), next()) else {
        return found.but(
            State::Warning,
            "its version cannot be read: it must be 5.6 or newer",
        );
    };
    if (major, minor) < KERNEL_MIN {
        return found.but(State::Missing, "5.6 or newer is needed to start a job");
    }
    if (major, minor) < KERNEL_KILLS_GROUPS {
        return found.but(
            State::Warning,
            "from 5.14 on all processes of a control group are ended at once",
        );
    }
    found
}

/// Whether the kernel's clock is kept by something; none where it does not say.
fn synchronised() -> Option<bool> {
    // SAFETY: a structure of numbers, all of which may be zero, and with no mode set the call only
    // reads; the structure outlives it.
    #[allow(unsafe_code)]
    let (state, status) = unsafe {
        let mut told: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut told), told.status)
    };
    (state >= 0).then_some(status & libc::STA_UNSYNC == 0)
}

fn clock(synchronised: Option<bool>) -> Finding {
    let found = |seen| Finding::ok("clock", Need::Optional, seen);
    let remedy = "run chronyd, systemd-timesyncd or ntpd: certificates are judged by this clock, and logs are read by it";
    match synchronised {
        Some(true) => found("the kernel says that it is synchronised"),
        Some(false) => {
            found("the kernel says that nothing synchronises it").but(State::Warning, remedy)
        }
        None => {
            found("the kernel does not say whether it is synchronised").but(State::Warning, remedy)
        }
    }
}

fn state_folder(folder: &Path) -> Finding {
    let named = folder.display();
    let found = |seen| Finding::ok("state folder", Need::Needed, seen);
    let there = nearest(folder);
    let writable = access(&there, AccessFlags::W_OK | AccessFlags::X_OK);
    match writable {
        Ok(()) if there == folder => found(format!("{named}")),
        Ok(()) => found(format!("{named} is not there yet")).but(
            State::Warning,
            "allotment-agent enrol makes it; or name another by state_dir",
        ),
        Err(error) => found(format!(
            "{named} cannot be written: {}: {error}",
            there.display()
        ))
        .but(
            State::Missing,
            "let the agent's user write there, or name another by state_dir",
        ),
    }
}

/// The folder, or the nearest above it that is there.
fn nearest(folder: &Path) -> PathBuf {
    let there = folder.ancestors().find(|above| above.exists());
    there.unwrap_or(Path::new("/")).to_owned()
}

fn disk(config: &Config) -> Finding {
    let at = nearest(&config.state_dir);
    match nix::sys::statvfs::statvfs(&at) {
        Ok(told) => room(
            told.blocks_available() * told.fragment_size(),
            config.disk_bytes_min,
        ),
        Err(error) => Finding::ok("disk", Need::Needed, format!("it cannot be asked: {error}"))
            .but(State::Missing, "name another folder by state_dir"),
    }
}

fn room(free: u64, least: u64) -> Finding {
    let seen = format!("{} MiB are free where the state lies", free / BYTES_PER_MIB);
    let found = Finding::ok("disk", Need::Needed, seen);
    let needed = least / BYTES_PER_MIB;
    if free < least {
        let remedy = format!(
            "no job starts below disk_bytes_min ({needed} MiB): clear the disk, or name another folder by state_dir"
        );
        return found.but(State::Missing, remedy);
    }
    if free < least.saturating_mul(ROOM_TIMES) {
        let remedy = format!(
            "no job starts below disk_bytes_min ({needed} MiB), and logs may take logs_bytes_max: clear the disk"
        );
        return found.but(State::Warning, remedy);
    }
    found
}

fn control_groups(config: &Config) -> Finding {
    let found = |seen: String| Finding::ok("control groups", Need::Optional, seen);
    let (groups, why) = tried(&config.cgroup_parent);
    match groups {
        Cgroups::V2 { parent, devices } => {
            let controllers = std::fs::read_to_string(parent.join("cgroup.controllers"));
            let controllers = controllers.unwrap_or_default();
            let listed: Vec<&str> = controllers.split_whitespace().collect();
            let found = found(format!("version 2 with {}", listed.join(", ")));
            bounds(found, listed.contains(&"pids"), devices)
        }
        Cgroups::V1 { parents } => {
            let listed: Vec<&str> = parents.iter().map(|p| p.controller.as_str()).collect();
            let has = |name| listed.contains(&name);
            let found = found(format!("version 1 with {}", listed.join(", ")));
            bounds(found, has("pids"), has("devices"))
        }
        Cgroups::None => found(why.unwrap_or_default()).but(
            State::Missing,
            "run the agent as root on a machine with the cpu and memory controllers, of version 2 or 1",
        ),
    }
}

/// The interface that an agent would use. Only making groups tells whether they can be made: those that
/// were not there before are gone after it.
fn tried(name: &str) -> (Cgroups, Option<String>) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let roots = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (root, kind) = (fields.next()?, fields.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(root))
    });
    let below = |root: PathBuf| {
        let folder = root.join(name);
        let all: Vec<PathBuf> = folder.ancestors().map(Path::to_owned).collect();
        all.into_iter().filter(|folder| !folder.exists())
    };
    let missing: Vec<PathBuf> = roots.flat_map(below).collect();
    let found = Cgroups::detect(name);
    for folder in missing {
        // What could not be made is not there.
        let _ = std::fs::remove_dir(folder);
    }
    found
}

/// What control groups leave unbounded for want of a controller.
fn bounds(found: Finding, pids: bool, devices: bool) -> Finding {
    match (pids, devices) {
        (true, true) => found,
        (false, _) => found.but(
            State::Warning,
            "let the kernel offer the pids controller: without it nothing bounds how many processes a job has",
        ),
        (true, false) => found.but(
            State::Warning,
            "run the agent as root and mount the devices controller (version 1), or use a kernel that asks programs about devices (version 2): without that a job is not kept from other jobs' device files",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(findings: &[Finding]) -> Vec<State> {
        findings.iter().map(|finding| finding.state).collect()
    }

    #[test]
    fn who_is_not_root_runs_jobs_only_where_that_was_accepted() {
        let told = [
            rights(true, false),
            rights(false, true),
            rights(false, false),
        ];
        assert_eq!(states(&told), [State::Ok, State::Warning, State::Missing]);
        let remedy = told[2].remedy.as_deref();
        assert!(remedy.is_some_and(|words| words.contains("allow_unisolated")));
    }

    #[test]
    fn a_kernel_is_judged_by_its_version_whatever_follows_it() {
        let told = ["6.18.0-cloud-amd64", "5.10.0", "4.18.0-553.el8", "odd"].map(kernel);
        let wanted = [State::Ok, State::Warning, State::Missing, State::Warning];
        assert_eq!(states(&told), wanted);
    }

    #[test]
    fn a_clock_that_nothing_keeps_is_a_warning_and_stops_nobody() {
        let told = [clock(Some(true)), clock(Some(false)), clock(None)];
        assert_eq!(states(&told), [State::Ok, State::Warning, State::Warning]);
        assert!(told.iter().all(|finding| !finding.needed));
    }

    #[test]
    fn room_is_judged_by_what_a_start_needs() {
        let least = 256 * BYTES_PER_MIB;
        let told = [least * 100, least * 2, least - 1].map(|free| room(free, least));
        assert_eq!(states(&told), [State::Ok, State::Warning, State::Missing]);
        let remedy = told[2].remedy.as_deref();
        assert!(remedy.is_some_and(|words| words.contains("256 MiB")));
    }

    #[test]
    fn a_state_folder_that_is_not_there_yet_is_no_obstacle() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(state_folder(folder.path()).state, State::Ok);
        let below = folder.path().join("a/b");
        assert_eq!(state_folder(&below).state, State::Warning);
        assert!(!below.exists(), "looking makes nothing");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert_eq!(state_folder(&file.join("state")).state, State::Missing);
    }
}
