//! Logs, and what is read as they are: from the worker's node, while it runs and long after.

use std::time::Duration;

use bytes::Bytes;
use domain::ids::{AssignmentId, JobId, NodeId};
use domain::state::AssignmentPhase;
use tokio::sync::mpsc;

use super::authorise::Action;
use super::links::{LogPiece, Part, Wanted};
use super::rights::Watch;
use super::streams::{Kind, Seat};
use super::{App, AppError, Asker, jobs, sessions};
use crate::store::assignments;
use crate::store::fillings::{self, LogOf, LogPlace};
use crate::store::nodes;

pub use crate::store::fillings::Refilled;

/// Tries in a row to get on with a log whose stream broke without giving anything.
const TRIES_MAX: u32 = 5;
/// Between two of them, and between looks at a log that is not there yet.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// A node that does not begin to answer by then, however often it is asked, is taken for away.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Which log, and from where.
#[derive(Debug, Clone, Copy)]
pub struct LogAsk {
    /// The worker.
    pub worker: i32,
    /// The attempt; absent: the last.
    pub attempt: Option<i32>,
    /// Which filling of the rank, the first being 1; absent: the last. A rank that an elastic gang gave
    /// up or lost may be filled anew.
    pub filling: Option<i32>,
    /// The first byte.
    pub offset: i64,
    /// Whether to go on until the worker has ended.
    pub follow: bool,
    /// What is read of it.
    pub part: Part,
}

impl LogAsk {
    fn result(&self) -> Option<u32> {
        match self.part {
            Part::Result(number) => Some(number),
            Part::Log | Part::Results => None,
        }
    }

    fn action(&self) -> Action {
        match self.part {
            Part::Log => Action::GetJobLogs,
            Part::Results => Action::ListJobResults,
            Part::Result(_) => Action::GetJobResult,
        }
    }
}

/// A log that is being read.
pub struct LogReader {
    app: App,
    asker: Asker,
    rights: Watch,
    _seat: Seat,
    job: JobId,
    ask: LogAsk,
    /// Where it lies; nowhere before the first attempt of a job that is followed.
    place: Option<LogPlace>,
    offset: i64,
    pieces: mpsc::Receiver<LogPiece>,
    ahead: Option<LogPiece>,
}

/// What is there of a log that was asked for.
enum Found {
    /// It lies here.
    At(LogPlace),
    /// It is followed, and may begin yet.
    Ahead,
}

/// Opens a log. When this returns, the node has begun to answer, or there is no attempt yet whose node
/// could: what can be told by a status is told by it, not by a stream that breaks.
pub async fn open(
    app: &App,
    asker: &Asker,
    job: JobId,
    ask: LogAsk,
) -> Result<LogReader, AppError> {
    let rights = app.rights.watch(asker.user_id);
    let found = find(app, asker, job, &ask).await?;
    let most = app.config.limits.logs_per_person;
    let seat = app.streams.take(asker.user_id, Kind::Logs, most)?;
    let reader = LogReader {
        app: app.clone(),
        asker: asker.clone(),
        rights,
        _seat: seat,
        job,
        ask,
        place: None,
        offset: ask.offset,
        pieces: mpsc::channel(1).1,
        ahead: None,
    };
    let Found::At(place) = found else {
        return Ok(reader);
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answered(app, &place, &ask)).await;
    let Some((pieces, ahead)) = answer.ok().transpose()?.flatten() else {
        return Err(AppError::NodeAway { node: place.node });
    };
    match ahead {
        Some(LogPiece::Missing) if ask.result().is_some() => {
            let number = ask.result().unwrap_or_default();
            let message = format!("worker {} left no result {number}", ask.worker);
            let remedy = "the number of a file in the list of results";
            Err(AppError::no_log(message, "number", number, remedy))
        }
        // Who left nothing has no list.
        Some(LogPiece::Missing) if place.ended() && ask.part == Part::Log => {
            let message = format!(
                "node {} keeps no log of worker {} of attempt {} any more",
                place.node, ask.worker, place.attempt
            );
            let remedy = "a later attempt, where there is one";
            Err(AppError::no_log(message, "attempt", place.attempt, remedy))
        }
        Some(LogPiece::Broken(why)) => Err(AppError::LogBusy {
            node: place.node,
            why,
        }),
        // What comes first is beyond what was asked for: who reads is told by `offset`.
        Some(LogPiece::Skip(to)) => Ok(LogReader {
            place: Some(place),
            pieces,
            offset: to,
            ..reader
        }),
        ahead => Ok(LogReader {
            place: Some(place),
            pieces,
            ahead,
            ..reader
        }),
    }
}

/// What the node answers first, as [`first`] has it, and what comes after it; nothing when it
/// cannot be asked.
async fn answered(
    app: &App,
    place: &LogPlace,
    ask: &LogAsk,
) -> Result<Option<(mpsc::Receiver<LogPiece>, Option<LogPiece>)>, AppError> {
    for more in (0..TRIES_MAX).rev() {
        if let Some(mut pieces) = begin(app, place, ask, ask.offset).await?
            && let Some(ahead) = first(&mut pieces, ask.follow).await
        {
            return Ok(Some((pieces, ahead)));
        }
        if more == 0 || !place.ready {
            break;
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
    Ok(None)
}

/// The first piece of a log; for one that is followed only what is there already, since it may
/// be silent for long. Nothing: the stream broke.
async fn first(pieces: &mut mpsc::Receiver<LogPiece>, follow: bool) -> Option<Option<LogPiece>> {
    if !follow {
        return pieces.recv().await.map(Some);
    }
    match tokio::time::timeout(TRY_EVERY, pieces.recv()).await {
        Ok(Some(piece)) => Some(Some(piece)),
        Ok(None) => None,
        Err(_) => Some(None),
    }
}

async fn find(app: &App, asker: &Asker, job: JobId, ask: &LogAsk) -> Result<Found, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = jobs::find(&mut tx, asker, ask.action(), job).await?;
    if job.is_array() {
        let remedy = format!("the id of an element, such as {job}.0: each has a log of its own");
        return Err(AppError::invalid("id", job, remedy));
    }
    let attempt = ask.attempt.unwrap_or(row.attempt);
    let of = LogOf {
        attempt,
        worker: ask.worker,
        filling: ask.filling,
    };
    let place = fillings::log_place(&mut tx, row.team_id, job, of).await?;
    let any = LogOf {
        filling: None,
        ..of
    };
    let filled = fillings::log_place(&mut tx, row.team_id, job, any).await?;
    tx.commit().await?;
    match place {
        Some(place) => Ok(Found::At(place)),
        None if ask.follow && row.attempt == 0 && attempt <= 1 && !row.state.terminal() => {
            Ok(Found::Ahead)
        }
        None => Err(absent(of, row.attempt, filled.is_some())),
    }
}

/// Says what there is no log of, of a job whose last attempt is `last`, and whether its rank was filled.
fn absent(of: LogOf, last: i32, filled: bool) -> AppError {
    let (worker, attempt) = (of.worker, of.attempt);
    if last == 0 {
        let message = "no attempt of the job has begun";
        let remedy = "its first attempt, once it has begun: follow waits for it";
        return AppError::no_log(message, "attempt", attempt, remedy);
    }
    if attempt > last {
        let message = format!("the job has no attempt {attempt} yet");
        return AppError::no_log(message, "attempt", attempt, format!("1 to {last}"));
    }
    match of.filling.filter(|_| filled) {
        Some(filling) => AppError::no_log(
            format!("worker {worker} of attempt {attempt} was not filled {filling} times"),
            "filling",
            filling,
            "a smaller number, or none for the last",
        ),
        None => AppError::no_log(
            format!("attempt {attempt} of the job has no worker {worker}"),
            "worker",
            worker,
            "the rank of a worker of that attempt, the first being 0",
        ),
    }
}

/// The ranks of a job that were filled more than once, for its page.
pub async fn refilled(app: &App, asker: &Asker, job: JobId) -> Result<Vec<Refilled>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = jobs::find(&mut tx, asker, Action::GetJob, job).await?;
    let refilled = fillings::refilled(&mut tx, row.team_id, job).await?;
    tx.commit().await?;
    Ok(refilled)
}

/// Asks the holder of the node's stream; nothing when nobody holds it now.
async fn begin(
    app: &App,
    place: &LogPlace,
    ask: &LogAsk,
    offset: i64,
) -> Result<Option<mpsc::Receiver<LogPiece>>, AppError> {
    let (node, id): (NodeId, AssignmentId) = (place.node_id, place.id);
    let wanted = Wanted {
        assignment: id,
        part: ask.part,
        offset,
        follow: ask.follow,
    };
    if let Some(pieces) = app.links.request(node, wanted) {
        return Ok(Some(pieces));
    }
    let mut tx = app.db.begin_system().await?;
    let holder = nodes::holder(&mut tx, node).await?;
    tx.commit().await?;
    let Some((replica, address)) = holder.filter(|(replica, _)| *replica != app.replica) else {
        return Ok(None);
    };
    match app.links.forward(address, node, wanted).await {
        Ok(pieces) => Ok(Some(pieces)),
        Err(error) => {
            tracing::info!(node.id = %node, replica = %replica, error = format!("{error:#}"), "a log could not be forwarded");
            Ok(None)
        }
    }
}

/// Why a log that was begun breaks off.
#[derive(Debug, thiserror::Error)]
pub enum LogBroken {
    /// What was asked for next is there no more: what there is begins further on.
    #[error("the log breaks off: what follows was dropped, and it goes on at byte {0}")]
    Skipped(i64),
    /// The node went away, or could not read on.
    #[error("the log breaks off: {0}")]
    Node(String),
    /// The reader may not read it any more.
    #[error("the log breaks off: {0}")]
    Rights(AppError),
    /// The database did not answer.
    #[error("the log breaks off: the control plane does not answer")]
    Database(#[from] sqlx::Error),
}

impl LogReader {
    /// Where the next bytes begin. Further on than what was asked for where that was dropped.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// The next bytes; nothing at the end. After a `Skipped` it goes on where that says.
    pub async fn next(&mut self) -> Option<Result<Bytes, LogBroken>> {
        let mut fruitless = 0;
        loop {
            let Some(place) = &self.place else {
                match self.begun().await {
                    Ok(true) => continue,
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error)),
                }
            };
            let node = place.node.clone();
            let ahead = &mut self.ahead;
            let pieces = &mut self.pieces;
            let next = async {
                match ahead.take() {
                    Some(piece) => Some(piece),
                    None => pieces.recv().await,
                }
            };
            // Rights first: however fast a log grows, it does not outrun their loss.
            let piece = tokio::select! {
                biased;
                () = self.rights.outdated() => {
                    if let Err(refused) = self.check_rights().await {
                        return Some(Err(LogBroken::Rights(refused)));
                    }
                    continue;
                }
                piece = next => piece,
            };
            match piece {
                Some(LogPiece::Bytes(bytes)) => {
                    self.offset += i64::try_from(bytes.len()).unwrap_or(0);
                    return Some(Ok(bytes));
                }
                Some(LogPiece::Skip(to)) => {
                    self.offset = to;
                    return Some(Err(LogBroken::Skipped(to)));
                }
                Some(LogPiece::End) => return None,
                Some(LogPiece::Broken(words)) => return Some(Err(LogBroken::Node(words))),
                Some(LogPiece::Missing) => match self.not_there().await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error)),
                },
                // Cut off: this reader was too slow, or the node's stream was renewed.
                None => {
                    fruitless += 1;
                    if fruitless > TRIES_MAX {
                        let words = format!("node {node} cannot be reached");
                        return Some(Err(LogBroken::Node(words)));
                    }
                    if fruitless > 1 {
                        tokio::time::sleep(TRY_EVERY).await;
                    }
                }
            }
            if let Err(error) = self.again().await {
                return Some(Err(error));
            }
        }
    }

    /// Waits for the first attempt of the job; false where the job has ended without one.
    async fn begun(&mut self) -> Result<bool, LogBroken> {
        loop {
            let outdated = tokio::select! {
                biased;
                () = self.rights.outdated() => true,
                () = tokio::time::sleep(TRY_EVERY) => false,
            };
            let found = if outdated {
                self.check_rights().await
            } else {
                find(&self.app, &self.asker, self.job, &self.ask).await
            };
            match found {
                Ok(Found::At(place)) => {
                    self.place = Some(place);
                    self.again().await?;
                    return Ok(true);
                }
                Ok(Found::Ahead) => {}
                Err(AppError::NoLog { .. }) => return Ok(false),
                Err(AppError::Unavailable(error)) => return Err(error.into()),
                Err(error) => return Err(LogBroken::Rights(error)),
            }
        }
    }

    /// A log that the node does not have: whether it is worth waiting for. Its worker may not
    /// have begun; once it has ended there was none.
    async fn not_there(&mut self) -> Result<bool, LogBroken> {
        if !self.ask.follow {
            return Ok(false);
        }
        tokio::time::sleep(TRY_EVERY).await;
        let mut tx = self.app.db.begin_system().await?;
        let id = self.place.as_ref().map(|place| place.id);
        let found = assignments::find(&mut tx, id.as_slice()).await?;
        tx.commit().await?;
        Ok(found.first().is_some_and(|row| row.phase.live()))
    }

    /// Asks again from where the log stopped.
    async fn again(&mut self) -> Result<(), LogBroken> {
        let Some(place) = &self.place else {
            return Ok(());
        };
        let begun = begin(&self.app, place, &self.ask, self.offset).await;
        match begun {
            Ok(Some(pieces)) => self.pieces = pieces,
            Ok(None) => {
                // The sender is dropped: the next look finds the stream cut off.
                self.pieces = mpsc::channel(1).1;
            }
            Err(error) => return Err(LogBroken::Rights(error)),
        }
        Ok(())
    }

    async fn check_rights(&mut self) -> Result<Found, AppError> {
        let _turn = self.app.streams.look().await;
        self.asker = sessions::again(&self.app, &self.asker).await?;
        let found = find(&self.app, &self.asker, self.job, &self.ask).await?;
        self.rights.read();
        Ok(found)
    }
}

impl LogPlace {
    /// Whether its worker has ended.
    fn ended(&self) -> bool {
        self.phase.terminal() || self.phase == AssignmentPhase::Cleaning
    }
}
