//! The journal's file: lines that are appended in groups, and rewritten when most are past.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::JournalError;
use super::record::{self, Record, VERSION};
use super::state::State;
use crate::files;

/// A file below this size is not rewritten: it holds the history of days, which helps who
/// asks what happened, and is read in milliseconds.
const REWRITE_BYTES_MIN: u64 = 8 * 1024 * 1024;
/// A file is rewritten when it has grown to so many times what was left the last time.
const REWRITE_FACTOR: u64 = 4;

/// Room that is taken on the disk ahead of the file's end: jobs may fill the disk, and their ends are to be kept all
/// the same. An end and a release are some hundred bytes, so that this is for the jobs of the largest node.
const ROOM_BYTES: u64 = 512 * 1024;

/// The open file.
pub struct JournalFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Up to where room is taken for it.
    room_until: u64,
    bytes_after_rewrite: u64,
    /// The file was replaced, and its folder is yet to be synced: a power loss might bring the
    /// former one back.
    unsettled: bool,
    sync_folder: SyncFolder,
}

/// How the folder of a file is synced.
type SyncFolder = fn(&Path) -> io::Result<()>;

impl JournalFile {
    /// Opens the file and reads what it says. A last line that was half written is cut off;
    /// any other damage is refused, since what follows it could not be trusted.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let failed = |source| JournalError::File {
            path: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(failed)?;
        let (records, good) = read_lines(&content, path)?;
        if (good as u64) < content.len() as u64 {
            tracing::warn!(
                bytes = content.len() - good,
                "a half-written end of the journal was cut off"
            );
            file.set_len(good as u64).map_err(failed)?;
        }
        file.seek(SeekFrom::Start(good as u64)).map_err(failed)?;
        let mut opened = Self {
            path: path.to_owned(),
            file,
            bytes: good as u64,
            room_until: 0,
            bytes_after_rewrite: 0,
            unsettled: false,
            sync_folder: files::sync_parent,
        };
        opened.take_room();
        Ok((opened, records))
    }

    /// Takes room ahead once half of it is used. Where there is none it goes on without: what then finds no room is
    /// told by the write that does not.
    fn take_room(&mut self) {
        if self.bytes + ROOM_BYTES / 2 < self.room_until {
            return;
        }
        match files::reserve(&self.file, self.bytes, ROOM_BYTES) {
            Ok(()) => self.room_until = self.bytes + ROOM_BYTES,
            Err(error) => tracing::debug!(%error, "no room can be taken for the journal"),
        }
    }

    /// Appends records, all or none. Nothing is synced in a file whose name might not survive.
    pub fn append(&mut self, records: &[Record], sync: bool) -> io::Result<()> {
        if sync {
            self.settle()?;
        }
        let mut lines = Vec::new();
        for record in records {
            lines.extend(record::to_line(record)?);
        }
        let written = self
            .file
            .write_all(&lines)
            .and_then(|()| if sync { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            // Half a line in the middle would spoil all that follows.
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
            // What was cut off took the room with it.
            self.room_until = 0;
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        self.take_room();
        Ok(())
    }

    /// Rewrites the file from a state when most of it is past.
    pub fn rewrite_if_long(&mut self, state: &State) -> io::Result<()> {
        let long = REWRITE_BYTES_MIN.max(self.bytes_after_rewrite * REWRITE_FACTOR);
        if self.bytes < long {
            return Ok(());
        }
        self.rewrite(state)
    }

    fn rewrite(&mut self, state: &State) -> io::Result<()> {
        let aside = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)?;
        let mut lines = Vec::new();
        for record in state.records() {
            lines.extend(record::to_line(&record)?);
        }
        file.write_all(&lines)?;
        file.sync_all()?;
        fs::rename(&aside, &self.path)?;
        // At once, whatever comes: the former file has no name any more.
        self.file = file;
        self.bytes = lines.len() as u64;
        self.bytes_after_rewrite = self.bytes;
        self.room_until = 0;
        self.take_room();
        self.unsettled = true;
        self.settle()
    }

    fn settle(&mut self) -> io::Result<()> {
        if self.unsettled {
            (self.sync_folder)(&self.path)?;
            self.unsettled = false;
        }
        Ok(())
    }
}

/// Reads all whole lines, and how many bytes they are.
pub fn read_lines(content: &[u8], path: &Path) -> Result<(Vec<Record>, usize), JournalError> {
    let mut records = Vec::new();
    let mut good = 0;
    for (number, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let whole = line.strip_suffix(b"\n").and_then(record::from_line);
        match whole {
            Some(Record::Head { version, .. }) if version != VERSION => {
                return Err(JournalError::Version {
                    path: path.to_owned(),
                    version,
                });
            }
            Some(record) => records.push(record),
            None if good + line.len() == content.len() => break,
            None => {
                return Err(JournalError::Damaged {
                    path: path.to_owned(),
                    line: number + 1,
                });
            }
        }
        good += line.len();
    }
    Ok((records, good))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(id: usize) -> Record {
        Record::Boot {
            boot_id: id.to_string(),
        }
    }

    #[test]
    fn a_half_written_last_line_is_cut_off_and_the_rest_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut file, none) = JournalFile::open(&path).expect("opened");
        assert!(none.is_empty());
        file.append(&[boot(1), boot(2)], true).expect("written");
        drop(file);
        let whole = fs::read(&path).expect("read");
        for torn in 1..10 {
            fs::write(&path, &whole[..whole.len() - torn]).expect("torn");
            let (mut file, records) = JournalFile::open(&path).expect("opened");
            assert_eq!(records, [boot(1)]);
            file.append(&[boot(3)], true).expect("written");
            drop(file);
            let (_, records) = JournalFile::open(&path).expect("opened");
            assert_eq!(records, [boot(1), boot(3)]);
        }
    }

    #[test]
    fn damage_in_the_middle_is_refused_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut file, _) = JournalFile::open(&path).expect("opened");
        file.append(&[boot(1), boot(2)], true).expect("written");
        let mut content = fs::read(&path).expect("read");
        content[12] ^= 1;
        fs::write(&path, content).expect("spoiled");
        let error = JournalFile::open(&path).err().expect("refused").to_string();
        assert!(error.contains("line 1"), "{error}");
    }

    #[test]
    fn a_rewritten_file_says_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut file, _) = JournalFile::open(&path).expect("opened");
        let mut state = State::default();
        for record in [
            Record::Head {
                version: VERSION,
                journal_id: "j".to_owned(),
                next_fact: 7,
            },
            boot(1),
            Record::Epoch {
                timeline: 1,
                number: 2,
            },
        ] {
            file.append(std::slice::from_ref(&record), false)
                .expect("written");
            state.apply(record);
        }
        file.rewrite(&state).expect("rewritten");
        let (_, records) = JournalFile::open(&path).expect("opened");
        let mut again = State::default();
        records.into_iter().for_each(|record| again.apply(record));
        assert_eq!(again.records(), state.records());
        assert_eq!(again.next_fact, 7);
    }

    #[test]
    fn what_is_written_after_a_rewrite_that_failed_late_is_in_the_file_or_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut file, _) = JournalFile::open(&path).expect("opened");
        let mut state = State::default();
        let head = Record::Head {
            version: VERSION,
            journal_id: "j".to_owned(),
            next_fact: 7,
        };
        for record in [head, boot(1)] {
            file.append(std::slice::from_ref(&record), true)
                .expect("written");
            state.apply(record);
        }
        file.sync_folder = |_| Err(io::ErrorKind::StorageFull.into());
        file.rewrite(&state).expect_err("not synced");
        let refused = file.append(&[boot(2)], true);
        refused.expect_err("its name might not survive");
        file.append(&[boot(3)], false).expect("promised to nobody");

        file.sync_folder = files::sync_parent;
        file.append(&[boot(4)], true).expect("settled and written");
        let (_, records) = JournalFile::open(&path).expect("opened");
        assert_eq!(records[records.len() - 2..], [boot(3), boot(4)]);
    }
}
