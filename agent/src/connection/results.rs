//! Sends what jobs left to whoever asks: the list, or a file of it.

use std::io;
use std::path::PathBuf;

use protocol::wire::log_request::Result as Wanted;
use protocol::wire::{FromAgent, LogChunk};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::mpsc;

use super::logs::{CHUNK_BYTES, message};
use crate::results;

/// Sends one to its end, or says why there is none.
pub async fn send(
    folder: PathBuf,
    request: u64,
    wanted: Wanted,
    offset: u64,
    out: &mpsc::Sender<FromAgent>,
) -> Option<&'static str> {
    let path = match wanted {
        Wanted::Listed(_) => folder.join(results::LIST),
        Wanted::Number(number) => folder.join(number.to_string()),
    };
    match copy(path, request, offset, out).await {
        Ok(()) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some("not_found"),
        Err(error) => {
            tracing::warn!(%error, "a result cannot be read");
            Some("unreadable")
        }
    }
}

async fn copy(
    path: PathBuf,
    request: u64,
    mut offset: u64,
    out: &mpsc::Sender<FromAgent>,
) -> io::Result<()> {
    // It is ours and no link: see `results::keep`.
    let mut file = tokio::fs::File::open(path).await?;
    file.seek(io::SeekFrom::Start(offset)).await?;
    loop {
        let mut data = Vec::with_capacity(CHUNK_BYTES);
        (&mut file)
            .take(CHUNK_BYTES as u64)
            .read_to_end(&mut data)
            .await?;
        let end = data.is_empty();
        let chunk = LogChunk {
            request,
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            end,
            data,
            error: String::new(),
        };
        offset += chunk.data.len() as u64;
        if out.send(message(chunk)).await.is_err() || end {
            return Ok(());
        }
    }
}
