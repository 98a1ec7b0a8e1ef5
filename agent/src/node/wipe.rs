//! Wipes what the jobs of a team leave where they share memory with the machine's other users: those
//! by MPS, and all where nothing is a job's own.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::{proc, removal};

/// Where shared memory has its names.
const SHARED_MEMORY: &str = "/dev/shm";

/// Removes shared memory, queues and semaphores of a user of whom nothing runs any more; true where
/// that was so. Programs that another job of the same team runs may hold them.
pub fn wipe(uid: u32) -> io::Result<bool> {
    if proc::runs_as(uid) {
        return Ok(false);
    }
    wipe_names(Path::new(SHARED_MEMORY), uid)?;
    for kind in [Kind::Memory, Kind::Queue, Kind::Semaphores] {
        for id in kind.owned_by(uid)? {
            kind.remove(id)?;
        }
    }
    Ok(true)
}

/// Removes what a user has directly in a folder in which only owners may remove what is theirs, so that
/// nobody can put anything in its place meanwhile.
fn wipe_names(folder: &Path, uid: u32) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if found.uid() != uid {
            continue;
        }
        removal::remove(&entry.path())?;
    }
    Ok(())
}

/// A kind of System V's objects.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Memory,
    Queue,
    Semaphores,
}

impl Kind {
    /// The ids of those of this user.
    fn owned_by(self, uid: u32) -> io::Result<Vec<i32>> {
        let file = match self {
            Self::Memory => "/proc/sysvipc/shm",
            Self::Queue => "/proc/sysvipc/msg",
            Self::Semaphores => "/proc/sysvipc/sem",
        };
        match fs::read_to_string(file) {
            Ok(table) => Ok(owned(&table, uid)),
            // A kernel without them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn remove(self, id: i32) -> io::Result<()> {
        // SAFETY: removing takes no memory of ours.
        #[allow(unsafe_code)]
        let failed = unsafe {
            match self {
                Self::Memory => libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()),
                Self::Queue => libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()),
                Self::Semaphores => libc::semctl(id, 0, libc::IPC_RMID),
            }
        };
        let error = io::Error::last_os_error();
        let gone = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIDRM));
        if failed == 0 || gone {
            Ok(())
        } else {
            Err(error)
        }
    }
}

/// The ids of the rows of a table of the kernel's that are this user's, by the names of its columns.
fn owned(table: &str, uid: u32) -> Vec<i32> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let column = |wanted: &str| names.iter().position(|name| *name == wanted);
    let ids = ["shmid", "msqid", "semid"]
        .iter()
        .find_map(|name| column(name));
    let (Some(id), Some(owner)) = (ids, column("uid")) else {
        return Vec::new();
    };
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(owner).and_then(|field| field.parse().ok()) == Some(uid))
        .filter_map(|fields| fields.get(id)?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_a_user_are_found_by_the_tables_own_columns() {
        let table = "\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime
 169041747          3   666                  4096  9022     0      0 251000 251000 251000 251000          0
         0          4   600                  4096  9022     0      0     0     0     0     0          0
";
        assert_eq!(owned(table, 251_000), [3]);
        assert_eq!(owned(table, 7), Vec::<i32>::new());
        assert_eq!(owned("", 7), Vec::<i32>::new());
    }
}
