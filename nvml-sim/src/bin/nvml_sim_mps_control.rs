//! A stand-in for `nvidia-cuda-mps-control`: a daemon with a pipe and a log folder that takes the
//! commands which an agent gives, and shares nothing.
//!
//! With `-f` it is the daemon, in the foreground; with `-d` it starts one and leaves; without either
//! it passes the commands of its standard input to the daemon of its pipe folder. With `-multiuser-server`
//! the clients of all users may reach it. Its clients are the programs that are told of its pipe folder and of a
//! part of the threads.

use std::fs::{OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOG_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Tells a client from what speaks to the daemon.
const CLIENT_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// How long a started daemon may take until it listens, in steps.
const START_STEPS: u32 = 500;
const START_STEP: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("-f") => serve(),
        Some("-d") => start(),
        None => pass(),
        Some(other) => Err(format!("unknown argument {other}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(default), PathBuf::from)
}

fn socket(pipe: &Path) -> PathBuf {
    pipe.join("control")
}

fn words(error: std::io::Error) -> String {
    error.to_string()
}

fn start() -> Result<(), String> {
    let program = std::env::current_exe().map_err(words)?;
    let mut daemon = Command::new(program);
    daemon.arg("-f").stdin(Stdio::null()).stdout(Stdio::null());
    daemon.spawn().map_err(words)?;
    let pipe = folder(PIPE_VARIABLE, "/tmp/nvidia-mps");
    for _ in 0..START_STEPS {
        if UnixStream::connect(socket(&pipe)).is_ok() {
            return Ok(());
        }
        std::thread::sleep(START_STEP);
    }
    Err("the daemon does not listen".to_owned())
}

fn serve() -> Result<(), String> {
    let pipe = folder(PIPE_VARIABLE, "/tmp/nvidia-mps");
    let log = folder(LOG_VARIABLE, "/var/log/nvidia-mps");
    if UnixStream::connect(socket(&pipe)).is_ok() {
        return Err("An instance of this daemon is already running".to_owned());
    }
    // What a daemon that was killed has left.
    let _ = std::fs::remove_file(socket(&pipe));
    let listener = UnixListener::bind(socket(&pipe)).map_err(words)?;
    if std::env::args().any(|argument| argument == "-multiuser-server") {
        let all = Permissions::from_mode(0o777);
        std::fs::set_permissions(socket(&pipe), all).map_err(words)?;
    }
    let pid = std::process::id();
    let pid_file = pipe.join("nvidia-cuda-mps-control.pid");
    std::fs::write(&pid_file, format!("{pid}\n")).map_err(words)?;
    let device = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let log = log.join("control.log");
    let line = format!("Starting control daemon on {device}\n");
    std::fs::write(&log, line).map_err(words)?;
    let mut state = "ACTIVE";
    for caller in listener.incoming() {
        let caller = caller.map_err(words)?;
        let mut answers = caller.try_clone().map_err(words)?;
        for command in BufReader::new(caller).lines().map_while(Result::ok) {
            let answer = match command.split(' ').next().unwrap_or_default() {
                "quit" => {
                    let _ = std::fs::remove_file(socket(&pipe));
                    let _ = std::fs::remove_file(&pid_file);
                    return Ok(());
                }
                "get_server_list" => pid.to_string(),
                "get_server_status" => state.to_owned(),
                "get_client_list" => clients(&pipe).join("\n"),
                "terminate_client" => {
                    let wanted = command.rsplit(' ').next().unwrap_or_default();
                    match clients(&pipe).iter().any(|pid| pid == wanted) {
                        true => {
                            note(&log, &command).map_err(words)?;
                            String::new()
                        }
                        false => format!("Client {wanted} not found"),
                    }
                }
                // What a client's fatal fault does to a real one.
                "sim_fault" => {
                    state = "FAULT";
                    state.to_owned()
                }
                other => format!("Invalid command {other}"),
            };
            if writeln!(answers, "{answer}").is_err() {
                break;
            }
        }
    }
    Ok(())
}

fn note(log: &Path, line: &str) -> std::io::Result<()> {
    let mut log = OpenOptions::new().append(true).open(log)?;
    writeln!(log, "{line}")
}

/// The pids of the programs that share the device.
fn clients(pipe: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let shares = |pid: &String| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let value = |name: &str| {
            environment.split(|byte| *byte == 0).find_map(|pair| {
                let pair = std::str::from_utf8(pair).ok()?;
                pair.strip_prefix(name)?.strip_prefix('=')
            })
        };
        value(PIPE_VARIABLE).map(Path::new) == Some(pipe) && value(CLIENT_VARIABLE).is_some()
    };
    names.filter(shares).collect()
}

fn pass() -> Result<(), String> {
    let pipe = folder(PIPE_VARIABLE, "/tmp/nvidia-mps");
    let mut commands = String::new();
    std::io::stdin()
        .read_to_string(&mut commands)
        .map_err(words)?;
    let mut daemon = UnixStream::connect(socket(&pipe))
        .map_err(|_| "Cannot find MPS control daemon process".to_owned())?;
    daemon.write_all(commands.as_bytes()).map_err(words)?;
    daemon.shutdown(std::net::Shutdown::Write).map_err(words)?;
    let mut answers = String::new();
    daemon.read_to_string(&mut answers).map_err(words)?;
    print!("{answers}");
    Ok(())
}
