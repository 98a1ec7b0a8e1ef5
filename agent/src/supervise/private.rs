//! What a job has in the place of what all users of a machine share: folders for temporary files, shared
//! memory, System V's and POSIX's objects, and a `/proc` that lists its own user's processes.
//!
//! It is made by a new process of the supervisor's in namespaces of its own before it gives up its
//! rights, and goes with the last process in them: the machine's own mounts are never changed.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, mkdirat, umask};
use nix::sys::statvfs::{FsFlags, statvfs};
use serde::{Deserialize, Serialize};

use super::spawn::{open_folder, step_down};

/// Where shared memory has its names.
const SHARED_MEMORY: &str = "/dev/shm";
/// Where the queues of POSIX have theirs, on machines that show them.
const QUEUES: &str = "/dev/mqueue";

/// What a job has of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Private {
    /// Folders that it finds in the place of others.
    pub folders: Vec<InPlace>,
    /// Its shared memory; none where it has the machine's.
    pub memory: Option<SharedMemory>,
    /// Whether `/proc` lists only what its user may look into.
    pub processes_hidden: bool,
    /// Folders that it finds where they are, also below one that is not the machine's.
    pub kept: Vec<PathBuf>,
}

/// A folder that is found where another one is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InPlace {
    /// The folder.
    pub own: PathBuf,
    /// Where.
    pub of: PathBuf,
}

/// Shared memory of a job's own, which counts as its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemory {
    /// How much fits; 0 is half of the machine's memory, which is the kernel's own bound.
    pub mib_max: i64,
}

/// Whether this machine lets us give jobs anything of their own, and whether its `/proc` can hide
/// processes. Tried on a thread of its own, which alone sees what is made.
pub fn able() -> io::Result<bool> {
    let attempt = |processes_hidden| {
        let private = Private {
            folders: Vec::new(),
            memory: Some(SharedMemory { mib_max: 1 }),
            processes_hidden,
            kept: Vec::new(),
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("private".to_owned());
            match thread.spawn_scoped(scope, || private.enter())?.join() {
                Ok(entered) => entered,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    };
    attempt(false)?;
    Ok(attempt(true).is_ok())
}

impl Private {
    /// Moves the calling process, or thread, into it.
    pub fn enter(&self) -> io::Result<()> {
        let objects = match self.memory {
            Some(_) => CloneFlags::CLONE_NEWIPC,
            None => CloneFlags::empty(),
        };
        unshare(CloneFlags::CLONE_NEWNS | objects)?;
        // What the machine mounts and unmounts later is seen here, or a job would keep it from being
        // unmounted; what is mounted here is seen by nobody else.
        let whole = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        mount(None::<&str>, "/", None::<&str>, whole, None::<&str>)?;
        // Opened while all can be: each may lie below one that is covered.
        let own = self.folders.iter().map(|place| open_folder(&place.own));
        let own: Vec<OwnedFd> = own.collect::<Result<_, _>>()?;
        let kept = self.open_kept()?;
        for (place, own) in self.folders.iter().zip(&own) {
            put(own, &place.of)?;
        }
        if let Some(memory) = &self.memory {
            memory.mount()?;
        }
        if self.processes_hidden {
            // Kernels before 5.8 know numbers alone here and change all of the machine's `/proc` by
            // them: the word they refuse.
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            let hidden = Some("hidepid=invisible");
            mount(Some("proc"), "/proc", Some("proc"), flags, hidden)?;
        }
        let before = umask(Mode::from_bits_truncate(0o022));
        let shown = kept.iter().try_for_each(Kept::show);
        umask(before);
        shown
    }

    /// Opens what is to be found below a folder that is not the machine's, while it still can be.
    fn open_kept(&self) -> io::Result<Vec<Kept<'_>>> {
        let shared = self.memory.iter().map(|_| Path::new(SHARED_MEMORY));
        let folders = self.folders.iter().map(|place| place.of.as_path());
        let covers: Vec<&Path> = folders.chain(shared).collect();
        let covered = |path: &'_ PathBuf| {
            let covers = covers.iter().filter(|of| path.starts_with(of));
            covers.copied().max_by_key(|of| of.as_os_str().len())
        };
        let kept = self.kept.iter();
        kept.filter_map(|path| Some((path, covered(path)?)))
            .map(|(path, of)| {
                Ok(Kept {
                    of,
                    below: path.strip_prefix(of).map_err(io::Error::other)?,
                    folder: open_folder(path)?,
                })
            })
            .collect()
    }
}

/// A folder that is found where it is, below one that is not the machine's.
struct Kept<'p> {
    of: &'p Path,
    below: &'p Path,
    folder: OwnedFd,
}

impl Kept<'_> {
    /// Shows it there. The way to it is made step by step and through no link: it lies in a folder of the
    /// job's team, of which others may run already.
    fn show(&self) -> io::Result<()> {
        let mut at = open_folder(self.of)?;
        for name in self.below {
            match mkdirat(at.as_fd(), name, Mode::from_bits_truncate(0o711)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            at = step_down(&at, Path::new(name))?;
        }
        let (from, to) = (through(&self.folder), through(&at));
        let all = MsFlags::MS_BIND | MsFlags::MS_REC;
        let shown = mount(
            Some(from.as_str()),
            to.as_str(),
            None::<&str>,
            all,
            None::<&str>,
        );
        Ok(shown?)
    }
}

/// Mounts an open folder in the place of another. What the machine forbids there stays forbidden.
fn put(own: &OwnedFd, of: &Path) -> io::Result<()> {
    let flags = forbidden(of)?;
    let bind = MsFlags::MS_BIND;
    let own = through(own);
    mount(Some(own.as_str()), of, None::<&str>, bind, None::<&str>)?;
    let again = bind | MsFlags::MS_REMOUNT | flags;
    Ok(mount(None::<&str>, of, None::<&str>, again, None::<&str>)?)
}

/// A path that leads to an open folder, whatever covers its names.
fn through(folder: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", folder.as_raw_fd())
}

impl SharedMemory {
    fn mount(&self) -> io::Result<()> {
        let flags = forbidden(Path::new(SHARED_MEMORY))?;
        let bound = match self.mib_max {
            0 => "mode=1777".to_owned(),
            mib => format!("mode=1777,size={mib}m"),
        };
        let kind = Some("tmpfs");
        mount(kind, SHARED_MEMORY, kind, flags, Some(bound.as_str()))?;
        let kind = Some("mqueue");
        match mount(kind, QUEUES, kind, flags, None::<&str>) {
            // Nothing is shown there, or this kernel has none.
            Err(Errno::ENOENT | Errno::ENODEV) => Ok(()),
            mounted => Ok(mounted?),
        }
    }
}

/// What nobody may do with the files of a folder that a job has in the place of this one.
fn forbidden(of: &Path) -> io::Result<MsFlags> {
    let always = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let no_programs = statvfs(of)?.flags().contains(FsFlags::ST_NOEXEC);
    Ok(if no_programs {
        always | MsFlags::MS_NOEXEC
    } else {
        always
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters on a thread of its own, which alone sees what is made.
    fn entered(private: &Private) -> io::Result<()> {
        std::thread::scope(|scope| scope.spawn(|| private.enter()).join().expect("no panic"))
    }

    #[test]
    fn the_way_to_a_kept_folder_follows_no_link_of_the_team() {
        if !matches!(able(), Ok(true)) {
            eprintln!("NOT CHECKED: this machine lets us mount nothing");
            return;
        }
        let (kept, own) = (
            tempfile::tempdir_in("/tmp").expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let below = kept.path().join("sets/data");
        std::fs::create_dir_all(&below).expect("made");
        let private = Private {
            folders: vec![InPlace {
                own: own.path().to_owned(),
                of: PathBuf::from("/tmp"),
            }],
            memory: None,
            processes_hidden: false,
            kept: vec![below],
        };
        entered(&private).expect("the way is made");
        let way = own.path().join(kept.path().file_name().expect("a name"));
        assert!(way.join("sets/data").is_dir());

        let elsewhere = tempfile::tempdir_in("/var/tmp").expect("a folder");
        std::fs::remove_dir_all(&way).expect("removed");
        std::os::unix::fs::symlink(elsewhere.path(), &way).expect("a link");
        entered(&private).expect_err("refused");
        let made = elsewhere.path().read_dir().expect("listed").count();
        assert_eq!(made, 0, "nothing was made behind the link");
    }
}
