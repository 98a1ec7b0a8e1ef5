//! A log as it lies on disk: a folder with the segments of one stream of bytes.
//!
//! A segment's name says where in the stream it begins, so that an offset means the same byte however
//! often the log was rotated, packed or shortened. `START.log` is as it was written and may grow;
//! `START-LENGTH.gz` is closed and packed. What is missing before the first segment was dropped.

pub mod cursor;
pub mod writer;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    /// Where in the stream it begins.
    start: u64,
    /// How many bytes of the stream it has, where it is packed.
    packed: Option<u64>,
    path: PathBuf,
}

impl Segment {
    fn read(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (start, packed) = if let Some(start) = name.strip_suffix(".log") {
            (start, None)
        } else {
            let (start, length) = name.strip_suffix(".gz")?.split_once('-')?;
            (start, Some(length.parse().ok()?))
        };
        let start = start.parse().ok()?;
        Some(Self {
            start,
            packed,
            path,
        })
    }
}

/// The file of a segment that is written to.
fn open_name(start: u64) -> String {
    format!("{start:020}.log")
}

/// The file of a segment that is packed.
fn packed_name(start: u64, length: u64) -> String {
    format!("{start:020}-{length}.gz")
}

/// The segments of a log by where they begin. One that is being packed is there twice for a moment: the
/// packed one is taken.
fn segments(folder: &Path) -> io::Result<Vec<Segment>> {
    let mut found: Vec<Segment> = fs::read_dir(folder)?
        .filter_map(|entry| Segment::read(entry.ok()?.path()))
        .collect();
    found.sort_by_key(|segment| (segment.start, segment.packed.is_none()));
    found.dedup_by_key(|segment| segment.start);
    Ok(found)
}

/// What a log takes of the disk, and when it was last written to.
pub fn size(folder: &Path) -> io::Result<(u64, SystemTime)> {
    let mut bytes = 0;
    let mut written_at = fs::metadata(folder)?.modified()?;
    for entry in fs::read_dir(folder)? {
        // A segment may be packed or dropped while it is looked at.
        let Ok(found) = entry?.metadata() else {
            continue;
        };
        bytes += found.len();
        written_at = written_at.max(found.modified()?);
    }
    Ok((bytes, written_at))
}
