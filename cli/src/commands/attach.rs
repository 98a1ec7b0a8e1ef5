//! `allot attach`: what a job that runs writes, from its last lines on, and how it ends.

use std::io::{IsTerminal, Write};

use clap::Args;
use serde_json::Value;

use super::terminal::{Socket, Told};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::Filter;
use crate::table;

/// Follow a worker of a job that runs, from its last lines on, and end as it ends.
#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is sent to the job, whose standard input is empty. `allot logs -f` follows a job from its beginning, through all attempts.\n\nExample:\n  allot attach 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"
)]
pub struct Attach {
    /// The job's id
    id: String,
    /// The worker's rank
    #[arg(long, short, default_value_t = 0)]
    worker: u32,
    /// Print one JSON object with what it wrote and how it ended, once it has ended
    #[arg(long)]
    json: bool,
}

impl Attach {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let path = format!("/jobs/{}/attach", part(&self.id));
        let worker = [("worker", self.worker.to_string())];
        let mut socket = Socket::open(&client, &path, &worker).await?;
        let mut stdout = std::io::stdout();
        let mut filter = stdout.is_terminal().then(Filter::default);
        let mut kept = Vec::new();
        let end = loop {
            match socket.from.next().await? {
                Told::Output(bytes) if self.json => kept.extend(bytes),
                Told::Output(bytes) => {
                    let shown = match &mut filter {
                        Some(filter) => filter.pass(&bytes).into_bytes(),
                        None => bytes,
                    };
                    stdout.write_all(&shown)?;
                    stdout.flush()?;
                }
                Told::Begun | Told::Errors(_) => {}
                Told::End(end) => break end,
            }
        };
        if self.json {
            let mut printed = end.as_json();
            printed["output"] = Value::from(String::from_utf8_lossy(&kept));
            table::print_json(&printed)?;
        }
        end.as_own()
    }
}
