//! Writes a job's log within a bound: it is rotated and packed as it grows, and its oldest part is dropped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Segment, open_name, packed_name, segments};
use crate::files;

/// Most bytes of a segment: packing one takes some ten milliseconds, in which the job waits.
const SEGMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Least: with a bound of a few bytes, as tests have, each line would be a file.
const SEGMENT_BYTES_MIN: u64 = 256;
/// A bound is of at least so many segments: dropping one loses no more than an eighth.
const SEGMENTS_MIN: u64 = 8;
/// What is smaller is left as it is when a log ends: it takes one block of the disk either way.
const PACKED_BYTES_MIN: u64 = 4096;

/// A log that keeps the last so many bytes of what a job writes.
pub struct BoundedLog {
    folder: PathBuf,
    file: File,
    /// Where in the stream the open segment begins.
    start: u64,
    /// Bytes in it.
    written: u64,
    segment_bytes: u64,
    bytes_max: u64,
    /// Bytes that a full disk swallowed since the last one that was written.
    lost: u64,
}

impl BoundedLog {
    /// Opens the log, going on where an earlier one ended.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        files::ensure_folder(folder, 0o700)?;
        let start = match segments(folder)?.last() {
            None => 0,
            Some(Segment {
                start,
                packed: Some(length),
                ..
            }) => start + length,
            Some(segment) => segment.start,
        };
        let file = open_segment(folder, start)?;
        let written = file.metadata()?.len();
        Ok(Self {
            folder: folder.to_owned(),
            file,
            start,
            written,
            segment_bytes: (bytes_max / SEGMENTS_MIN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
            bytes_max,
            lost: 0,
        })
    }

    /// Appends what a job wrote. Never fails: a job is not to end because a disk is full.
    pub fn append(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.mark_loss();
            let room = self.segment_bytes.saturating_sub(self.written).max(1);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.write(now);
            rest = later;
            if self.written >= self.segment_bytes {
                self.rotate();
            }
        }
    }

    /// Says at the end how much is missing, and packs what is large.
    pub fn close(&mut self) {
        self.mark_loss();
        if self.written >= PACKED_BYTES_MIN
            && let Err(error) = pack(&self.folder, self.start, self.written)
        {
            tracing::debug!(%error, "the end of a log stays as it was written");
        }
        self.trim();
    }

    /// Begins a new segment, packs the former and drops the oldest. Where the disk has no room for that, the
    /// open one goes on.
    fn rotate(&mut self) {
        // The next is there before this one is packed: a reader never sees an end that is none.
        let next = self.start + self.written;
        let Ok(file) = open_segment(&self.folder, next) else {
            self.trim();
            return;
        };
        let (start, written) = (self.start, self.written);
        (self.file, self.start, self.written) = (file, next, 0);
        if let Err(error) = pack(&self.folder, start, written) {
            tracing::debug!(%error, "a part of a log stays as it was written");
        }
        self.trim();
    }

    /// Drops the oldest segments until the rest is within the bound; the open one stays.
    fn trim(&self) {
        let Ok(all) = segments(&self.folder) else {
            return;
        };
        let size = |segment: &Segment| fs::metadata(&segment.path).map_or(0, |found| found.len());
        let mut bytes: u64 = all.iter().map(size).sum();
        for segment in &all {
            if bytes <= self.bytes_max || segment.start >= self.start {
                return;
            }
            bytes -= size(segment);
            if fs::remove_file(&segment.path).is_err() {
                return;
            }
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

    /// Says that something is missing, once there is room to say it; a line of which only a part was
    /// written is said again.
    fn mark_loss(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            let line = format!("\n[allotment: {lost} bytes were lost: the disk was full]\n");
            self.write(line.as_bytes());
            if self.lost > 0 {
                self.lost = lost;
            }
        }
    }
}

fn open_segment(folder: &Path, start: u64) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(folder.join(open_name(start)))
}

/// Packs a segment that is written to no more. It is there all the while, in one form or the other.
fn pack(folder: &Path, start: u64, length: u64) -> io::Result<()> {
    let (from, aside) = (folder.join(open_name(start)), folder.join("packing"));
    let packed = write_packed(&from, &aside)
        .and_then(|()| fs::rename(&aside, folder.join(packed_name(start, length))));
    if packed.is_err() {
        // Else the room that was short stays taken.
        let _ = fs::remove_file(&aside);
    }
    packed?;
    fs::remove_file(from)
}

fn write_packed(from: &Path, to: &Path) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    let mut encoder = GzEncoder::new(file, Compression::fast());
    io::copy(&mut File::open(from)?, &mut encoder)?;
    encoder.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::cursor::tests::read_all;
    use crate::logs::size;

    #[test]
    fn a_log_within_its_bound_is_read_as_it_was_written_however_often_it_was_rotated() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        // Bytes of no encoding, without a line's end, with escapes: a log is bytes.
        let all: Vec<u8> = (0..100_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let mut log = BoundedLog::open(&path, 1024 * 1024).expect("a log");
        for piece in all.chunks(777) {
            log.append(piece);
        }
        drop(log);
        // A supervisor that takes over goes on where the other ended.
        let mut log = BoundedLog::open(&path, 1024 * 1024).expect("a log");
        log.append(b"the end");
        log.close();
        for from in [0, 1, 777, 99_999, 100_000, 100_006] {
            let (offset, bytes) = read_all(&path, from as u64);
            assert_eq!(offset, from as u64);
            let expected = [&all[from.min(all.len())..], b"the end"].concat();
            let cut = from.saturating_sub(all.len());
            assert!(bytes == expected[cut..], "from {from}");
        }
    }

    #[test]
    fn what_is_packed_takes_less_than_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = BoundedLog::open(&path, 64 * 1024).expect("a log");
        for line in 0..20_000 {
            log.append(format!("step {line}: loss is going down\n").as_bytes());
        }
        log.close();
        let (bytes, _) = size(&path).expect("its size");
        assert!(bytes < 120_000, "{bytes} of 640 kB");
    }

    #[test]
    fn a_log_beyond_its_bound_keeps_its_end_says_what_was_dropped_and_keeps_its_offsets() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = BoundedLog::open(&path, 4096).expect("a log");
        // What no packing makes smaller.
        let mut word: u64 = 1;
        let mut all = Vec::new();
        for _ in 0..10_000 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let line = format!("{word:016x}\n");
            all.extend_from_slice(line.as_bytes());
            log.append(line.as_bytes());
        }
        log.close();
        let (size, _) = size(&path).expect("its size");
        assert!(size <= 4096 + 512, "{size} bytes");
        let (offset, bytes) = read_all(&path, 5);
        assert_eq!(offset + bytes.len() as u64, all.len() as u64);
        let text = String::from_utf8(bytes.clone()).expect("text");
        let (marker, rest) = text[1..].split_once('\n').expect("a line");
        assert!(
            marker.starts_with("[allotment: ") && marker.contains("dropped"),
            "{marker}"
        );
        assert!(rest.len() > 1000 && all.ends_with(rest.as_bytes()));
        // From the middle of what there is nothing is repeated and nothing left out.
        let from = all.len() as u64 - 100;
        assert_eq!(
            read_all(&path, from),
            (from, all[all.len() - 100..].to_vec())
        );
    }
}
