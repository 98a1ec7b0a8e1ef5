//! Terminals: ways for people to a job that runs, each over a TCP connection of its own to the server.
//!
//! What is run beside a job is run by a process of its own ([`beside`]), which ends it with the job, and
//! when this agent lets go of its control.

mod attach;
pub mod beside;
mod port;
mod way;

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use domain::ids::AssignmentId;
use nix::fcntl::{OFlag, open};
use nix::pty::{Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::stat::Mode;
use protocol::wire::agents_client::AgentsClient;
use protocol::wire::{
    TerminalBegin, TerminalBegun, TerminalDown, TerminalEnd, TerminalSize, TerminalUp,
    terminal_begin, terminal_down, terminal_up,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::connection::Keeper;
use crate::node::Node;
use crate::runs::RunFolder;
use beside::{Ask, CONTROL, Told};
use way::Way;

/// Most terminals at a time on one node; the server, which bounds them too, opens no more.
const TERMINALS_MAX: usize = 64;
/// Messages of one terminal on their way to the server, of [`PIECE_BYTES`] each: what is not taken keeps
/// waiting who writes it, and nobody else.
const UP_MAX: usize = 4;
/// Bytes in one message: a pipe holds no more by default.
const PIECE_BYTES: usize = 32 * 1024;
/// Longest wait for the server to answer and to say what is to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What a command has written when it ends is passed on for so long, whoever else holds its output.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The terminals of one connection. Dropping it ends them.
pub struct Terminals {
    node: Arc<Node>,
    keeper: Arc<Keeper>,
    open: JoinSet<()>,
}

impl Terminals {
    /// None yet.
    pub fn new(node: Arc<Node>, keeper: Arc<Keeper>) -> Self {
        Self {
            node,
            keeper,
            open: JoinSet::new(),
        }
    }

    /// Opens one that the server asks for by its id.
    pub fn open(&mut self, id: String) {
        while self.open.try_join_next().is_some() {}
        if self.open.len() >= TERMINALS_MAX {
            tracing::warn!("a terminal is not opened: {TERMINALS_MAX} are open");
            return;
        }
        let (node, keeper) = (Arc::clone(&self.node), Arc::clone(&self.keeper));
        self.open.spawn(async move {
            if let Err(error) = serve(&node, &keeper, id).await {
                tracing::info!(error = format!("{error:#}"), "a terminal broke off");
            }
        });
    }
}

/// What goes to the server.
type Up = mpsc::Sender<TerminalUp>;

async fn serve(node: &Node, keeper: &Keeper, id: String) -> anyhow::Result<()> {
    let endpoint = keeper.identity().await.endpoint()?;
    let channel = tokio::time::timeout(ANSWER_TIMEOUT, endpoint.connect())
        .await
        .context("the server cannot be reached")??;
    let (up, messages) = mpsc::channel(UP_MAX);
    up.send(message(terminal_up::Message::Join(id))).await?;
    let mut client = AgentsClient::new(channel);
    let answer = client.terminal(ReceiverStream::new(messages));
    let mut down = tokio::time::timeout(ANSWER_TIMEOUT, answer)
        .await
        .context("the server did not answer")??
        .into_inner();
    let first = tokio::time::timeout(ANSWER_TIMEOUT, down.message())
        .await
        .context("the server did not say what is to begin")??;
    let Some(terminal_down::Message::Begin(begin)) = first.and_then(|first| first.message) else {
        bail!("the server did not say what is to begin");
    };
    let end = tokio::select! {
        end = carry(node, begin, &up, &mut down) => end,
        // Nobody is at the other end any more.
        () = up.closed() => return Ok(()),
    };
    let end = end.unwrap_or_else(|error| refused(format!("{error:#}")));
    up.send(message(terminal_up::Message::End(end))).await?;
    drop(up);
    // Who lets go of an answer takes back what was asked, and the end with it: the server ends it first.
    let over = async { while let Ok(Some(_)) = down.message().await {} };
    tokio::time::timeout(ANSWER_TIMEOUT, over)
        .await
        .context("the server did not take how a terminal ended")
}

/// Carries one terminal until it ends, or until nobody is at the other end.
async fn carry(
    node: &Node,
    begin: TerminalBegin,
    up: &Up,
    down: &mut Streaming<TerminalDown>,
) -> anyhow::Result<TerminalEnd> {
    let id: AssignmentId = begin
        .assignment_id
        .parse()
        .context("the assignment's id is malformed")?;
    let run = node.folders.run(id);
    if !matches!(run.started(), Ok(Some(_))) || !matches!(run.exit(), Ok(None)) {
        bail!("the worker does not run on this node as a process: wait until it runs");
    }
    match begin.kind {
        Some(terminal_begin::Kind::Command(command)) => {
            let ask = Ask::Command {
                arguments: command.arguments,
                terminal: command.terminal.is_some(),
            };
            let ends = match &command.terminal {
                Some(size) => Ends::terminal(size)?,
                None => Ends::pipes()?,
            };
            beside_job(&run, &ask, ends, up, down).await
        }
        Some(terminal_begin::Kind::Port(port)) => {
            let port = u16::try_from(port).context("the port is malformed")?;
            beside_job(&run, &Ask::Port { port }, Ends::pipes()?, up, down).await
        }
        Some(terminal_begin::Kind::Attach(_)) => {
            attach::follow(&run, &node.folders.log(id), up, down).await
        }
        None => bail!("the server asks for a kind of terminal that this agent does not know"),
    }
}

/// Both ends of what a process beside a job reads and writes.
struct Ends {
    ours: Ours,
    theirs: [OwnedFd; 3],
}

/// The ends that the agent holds.
struct Ours {
    input: Option<Arc<Way>>,
    output: Arc<Way>,
    errors: Option<Way>,
    terminal: bool,
}

impl Ends {
    fn terminal(size: &TerminalSize) -> anyhow::Result<Self> {
        let (master, slave) = open_pair().context("no terminal can be opened")?;
        let master = Arc::new(Way::new(master)?);
        master.resize(&window(size))?;
        let ours = Ours {
            input: Some(Arc::clone(&master)),
            output: master,
            errors: None,
            terminal: true,
        };
        let theirs = [slave.try_clone()?, slave.try_clone()?, slave];
        Ok(Self { ours, theirs })
    }

    fn pipes() -> anyhow::Result<Self> {
        let (their_input, input) = io::pipe()?;
        let (output, their_output) = io::pipe()?;
        let (errors, their_errors) = io::pipe()?;
        let ours = Ours {
            input: Some(Arc::new(Way::new(input.into())?)),
            output: Arc::new(Way::new(output.into())?),
            errors: Some(Way::new(errors.into())?),
            terminal: false,
        };
        let theirs = [their_input.into(), their_output.into(), their_errors.into()];
        Ok(Self { ours, theirs })
    }
}

/// Both ends of a new terminal. Never without close-on-exec: supervisors are started on other threads, and
/// one that had inherited an end would keep the terminal open.
fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = open(ptsname_r(&master)?.as_str(), flags, Mode::empty())?;
    Ok((master.into(), slave))
}

fn window(size: &TerminalSize) -> Winsize {
    let cells = |cells: u32| u16::try_from(cells).unwrap_or(u16::MAX);
    Winsize {
        ws_row: cells(size.rows),
        ws_col: cells(size.columns),
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Starts the process beside the job; the control ends it when it is dropped.
fn launch(run: &RunFolder, theirs: [OwnedFd; 3]) -> io::Result<UnixStream> {
    let (ours, control) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let [input, output, errors] = theirs;
    let mut command = std::process::Command::new("/proc/self/exe");
    command
        .arg0("allotment-agent")
        .arg("beside")
        .arg(run.path())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors));
    let passed = control.as_raw_fd();
    // SAFETY: fcntl, dup2 and setsid are single system calls and touch no memory of ours; the
    // descriptor is open until the process has been spawned.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || {
            // First out of the way: one that has that number already would be closed on exec.
            let high = libc::fcntl(passed, libc::F_DUPFD_CLOEXEC, CONTROL + 1);
            if high < 0 || libc::dup2(high, CONTROL) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(nix::unistd::setsid().map(drop)?)
        });
    }
    // The runtime collects it when it ends.
    tokio::process::Command::from(command)
        .kill_on_drop(false)
        .spawn()?;
    drop(control);
    UnixStream::from_std(ours)
}

async fn beside_job(
    run: &RunFolder,
    ask: &Ask,
    ends: Ends,
    up: &Up,
    down: &mut Streaming<TerminalDown>,
) -> anyhow::Result<TerminalEnd> {
    let Ours {
        input,
        output,
        errors,
        terminal,
    } = ends.ours;
    let control = launch(run, ends.theirs).context("no process can be started beside the job")?;
    let (told, mut control) = control.into_split();
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    control.write_all(&line).await?;
    let mut told = BufReader::new(told).lines();
    let outputs = async {
        let output = pass(&output, up, terminal_up::Message::Output);
        let errors = async {
            match &errors {
                Some(errors) => pass(errors, up, terminal_up::Message::Errors).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(output, errors).map(drop)
    };
    let input = feed(down, input, terminal);
    tokio::pin!(outputs, input);
    let mut drained = false;
    let mut fed = false;
    loop {
        tokio::select! {
            said = told.next_line() => {
                let said = said?.context("the process beside the job was ended")?;
                match serde_json::from_str(&said).context("the process beside the job is not understood")? {
                    Told::Begun => {
                        up.send(message(terminal_up::Message::Begun(TerminalBegun {}))).await?;
                    }
                    Told::Ended { code, signal, reason } => {
                        if !drained {
                            let _ = tokio::time::timeout(DRAIN_MAX, outputs.as_mut()).await;
                        }
                        return Ok(TerminalEnd { code, signal, reason });
                    }
                }
            }
            written = &mut outputs, if !drained => {
                written?;
                drained = true;
            }
            left = &mut input, if !fed => {
                left?;
                fed = true;
            }
        }
    }
}

/// Passes on all that comes out.
async fn pass(
    from: &Way,
    up: &Up,
    kind: impl Fn(Vec<u8>) -> terminal_up::Message,
) -> anyhow::Result<()> {
    loop {
        let mut bytes = vec![0; PIECE_BYTES];
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return Ok(());
        }
        bytes.truncate(read);
        up.send(message(kind(bytes))).await?;
    }
}

/// Takes what comes from the server; an error where nobody is there any more.
async fn feed(
    down: &mut Streaming<TerminalDown>,
    mut input: Option<Arc<Way>>,
    terminal: bool,
) -> anyhow::Result<()> {
    /// What ends the input at a terminal.
    const END_OF_INPUT: &[u8] = &[4];
    loop {
        let Some(received) = down.message().await? else {
            bail!("nobody is at the other end any more");
        };
        match (received.message, input.clone()) {
            (Some(terminal_down::Message::Input(bytes)), Some(way)) => {
                let written = way.write_all(&bytes).await;
                // One that reads no more has left its input closed: what it writes still counts.
                if written.is_err() && !terminal {
                    input = None;
                }
            }
            (Some(terminal_down::Message::InputOver(_)), Some(way)) => match terminal {
                true => {
                    // A terminal that takes no more has nobody who reads.
                    let _ = way.write_all(END_OF_INPUT).await;
                }
                false => input = None,
            },
            (Some(terminal_down::Message::Size(size)), Some(way)) if terminal => {
                way.resize(&window(&size))?;
            }
            (Some(terminal_down::Message::Begin(_)), _) => bail!("a terminal was begun twice"),
            _ => {}
        }
    }
}

fn refused(reason: String) -> TerminalEnd {
    TerminalEnd {
        code: None,
        signal: None,
        reason,
    }
}

fn message(message: terminal_up::Message) -> TerminalUp {
    TerminalUp {
        message: Some(message),
    }
}
