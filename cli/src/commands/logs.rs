//! `allot logs`: what a job wrote, as it writes it.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use clap::Args;
use futures_util::StreamExt;
use serde_json::json;

use crate::client::{Client, part};
use crate::failure::Failure;
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
        let response = Client::found()?
            .open(&format!("/jobs/{}/logs", part(&self.id)), &query)
            .await?;
        if self.json {
            let text = response.text().await.context("the log broke off")?;
            return table::print_json(
                &json!({"job": self.id, "worker": self.worker, "offset": self.offset, "text": text}),
            );
        }
        let mut stream = response.bytes_stream();
        let mut stdout = std::io::stdout();
        let mut filter = stdout.is_terminal().then(Filter::default);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.context("the log broke off")?;
            let shown = match &mut filter {
                Some(filter) => filter.pass(&chunk),
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

/// Lets colours through to a terminal and no other control sequence: a log is a stranger's text.
#[derive(Debug, Default)]
struct Filter {
    held: Vec<u8>,
}

/// Longest escape sequence that is waited for; a colour needs a dozen bytes.
const SEQUENCE_BYTES_MAX: usize = 64;

impl Filter {
    fn pass(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(chunk.len());
        for &byte in chunk {
            if self.held.is_empty() {
                match byte {
                    0x1b => self.held.push(byte),
                    b'\n' | b'\t' | b'\r' | 0x20..=0x7e | 0x80.. => shown.push(byte),
                    _ => shown.push(b'?'),
                }
                continue;
            }
            self.held.push(byte);
            let colour = self.held.get(1) == Some(&b'[');
            let parameter = self.held.len() == 2 || byte.is_ascii_digit() || byte == b';';
            if colour && byte == b'm' {
                shown.append(&mut self.held);
            } else if !colour || !parameter || self.held.len() > SEQUENCE_BYTES_MAX {
                self.held.clear();
                shown.push(b'?');
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::Filter;

    #[test]
    fn only_colours_reach_the_terminal() {
        let mut filter = Filter::default();
        assert_eq!(
            filter.pass(b"\x1b[31mred\x1b[0m\n"),
            b"\x1b[31mred\x1b[0m\n"
        );
        let shown = filter.pass(b"\x1b]52;c;AAAA\x07\x1b[2J\x00");
        assert!(!shown.contains(&0x1b) && !shown.contains(&0x07) && !shown.contains(&0));
    }

    #[test]
    fn a_sequence_may_be_cut_by_a_chunk() {
        let mut filter = Filter::default();
        let mut shown = filter.pass(b"\x1b[3");
        shown.extend(filter.pass(b"1mx"));
        assert_eq!(shown, b"\x1b[31mx");
    }
}
