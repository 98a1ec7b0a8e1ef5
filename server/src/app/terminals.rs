//! Terminals: commands run beside a job, its output and its ports, for whose work it is.
//!
//! What passes through one is never recorded; that it began and ended, by whom, on what and with which
//! command is.

pub mod exchange;

use std::time::Duration;

use domain::ids::{AssignmentId, JobId, NodeId};
use domain::state::AssignmentPhase;
use protocol::wire::{TerminalBegin, TerminalCommand, TerminalDown, TerminalSize, terminal_begin};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::audit::Change;
use super::authorise::Action;
use super::rights::Watch;
use super::streams::{Kind, Seat};
use super::{App, AppError, Asker, RefusalCode, audit, jobs, sessions};
use crate::store::fillings::{self, LogOf, LogPlace};
use crate::store::nodes;
use exchange::{Ends, Refused};

/// Terminals of one person at a time, on one replica: a few windows and forwarded connections.
pub const PER_PERSON_MAX: usize = 16;
/// Arguments of a command; more are a script, which has a file.
const ARGUMENTS_MAX: usize = 256;
/// Bytes of a command in all, well below what the node reads at once.
const COMMAND_BYTES_MAX: usize = 32 * 1024;
/// Largest terminal, in columns and in rows: what no screen has is refused.
const CELLS_MAX: u32 = 1_000;
/// When it is worth another try where a node has as many terminals as it may.
const RETRY_AFTER_SECONDS: u64 = 30;
/// Characters of a command that the audit log keeps.
const AUDIT_CHARS_MAX: usize = 2_000;

/// How large a terminal is.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// In columns.
    pub columns: u32,
    /// In rows.
    pub rows: u32,
}

impl Size {
    /// The same as it travels, unless no screen is so large.
    pub fn checked(self) -> Result<TerminalSize, AppError> {
        let remedy = format!("1 to {CELLS_MAX}");
        for (field, cells) in [("columns", self.columns), ("rows", self.rows)] {
            if !(1..=CELLS_MAX).contains(&cells) {
                return Err(AppError::invalid(field, cells, remedy));
            }
        }
        Ok(TerminalSize {
            columns: self.columns,
            rows: self.rows,
        })
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub enum Wish {
    /// A command, and how large its terminal is where it is to have one.
    Command(Vec<String>, Option<Size>),
    /// The output of the first process.
    Attach,
    /// A port on the job's loopback.
    Port(u16),
}

impl Wish {
    fn action(&self) -> Action {
        match self {
            Self::Command(..) => Action::ExecJob,
            Self::Attach => Action::AttachJob,
            Self::Port(_) => Action::ForwardJob,
        }
    }

    fn kind(self) -> Result<terminal_begin::Kind, AppError> {
        Ok(match self {
            Self::Command(arguments, size) => {
                check_command(&arguments)?;
                terminal_begin::Kind::Command(TerminalCommand {
                    arguments,
                    terminal: size.map(Size::checked).transpose()?,
                })
            }
            Self::Attach => terminal_begin::Kind::Attach(true),
            Self::Port(port) => terminal_begin::Kind::Port(u32::from(port)),
        })
    }

    /// What the audit log keeps of it.
    fn noted(&self) -> Value {
        match self {
            Self::Command(arguments, size) => {
                let command: String = arguments.join(" ").chars().take(AUDIT_CHARS_MAX).collect();
                json!({"command": command, "terminal": size.is_some()})
            }
            Self::Attach => json!({}),
            Self::Port(port) => json!({"port": port}),
        }
    }
}

fn check_command(arguments: &[String]) -> Result<(), AppError> {
    let bytes: usize = arguments.iter().map(String::len).sum();
    let shown = arguments.first().map_or("", String::as_str);
    let fits = bytes <= COMMAND_BYTES_MAX && arguments.len() <= ARGUMENTS_MAX;
    if shown.is_empty() || !fits || arguments.iter().any(|part| part.contains('\0')) {
        let remedy = format!(
            "a program and at most {ARGUMENTS_MAX} arguments without NUL, of {COMMAND_BYTES_MAX} bytes in all"
        );
        return Err(AppError::invalid("command", shown, remedy));
    }
    Ok(())
}

/// A terminal that may be begun.
pub struct Allowed {
    app: App,
    asker: Asker,
    rights: Watch,
    seat: Seat,
    action: Action,
    job: JobId,
    worker: i32,
    place: LogPlace,
}

/// Looks whether the asker may have a terminal at a worker of a job, and whether that runs.
pub async fn allow(
    app: &App,
    asker: &Asker,
    action: Action,
    job: JobId,
    worker: i32,
) -> Result<Allowed, AppError> {
    let rights = app.rights.watch(asker.user_id);
    let place = running(app, asker, action, job, worker).await?;
    let seat = app
        .streams
        .take(asker.user_id, Kind::Terminals, PER_PERSON_MAX)?;
    Ok(Allowed {
        app: app.clone(),
        asker: asker.clone(),
        rights,
        seat,
        action,
        job,
        worker,
        place,
    })
}

/// Where a worker runs now.
async fn running(
    app: &App,
    asker: &Asker,
    action: Action,
    job: JobId,
    worker: i32,
) -> Result<LogPlace, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = jobs::find(&mut tx, asker, action, job).await?;
    if job.is_array() {
        let remedy = format!("the id of an element, such as {job}.0: each runs for itself");
        return Err(AppError::invalid("id", job, remedy));
    }
    let of = LogOf {
        attempt: row.attempt,
        worker,
        filling: None,
    };
    let place = fillings::log_place(&mut tx, row.team_id, job, of).await?;
    tx.commit().await?;
    match place {
        Some(place) if place.phase == AssignmentPhase::Running => Ok(place),
        Some(_) => Err(not_running(row.state)),
        None if row.state.terminal() || row.attempt == 0 => Err(not_running(row.state)),
        None => Err(AppError::invalid(
            "worker",
            worker,
            "the rank of a worker of the present attempt, the first being 0",
        )),
    }
}

fn not_running(state: impl std::fmt::Display) -> AppError {
    AppError::wrong_state(
        RefusalCode::NotRunning,
        "the worker does not run now",
        state,
        "a job that runs: ask again while it does",
    )
}

impl Allowed {
    /// Begins it: writes that down, and asks the node.
    pub async fn begin(self, wish: Wish) -> Result<Terminal, AppError> {
        debug_assert_eq!(wish.action(), self.action, "a door asks for its own kind");
        let noted = wish.noted();
        let begin = TerminalBegin {
            assignment_id: self.place.id.to_string(),
            kind: Some(wish.kind()?),
        };
        let ends = ask(&self.app, &self.place, begin).await?;
        let terminal = Terminal {
            app: self.app,
            asker: self.asker,
            rights: self.rights,
            _seat: self.seat,
            action: self.action,
            job: self.job,
            worker: self.worker,
            assignment: self.place.id,
            node: self.place.node,
            ends,
            began: Instant::now(),
            noted,
        };
        terminal.record(json!({"begins": true})).await?;
        Ok(terminal)
    }
}

/// Asks the holder of the node's connection.
async fn ask(app: &App, place: &LogPlace, begin: TerminalBegin) -> Result<Ends, AppError> {
    let (node, name): (NodeId, &str) = (place.node_id, &place.node);
    match app.terminals.ask(node, begin.clone()) {
        Ok(ends) => return Ok(ends),
        Err(Refused::Full) => {
            return Err(AppError::TooBusy {
                retry_after_seconds: RETRY_AFTER_SECONDS,
            });
        }
        Err(Refused::NotHere) => {}
    }
    let mut tx = app.db.begin_system().await?;
    let holder = nodes::holder(&mut tx, node).await?;
    tx.commit().await?;
    let away = || AppError::NodeAway {
        node: name.to_owned(),
    };
    let holder = holder.filter(|(replica, _)| *replica != app.replica);
    let (replica, address) = holder.ok_or_else(away)?;
    let forwarded = app.terminals.forward(address, node, begin).await;
    forwarded.map_err(|error| {
        tracing::info!(node.id = %node, replica = %replica, error = format!("{error:#}"), "a terminal could not be forwarded");
        away()
    })
}

/// A terminal that is open.
pub struct Terminal {
    app: App,
    asker: Asker,
    /// When the asker's rights are to be read again: each minute, and whenever somebody changes them.
    pub rights: Watch,
    _seat: Seat,
    action: Action,
    job: JobId,
    worker: i32,
    assignment: AssignmentId,
    node: String,
    /// The ways to the node and back.
    pub ends: Ends,
    began: Instant,
    noted: Value,
}

impl Terminal {
    /// Reads the asker's rights again, and whether the worker still runs. Not to be broken off: what told
    /// that they are outdated is told once.
    pub async fn check(&mut self) -> Result<(), AppError> {
        let _turn = self.app.streams.look().await;
        self.asker = sessions::again(&self.app, &self.asker).await?;
        let place = running(&self.app, &self.asker, self.action, self.job, self.worker).await?;
        if place.id != self.assignment {
            return Err(not_running("another attempt"));
        }
        self.rights.read();
        Ok(())
    }

    /// The way to the node, for who waits for room in it.
    pub fn down(&self) -> tokio::sync::mpsc::Sender<TerminalDown> {
        self.ends.down.clone()
    }

    /// Writes down that it has ended, and how.
    pub async fn finish(self, sent: u64, received: u64, how: &str) {
        let lasted: Duration = self.began.elapsed();
        let ended = json!({
            "ends": how,
            "bytes_in": sent,
            "bytes_out": received,
            "duration_ms": u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX),
        });
        if let Err(error) = self.record(ended).await {
            tracing::error!(job.id = %self.job, %error, "the end of a terminal could not be recorded");
        }
    }

    async fn record(&self, more: Value) -> Result<(), AppError> {
        let mut after = self.noted.clone();
        if let (Some(after), Value::Object(more)) = (after.as_object_mut(), more) {
            after.insert("worker".to_owned(), json!(self.worker));
            after.insert("node".to_owned(), json!(self.node));
            after.extend(more);
        }
        // By the system: who may not do it any more has an end to be written down, too.
        let mut tx = self.app.db.begin_system().await?;
        let change = Change {
            after: Some(after),
            ..Change::of(self.action, format!("job/{}", self.job))
        };
        audit::record(&mut tx, &self.asker, change).await?;
        tx.commit().await?;
        Ok(())
    }
}
