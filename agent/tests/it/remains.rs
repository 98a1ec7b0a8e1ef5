//! What is left of jobs on a machine: nothing, once they are released.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::rig::Agent;

/// What an agent leaves where jobs have been, by where it is.
pub struct Remains {
    parent: String,
    /// Namespaces of mounts and of objects that were there before.
    spaces: BTreeSet<PathBuf>,
}

impl Remains {
    /// Looks at the machine before an agent runs, and gives it a group of its own; the settings for that.
    pub fn before(agent: &Agent) -> (Self, String) {
        let name = agent.folder.path().file_name().expect("a name");
        let parent = format!("allotment-test/{}", name.to_string_lossy());
        let setting = format!("cgroup_parent = '{parent}'");
        let spaces = spaces();
        (Self { parent, spaces }, setting)
    }

    /// All that is there now and should not be.
    pub fn now(&self, agent: &Agent) -> Vec<String> {
        let mut left = Vec::new();
        let state = agent.state();
        for folder in ["runs", "jobs", "mps", "mps.pipes"] {
            let entries = entries(&state.join(folder));
            left.extend(entries.filter(|path| path.file_name().is_none_or(|name| name != "lease")));
        }
        left.extend(self.groups());
        let mut left: Vec<String> = left.iter().map(|path| path.display().to_string()).collect();
        left.extend(processes(&state));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let folder = agent.folder.path().display().to_string();
        left.extend(
            mounts
                .lines()
                .filter(|line| line.contains(&folder))
                .map(str::to_owned),
        );
        left
    }

    /// Groups of jobs in all hierarchies.
    fn groups(&self) -> Vec<PathBuf> {
        let hierarchies =
            entries(Path::new("/sys/fs/cgroup")).chain([PathBuf::from("/sys/fs/cgroup")]);
        let parents = hierarchies.map(|root| root.join(&self.parent));
        parents
            .flat_map(|parent| entries(&parent).collect::<Vec<_>>())
            .filter(|path| path.is_dir())
            .collect()
    }

    /// Namespaces that are there now and were not before. Those of other tests come and go: what is
    /// there at all of several looks is left.
    pub fn spaces_left(&self) -> BTreeSet<PathBuf> {
        &spaces() - &self.spaces
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let hierarchies =
            entries(Path::new("/sys/fs/cgroup")).chain([PathBuf::from("/sys/fs/cgroup")]);
        for root in hierarchies {
            // One that holds something stays, as does what other tests are in.
            let _ = fs::remove_dir(root.join(&self.parent));
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn numbers() -> impl Iterator<Item = PathBuf> {
    let number = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.parse::<u32>().is_ok())
    };
    entries(Path::new("/proc")).filter(number)
}

/// Supervisors, jobs and daemons of an agent: who names its folder in his arguments or environment.
fn processes(state: &Path) -> Vec<String> {
    let needle = state.display().to_string();
    let named = |path: PathBuf| {
        let read = |file: &str| {
            let bytes = fs::read(path.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let (line, environment) = (read("cmdline"), read("environ"));
        // The agent itself.
        if line.contains(" run --allow-unisolated") {
            return None;
        }
        let all = format!("{line} {environment}");
        all.contains(&needle)
            .then(|| format!("{}: {line}", path.display()))
    };
    numbers().filter_map(named).collect()
}

fn spaces() -> BTreeSet<PathBuf> {
    let of =
        |path: PathBuf| ["mnt", "ipc"].map(|kind| fs::read_link(path.join("ns").join(kind)).ok());
    numbers().flat_map(of).flatten().collect()
}
