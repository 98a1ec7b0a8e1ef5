//! An array's page: all its elements at a glance, and a list of them.

use axum::response::Response;
use domain::state::JobState;
use web::shell::Section;
use web::views::{ArrayView, JobActions};

use super::super::fault::encode;
use super::super::jobs::{Teams, cost_of, row, size};
use super::super::visit::Visit;
use super::super::{PageError, page, words};
use super::view::{JobQuery, actions, asked, change, event_lines, milli};
use super::why;
use crate::app::authorise::{self, Action};
use crate::app::jobs::{self, Job};
use crate::app::page::PageAsk;
use crate::app::{App, AppError};

/// Elements on a page: what a reader looks over before filtering.
const ELEMENTS_PER_PAGE: u32 = 50;

/// Shows an array.
pub(super) async fn show(
    app: &App,
    visit: &Visit,
    job: Job,
    query: JobQuery,
) -> Result<Response, PageError> {
    let (asker, id) = (&visit.asker, job.id);
    let states = match query.state.as_str() {
        "" => Vec::new(),
        state => vec![state.parse().map_err(AppError::Invalid)?],
    };
    let ask = PageAsk::new(Some(ELEMENTS_PER_PAGE), query.cursor.clone())?;
    let elements = jobs::elements(app, asker, id, &states, &ask).await?;
    let grid = jobs::grid(app, asker, id).await?;
    let steps = jobs::steps(app, asker, id).await?;
    let teams = Teams::load(app, asker).await?;
    let shell = visit.shell(app, Section::Jobs).await?;
    let address = |cursor: Option<&str>| {
        let pairs = [
            ("state", query.state.as_str()),
            ("cursor", cursor.unwrap_or("")),
        ];
        let asked = pairs.iter().filter(|(_, value)| !value.is_empty());
        let asked: Vec<String> = asked
            .map(|(key, value)| format!("{key}={}", encode(value)))
            .collect();
        format!("/jobs/{id}?{}", asked.join("&"))
    };
    let rows = elements.items.into_iter();
    // Elements may be held back by themselves while others run.
    let suspended = !job.state.terminal() && grid.contains(&JobState::Suspended);
    let waits = |state: &JobState| matches!(state, JobState::Queued | JobState::Suspended);
    let change = match grid.iter().all(waits) {
        true => change(app, asker, &job).await?,
        false => None,
    };
    let view = ArrayView {
        version: job.version,
        change,
        id: id.to_string(),
        team: teams.shown(&job.team),
        why: why::short(&shell.t, &job),
        grid,
        counts: job
            .array
            .as_ref()
            .map_or_else(Vec::new, |array| array.elements.iter().collect()),
        at_most: job.array.as_ref().and_then(|array| array.at_most),
        size: size(&job),
        rows: rows
            .map(|element| row(&shell.t, element, &teams, shell.now))
            .collect(),
        first: query.cursor.is_some().then(|| address(None)),
        more: elements.next_cursor.map(|cursor| address(Some(&cursor))),
        events: event_lines(&shell.t, &steps, 0),
        cost: cost_of(job.cost.as_ref(), job.gpu_seconds),
        gpu_milli_seconds: milli(job.gpu_seconds),
        command: job.spec.as_ref().map_or_else(
            || "–".into(),
            |spec| web::log::visible(&words::join(&spec.command)),
        ),
        asked: asked(&shell, &job),
        actions: JobActions {
            resume: suspended && authorise::may(asker, Action::ResumeJob, job.target),
            ..actions(asker, &job)
        },
        filter: query.state,
        name: job.name,
        user: job.user,
        state: job.state,
        shell,
    };
    page(&view)
}
