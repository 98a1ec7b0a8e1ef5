//! `allot logs`: what a job wrote, as it writes it.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use futures_util::StreamExt;
use serde_json::json;

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::{Filter, plain};
use crate::table;

/// How often a job that is followed is looked at between its attempts.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Print what a job wrote.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot logs -f 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f")]
pub struct Logs {
    /// The job's id
    id: String,
    /// Go on until the job ends, through all of its attempts
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
        let client = Client::found()?;
        let mut printed = Printed::new(self.json);
        if self.follow && self.attempt.is_none() {
            self.follow_all(&client, &mut printed).await?;
        } else {
            self.read(&client, self.attempt, self.offset, &mut printed)
                .await?;
        }
        if let Some(text) = printed.kept {
            let text = String::from_utf8_lossy(&text);
            return table::print_json(
                &json!({"job": self.id, "worker": self.worker, "offset": self.offset, "text": text}),
            );
        }
        Ok(())
    }

    /// Follows one attempt after the other, from the present one or the first on, until the job ends.
    async fn follow_all(&self, client: &Client, printed: &mut Printed) -> Result<(), Failure> {
        let mut done = None;
        while !printed.closed {
            let job = client
                .get(&format!("/jobs/{}", part(&self.id)), &[])
                .await?;
            let last = job["attempt"].as_u64().and_then(|n| u32::try_from(n).ok());
            let last = last.unwrap_or(0);
            let over = matches!(
                job["state"].as_str(),
                Some("succeeded" | "failed" | "cancelled")
            );
            match done {
                // What the server says of a job without an attempt says it best.
                None if last > 0 || over || job["array"].is_object() => {
                    let attempt = (last > 0).then_some(last);
                    self.read(client, attempt, self.offset, printed).await?;
                    done = Some(last);
                }
                Some(before) if before < last => {
                    match self.read(client, Some(before + 1), 0, printed).await {
                        // One that ended before it began has none.
                        Err(Failure::Refused(why)) => eprintln!("note: {}", plain(&why)),
                        other => other?,
                    }
                    done = Some(before + 1);
                }
                Some(_) if over => return Ok(()),
                _ => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
        Ok(())
    }

    /// Prints the log of an attempt, or of the last, from a byte on.
    async fn read(
        &self,
        client: &Client,
        attempt: Option<u32>,
        offset: u64,
        printed: &mut Printed,
    ) -> Result<(), Failure> {
        let mut query = vec![
            ("worker", self.worker.to_string()),
            ("offset", offset.to_string()),
            ("follow", self.follow.to_string()),
        ];
        query.extend(attempt.map(|attempt| ("attempt", attempt.to_string())));
        query.extend(self.filling.map(|filling| ("filling", filling.to_string())));
        let path = format!("/jobs/{}/logs", part(&self.id));
        let response = if self.follow {
            client.follow(&path, &query).await?
        } else {
            client.open(&path, &query).await?
        };
        let mut stream = response.bytes_stream();
        while let Some(chunk) = stream.next().await {
            printed.take(&chunk.context("the log broke off")?)?;
            if printed.closed {
                break;
            }
        }
        Ok(())
    }
}

/// Where a log goes to.
struct Printed {
    /// All of it, where it is printed as JSON in the end.
    kept: Option<Vec<u8>>,
    /// Takes from a terminal what would steer it; what is none gets the bytes as they were written.
    filter: Option<Filter>,
    /// Whether nobody reads on.
    closed: bool,
}

impl Printed {
    fn new(json: bool) -> Self {
        Self {
            kept: json.then(Vec::new),
            filter: std::io::stdout().is_terminal().then(Filter::default),
            closed: false,
        }
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(chunk);
            return Ok(());
        }
        let shown = match &mut self.filter {
            Some(filter) => filter.pass(chunk).into_bytes(),
            None => chunk.to_vec(),
        };
        let mut stdout = std::io::stdout();
        match stdout.write_all(&shown).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => self.closed = true,
            other => other?,
        }
        Ok(())
    }
}
