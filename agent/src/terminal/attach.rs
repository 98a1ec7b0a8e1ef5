//! Follows what a job's first process writes, from its last lines on, and tells how it ended.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use protocol::wire::{TerminalBegun, TerminalDown, TerminalEnd, terminal_up};
use tonic::Streaming;

use super::{PIECE_BYTES, Up, message};
use crate::runs::RunFolder;

/// So much of what was written before is shown, for who attaches to a job that is silent now.
const BEFORE_BYTES: u64 = 4 * 1024;
/// How often the log is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Follows the log until the job has ended or nobody is there any more.
pub async fn follow(
    run: &RunFolder,
    log: &Path,
    up: &Up,
    mut down: Streaming<TerminalDown>,
) -> anyhow::Result<TerminalEnd> {
    up.send(message(terminal_up::Message::Begun(TerminalBegun {})))
        .await?;
    let mut offset = std::fs::metadata(log).map_or(0, |file| file.len());
    offset = offset.saturating_sub(BEFORE_BYTES);
    loop {
        // Looked at before the log: what was written until then is read below.
        let exit = run.exit()?;
        let bytes = read(log.to_owned(), offset).await?;
        let exhausted = bytes.len() < PIECE_BYTES;
        offset += bytes.len() as u64;
        if !bytes.is_empty() {
            up.send(message(terminal_up::Message::Output(bytes)))
                .await?;
        }
        if let Some(exit) = exit.filter(|_| exhausted) {
            return Ok(TerminalEnd {
                code: exit.code,
                signal: exit.signal,
                reason: exit.message,
            });
        }
        if exhausted {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                // The job reads nothing: what is typed is let fall.
                typed = down.message() => if typed?.is_none() {
                    bail!("nobody is at the other end any more");
                },
            }
        }
    }
}

async fn read(log: PathBuf, offset: u64) -> io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(move || {
        let mut file = std::fs::File::open(log)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(PIECE_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    read.await.map_err(io::Error::other)?
}
