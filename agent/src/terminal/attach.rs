//! Follows what a job's first process writes, from its last lines on, and tells how it ended.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use protocol::wire::{TerminalBegun, TerminalDown, TerminalEnd, terminal_up};
use tonic::Streaming;

use super::{PIECE_BYTES, Up, message};
use crate::logs::cursor::{self, Cursor};
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
    down: &mut Streaming<TerminalDown>,
) -> anyhow::Result<TerminalEnd> {
    up.send(message(terminal_up::Message::Begun(TerminalBegun {})))
        .await?;
    let folder = log.to_owned();
    let begins = move || Ok(cursor::end(&folder)?.saturating_sub(BEFORE_BYTES));
    let mut reader = Cursor::new(log.to_owned(), blocking(begins).await?);
    loop {
        // Looked at before the log: what was written until then is read below.
        let exit = run.exit()?;
        let bytes;
        (reader, bytes) = blocking(move || {
            let piece = reader.read(PIECE_BYTES)?;
            Ok((reader, piece.bytes))
        })
        .await?;
        if !bytes.is_empty() {
            up.send(message(terminal_up::Message::Output(bytes)))
                .await?;
            continue;
        }
        if let Some(exit) = exit {
            return Ok(TerminalEnd {
                code: exit.code,
                signal: exit.signal,
                reason: exit.message,
            });
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            // The job reads nothing: what is typed is let fall.
            typed = down.message() => if typed?.is_none() {
                bail!("nobody is at the other end any more");
            },
        }
    }
}

/// Reads on a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(read)
        .await
        .map_err(io::Error::other)?
}
