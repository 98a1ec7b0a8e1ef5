//! What a job left in its output folder, kept when it has ended.
//!
//! Files are moved into a folder that is the agent's alone, under numbers: no name that a job chose is a path
//! of ours afterwards, and no link of it lies there. Their names stand in a list.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, fchown, getegid, geteuid, unlinkat};
use serde::Serialize;

use crate::files::{self, Durability};
use crate::removal;
use crate::supervise::open_folder;

/// The name of the list beside the files, which are called by their number.
pub const LIST: &str = "list.json";
/// Most files that are kept: a page shows them all.
const FILES_MAX: usize = 1000;
/// Entries that are looked at to find them, so that a folder of millions is not walked to its end.
const ENTRIES_MAX: usize = 20_000;
/// Folders within folders; deeper ones are a mistake or an attack, and each takes a descriptor.
const DEPTH_MAX: usize = 16;
/// Longest path in bytes: the kernel's own bound.
const PATH_BYTES_MAX: usize = 4096;

/// What a job left.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct List {
    /// The files by path; the first is number 0.
    pub files: Vec<Kept>,
    /// How many entries were not kept: they were no plain files of the job's own, too many, too deep or too
    /// large.
    pub dropped: u64,
}

/// A file that is kept.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its path below the output folder; what is no text in it is replaced.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Moves what lies in `output` to `kept`. `owner` is the job's user, where it has one of its own. Without an
/// output folder, or with nothing in it, nothing is kept. What was kept of it before stays.
pub fn keep(output: &Path, kept: &Path, owner: Option<u32>, bytes_max: u64) -> io::Result<()> {
    let folder = match open_folder(output) {
        Err(Errno::ENOENT) => return Ok(()),
        opened => opened?,
    };
    if kept.join(LIST).exists() {
        return Ok(());
    }
    removal::remove(kept)?;
    files::ensure_folder(kept, 0o700)?;
    let mut keeper = Keeper {
        into: open_folder(kept)?,
        owner: owner.unwrap_or_else(|| geteuid().as_raw()),
        bytes_left: bytes_max,
        entries: 0,
        list: List::default(),
    };
    keeper.walk(&folder, "", 0)?;
    let list = keeper.list;
    if list == List::default() {
        return removal::remove(kept);
    }
    files::write_json(&kept.join(LIST), &list, Durability::Buffered)
}

struct Keeper {
    into: OwnedFd,
    owner: u32,
    bytes_left: u64,
    entries: usize,
    list: List,
}

impl Keeper {
    /// Takes what lies in a folder, by name; `below` is its path.
    fn walk(&mut self, folder: &OwnedFd, below: &str, depth: usize) -> io::Result<()> {
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                self.list.dropped += 1;
                break;
            }
            names.push(entry?.file_name());
        }
        names.sort();
        for name in names {
            let path = format!("{below}{}", name.to_string_lossy());
            let Ok(found) = fstatat(
                folder.as_fd(),
                name.as_os_str(),
                AtFlags::AT_SYMLINK_NOFOLLOW,
            ) else {
                self.list.dropped += 1;
                continue;
            };
            let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
            if kind == SFlag::S_IFDIR && depth < DEPTH_MAX {
                match open_beneath(folder, &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
                    Ok(inner) => self.walk(&inner, &format!("{path}/"), depth + 1)?,
                    Err(_) => self.list.dropped += 1,
                }
            } else if kind != SFlag::S_IFREG || !self.take(folder, &name, path, &found)? {
                self.list.dropped += 1;
            }
        }
        Ok(())
    }

    /// Takes a file, unless it is not the job's own or too much; whether it was taken. A second name of a
    /// file may be one of another's: what has more than one is left.
    fn take(
        &mut self,
        folder: &OwnedFd,
        name: &OsString,
        path: String,
        found: &FileStat,
    ) -> io::Result<bool> {
        let bytes = u64::try_from(found.st_size).unwrap_or(u64::MAX);
        if found.st_uid != self.owner
            || found.st_nlink != 1
            || bytes > self.bytes_left
            || path.len() > PATH_BYTES_MAX
            || self.list.files.len() >= FILES_MAX
        {
            return Ok(false);
        }
        let number = self.list.files.len().to_string();
        renameat(
            folder.as_fd(),
            name.as_os_str(),
            self.into.as_fd(),
            number.as_str(),
        )?;
        let taken = open_beneath(&self.into, &OsString::from(&number), OFlag::O_RDONLY)?;
        // Looked at again, now that nobody else can put another in its place.
        let now = fstat(taken.as_fd())?;
        if (now.st_ino, now.st_dev) != (found.st_ino, found.st_dev) {
            unlinkat(
                self.into.as_fd(),
                number.as_str(),
                UnlinkatFlags::NoRemoveDir,
            )?;
            return Ok(false);
        }
        fchown(taken.as_fd(), Some(geteuid()), Some(getegid()))?;
        fchmod(taken.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)?;
        drop(File::from(taken));
        self.bytes_left -= bytes;
        self.list.files.push(Kept { path, bytes });
        Ok(true)
    }
}

fn open_beneath(at: &OwnedFd, name: &OsString, flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(at.as_fd(), name.as_os_str(), how)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn kept(output: &Path, bytes_max: u64) -> (serde_json::Value, tempfile::TempDir) {
        let root = tempfile::tempdir().expect("a folder");
        let into = root.path().join("kept");
        keep(output, &into, None, bytes_max).expect("kept");
        let list = fs::read(into.join(LIST)).expect("a list");
        (serde_json::from_slice(&list).expect("JSON"), root)
    }

    #[test]
    fn plain_files_are_kept_under_numbers_whatever_they_are_called() {
        let output = tempfile::tempdir().expect("a folder");
        let deep = output.path().join("a/b");
        fs::create_dir_all(&deep).expect("made");
        fs::write(deep.join("model.bin"), "weights").expect("written");
        fs::write(output.path().join("<img onerror=x>\n\u{1b}[2J"), "x").expect("written");
        let (list, root) = kept(output.path(), 1000);
        assert_eq!(
            list,
            serde_json::json!({"files": [
                {"path": "<img onerror=x>\n\u{1b}[2J", "bytes": 1},
                {"path": "a/b/model.bin", "bytes": 7},
            ], "dropped": 0})
        );
        let text = fs::read_to_string(root.path().join("kept/1")).expect("read");
        assert_eq!(text, "weights");
    }

    #[test]
    fn links_pipes_second_names_and_what_is_too_large_are_not_kept_and_counted() {
        let output = tempfile::tempdir().expect("a folder");
        let secret = tempfile::NamedTempFile::new_in(output.path().parent().expect("a parent"))
            .expect("a file");
        symlink(secret.path(), output.path().join("link")).expect("linked");
        symlink("/etc", output.path().join("etc")).expect("linked");
        fs::hard_link(secret.path(), output.path().join("hard")).expect("linked");
        nix::unistd::mkfifo(&output.path().join("pipe"), Mode::S_IRWXU).expect("made");
        fs::write(output.path().join("large"), [0; 2000]).expect("written");
        fs::write(output.path().join("small"), [0; 900]).expect("written");
        let (list, _root) = kept(output.path(), 1000);
        assert_eq!(
            list,
            serde_json::json!({"files": [{"path": "small", "bytes": 900}], "dropped": 5})
        );
    }

    #[test]
    fn so_many_files_are_kept_and_no_more() {
        let output = tempfile::tempdir().expect("a folder");
        for number in 0..FILES_MAX + 3 {
            fs::write(output.path().join(format!("{number:05}")), "x").expect("written");
        }
        let (list, _root) = kept(output.path(), 1_000_000);
        assert_eq!(list["files"].as_array().map(Vec::len), Some(FILES_MAX));
        assert_eq!(list["dropped"], 3);
    }

    #[test]
    fn without_anything_in_it_nothing_is_kept() {
        let output = tempfile::tempdir().expect("a folder");
        let into = output.path().with_extension("kept");
        keep(output.path(), &into, None, 1000).expect("nothing to keep");
        keep(&output.path().join("none"), &into, None, 1000).expect("nothing to keep");
        assert!(!into.exists());
    }
}
