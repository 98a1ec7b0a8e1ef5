//! A job's log on its page: the end of it at once, and what follows as it is written.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use domain::state::JobState;
use futures_util::Stream;
use serde::Deserialize;
use web::log::{Line, Renderer};
use web::messages::Messages;
use web::views::{LogChoice, LogPanel};

use super::super::PageError;
use super::super::visit::Visit;
use super::read_id;
use crate::app::jobs::Job;
use crate::app::links::Part;
use crate::app::logs::{self, LogAsk, LogBroken, LogReader, Refilled};
use crate::app::{App, AppError};
use crate::front::fields::read_query;

/// Logs that are offered; a gang of more workers and attempts is read by REST.
const CHOICES_MAX: usize = 200;
/// Lines that a page begins with: the last ones, which tell how it goes or ended.
const LINES_SHOWN: usize = 1_000;
/// Bytes that are read to find them; a longer log is begun with what this far holds.
const BYTES_READ_MAX: usize = 16 * 1024 * 1024;
/// How long a page waits for a log before it is shown without the rest.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Ends each stream: browsers drop an event whose data is empty, and would ask again for ever.
const END: &str = "<!-- end -->";
/// A comment is sent when a log is silent for so long, so that proxies keep the stream open.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A log as a page's address names it: `ATTEMPT.WORKER`, with `.FILLING` of a rank that was filled
/// anew since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chosen {
    attempt: u32,
    worker: u32,
    filling: Option<u32>,
}

impl Chosen {
    /// The query that asks for it.
    fn query(self) -> String {
        let filling = self.filling.map(|n| format!("&filling={n}"));
        let filling = filling.unwrap_or_default();
        format!("attempt={}&worker={}{filling}", self.attempt, self.worker)
    }
}

/// The log's part of a job's page. `asked` is `ATTEMPT.WORKER` or `ATTEMPT.WORKER.FILLING`.
pub async fn panel(
    app: &App,
    visit: &Visit,
    job: &Job,
    asked: Option<&str>,
) -> Result<LogPanel, PageError> {
    let choices = choices(job, &logs::refilled(app, &visit.asker, job.id).await?);
    let Some(newest) = choices.first().map(|choice| choice.attempt) else {
        return Ok(LogPanel::default());
    };
    let chosen = asked.and_then(read_choice).unwrap_or(Chosen {
        attempt: newest,
        worker: 0,
        filling: None,
    });
    let (id, query) = (job.id, chosen.query());
    let mut panel = LogPanel {
        download: Some(format!("/api/v1/jobs/{id}/logs?{query}")),
        choices,
        worker: chosen.worker,
        attempt: chosen.attempt,
        filling: chosen.filling,
        ..LogPanel::default()
    };
    let mut offset = 0;
    // Who only asks for the live parts has the lines already, and follows them by a stream.
    if !visit.live {
        match read_end(app, visit, job, chosen).await {
            Ok(end) => {
                panel.has_earlier = end.cut;
                panel.lines = end.lines;
                offset = end.offset;
            }
            Err(AppError::NodeAway { .. }) => panel.unavailable = Some("node_unreachable".into()),
            Err(AppError::LogBusy { .. } | AppError::TooManyStreams { .. }) => {
                panel.unavailable = Some("busy".into())
            }
            Err(AppError::Forbidden { .. }) => panel.unavailable = Some("not_yours".into()),
            Err(AppError::NotFound { .. } | AppError::NoLog { .. }) if job.state.terminal() => {
                panel.unavailable = Some("none".into())
            }
            Err(AppError::NotFound { .. } | AppError::NoLog { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // One that waits again has no attempt that could write.
    let waits = matches!(job.state, JobState::Queued | JobState::Suspended);
    let live = !job.state.terminal() && !waits;
    let grows = live && chosen.attempt >= newest && chosen.filling.is_none();
    if grows && panel.unavailable.as_deref() != Some("not_yours") {
        panel.stream = Some(format!("/jobs/{id}/log/stream?{query}&offset={offset}"));
    }
    Ok(panel)
}

/// The logs that there are, the newest attempt first; of a rank that was filled anew those of the
/// workers that had it before come after it.
fn choices(job: &Job, refilled: &[Refilled]) -> Vec<LogChoice> {
    let workers = match &job.spec {
        Some(spec) => spec.workers,
        None => u32::try_from(job.placement.len()).unwrap_or(u32::MAX),
    };
    let attempts = (1..=job.attempt.unsigned_abs()).rev();
    let all = attempts.flat_map(|attempt| {
        let present = attempt == job.attempt.unsigned_abs();
        (0..workers).flat_map(move |worker| {
            let mut placed = job.placement.iter().filter(|_| present);
            let place = placed.find(|placed| placed.worker.unsigned_abs() == worker);
            let last = LogChoice {
                worker,
                attempt,
                filling: None,
                node: place.map(|placed| placed.node.clone()),
            };
            let same = |r: &&Refilled| {
                (r.attempt.unsigned_abs(), r.worker.unsigned_abs()) == (attempt, worker)
            };
            let fillings = refilled.iter().find(same).map_or(1, |r| r.fillings);
            let earlier = (1..u32::try_from(fillings).unwrap_or(u32::MAX)).rev();
            let earlier = earlier.map(move |filling| LogChoice {
                worker,
                attempt,
                filling: Some(filling),
                node: None,
            });
            std::iter::once(last).chain(earlier)
        })
    });
    all.take(CHOICES_MAX).collect()
}

fn read_choice(text: &str) -> Option<Chosen> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let chosen = Chosen {
        attempt: parts.next()??,
        worker: parts.next()??,
        filling: parts
            .next()
            .map_or(Some(None), |filling| filling.map(Some))?,
    };
    parts.next().is_none().then_some(chosen)
}

/// The end of a log.
#[derive(Default)]
struct End {
    lines: Vec<Line>,
    /// Where the line begins that is not finished.
    offset: usize,
    /// Whether there is more before.
    cut: bool,
}

async fn read_end(app: &App, visit: &Visit, job: &Job, chosen: Chosen) -> Result<End, AppError> {
    let ask = ask(chosen, 0, false)?;
    let mut reader = logs::open(app, &visit.asker, job.id, ask).await?;
    let mut renderer = Renderer::default();
    let mut lines: VecDeque<Line> = VecDeque::new();
    let mut end = End::default();
    let mut read = 0;
    let begins = usize::try_from(reader.offset()).unwrap_or(0);
    end.offset = begins;
    let reading = async {
        while let Some(Ok(bytes)) = reader.next().await {
            if let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n') {
                end.offset = begins + read + last + 1;
            }
            read += bytes.len();
            lines.extend(renderer.feed(&bytes));
            while lines.len() > LINES_SHOWN {
                lines.pop_front();
                end.cut = true;
            }
            if read >= BYTES_READ_MAX {
                break;
            }
        }
    };
    // What could not be read by then comes with the stream, or with the next look at the page.
    let _ = tokio::time::timeout(READ_TIMEOUT, reading).await;
    if job.state.terminal() {
        lines.extend(renderer.finish());
    }
    end.lines = lines.into();
    Ok(end)
}

fn ask(chosen: Chosen, offset: i64, follow: bool) -> Result<LogAsk, AppError> {
    let number = |field: &str, value: u32| {
        i32::try_from(value).map_err(|_| {
            let message = format!("the job has no {field} {value}");
            AppError::no_log(message, field, value, "one that the job has")
        })
    };
    Ok(LogAsk {
        worker: number("worker", chosen.worker)?,
        attempt: Some(number("attempt", chosen.attempt)?),
        filling: chosen
            .filling
            .map(|filling| number("filling", filling))
            .transpose()?,
        offset: offset.max(0),
        follow,
        part: Part::Log,
    })
}

/// Which log is followed, and from which byte on.
#[derive(Debug, Deserialize)]
pub struct StreamQuery {
    attempt: u32,
    worker: u32,
    filling: Option<u32>,
    #[serde(default)]
    offset: i64,
}

/// Follows a log: finished lines as HTML, each event with the byte at which the next begins.
pub async fn stream_log(
    State(app): State<App>,
    visit: Visit,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, PageError> {
    let id = read_id(&id)?;
    let query: StreamQuery = read_query(&uri)?;
    // A browser that comes back says where it was.
    let last = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok());
    let offset: i64 = last.unwrap_or(query.offset);
    let chosen = Chosen {
        attempt: query.attempt,
        worker: query.worker,
        filling: query.filling,
    };
    let ask = ask(chosen, offset, true)?;
    let reader = logs::open(&app, &visit.asker, id, ask).await?;
    let begins = reader.offset();
    let following = Following {
        reader,
        renderer: Renderer::default(),
        read: begins,
        offset: begins,
    };
    let events = futures_util::stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        let event = following.next().await?;
        let goes_on = event.1.then_some(following);
        Some((Ok(event.0), goes_on))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

/// A log that is followed.
struct Following {
    reader: LogReader,
    renderer: Renderer,
    read: i64,
    offset: i64,
}

impl Following {
    /// The next event, and whether more may follow. Nothing: the log broke off, and the browser asks again.
    async fn next(&mut self) -> Option<(Event, bool)> {
        let t = Messages::english();
        let show = |lines: Vec<Line>| {
            lines
                .iter()
                .map(|line| line.show(&t).to_string())
                .collect::<String>()
        };
        loop {
            match self.reader.next().await {
                Some(Ok(bytes)) => {
                    if let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n') {
                        self.offset = self.read + i64::try_from(last + 1).unwrap_or(0);
                    }
                    self.read += i64::try_from(bytes.len()).unwrap_or(0);
                    let lines = self.renderer.feed(&bytes);
                    if !lines.is_empty() {
                        return Some((
                            Event::default()
                                .event("lines")
                                .id(self.offset.to_string())
                                .data(show(lines)),
                            true,
                        ));
                    }
                }
                // The node says in the log what is missing.
                Some(Err(LogBroken::Skipped(to))) => self.read = to,
                Some(Err(broken)) => {
                    tracing::debug!("a followed log broke off: {broken}");
                    return None;
                }
                None => {
                    let rest: Vec<Line> = self.renderer.finish().into_iter().collect();
                    let end = Event::default().event("end").data(show(rest) + END);
                    return Some((end, false));
                }
            }
        }
    }
}
