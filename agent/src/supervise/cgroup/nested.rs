//! Groups below a job's own, which container runtimes make, and kills for want of memory in them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Cgroups, Group, set};

/// Deepest group that is looked into: a runtime makes two below a job's.
const DEPTH_MAX: usize = 8;
/// Most groups of one job: a job cannot make any, and a runtime makes a handful.
const GROUPS_MAX: usize = 1024;

/// A group and all below it, each before those below it.
pub(super) fn all(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let (mut at, mut depth) = (0, 0);
    while at < found.len() && depth < DEPTH_MAX {
        let level = at..found.len();
        for next in level.clone() {
            let below = fs::read_dir(&found[next]).into_iter().flatten().flatten();
            let folders = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let room = GROUPS_MAX.saturating_sub(found.len());
            found.extend(
                folders
                    .map(|entry| entry.path())
                    .take(room)
                    .collect::<Vec<_>>(),
            );
        }
        at = level.end;
        depth += 1;
    }
    found
}

/// Counts kills for want of memory at a job's limit, also those in groups that are gone when the job has
/// ended: version 1 counts a kill in the group of who was killed, and a runtime removes that.
#[derive(Debug)]
pub struct OutOfMemory {
    group: Group,
    /// Of version 1 alone: told by the kernel whenever memory was short at the limit.
    told: Option<(EventFd, File)>,
}

impl OutOfMemory {
    /// Begins to count; nothing may run in the group yet.
    pub fn watch(cgroups: &Cgroups, name: &str) -> io::Result<Self> {
        let group = cgroups.group(name);
        let Cgroups::V1 { parents } = cgroups else {
            return Ok(Self { group, told: None });
        };
        let memory = parents.iter().find(|parent| parent.controller == "memory");
        let told = memory.map(|parent| notified(&parent.folder.join(name)));
        Ok(Self {
            group,
            told: told.transpose()?,
        })
    }

    /// Whether anything was killed so far.
    pub fn killed(&self) -> bool {
        let told = self.told.as_ref().is_some_and(|(events, _)| {
            let mut count = [0; 8];
            // What nobody has told yet would block: that is an error here.
            let read = nix::unistd::read(events, &mut count);
            read.is_ok_and(|read| read == count.len() && u64::from_ne_bytes(count) > 0)
        });
        told || self.group.oom_kills() > 0
    }
}

fn notified(folder: &Path) -> io::Result<(EventFd, File)> {
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    let events = EventFd::from_value_and_flags(0, flags)?;
    let control = OpenOptions::new()
        .read(true)
        .open(folder.join("memory.oom_control"))?;
    let asked = format!("{} {}", events.as_raw_fd(), control.as_raw_fd());
    set(folder, "cgroup.event_control", asked)?;
    Ok((events, control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_above_before_below() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("a/b/c");
        fs::create_dir_all(&deep).expect("made");
        fs::write(folder.path().join("a/cgroup.procs"), "").expect("written");
        let found = all(folder.path());
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], folder.path());
        assert_eq!(found[3], deep);
        let none = all(Path::new("/nowhere/at/all"));
        assert_eq!(none, [PathBuf::from("/nowhere/at/all")]);
    }
}
