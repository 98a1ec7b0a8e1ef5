//! The queue of a pool: what waits there, in the engine's own order.

use std::collections::{BTreeMap, HashMap};

use domain::ids::JobId;
use domain::name::Name;
use domain::{MilliGpu, Timestamp};
use engine::plan::{Code, Waiting};
use engine::world::{Workload, World};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::jobs::{self, BeyondQuota};
use super::page::{self, Page, PageAsk};
use super::planning::{Accuracy, accuracy_of};
use super::questions;
use super::{App, AppError, Asker};
use crate::scheduler::{discreet, translate};
use crate::store;
use crate::store::jobs::JobRow;

/// What waits in a pool. A job that accepts several pools waits in the one that brings it nearest
/// to a start; a suspended one waits in none.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// The jobs that the asker may see, the next one first; at the end those whose time has not come.
    pub items: Vec<Queued>,
    /// The cursor of the next page; null on the last.
    pub next_cursor: Option<String>,
    /// What waits behind the last item and is not the asker's to see; null before the last page.
    pub others_after: Option<Others>,
    /// All that waits in the pool, whoever's it is.
    pub all: Others,
    /// How far expected starts in the pool were out of late; null where none is known.
    pub accuracy: Option<Accuracy>,
    /// When this was so.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// Work in a queue, without saying whose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Others {
    /// How many jobs.
    pub jobs: u64,
    /// What they need at the least.
    pub gpus: MilliGpu,
}

impl Others {
    fn add(&mut self, waiting: &Waiting) {
        self.jobs += 1;
        self.gpus += waiting.need;
    }
}

/// A job in a queue.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Queued {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: String,
    /// Who submitted it.
    pub user: String,
    /// Its priority class.
    pub class: String,
    /// When it was submitted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Its place in the order, from 1; null where its time has not come.
    pub rank: Option<u64>,
    /// What stands between it and the item before it and is not the asker's to see.
    pub others_before: Others,
    /// Why it waits, in the form of an explanation: with its expected start and what would start
    /// it sooner.
    #[schema(value_type = Object)]
    pub waiting: Value,
    /// What of its quota can never admit it as it is; null where no quota is in its way for good.
    pub beyond_quota: Option<BeyondQuota>,
}

/// The place of an item: those without a rank come last, by their ids.
type Place = (u64, String);

fn place(waiting: &Waiting) -> Place {
    (waiting.rank.unwrap_or(u64::MAX), waiting.workload.clone())
}

/// What waits in a pool, as the planner would decide now.
pub async fn list(app: &App, asker: &Asker, pool: &Name, ask: &PageAsk) -> Result<Queue, AppError> {
    authorise(asker, Action::ListQueue, Target::Platform)?;
    let after: Option<Place> = ask.after("queue")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let own = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    tx.commit().await?;
    let thought = questions::think(app).await?;
    let world = &thought.world;
    if !world.pools.iter().any(|known| known.name == pool.as_str()) {
        return Err(AppError::not_found("pool", pool));
    }
    let line = line(&thought.plan.waiting, pool.as_str());
    let sees_all = asker.scope().sees_all;
    let teams = world.workloads.iter();
    let teams: HashMap<&str, &str> = teams
        .map(|work| (work.name.as_str(), work.team.as_str()))
        .collect();
    let seen = |waiting: &Waiting| {
        let team = teams.get(waiting.workload.as_str());
        team.is_some_and(|team| sees_all || own.iter().any(|name| name == team))
    };
    let shown = Shown::of(&line, after, ask, seen);
    let ids: Vec<JobId> = shown
        .page
        .items
        .iter()
        .filter_map(|item| id(item.0))
        .collect();
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::jobs::find_all(&mut tx, &ids).await?;
    tx.commit().await?;
    let mut all = Others::default();
    line.iter().for_each(|waiting| all.add(waiting));
    let found = |waiting: &Waiting| rows.iter().find(|row| Some(row.id) == id(waiting));
    let asked = shown.page.items.iter().map(|(waiting, _)| *waiting);
    let mut beyond = beyond(app, world, asked).await?;
    let items = shown.page.items.iter();
    Ok(Queue {
        // Who has gone since the plan was made waits no more.
        items: items
            .filter_map(|(waiting, before)| {
                let beyond = beyond.remove(&waiting.workload);
                Some(item(world, found(waiting)?, waiting, (*before, beyond)))
            })
            .collect(),
        next_cursor: shown.page.next_cursor,
        others_after: shown.after,
        all,
        accuracy: accuracy_of(app, pool.as_str()).await?,
        at: world.now,
    })
}

/// The pool in whose queue the asker's own work waits, else that of its teams: the one with most of it.
pub async fn own_pool(app: &App, asker: &Asker) -> Result<Option<String>, AppError> {
    authorise(asker, Action::ListQueue, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let teams = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    tx.commit().await?;
    let thought = questions::think(app).await?;
    let works = thought.world.workloads.iter();
    let works: HashMap<&str, &Workload> = works.map(|work| (work.name.as_str(), work)).collect();
    let user = asker.user_id.to_string();
    let work = |name: &str| works.get(name).copied();
    let own = |name: &str| work(name).is_some_and(|work| work.user.as_ref() == Some(&user));
    let of_teams = |name: &str| work(name).is_some_and(|work| teams.contains(&work.team));
    let waiting = &thought.plan.waiting;
    Ok(fullest(waiting, own).or_else(|| fullest(waiting, of_teams)))
}

/// The pool in whose queue most of some work waits; of equal ones the first by name.
fn fullest(waiting: &[Waiting], counts: impl Fn(&str) -> bool) -> Option<String> {
    let mut pools: BTreeMap<&str, u64> = BTreeMap::new();
    let counted = |waits: &&Waiting| waits.code != Code::Suspended && counts(&waits.workload);
    for pool in waiting
        .iter()
        .filter(counted)
        .filter_map(|waits| waits.pool.as_deref())
    {
        *pools.entry(pool).or_default() += 1;
    }
    let most = pools.into_iter().rev().max_by_key(|(_, jobs)| *jobs);
    most.map(|(pool, _)| pool.to_owned())
}

fn id(waiting: &Waiting) -> Option<JobId> {
    translate::job_id(&waiting.workload)
}

/// What waits in a pool, in order.
fn line<'p>(waiting: &'p [Waiting], pool: &str) -> Vec<&'p Waiting> {
    let here = |w: &&Waiting| w.pool.as_deref() == Some(pool) && w.code != Code::Suspended;
    let mut line: Vec<&Waiting> = waiting.iter().filter(here).collect();
    line.sort_by(|a, b| {
        let key = |w: &Waiting| w.rank.unwrap_or(u64::MAX);
        key(a)
            .cmp(&key(b))
            .then_with(|| a.workload.cmp(&b.workload))
    });
    line
}

/// A page of a line.
struct Shown<'p> {
    /// What may be seen, each with what may not be and stands before it.
    page: Page<(&'p Waiting, Others)>,
    /// What may not be seen and stands behind all of it.
    after: Option<Others>,
}

impl<'p> Shown<'p> {
    fn of(
        line: &[&'p Waiting],
        after: Option<Place>,
        ask: &PageAsk,
        seen: impl Fn(&Waiting) -> bool,
    ) -> Self {
        let wanted = usize::try_from(ask.rows_wanted()).unwrap_or(usize::MAX);
        let mut items = Vec::new();
        let mut hidden = Others::default();
        for &waiting in line {
            if !seen(waiting) {
                hidden.add(waiting);
                continue;
            }
            let before = std::mem::take(&mut hidden);
            if after.as_ref().is_none_or(|after| place(waiting) > *after) {
                items.push((waiting, before));
            }
            if items.len() == wanted {
                break;
            }
        }
        let page = page::cut(ask, "queue", items, |(waiting, _)| place(waiting));
        Self {
            after: page.next_cursor.is_none().then_some(hidden),
            page,
        }
    }
}

/// What of their quotas can never admit these, by workload.
async fn beyond<'p>(
    app: &App,
    world: &World,
    waiting: impl Iterator<Item = &'p Waiting>,
) -> Result<BTreeMap<String, BeyondQuota>, AppError> {
    let asked = waiting.filter(|waiting| jobs::may_be_beyond(waiting.code.as_str()));
    let works = asked.filter_map(|waiting| world.workload(&waiting.workload).cloned());
    let works: Vec<Workload> = works.collect();
    if works.is_empty() {
        return Ok(BTreeMap::new());
    }
    let week = questions::week(app).await?;
    let asked = move || jobs::beyond_quotas(&week, works);
    app.questions.ask("ask of quotas in a queue", asked).await
}

fn item(
    world: &World,
    row: &JobRow,
    waiting: &Waiting,
    (others_before, beyond_quota): (Others, Option<BeyondQuota>),
) -> Queued {
    let told = discreet::verdict(world, &row.team, waiting);
    let told = discreet::retried(told, &discreet::Tried::of(row));
    let mut told = serde_json::to_value(told).unwrap_or_default();
    if let Some(beyond) = &beyond_quota {
        beyond.mend(&mut told);
    }
    Queued {
        job: row.id,
        name: row.name.clone(),
        team: row.team.clone(),
        user: row.user.clone(),
        class: row.class.clone(),
        created_at: row.created_at,
        rank: waiting.rank,
        others_before,
        waiting: told,
        beyond_quota,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn waiting(workload: &str, pool: &str, rank: Option<u64>, code: Code) -> Waiting {
        Waiting {
            workload: workload.to_owned(),
            pool: Some(pool.into()),
            code,
            scope: "".into(),
            message: "".into(),
            need: MilliGpu::whole(2),
            need_max: None,
            have: MilliGpu::ZERO,
            counts: Arc::default(),
            rank,
            expected_start: None,
            expected_once: None,
            remedies: Vec::new(),
        }
    }

    #[test]
    fn a_reader_begins_with_the_pool_in_which_most_of_its_own_work_waits() {
        let waits = [
            waiting("mine1", "b", Some(1), Code::BehindInOrder),
            waiting("mine2", "b", Some(2), Code::BehindInOrder),
            waiting("mine3", "a", Some(1), Code::BehindInOrder),
            waiting("held1", "c", None, Code::Suspended),
            waiting("held2", "c", None, Code::Suspended),
            waiting("held3", "c", None, Code::Suspended),
            waiting("theirs", "d", Some(1), Code::BehindInOrder),
        ];
        let pool = |of: &dyn Fn(&str) -> bool| fullest(&waits, of);
        assert_eq!(pool(&|name| name != "theirs").as_deref(), Some("b"));
        assert_eq!(pool(&|name| name == "theirs").as_deref(), Some("d"));
        assert_eq!(pool(&|name| name.starts_with("held")), None);
        let ties = pool(&|name| ["mine1", "mine3"].contains(&name));
        assert_eq!(ties.as_deref(), Some("a"));
    }

    fn names(shown: &Shown<'_>) -> Vec<(String, u64)> {
        let items = shown.page.items.iter();
        items
            .map(|(waiting, before)| (waiting.workload.clone(), before.jobs))
            .collect()
    }

    #[test]
    fn what_may_not_be_seen_is_counted_where_it_stands_on_whatever_page() {
        let all = [
            waiting("early", "h100", None, Code::NotYet),
            waiting("b", "h100", Some(3), Code::BehindInOrder),
            waiting("x1", "h100", Some(1), Code::BehindInOrder),
            waiting("x2", "h100", Some(2), Code::BehindInOrder),
            waiting("x3", "h100", Some(4), Code::BehindInOrder),
            waiting("c", "h100", Some(5), Code::BehindInOrder),
            waiting("x4", "h100", None, Code::NotYet),
            waiting("held", "h100", None, Code::Suspended),
            waiting("elsewhere", "a100", Some(1), Code::BehindInOrder),
        ];
        let line = line(&all, "h100");
        let seen = |waiting: &Waiting| !waiting.workload.starts_with('x');
        let ask = PageAsk::new(Some(2), None).expect("a page");
        let first = Shown::of(&line, None, &ask, seen);
        assert_eq!(names(&first), [("b".into(), 2), ("c".into(), 1)]);
        assert_eq!(first.after, None);
        let ask = PageAsk::new(Some(2), first.page.next_cursor).expect("a page");
        let second = Shown::of(&line, ask.after("queue").expect("ours"), &ask, seen);
        assert_eq!(names(&second), [("early".into(), 0)]);
        let behind = second.after.expect("the last page");
        assert_eq!((behind.jobs, behind.gpus), (1, MilliGpu::whole(2)));
    }
}
