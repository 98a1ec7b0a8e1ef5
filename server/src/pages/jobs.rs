//! The list of jobs.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use domain::money::Money;
use domain::name::Name;
use domain::state::JobState;
use rust_decimal::Decimal;
use serde::Deserialize;
use web::format::{Cost, Size};
use web::messages::Messages;
use web::parts::Team;
use web::shell::Section;
use web::views::{JobRow, JobsFilter, JobsView, Unfolding};

use super::fault::encode;
use super::job::why::short;
use super::visit::Visit;
use super::{PageError, page};
use crate::app::authorise::{Action, may};
use crate::app::jobs::{self, Job, JobFilter};
use crate::app::page::PageAsk;
use crate::app::{App, AppError, Asker, holdings, teams};
use crate::front::fields::read_query;

/// Jobs on a page: what a reader looks over before filtering.
const JOBS_PER_PAGE: u32 = 50;

/// What the list is filtered by, and where it goes on.
#[derive(Debug, Default, Deserialize)]
pub struct JobsQuery {
    #[serde(default)]
    team: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    user: String,
    cursor: Option<String>,
    /// The array whose elements are shown by state.
    #[serde(default)]
    unfold: String,
}

/// Shows the jobs that the asker may see.
pub async fn list_jobs(
    State(app): State<App>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: JobsQuery = read_query(&uri)?;
    let ask = PageAsk::new(Some(JOBS_PER_PAGE), query.cursor.clone())?;
    let found = match query.filter() {
        Ok(filter) => jobs::list(&app, &visit.asker, &filter, &ask).await,
        Err(error) => Err(error),
    };
    let list = match found {
        Err(AppError::Invalid(fault)) if fault.field == "user" => None,
        Err(AppError::NotFound { what: "user", .. }) => None,
        found => Some(found?),
    };
    let unknown_user = list.is_none();
    let (jobs, next_cursor) =
        list.map_or_else(Default::default, |list| (list.items, list.next_cursor));
    let known = Teams::load(&app, &visit.asker).await?;
    let counts = holdings::live_jobs(&app, &visit.asker).await?;
    let below = known.with_children(&query.team);
    let counted = counts
        .iter()
        .filter(|(team, _)| query.team.is_empty() || below.contains(team));
    let (waiting, running) = counted.fold((0, 0), |(w, r), (_, n)| (w + n.waiting, r + n.active));
    let filter = JobsFilter {
        team: query.team.clone(),
        state: query.state.clone(),
        user: query.user.clone(),
    };
    let shell = visit.shell(&app, Section::Jobs).await?;
    let now = shell.now;
    let rows = jobs.into_iter().map(|job| {
        let open = query.unfold == job.id.to_string();
        let array = job.array.as_ref().map(|array| Unfolding {
            count: array.count,
            counts: array.elements.iter().collect(),
            open,
            address: query.address_with(&filter, (!open).then_some(&job)),
        });
        let suspended = job.state == JobState::Suspended;
        JobRow {
            array,
            resumes: suspended && may(&visit.asker, Action::ResumeJob, job.target),
            ..row(&shell.t, job, &known, now)
        }
    });
    let rows = rows.collect();
    page(&JobsView {
        shell,
        unknown_user,
        rows,
        waiting,
        running,
        teams: known.openable(),
        newest: query.cursor.is_some().then(|| address(&filter, None, None)),
        older: next_cursor.map(|cursor| address(&filter, Some(&cursor), None)),
        filter,
    })
}

impl JobsQuery {
    /// This page of the list with the elements of an array shown, or of none.
    fn address_with(&self, filter: &JobsFilter, array: Option<&Job>) -> String {
        let array = array.map(|job| job.id.to_string());
        address(filter, self.cursor.as_deref(), array.as_deref())
    }

    fn filter(&self) -> Result<JobFilter, AppError> {
        let name = |field: &str, text: &str| match text.trim() {
            "" => Ok(None),
            text => text
                .parse::<Name>()
                .map(Some)
                .map_err(|error| domain::FieldError {
                    field: field.into(),
                    ..error
                }),
        };
        let states = match self.state.as_str() {
            "" => Vec::new(),
            state => vec![state.parse()?],
        };
        Ok(JobFilter {
            team: name("team", &self.team)?,
            states,
            user: name("user", &self.user)?,
        })
    }
}

fn address(filter: &JobsFilter, cursor: Option<&str>, unfold: Option<&str>) -> String {
    let pairs = [
        ("team", filter.team.as_str()),
        ("state", &filter.state),
        ("user", &filter.user),
        ("cursor", cursor.unwrap_or("")),
        ("unfold", unfold.unwrap_or("")),
    ];
    let query: Vec<String> = pairs
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}={}", encode(value)))
        .collect();
    if query.is_empty() {
        "/jobs".into()
    } else {
        format!("/jobs?{}", query.join("&"))
    }
}

/// A job as a row of a list.
pub fn row(t: &Messages, job: Job, teams: &Teams, now: domain::Timestamp) -> JobRow {
    let mut nodes: Vec<String> = Vec::new();
    if !job.state.terminal() {
        nodes.extend(job.placement.iter().map(|worker| worker.node.clone()));
        nodes.dedup();
    }
    JobRow {
        id: job.id.to_string(),
        why: short(t, &job),
        cost: cost_of(job.cost.as_ref(), job.gpu_seconds),
        size: size(&job),
        ran_seconds: ran_seconds(&job, now),
        team: teams.shown(&job.team),
        name: job.name,
        user: job.user,
        state: job.state,
        nodes,
        created_at: job.created_at,
        attempt: job.attempt.unsigned_abs(),
        array: None,
        resumes: false,
    }
}

/// How long its present or last attempt ran, or has been running.
pub fn ran_seconds(job: &Job, now: domain::Timestamp) -> Option<i64> {
    let until = job.finished_at.unwrap_or(now);
    job.started_at.map(|at| (until - at).num_seconds().max(0))
}

/// How large it is: what it holds where it runs, else what it asks for.
pub fn size(job: &Job) -> Size {
    let (least, most) = job.gpus();
    Size {
        least_milli: least.milli(),
        most_milli: most.milli(),
    }
}

/// What use cost so far; use without a price says so.
pub fn cost_of(cost: Option<&Money>, gpu_seconds: Decimal) -> Cost {
    match cost {
        Some(money) => Cost::priced(money.clone()),
        None => Cost {
            priced: None,
            unpriced: !gpu_seconds.is_zero(),
        },
    }
}

/// The teams that the asker may see, for hues, roles and what lies below what.
pub struct Teams {
    known: BTreeMap<String, teams::Team>,
    sees_all: bool,
}

impl Teams {
    /// Reads them.
    pub async fn load(app: &App, asker: &Asker) -> Result<Self, AppError> {
        let mut known = BTreeMap::new();
        let mut ask = PageAsk::first();
        // Bounded by the number of teams; each page goes on behind the one before.
        loop {
            let page = teams::list(app, asker, &ask).await?;
            known.extend(
                page.items
                    .into_iter()
                    .map(|team| (team.name.to_string(), team)),
            );
            match page.next_cursor {
                Some(cursor) => {
                    ask = PageAsk::new(Some(crate::app::page::PAGE_ITEMS_MAX), Some(cursor))?
                }
                None => {
                    return Ok(Self {
                        known,
                        sees_all: asker.platform_role.is_some(),
                    });
                }
            }
        }
    }

    /// A team in its hue; one that is not known in the shared grey.
    pub fn shown(&self, name: &str) -> Team {
        let hue = self
            .get(name)
            .and_then(|team| u8::try_from(team.hue).ok())
            .unwrap_or(0);
        Team {
            name: name.to_owned(),
            hue,
        }
    }

    /// A team as it was read.
    pub fn get(&self, name: &str) -> Option<&teams::Team> {
        self.known.get(name)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &teams::Team> {
        self.known.values()
    }

    /// Whether the asker may open a team's page; of teams above its own it knows the names alone.
    pub fn opens(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|team| self.sees_all || team.role.is_some())
    }

    /// The names of those that it may open, in order.
    pub fn openable(&self) -> Vec<String> {
        let names = self.known.keys().filter(|name| self.opens(name));
        names.cloned().collect()
    }

    /// The teams directly below one.
    pub fn children(&self, name: &str) -> Vec<&teams::Team> {
        self.all()
            .filter(|team| {
                team.parent
                    .as_ref()
                    .is_some_and(|parent| parent.as_str() == name)
            })
            .collect()
    }

    /// A team's name with those of all below it.
    pub fn with_children(&self, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        let mut next = 0;
        while let Some(parent) = names.get(next).cloned() {
            let below = self
                .children(&parent)
                .into_iter()
                .map(|team| team.name.to_string());
            let new: Vec<String> = below.filter(|name| !names.contains(name)).collect();
            names.extend(new);
            next += 1;
        }
        names
    }
}
