//! `./dev up --detach`: starts this program once more in a session of its own, and passes on what it says until it is ready.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

use super::Up;
use crate::paths::Paths;

/// The word that tells this program that it is the one in the background.
pub const FLAG: &str = "--detached";

/// The line by which the product says that it is ready. The end of its output would not do:
/// that comes a moment before the end of its process too.
const READY: &[u8] = b"\0\n";

/// Starts the product in the background and returns when it is ready, or with its exit status.
pub fn start(up: &Up) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(program);
    command.args(
        std::env::args_os()
            .skip(1)
            .filter(|word| word != "--detach"),
    );
    command
        .arg(FLAG)
        .current_dir(&up.checkout)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .context("start the product in the background")?;
    let mut said = BufReader::new(child.stdout.take().expect("its output is piped"));
    let mut line = Vec::new();
    while said
        .read_until(b'\n', &mut line)
        .context("hear what the product says")?
        > 0
    {
        if line == READY {
            return Ok(ExitCode::SUCCESS);
        }
        std::io::stdout()
            .write_all(&line)
            .context("pass on what the product says")?;
        line.clear();
    }
    let status = child.wait().context("wait for the product's end")?;
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs as the one in the background: once ready, its words go to a log.
pub async fn run_detached(up: &Up) -> anyhow::Result<()> {
    // No terminal's end is ours from now on.
    nix::unistd::setsid().context("leave the terminal's session")?;
    let log = Paths::of_checkout(&up.checkout)?.logs().join("up.log");
    super::run(up, || {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        std::io::stdout()
            .write_all(READY)
            .and_then(|()| std::io::stdout().flush())
            .context("say that the product is ready")?;
        nix::unistd::dup2_stdout(&file).context("turn the output to the log")?;
        nix::unistd::dup2_stderr(&file).context("turn the errors to the log")?;
        Ok(())
    })
    .await
}
