//! Removes what others made, however deep it is and whatever they did to it.
//!
//! Nothing here calls itself, and few descriptors are open: a folder that holds something is moved up into
//! the one that is removed before its turn comes. The library's removal takes a frame of the stack and a
//! descriptor for each level, and how many there are is the choice of whoever made them.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat};
use nix::unistd::{UnlinkatFlags, fchown, getegid, geteuid, unlinkat};

/// Readings of one folder until it is empty. Some file systems pass over entries while others are
/// removed; more help only against somebody who fills it again for ever.
const READS_MAX: u32 = 1000;

/// Removes a file or a whole folder; what is not there is removed already. Links in it are removed, not
/// followed. Each folder is taken back from its owner first, who can put nothing into it any more.
pub fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = match openat(AT_FDCWD, parent, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        opened => opened?,
    };
    if gone(&parent, name)? {
        return Ok(());
    }
    let top = take(&parent, name)?;
    let mut moved = 0;
    let mut refilled = 0;
    while refilled <= READS_MAX {
        let mut found = false;
        for entry in entries(&top)? {
            found = true;
            let name = entry?.file_name();
            if gone(&top, &name)? {
                continue;
            }
            empty(&take(&top, &name)?, &top, &mut moved)?;
            if !gone(&top, &name)? {
                refilled += 1;
            }
        }
        if !found {
            if gone(&parent, name)? {
                return Ok(());
            }
            refilled += 1;
        }
    }
    Err(io::ErrorKind::DirectoryNotEmpty.into())
}

/// Empties a folder: what holds something is moved up.
fn empty(folder: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    for _ in 0..READS_MAX {
        let mut found = false;
        for entry in entries(folder)? {
            found = true;
            let name = entry?.file_name();
            if !gone(folder, &name)? {
                move_up(folder, &name, top, moved)?;
            }
        }
        if !found {
            return Ok(());
        }
    }
    Err(io::ErrorKind::DirectoryNotEmpty.into())
}

/// Moves a folder to a name that nothing there has.
fn move_up(folder: &OwnedFd, name: &OsStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    let mut opened = false;
    loop {
        *moved += 1;
        let aside = format!("moved-{moved}");
        match renameat(folder.as_fd(), name, top.as_fd(), aside.as_str()) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            // Somebody has made what is called so; the next number comes.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            // Who is not root may move only what he may write to.
            Err(Errno::EACCES) if !opened => {
                opened = true;
                open_to_us(folder, name)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes an entry unless it is a folder that holds something; whether it is gone.
fn gone(folder: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    let refused = match unlinkat(folder.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(true),
        Err(refused @ (Errno::EISDIR | Errno::EPERM)) => refused,
        Err(error) => return Err(error.into()),
    };
    match unlinkat(folder.as_fd(), name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        // No folder: a file that may not be removed.
        Err(Errno::ENOTDIR) => Err(refused.into()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a folder, through no link, and makes it ours alone.
fn take(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = || openat(folder.as_fd(), name, flags, Mode::empty());
    let taken = match open() {
        Err(Errno::EACCES) => {
            open_to_us(folder, name)?;
            open()?
        }
        opened => opened?,
    };
    // On storage that lets root do no more than others it stays its owner's, and so does what keeps us
    // from removing what lies in it: that is told then.
    let _ = fchown(taken.as_fd(), Some(geteuid()), Some(getegid()));
    let _ = fchmod(taken.as_fd(), Mode::S_IRWXU);
    Ok(taken)
}

/// Only where we are not root: a folder that its owner, who is us, closed to itself.
fn open_to_us(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let follow = FchmodatFlags::FollowSymlink;
    Ok(fchmodat(folder.as_fd(), name, Mode::S_IRWXU, follow)?)
}

fn entries(folder: &OwnedFd) -> io::Result<fs::ReadDir> {
    fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use nix::sys::stat::mkdirat;

    use super::*;

    /// As many as a job can make within a second; each is a frame of the stack to what recurses.
    const LEVELS: u32 = 25_000;

    #[test]
    fn a_folder_that_is_deeper_than_any_stack_is_removed() {
        // In memory: some disks take milliseconds to give back what each folder held.
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let top = folder.path().join("top");
        fs::create_dir(&top).expect("made");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let mut at = openat(AT_FDCWD, &top, flags, Mode::empty()).expect("opened");
        for _ in 0..LEVELS {
            mkdirat(at.as_fd(), "d", Mode::S_IRWXU).expect("made");
            at = openat(at.as_fd(), "d", flags, Mode::empty()).expect("opened");
        }
        remove(&top).expect("removed");
        assert!(!top.exists());
    }

    #[test]
    fn whatever_lies_in_a_folder_goes_and_no_link_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let elsewhere = tempfile::tempdir().expect("another folder");
        fs::write(elsewhere.path().join("precious"), "x").expect("written");
        let top = folder.path().join("top");
        for branch in ["a/b/c", "a/b/d/e", "moved-1/f", "closed/deep"] {
            let made = top.join(branch);
            fs::create_dir_all(&made).expect("made");
            fs::write(made.join("file"), "x").expect("written");
            symlink(elsewhere.path(), made.join("link")).expect("linked");
        }
        fs::write(top.join("a/moved-2"), "x").expect("written");
        let closed = fs::Permissions::from_mode(0o000);
        fs::set_permissions(top.join("closed"), closed).expect("closed");
        remove(&top).expect("removed");
        assert!(!top.exists() && elsewhere.path().join("precious").exists());
        symlink(elsewhere.path(), &top).expect("linked");
        remove(&top).expect("removed");
        remove(&top).expect("nothing to remove");
        remove(&top.join("below/nothing")).expect("nothing to remove");
        assert!(elsewhere.path().join("precious").exists());
    }
}
