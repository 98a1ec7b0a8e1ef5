//! Reads a log from an offset on, over its segments, while it is written and packed.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use super::{Segment, segments};

/// Segments that may vanish in a row under a reader before it gives up: a writer that is that fast drops
/// what it reads for ever.
const TRIES_MAX: u32 = 100;

/// Where a reader of a log is.
pub struct Cursor {
    folder: PathBuf,
    offset: u64,
    /// The open segment, at the offset; of one that is packed the bytes that are left of it.
    open: Option<Box<dyn Read + Send>>,
    /// What is given before anything else is read.
    marker: Vec<u8>,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the stream it begins; beyond what was asked for, where something was dropped.
    pub offset: u64,
    /// The bytes; none at the end of what is there.
    pub bytes: Vec<u8>,
}

impl Cursor {
    /// At an offset.
    pub fn new(folder: PathBuf, offset: u64) -> Self {
        Self {
            folder,
            offset,
            open: None,
            marker: Vec::new(),
        }
    }

    /// The next bytes, at most so many. Where the log was shortened, what is missing is told by a line in the
    /// place of its last bytes: what follows keeps its offset.
    pub fn read(&mut self, bytes_max: usize) -> io::Result<Piece> {
        for _ in 0..TRIES_MAX {
            if !self.marker.is_empty() {
                let bytes = std::mem::take(&mut self.marker);
                return Ok(self.give(bytes));
            }
            if let Some(open) = &mut self.open {
                let mut bytes = Vec::new();
                open.take(bytes_max as u64).read_to_end(&mut bytes)?;
                if !bytes.is_empty() {
                    return Ok(self.give(bytes));
                }
                self.open = None;
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => break,
                // It was packed or dropped between our look and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.folder.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.give(Vec::new()))
    }

    fn give(&mut self, bytes: Vec<u8>) -> Piece {
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        Piece { offset, bytes }
    }

    /// Opens the segment that has the offset; false where there is none yet.
    fn step(&mut self) -> io::Result<bool> {
        let all = segments(&self.folder)?;
        let here = all.iter().rposition(|segment| segment.start <= self.offset);
        if let Some(at) = here {
            let segment = &all[at];
            let next = all.get(at + 1).map(|next| next.start);
            let end = match (segment.packed, next) {
                (Some(length), _) => segment.start + length,
                (None, Some(next)) => next,
                (None, None) => segment.path.metadata()?.len() + segment.start,
            };
            if self.offset < end {
                self.open = Some(open(segment, self.offset, end)?);
                return Ok(true);
            }
        }
        match all.get(here.map_or(0, |at| at + 1)) {
            Some(next) => {
                self.skip_to(next.start);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Goes over what was dropped, and says so in the place of its end.
    fn skip_to(&mut self, start: u64) {
        let line = format!(
            "\n[allotment: the bytes before {start} were dropped: the log had reached its bound]\n"
        );
        let line = line.into_bytes();
        let room = usize::try_from(start - self.offset).unwrap_or(usize::MAX);
        // Of a gap that is smaller than the line its end is given.
        self.marker = line[line.len().saturating_sub(room)..].to_vec();
        self.offset = start - self.marker.len() as u64;
    }
}

fn open(segment: &Segment, offset: u64, end: u64) -> io::Result<Box<dyn Read + Send>> {
    let mut file = File::open(&segment.path)?;
    let (into, left) = (offset - segment.start, end - offset);
    if segment.packed.is_none() {
        file.seek(SeekFrom::Start(into))?;
        return Ok(Box::new(file.take(left)));
    }
    let mut decoder = GzDecoder::new(io::BufReader::new(file));
    io::copy(&mut decoder.by_ref().take(into), &mut io::sink())?;
    Ok(Box::new(decoder.take(left)))
}

/// The offset at which a log ends now.
pub fn end(folder: &Path) -> io::Result<u64> {
    let Some(last) = segments(folder)?.pop() else {
        return Ok(0);
    };
    let length = match last.packed {
        Some(length) => length,
        None => last.path.metadata()?.len(),
    };
    Ok(last.start + length)
}

/// The end of a log, at most so many bytes of it.
pub fn tail(folder: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let end = end(folder)?;
    let mut cursor = Cursor::new(folder.to_owned(), end.saturating_sub(bytes_max as u64));
    let mut bytes = Vec::new();
    while bytes.len() < bytes_max {
        let piece = cursor.read(bytes_max - bytes.len())?;
        if piece.bytes.is_empty() {
            break;
        }
        bytes.extend(piece.bytes);
    }
    Ok(bytes)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::logs::writer::BoundedLog;

    /// All from an offset on, and where it begins.
    pub fn read_all(folder: &Path, from: u64) -> (u64, Vec<u8>) {
        let mut cursor = Cursor::new(folder.to_owned(), from);
        let first = cursor.read(1000).expect("read");
        let (offset, mut bytes) = (first.offset, first.bytes);
        loop {
            let piece = cursor.read(1000).expect("read");
            if piece.bytes.is_empty() {
                return (offset, bytes);
            }
            assert_eq!(piece.offset, offset + bytes.len() as u64);
            bytes.extend(piece.bytes);
        }
    }

    #[test]
    fn a_reader_follows_a_log_over_its_rotations_without_gap_or_repeat() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = BoundedLog::open(&path, 1024 * 1024).expect("a log");
        log.append(b"first\n");
        let mut cursor = Cursor::new(path, 0);
        let mut read = Vec::new();
        let mut written = b"first\n".to_vec();
        for line in 0..30_000 {
            let line = format!("line {line}\n");
            log.append(line.as_bytes());
            written.extend_from_slice(line.as_bytes());
            // Now far behind, now at the end.
            if line.len() + written.len() % 7 > 12 {
                let piece = cursor.read(written.len() % 900 + 1).expect("read");
                assert_eq!(piece.offset, read.len() as u64);
                read.extend(piece.bytes);
            }
        }
        log.close();
        loop {
            let piece = cursor.read(4096).expect("read");
            if piece.bytes.is_empty() {
                break;
            }
            read.extend(piece.bytes);
        }
        assert!(read == written);
    }

    #[test]
    fn an_offset_beyond_the_end_reads_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        BoundedLog::open(&path, 1000).expect("a log").append(b"abc");
        let far = Cursor::new(path, u64::MAX).read(10).expect("read");
        assert_eq!(far.bytes, b"");
    }
}
