//! `allot logs`: what a job wrote, as it writes it.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use clap::Args;
use futures_util::StreamExt;
use serde_json::json;

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::Filter;
use crate::table;

/// Print what a job wrote.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot logs -f 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f")]
pub struct Logs {
    /// The job's id
    id: String,
    /// Go on until the job ends
    #[arg(long, short)]
    follow: bool,
    /// The worker's rank
    #[arg(long, short, default_value_t = 0)]
    worker: u32,
    /// The attempt [default: the last]
    #[arg(long, short)]
    attempt: Option<u32>,
    /// Which filling of the rank, of one that was filled anew [default: the last]
    #[arg(long)]
    filling: Option<u32>,
    /// Begin at this byte
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// Print one JSON object with the text
    #[arg(long)]
    json: bool,
}

impl Logs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let mut query = vec![
            ("worker", self.worker.to_string()),
            ("offset", self.offset.to_string()),
            ("follow", self.follow.to_string()),
        ];
        if let Some(attempt) = self.attempt {
            query.push(("attempt", attempt.to_string()));
        }
        if let Some(filling) = self.filling {
            query.push(("filling", filling.to_string()));
        }
        let client = Client::found()?;
        let path = format!("/jobs/{}/logs", part(&self.id));
        let response = if self.follow {
            client.follow(&path, &query).await?
        } else {
            client.open(&path, &query).await?
        };
        if self.json {
            let text = response.text().await.context("the log broke off")?;
            return table::print_json(
                &json!({"job": self.id, "worker": self.worker, "offset": self.offset, "text": text}),
            );
        }
        let mut stream = response.bytes_stream();
        let mut stdout = std::io::stdout();
        // What is no terminal gets the bytes as they were written.
        let mut filter = stdout.is_terminal().then(Filter::default);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.context("the log broke off")?;
            let shown = match &mut filter {
                Some(filter) => filter.pass(&chunk).into_bytes(),
                None => chunk.to_vec(),
            };
            match stdout.write_all(&shown).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }
}
