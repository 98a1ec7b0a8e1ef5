//! Which device files a job may open: its control group refuses all others, whatever their modes
//! say.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};

use super::cgroup::set;

/// The memory devices `null`, `zero`, `full`, `random`, `urandom`, and `tty`, `ptmx` and the terminals
/// behind it: what programs take for granted on any machine. Their numbers are the kernel's ABI.
const STANDARD: [DeviceFile; 8] = [
    DeviceFile::character(1, Some(3)),
    DeviceFile::character(1, Some(5)),
    DeviceFile::character(1, Some(7)),
    DeviceFile::character(1, Some(8)),
    DeviceFile::character(1, Some(9)),
    DeviceFile::character(5, Some(0)),
    DeviceFile::character(5, Some(2)),
    DeviceFile::character(136, None),
];

/// A device file by what the kernel knows it by; its name is nobody's promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceFile {
    /// Whether it is a block device; else it is a character device.
    pub block: bool,
    /// The number of its driver.
    pub major: u32,
    /// Its own number there; none for all of them.
    pub minor: Option<u32>,
}

impl DeviceFile {
    const fn character(major: u32, minor: Option<u32>) -> Self {
        Self {
            block: false,
            major,
            minor,
        }
    }

    /// The device file at a path; none where there is nothing, or something else.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let found = match path.metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let kind = found.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return Ok(None);
        }
        // The kernel gives 12 bits to one and 20 to the other.
        let number = |part: u64| u32::try_from(part).map_err(io::Error::other);
        Ok(Some(Self {
            block: kind.is_block_device(),
            major: number(major(found.rdev()))?,
            minor: Some(number(minor(found.rdev()))?),
        }))
    }

    /// A rule of version 1 that lets it be read and written, and no more of it be made.
    fn rule(&self) -> String {
        let kind = if self.block { 'b' } else { 'c' };
        let minor = self.minor.map_or_else(|| "*".to_owned(), |m| m.to_string());
        format!("{kind} {}:{minor} rw", self.major)
    }
}

/// All that a job may open which has these of its own.
pub fn all(own: &[DeviceFile]) -> Vec<DeviceFile> {
    STANDARD.iter().chain(own).copied().collect()
}

/// Bars a group of version 1 from all device files but these.
pub fn bar_v1(folder: &Path, open: &[DeviceFile]) -> io::Result<()> {
    set(folder, "devices.deny", "a")?;
    open.iter()
        .try_for_each(|file| set(folder, "devices.allow", file.rule()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_file_is_known_by_its_numbers() {
        let null = DeviceFile::at(Path::new("/dev/null")).expect("looked at");
        assert_eq!(null, Some(STANDARD[0]));
        for other in ["/dev", "/dev/none", "/etc/passwd"] {
            assert_eq!(DeviceFile::at(Path::new(other)).expect("looked at"), None);
        }
        assert_eq!(STANDARD[0].rule(), "c 1:3 rw");
        assert_eq!(STANDARD[7].rule(), "c 136:* rw");
    }
}
