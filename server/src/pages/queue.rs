//! What waits in a pool, in the engine's own order.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::Deserialize;
use web::shell::Section;
use web::views::{Crowd, QueueRow, QueueView, Wait};

use super::fault::encode;
use super::job::why;
use super::jobs::Teams;
use super::visit::Visit;
use super::{PageError, page};
use crate::app::page::PageAsk;
use crate::app::pools::Pool;
use crate::app::queue::{self, Others, Queued};
use crate::app::{App, AppError, pools};
use crate::front::fields::read_query;

/// Jobs on a page: what a reader looks over before going on.
const JOBS_PER_PAGE: u32 = 50;

/// Which queue is shown, and where it goes on.
#[derive(Debug, Default, Deserialize)]
pub struct QueueQuery {
    #[serde(default)]
    pool: String,
    cursor: Option<String>,
}

/// Shows the queue of a pool: where none is named, of the one in which the reader's own work waits,
/// else of the first one.
pub async fn show_queue(
    State(app): State<App>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: QueueQuery = read_query(&uri)?;
    let asker = &visit.asker;
    let offered = pools::list(&app, asker, &PageAsk::first()).await?.items;
    let pool = match query.pool.as_str() {
        "" => {
            let own = queue::own_pool(&app, asker).await?;
            let own = |pool: &&Pool| Some(pool.name.as_str()) == own.as_deref();
            let pool = offered.iter().find(own).or_else(|| offered.first());
            pool.map(|pool| pool.name.clone())
        }
        name => {
            let unknown = |_| AppError::not_found("pool", name);
            Some(name.parse().map_err(unknown)?)
        }
    };
    let ask = PageAsk::new(Some(JOBS_PER_PAGE), query.cursor.clone())?;
    let found = match &pool {
        Some(pool) => Some(queue::list(&app, asker, pool, &ask).await?),
        None => None,
    };
    let teams = Teams::load(&app, asker).await?;
    let address = |cursor: Option<&str>| {
        let name = pool.as_ref().map_or("", |pool| pool.as_str());
        let cursor = cursor.map_or_else(String::new, |c| format!("&cursor={}", encode(c)));
        format!("/queue?pool={}{cursor}", encode(name))
    };
    let next = found.as_ref().and_then(|found| found.next_cursor.clone());
    let view = QueueView {
        shell: visit.shell(&app, Section::Queue).await?,
        pools: offered.iter().map(|pool| pool.name.to_string()).collect(),
        others_after: found
            .as_ref()
            .and_then(|found| found.others_after)
            .map(crowd),
        all: found
            .as_ref()
            .map(|found| crowd(found.all))
            .unwrap_or_default(),
        accuracy: found
            .as_ref()
            .and_then(|found| found.accuracy.as_ref())
            .map(why::accuracy),
        first: query.cursor.is_some().then(|| address(None)),
        next: next.map(|cursor| address(Some(&cursor))),
        rows: found
            .into_iter()
            .flat_map(|found| found.items)
            .map(|item| row(item, &teams))
            .collect(),
        pool: pool.map(|pool| pool.to_string()),
    };
    page(&view)
}

fn crowd(others: Others) -> Crowd {
    Crowd {
        jobs: others.jobs,
        gpus_milli: others.gpus.milli(),
    }
}

fn row(item: Queued, teams: &Teams) -> QueueRow {
    QueueRow {
        id: item.job.to_string(),
        team: teams.shown(&item.team),
        name: item.name,
        user: item.user,
        class: item.class,
        others_before: crowd(item.others_before),
        wait: Wait {
            beyond_quota: item.beyond_quota.as_ref().map(why::beyond),
            ..why::verdict(&item.waiting)
        },
    }
}
