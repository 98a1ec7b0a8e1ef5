//! Results: the files that workers left in their output folders, listed and read.

use domain::ids::JobId;
use serde::Deserialize;

use super::links::Part;
use super::logs::{self, LogAsk, LogReader};
use super::{App, AppError, Asker};

/// Longest list of results that a node may send: a thousand paths of the kernel's longest fit.
const LIST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What a worker left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Results {
    /// The files, by number from 0.
    pub files: Vec<ResultFile>,
    /// How many entries of its output folder were not kept.
    pub dropped: u64,
}

/// A file that a worker left.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResultFile {
    /// Its path below the output folder.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Whose results.
#[derive(Debug, Clone, Copy)]
pub struct ResultsOf {
    /// The worker.
    pub worker: i32,
    /// The attempt; absent: the last.
    pub attempt: Option<i32>,
    /// Which filling of the rank; absent: the last.
    pub filling: Option<i32>,
}

impl ResultsOf {
    fn ask(self, part: Part) -> LogAsk {
        LogAsk {
            worker: self.worker,
            attempt: self.attempt,
            filling: self.filling,
            offset: 0,
            follow: false,
            part,
        }
    }
}

/// What a worker left; nothing while it runs.
pub async fn list(
    app: &App,
    asker: &Asker,
    job: JobId,
    of: ResultsOf,
) -> Result<Results, AppError> {
    let mut reader = logs::open(app, asker, job, of.ask(Part::Results)).await?;
    let mut text = Vec::new();
    while let Some(read) = reader.next().await {
        match read {
            Ok(bytes) if text.len() + bytes.len() <= LIST_BYTES_MAX => {
                text.extend_from_slice(&bytes);
            }
            Ok(_) => return Err(broken("their list is too long")),
            Err(error) => return Err(broken(&error.to_string())),
        }
    }
    if text.is_empty() {
        return Ok(Results::default());
    }
    serde_json::from_slice(&text).map_err(|_| broken("their list is damaged"))
}

/// A file that a worker left, with its bytes.
pub async fn open(
    app: &App,
    asker: &Asker,
    job: JobId,
    of: ResultsOf,
    number: u32,
) -> Result<(ResultFile, LogReader), AppError> {
    let reader = logs::open(app, asker, job, of.ask(Part::Result(number))).await?;
    let list = list(app, asker, job, of).await?;
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    match list.files.into_iter().nth(at) {
        Some(file) => Ok((file, reader)),
        None => {
            let message = format!("worker {} left no result {number}", of.worker);
            let remedy = "the number of a file in the list of results";
            Err(AppError::no_log(message, "number", number, remedy))
        }
    }
}

fn broken(why: &str) -> AppError {
    AppError::LogBusy {
        node: "of the results".to_owned(),
        why: why.to_owned(),
    }
}
