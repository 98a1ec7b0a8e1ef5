//! The node's lease: how long it may run its assignments without hearing from the server.
//!
//! It is kept in a small file that each supervisor reads for itself. The file is written in
//! place, since a rename needs room and a full disk must not end jobs.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use crate::checksum;
use crate::clock;

/// Times that a reader looks again when it meets a write half done.
const READ_TRIES: u32 = 50;
/// Wait between them; a write takes microseconds.
const READ_WAIT: Duration = Duration::from_millis(1);
/// Width of the number in the file: an i64 fits, and the text never changes its length.
const NUMBER_WIDTH: usize = 20;

/// The lease as the agent holds it.
pub struct Lease {
    file: File,
    boot_id: String,
    until: watch::Sender<i64>,
}

impl Lease {
    /// Opens the lease; one of this boot goes on.
    pub fn open(path: &Path, boot_id: &str) -> io::Result<Self> {
        let until = end(path, boot_id);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let lease = Self {
            file,
            boot_id: boot_id.to_owned(),
            until: watch::Sender::new(until),
        };
        lease.write(until)?;
        Ok(lease)
    }

    /// Moves the end on to so long after the moment at which the heartbeat was sent.
    pub fn renew(&self, sent_at_ms: i64, lease_ms: i64) -> io::Result<()> {
        let until = sent_at_ms.saturating_add(lease_ms);
        if until <= *self.until.borrow() {
            return Ok(());
        }
        self.write(until)?;
        self.until.send_replace(until);
        Ok(())
    }

    /// Whether it runs now.
    pub fn runs(&self) -> bool {
        *self.until.borrow() > clock::boot_ms()
    }

    /// Sees each renewal.
    pub fn renewals(&self) -> watch::Receiver<i64> {
        self.until.subscribe()
    }

    fn write(&self, until: i64) -> io::Result<()> {
        let text = format!("{} {until:0NUMBER_WIDTH$}", self.boot_id);
        let line = format!("{text} {}\n", checksum::of(text.as_bytes()));
        self.file.write_all_at(line.as_bytes(), 0)
    }
}

/// The end of the lease in a file, in milliseconds of this boot; 0 where there is none.
pub fn end(path: &Path, boot_id: &str) -> i64 {
    for _ in 0..READ_TRIES {
        match std::fs::read_to_string(path) {
            Ok(line) => {
                if let Some(end) = read(&line, boot_id) {
                    return end;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return 0,
            Err(_) => {}
        }
        std::thread::sleep(READ_WAIT);
    }
    0
}

/// Reads the line; `None` where it is not whole.
fn read(line: &str, boot_id: &str) -> Option<i64> {
    let (text, sum) = line.lines().next()?.rsplit_once(' ')?;
    if checksum::of(text.as_bytes()) != sum {
        return None;
    }
    let (boot, until) = text.rsplit_once(' ')?;
    if boot != boot_id {
        return Some(0);
    }
    until.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_runs_from_when_the_heartbeat_was_sent_and_is_seen_through_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lease");
        let lease = Lease::open(&path, "boot").expect("opened");
        assert!(!lease.runs());
        let sent = clock::boot_ms();
        lease.renew(sent, 60_000).expect("renewed");
        assert!(lease.runs());
        assert_eq!(end(&path, "boot"), sent + 60_000);
        assert_eq!(end(&path, "another boot"), 0);
        // An answer that comes late to an earlier heartbeat shortens nothing.
        lease.renew(sent - 5000, 60_000).expect("renewed");
        assert_eq!(end(&path, "boot"), sent + 60_000);
        drop(lease);
        assert!(Lease::open(&path, "boot").expect("opened").runs());
    }

    #[test]
    fn a_line_half_written_is_not_believed() {
        let text = format!("boot {:0NUMBER_WIDTH$}", 5);
        let whole = format!("{text} {}", checksum::of(text.as_bytes()));
        assert_eq!(read(&whole, "boot"), Some(5));
        assert_eq!(read(&whole.replace('5', "6"), "boot"), None);
        assert_eq!(read("boot 0000", "boot"), None);
    }
}
