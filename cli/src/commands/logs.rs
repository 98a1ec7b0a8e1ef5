//! `allot logs`: what a job wrote, as it writes it.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use reqwest::Response;
use serde_json::json;

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::{Filter, plain};
use crate::table;

/// How often a job that is followed is looked at between its attempts.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Times in a row that a log may break off without having given anything.
const TRIES_MAX: u32 = 20;
/// Wait before it is asked for again: a server that is replaced is back within some seconds.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Lines that are asked for at once, the most that a server gives.
const SEARCH_LINES: u32 = 500;
/// Lines that are kept to be printed as JSON in the end.
const FOUND_MAX: usize = 100_000;

/// Print what a job wrote.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot logs -f 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f\n  allot logs --search 'loss: nan' 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f"
)]
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
    /// Print the lines alone that have this, each after the byte at which it begins
    #[arg(long, value_name = "TEXT", conflicts_with = "follow")]
    search: Option<String>,
    /// What is searched for is a regular expression
    #[arg(long, requires = "search")]
    regex: bool,
    /// Print one JSON object with the text
    #[arg(long)]
    json: bool,
}

impl Logs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        if let Some(text) = &self.search {
            return self.search(&client, text).await;
        }
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
        let path = format!("/jobs/{}/logs", part(&self.id));
        let (mut offset, mut fruitless) = (offset, 0);
        loop {
            let mut query = self.which(attempt);
            query.push(("offset", offset.to_string()));
            query.push(("follow", self.follow.to_string()));
            let opened = if self.follow {
                client.follow(&path, &query).await
            } else {
                client.open(&path, &query).await
            };
            let broken = match opened {
                Ok(response) => match print(response, &mut offset, printed).await? {
                    None => return Ok(()),
                    Some(broken) => broken,
                },
                // It was there a moment ago.
                Err(Failure::Away(why)) if fruitless > 0 => anyhow::Error::msg(why),
                Err(failure) => return Err(failure),
            };
            fruitless = if broken.is::<Progress>() {
                1
            } else {
                fruitless + 1
            };
            if fruitless > TRIES_MAX {
                return Err(broken.context("the log broke off").into());
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// The parameters that say which log.
    fn which(&self, attempt: Option<u32>) -> Vec<(&'static str, String)> {
        let mut query = vec![("worker", self.worker.to_string())];
        query.extend(attempt.map(|attempt| ("attempt", attempt.to_string())));
        query.extend(self.filling.map(|filling| ("filling", filling.to_string())));
        query
    }

    /// Prints the lines of an attempt's log that have what is searched for, each after where it begins.
    async fn search(&self, client: &Client, text: &str) -> Result<(), Failure> {
        let path = format!("/jobs/{}/logs/search", part(&self.id));
        let (mut offset, mut found) = (Some(self.offset), Vec::new());
        while let Some(from) = offset {
            let mut query = self.which(self.attempt);
            query.push(("offset", from.to_string()));
            query.push(("query", text.to_owned()));
            query.push(("regex", self.regex.to_string()));
            query.push(("limit", SEARCH_LINES.to_string()));
            let page = client.get(&path, &query).await?;
            let next = page["next_offset"].as_u64();
            for line in page["items"].as_array().into_iter().flatten() {
                if self.json {
                    found.push(line.clone());
                } else {
                    let words = table::text(&line["text"]);
                    table::print_line(&format!("{}: {words}", line["offset"]))?;
                }
            }
            offset = next.filter(|next| *next > from && found.len() < FOUND_MAX);
            if let (Some(next), None) = (next, offset) {
                eprintln!("note: the search ended early; `--offset {next}` goes on");
            }
        }
        if self.json {
            table::print_json(&json!({"job": self.id, "worker": self.worker, "lines": found}))?;
        }
        Ok(())
    }
}

/// A log that broke off after it had given something.
#[derive(Debug)]
struct Progress(reqwest::Error);

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Progress {}

/// Prints an answer; where it broke off, why, with `offset` where it goes on.
async fn print(
    response: Response,
    offset: &mut u64,
    printed: &mut Printed,
) -> Result<Option<anyhow::Error>, Failure> {
    let begins = response.headers().get("allotment-log-offset");
    let begins = begins.and_then(|value| value.to_str().ok()?.parse().ok());
    *offset = begins.unwrap_or(*offset);
    let from = *offset;
    let mut stream = response.bytes_stream();
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => {
                *offset += chunk.len() as u64;
                printed.take(&chunk)?;
            }
            Err(error) if *offset > from => return Ok(Some(Progress(error).into())),
            Err(error) => return Ok(Some(error.into())),
        }
        if printed.closed {
            break;
        }
    }
    Ok(None)
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
