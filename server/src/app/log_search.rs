//! Searches a log, line by line, within bounds of time, bytes and lines.

use std::time::Duration;

use domain::ids::JobId;
use regex::bytes::{Regex, RegexBuilder};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::authorise::Action;
use super::logs::{self, LogAsk, LogBroken};
use super::{App, AppError, Asker, jobs};

/// Longest search text in characters: what is longer is pasted by mistake.
const TEXT_CHARS_MAX: usize = 200;
/// Most lines in an answer.
const LINES_MAX: usize = 500;
/// A search ends by then, and says where it stood: a person waits for it.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes that a search looks at, so that many at once do not keep a node's stream from all else.
const BYTES_MAX: i64 = 256 * 1024 * 1024;
/// A line is searched in pieces of so many bytes, so that one without an end takes no memory.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a line that are answered, around what was found.
const SHOWN_BYTES: usize = 512;
/// Of that before it.
const SHOWN_BEFORE: usize = 128;
/// Memory of a compiled expression: one that repeats repetitions is refused in place of taking all there is.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// What is searched for.
#[derive(Debug, Clone)]
pub struct Search {
    /// The text, or the expression.
    pub text: String,
    /// Whether it is an expression.
    pub regex: bool,
    /// Most lines that are answered.
    pub limit: usize,
}

/// What was found.
#[derive(Debug, Serialize, ToSchema)]
pub struct Found {
    /// The lines, by where they begin.
    pub items: Vec<FoundLine>,
    /// From where a search goes on that ended early; null at the log's end.
    pub next_offset: Option<i64>,
}

/// A line that was found.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundLine {
    /// Where in the log it begins.
    pub offset: i64,
    /// At most 512 bytes of it, around what was found; what is no text in them is replaced.
    pub text: String,
}

/// Searches the log of a worker.
pub async fn search(
    app: &App,
    asker: &Asker,
    job: JobId,
    ask: LogAsk,
    search: Search,
) -> Result<Found, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    jobs::find(&mut tx, asker, Action::SearchJobLogs, job).await?;
    tx.commit().await?;
    let pattern = compile(&search)?;
    if !(1..=LINES_MAX).contains(&search.limit) {
        let remedy = format!("1 to {LINES_MAX}");
        return Err(AppError::invalid("limit", search.limit, remedy));
    }
    let mut reader = logs::open(app, asker, job, ask).await?;
    let until = Instant::now() + TIME_MAX;
    let begun = reader.offset();
    let mut lines = Lines::new(begun, pattern, search.limit);
    loop {
        let read = match tokio::time::timeout_at(until, reader.next()).await {
            Err(_) => return Ok(lines.stopped()),
            Ok(None) => return Ok(lines.ended()),
            Ok(Some(read)) => read,
        };
        match read {
            Ok(bytes) => lines.take(&bytes),
            Err(LogBroken::Skipped(to)) => lines.skip_to(to),
            Err(LogBroken::Rights(refused)) => return Err(refused),
            Err(LogBroken::Database(error)) => return Err(error.into()),
            Err(LogBroken::Node(why)) => {
                tracing::debug!("a search broke off: {why}");
                return Ok(lines.stopped());
            }
        }
        let at_bound = Instant::now() >= until || lines.line_begins - begun >= BYTES_MAX;
        if at_bound || lines.full() {
            return Ok(lines.stopped());
        }
    }
}

fn compile(search: &Search) -> Result<Regex, AppError> {
    let refuse = |remedy: String| AppError::invalid("query", &search.text, remedy);
    if !(1..=TEXT_CHARS_MAX).contains(&search.text.chars().count()) {
        return Err(refuse(format!("1 to {TEXT_CHARS_MAX} characters")));
    }
    let pattern = match search.regex {
        true => search.text.clone(),
        false => regex::escape(&search.text),
    };
    RegexBuilder::new(&pattern)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .build()
        .map_err(|_| {
            refuse("a smaller regular expression, such as \"step [0-9]+\", of the syntax that docs.rs/regex describes".to_owned())
        })
}

/// The lines of a log as they come.
struct Lines {
    pattern: Regex,
    limit: usize,
    /// The line that has not ended yet, or the piece of it.
    line: Vec<u8>,
    line_begins: i64,
    found: Vec<FoundLine>,
}

impl Lines {
    fn new(begins: i64, pattern: Regex, limit: usize) -> Self {
        Self {
            pattern,
            limit,
            line: Vec::new(),
            line_begins: begins,
            found: Vec::new(),
        }
    }

    fn full(&self) -> bool {
        self.found.len() >= self.limit
    }

    fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(LINE_BYTES_MAX) {
                if self.full() {
                    return;
                }
                self.line.extend_from_slice(piece);
                if piece.ends_with(b"\n") || self.line.len() >= LINE_BYTES_MAX {
                    self.look();
                }
            }
        }
    }

    fn skip_to(&mut self, offset: i64) {
        self.look();
        self.line_begins = offset;
    }

    fn look(&mut self) {
        let line = std::mem::take(&mut self.line);
        let begins = self.line_begins;
        self.line_begins += i64::try_from(line.len()).unwrap_or(0);
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if let Some(at) = self.pattern.find(text) {
            let from = at.start().saturating_sub(SHOWN_BEFORE);
            let shown = &text[from..text.len().min(from + SHOWN_BYTES)];
            self.found.push(FoundLine {
                offset: begins,
                text: String::from_utf8_lossy(shown).into_owned(),
            });
        }
    }

    fn stopped(self) -> Found {
        Found {
            next_offset: Some(self.line_begins),
            items: self.found,
        }
    }

    fn ended(mut self) -> Found {
        if self.full() {
            return self.stopped();
        }
        if !self.line.is_empty() {
            self.look();
        }
        Found {
            next_offset: None,
            items: self.found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, regex: bool, limit: usize) -> Lines {
        let search = Search {
            text: text.to_owned(),
            regex,
            limit,
        };
        Lines::new(0, compile(&search).expect("compiled"), limit)
    }

    #[test]
    fn lines_are_found_over_pieces_with_where_they_begin() {
        let mut found = lines("step 1", false, 10);
        for piece in ["epoch\nst", "ep 1\nstep 2\n", "step 11"] {
            found.take(piece.as_bytes());
        }
        let found = found.ended();
        let told: Vec<_> = found.items.iter().map(|l| (l.offset, &*l.text)).collect();
        assert_eq!(told, [(6, "step 1"), (20, "step 11")]);
        assert_eq!(found.next_offset, None);
    }

    #[test]
    fn a_search_that_is_full_goes_on_behind_what_it_found() {
        let text = "a1\nb\na2\na3\n";
        let mut first = lines("^a", true, 2);
        first.take(text.as_bytes());
        let first = first.stopped();
        assert_eq!(first.items.len(), 2);
        let next = first.next_offset.expect("more");
        assert_eq!(&text[usize::try_from(next).expect("small")..], "a3\n");
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory_and_is_found_in() {
        let mut found = lines("needle", false, 10);
        for _ in 0..200 {
            found.take(&[b'x'; 50_000]);
            assert!(found.line.len() <= LINE_BYTES_MAX * 2);
        }
        found.take(b"needle\xff\xfe");
        let found = found.ended();
        assert_eq!(found.items.len(), 1);
        assert!(found.items[0].text.ends_with("needle\u{fffd}\u{fffd}"));
    }

    #[test]
    fn an_expression_that_would_take_all_memory_is_refused() {
        for text in ["(a{1000}){1000}", "(", ""] {
            let search = Search {
                text: text.to_owned(),
                regex: true,
                limit: 1,
            };
            assert!(compile(&search).is_err(), "{text}");
        }
    }
}
