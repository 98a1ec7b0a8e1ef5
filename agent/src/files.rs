//! Files that are whole or absent: written aside, then renamed or linked into place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest small file that is read whole: an order with 256 KiB of a job's files fits many
/// times over, and a damaged folder cannot exhaust memory.
const SMALL_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Whether a write must survive a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Synced with its folder before the call returns.
    Synced,
    /// Left to the kernel: it survives our own death only.
    Buffered,
}

/// Replaces `path` by `value` as JSON, readable by its owner only.
pub fn write_json<T: Serialize>(path: &Path, value: &T, durability: Durability) -> io::Result<()> {
    let aside = write_aside(path, value, durability)?;
    fs::rename(&aside, path)?;
    if durability == Durability::Synced {
        sync_parent(path)?;
    }
    Ok(())
}

/// Writes `value` to `path` unless something is there; tells whether it was the first.
pub fn claim_json<T: Serialize>(path: &Path, value: &T) -> io::Result<bool> {
    let aside = write_aside(path, value, Durability::Buffered)?;
    let linked = fs::hard_link(&aside, path);
    fs::remove_file(&aside)?;
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes room on the disk for what will be written to a file from `at` on, so that a disk that has filled since
/// does not keep it from being written. The file looks as it is.
pub fn reserve(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    let (at, bytes) = (offset(at)?, offset(bytes)?);
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, at, bytes) {
        // Some file systems take none ahead: what is written there finds room or does not.
        Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn offset(bytes: u64) -> io::Result<i64> {
    i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Makes a file of nothing but room for so many bytes.
pub fn reserve_new(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    reserve(&file, 0, bytes)
}

/// Replaces `path` by `value` as JSON, written where room was taken for it, which is gone then.
pub fn write_json_in<T: Serialize>(room: &Path, path: &Path, value: &T) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(room)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(room, path)?;
    sync_parent(path)
}

fn write_aside<T: Serialize>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> io::Result<std::path::PathBuf> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or(io::ErrorKind::InvalidInput)?;
    // Two processes may write the same file at once, each aside by its own name.
    let aside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    if durability == Durability::Synced {
        file.sync_all()?;
    }
    Ok(aside)
}

/// Reads JSON; `None` where there is no such file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(SMALL_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Syncs the folder that holds `path`, so that a rename in it survives a power loss.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Makes a folder with exactly this mode, where it is not there yet, with its parents.
pub fn ensure_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_claim_wins() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("claim");
        assert!(claim_json(&path, &1).expect("written"));
        assert!(!claim_json(&path, &2).expect("tried"));
        assert_eq!(read_json::<i32>(&path).expect("read"), Some(1));
        assert_eq!(
            fs::read_dir(folder.path()).expect("listed").count(),
            1,
            "nothing is left aside"
        );
    }
}
