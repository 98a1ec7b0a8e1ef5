//! `allot exec`: a command beside a job that runs, within its walls and limits.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;

use clap::Args;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::terminal::{End, FromServer, PIECE_BYTES, Socket, ToServer, Told};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::Filter;
use crate::table;

/// Pieces of input that wait to be sent.
const INPUTS_MAX: usize = 4;
/// How large a terminal is taken to be where nobody says.
const SIZE: (u16, u16) = (80, 24);

/// Run a command beside a job that runs, as the job's own user and within its limits.
#[derive(Debug, Args)]
#[command(
    after_help = "The exit status is the command's own; 128 and the number of the signal that ended it.\n\nExample:\n  allot exec --tty 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f -- bash"
)]
pub struct Exec {
    /// The job's id
    id: String,
    /// The worker's rank
    #[arg(long, short, default_value_t = 0)]
    worker: u32,
    /// Give the command a terminal, for shells and editors
    #[arg(long, short)]
    tty: bool,
    /// Print one JSON object with what it wrote and how it ended; it gets no input
    #[arg(long, conflicts_with = "tty")]
    json: bool,
    /// The command with its arguments, after --
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl Exec {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let path = format!("/jobs/{}/exec", part(&self.id));
        let worker = [("worker", self.worker.to_string())];
        let mut socket = Socket::open(&client, &path, &worker).await?;
        let size = self.tty.then(size);
        let exec = json!({"exec": {"command": self.command, "terminal": size}});
        socket.to.say(&exec).await?;
        if self.json {
            socket.to.input_over().await?;
            return collect(socket).await;
        }
        // Put back when this returns, also by an error.
        let raw = match self.tty && std::io::stdin().is_terminal() {
            true => Some(Raw::enter()?),
            false => None,
        };
        let to = socket.to;
        let fed = async {
            // What takes no input any more says next how it ended.
            let _ = feed(to, self.tty).await;
            std::future::pending::<Result<End, Failure>>().await
        };
        let end = tokio::select! {
            end = print(socket.from, self.tty) => end,
            end = fed => end,
        };
        drop(raw);
        let end = end?;
        end.as_own()
    }
}

/// Keeps all that it writes, and prints it in the end.
async fn collect(mut socket: Socket) -> Result<(), Failure> {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let end = loop {
        match socket.from.next().await? {
            Told::Begun => {}
            Told::Output(bytes) => output.extend(bytes),
            Told::Errors(bytes) => errors.extend(bytes),
            Told::End(end) => break end,
        }
    };
    let mut printed = end.as_json();
    printed["output"] = Value::from(String::from_utf8_lossy(&output));
    printed["errors"] = Value::from(String::from_utf8_lossy(&errors));
    table::print_json(&printed)?;
    end.as_own()
}

/// Prints what it writes until it ends. A terminal of its own steers ours, which is what it is for;
/// without one nothing steers ours.
async fn print(mut from: FromServer, tty: bool) -> Result<End, Failure> {
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    let filter = |shown: bool| (shown && !tty).then(Filter::default);
    let mut output = filter(stdout.is_terminal());
    let mut errors = filter(stderr.is_terminal());
    loop {
        match from.next().await? {
            Told::Begun => {}
            Told::Output(bytes) => write(&mut stdout, &mut output, bytes)?,
            Told::Errors(bytes) => write(&mut stderr, &mut errors, bytes)?,
            Told::End(end) => return Ok(end),
        }
    }
}

fn write(to: &mut impl Write, filter: &mut Option<Filter>, bytes: Vec<u8>) -> std::io::Result<()> {
    let shown = match filter {
        Some(filter) => filter.pass(&bytes).into_bytes(),
        None => bytes,
    };
    to.write_all(&shown)?;
    to.flush()
}

/// Sends what is typed and how large the terminal is; returns only where that fails.
async fn feed(mut to: ToServer, tty: bool) -> Result<(), Failure> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut inputs = read_input();
    let mut over = false;
    loop {
        tokio::select! {
            input = inputs.recv(), if !over => match input {
                Some(bytes) => to.input(&bytes).await?,
                None => {
                    over = true;
                    to.input_over().await?;
                }
            },
            _ = resized.recv(), if tty => to.say(&json!({"size": size()})).await?,
            else => std::future::pending().await,
        }
    }
}

/// Reads standard input on a thread of its own, which ends with this program.
fn read_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, inputs) = mpsc::channel(INPUTS_MAX);
    std::thread::spawn(move || {
        let mut bytes = vec![0; PIECE_BYTES];
        while let Ok(read @ 1..) = std::io::stdin().read(&mut bytes) {
            if sender.blocking_send(bytes[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    inputs
}

/// How large our terminal is.
fn size() -> Value {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one struct of that type, which lives on.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::ioctl(1, libc::TIOCGWINSZ, std::ptr::from_mut(&mut size)) };
    let (columns, rows) = match (failed, size.ws_col, size.ws_row) {
        (0, columns @ 1.., rows @ 1..) => (columns, rows),
        _ => SIZE,
    };
    json!({"columns": columns, "rows": rows})
}

/// Our terminal, which passes on each key as it is, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self, Failure> {
        let refused = |error: nix::Error| Failure::Refused(format!("this terminal: {error}"));
        let stdin = std::io::stdin();
        let before = tcgetattr(stdin.as_fd()).map_err(refused)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin.as_fd(), SetArg::TCSANOW, &raw).map_err(refused)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Where that fails the terminal is gone.
        let _ = tcsetattr(std::io::stdin().as_fd(), SetArg::TCSANOW, &self.0);
    }
}
