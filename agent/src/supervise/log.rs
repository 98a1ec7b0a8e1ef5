//! A job's log: one file with a bound, which says where something is missing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A log that takes so many bytes and no more.
pub struct BoundedLog {
    file: File,
    written: u64,
    bytes_max: u64,
    /// Bytes that a full disk swallowed since the last one that was written.
    lost: u64,
    /// Bytes that came after the bound.
    dropped: u64,
}

impl BoundedLog {
    /// Opens the log, going on where an earlier one ended.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let written = file.metadata()?.len();
        Ok(Self {
            file,
            written,
            bytes_max,
            lost: 0,
            dropped: 0,
        })
    }

    /// Appends what a job wrote. Never fails: a job is not to end because a disk is full.
    pub fn append(&mut self, bytes: &[u8]) {
        let room =
            usize::try_from(self.bytes_max.saturating_sub(self.written)).unwrap_or(usize::MAX);
        let (kept, beyond) = bytes.split_at(room.min(bytes.len()));
        if !kept.is_empty() {
            self.mark_loss();
            self.write(kept);
        }
        if !beyond.is_empty() {
            if self.dropped == 0 {
                self.mark(&format!(
                    "the log reached its bound of {} bytes; what follows was dropped",
                    self.bytes_max
                ));
            }
            self.dropped += beyond.len() as u64;
        }
    }

    /// Says at the end how much is missing.
    pub fn close(&mut self) {
        self.mark_loss();
        if self.dropped > 0 {
            self.mark(&format!("{} bytes were dropped", self.dropped));
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(count) if count > 0 => {
                    self.written += count as u64;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.lost += rest.len() as u64;
                    return;
                }
            }
        }
    }

    fn mark_loss(&mut self) {
        if self.lost > 0 {
            let line = format!(
                "\n[allotment: {} bytes were lost: the disk was full]\n",
                self.lost
            );
            if self.file.write_all(line.as_bytes()).is_ok() {
                self.lost = 0;
            }
        }
    }

    /// Markers are not counted against the bound: they are few and short.
    fn mark(&mut self, text: &str) {
        let _ = write!(self.file, "\n[allotment: {text}]\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_at_its_bound_with_a_visible_marker() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = BoundedLog::open(&path, 10).expect("a log");
        log.append(b"12345678");
        log.append(b"9abcdef");
        log.append(b"ghi");
        log.close();
        let text = std::fs::read_to_string(&path).expect("read");
        assert!(
            text.starts_with("123456789a\n[allotment: the log reached"),
            "{text}"
        );
        assert!(
            text.ends_with("[allotment: 8 bytes were dropped]\n"),
            "{text}"
        );
    }
}
