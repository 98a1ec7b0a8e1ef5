//! Policies as they might be, put into a copy of the live world and checked as if they were saved.

use std::collections::BTreeSet;

use domain::MilliGpu;
use domain::Timestamp;
use domain::ids::PoolId;
use domain::name::Name;
use domain::weekly::{Day, TimeOfDay, Weekly, Zone};
use engine::world::{Booking, Class, Team, World};
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::bookings::calendar::Calendar;
use super::super::pool_policy::PolicyPatch;
use super::super::quotas::tree::Promises;
use super::super::quotas::{self, NewQuota, Warning, warning};
use super::super::windows::{NewWindow, WindowQuota};
use super::super::{App, AppError, Asker, bookings, classes, pools, versions, windows};
use super::conflicts::{self, BookingConflicts};
use crate::scheduler::week::Week;
use crate::scheduler::{translate, windows as laid};
use crate::store::windows::Window;
use crate::store::{self, Tx};

/// Most versions that are gone back to in one draft: each is read for itself.
const VERSIONS_MAX: usize = 100;

/// Policies as they might be; what is absent stays as it is.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyDraft {
    /// Pools whose policies would change.
    #[serde(default)]
    pub pools: Vec<PoolDraft>,
    /// Classes that would be made or changed.
    #[serde(default)]
    pub classes: Vec<ClassDraft>,
    /// Quotas that would be set.
    #[serde(default)]
    pub quotas: Vec<QuotaDraft>,
    /// Bookings that would be made or changed.
    #[serde(default)]
    pub bookings: Vec<BookingDraft>,
    /// Weekly windows that would be made or changed.
    #[serde(default)]
    pub windows: Vec<WindowDraft>,
    /// Changes, by their numbers, whose objects would be set back to how they were after them.
    #[serde(default)]
    pub versions: Vec<i64>,
    /// The moment by whose windows quotas are taken in both plans; unless given now, and of a draft
    /// of windows the moment at which the first of them is open next. Work and devices stay as they
    /// are now.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub windows_at: Option<Timestamp>,
}

/// A pool whose policy would change.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDraft {
    /// Its name.
    pub pool: Name,
    /// The keys that would be set.
    pub policy: PolicyPatch,
}

/// A class as it would be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassDraft {
    /// Its name.
    pub name: Name,
    /// Higher goes first within a team.
    pub priority: i32,
    /// Whether its work may be preempted.
    pub preemptible: bool,
}

/// A quota as it would be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaDraft {
    /// The team.
    pub team: Name,
    /// The pool.
    pub pool: Name,
    /// The quota.
    pub quota: NewQuota,
}

/// A booking as it would be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BookingDraft {
    /// The pool.
    pub pool: Name,
    /// Its name.
    pub name: Name,
    /// The team that it is for.
    pub team: Name,
    /// How much, beyond the team's guarantee.
    pub gpus: MilliGpu,
    /// When it begins.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// When it ends.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
}

/// A weekly window as it would be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowDraft {
    /// The pool.
    pub pool: Name,
    /// Its name.
    pub name: Name,
    /// The days on which it opens.
    pub days: Vec<Day>,
    /// When it opens.
    pub from: TimeOfDay,
    /// When it closes; on the next day where this is no later than `from`.
    pub to: TimeOfDay,
    /// Whose clocks are meant; the organisation's unless given.
    #[serde(default)]
    pub time_zone: Option<Zone>,
    /// What holds meanwhile, in place of all that holds while it is open now.
    pub quotas: Vec<WindowQuota>,
}

impl WindowDraft {
    /// A window that is about to be made or changed.
    pub fn of(pool: &Name, new: NewWindow) -> Self {
        Self {
            pool: pool.clone(),
            name: new.name,
            days: new.days,
            from: new.from,
            to: new.to,
            time_zone: new.time_zone,
            quotas: new.quotas,
        }
    }

    /// The moment from `now` on at which it is open first.
    fn next_open(&self, zone: Zone, now: Timestamp) -> Option<Timestamp> {
        let weekly = Weekly {
            days: self.days.clone(),
            from: self.from,
            to: self.to,
            zone: self.time_zone.unwrap_or(zone),
        };
        match weekly.open_at(now) {
            Some(_) => Some(now),
            None => weekly.next_edge(now),
        }
    }

    fn new_window(&self) -> NewWindow {
        NewWindow {
            name: self.name.clone(),
            days: self.days.clone(),
            from: self.from,
            to: self.to,
            time_zone: self.time_zone,
            quotas: self.quotas.clone(),
        }
    }
}

/// What is to be known of a draft beside what the planner makes of it.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// What would not keep it from holding.
    pub warnings: Vec<Warning>,
    /// The bookings that it would bring into conflict.
    pub conflicts: Vec<BookingConflicts>,
    /// The moment by whose windows quotas are taken, where that is another one.
    pub windows_at: Option<Timestamp>,
    /// What would be promised of the pools that are drafted.
    promises: Vec<Promises>,
}

impl Known {
    /// The teams of a changed world with the quotas that they would have at other times: those of a
    /// week as it is, but for the pools that are drafted.
    pub(super) fn at_other_times(&self, changed: &World, week: &Week) -> Vec<Vec<Team>> {
        let mut times = week.otherwise();
        for teams in &mut times {
            for promises in &self.promises {
                let pool = promises.pool.as_str();
                for team in teams.iter_mut() {
                    let known = changed.teams.iter().find(|known| known.name == team.name);
                    translate::take_quota(team, pool, known);
                }
            }
        }
        for promises in &self.promises {
            let mut sets = laid::combinations(&promises.windows, changed.now);
            // What holds outside of windows holds again once a window is removed that never closes.
            sets.insert(Vec::new());
            for open in sets {
                let open: Vec<&Window> = open.iter().map(|at| &promises.windows[*at]).collect();
                let mut teams = changed.teams.clone();
                set_quotas(&mut teams, promises, &open);
                times.push(teams);
            }
        }
        times
    }
}

impl PolicyDraft {
    /// Changes a world as it says, beside the present one; what is to be known of it.
    pub(super) async fn apply(
        mut self,
        app: &App,
        asker: &Asker,
        (present, changed): (&mut World, &mut World),
    ) -> Result<Known, AppError> {
        let mut tx = app.db.begin_person(&asker.scope()).await?;
        self.go_back(&mut tx).await?;
        if let (None, Some(window)) = (self.windows_at, self.windows.first()) {
            let zone = app.config.organisation.time_zone;
            let open = window.next_open(zone, changed.now);
            self.windows_at = open.filter(|at| *at > changed.now);
        }
        change_pools(changed, &self.pools)?;
        change_classes(changed, &self.classes)?;
        self.find_pools(changed)?;
        let mut known = Known {
            windows_at: self.windows_at,
            ..Known::default()
        };
        for name in &self.pools_promised(changed)? {
            let pool = pools::find(&mut tx, name).await?.id;
            let before = Promises::load(&mut tx, (pool, name)).await?;
            let mut after = before.clone();
            self.draft_quotas(&mut after)?;
            self.draft_windows(app, &mut tx, &mut after).await?;
            after.check(changed.now)?;
            let promises = (&before, &after);
            let capacity = warning::capacity(&mut tx, pool).await?;
            self.change_promises(promises, capacity, (present, changed), &mut known);
            let conflicts = self
                .change_bookings(&mut tx, (pool, capacity), promises, changed)
                .await?;
            known.conflicts.extend(conflicts);
            known.promises.push(after);
        }
        tx.commit().await?;
        Ok(known)
    }

    /// Takes the states that are to be gone back to into the draft.
    async fn go_back(&mut self, tx: &mut Tx) -> Result<(), AppError> {
        if self.versions.len() > VERSIONS_MAX {
            let remedy = format!("at most {VERSIONS_MAX} changes");
            return Err(AppError::invalid("versions", self.versions.len(), remedy));
        }
        for id in std::mem::take(&mut self.versions) {
            versions::draft(tx, id, self).await?;
        }
        Ok(())
    }

    /// The pools whose quotas are to be laid anew.
    fn pools_promised(&self, world: &World) -> Result<BTreeSet<Name>, AppError> {
        let quotas = self.quotas.iter().map(|draft| &draft.pool);
        let windows = self.windows.iter().map(|draft| &draft.pool);
        let bookings = self.bookings.iter().map(|draft| &draft.pool);
        let mut named: BTreeSet<Name> = quotas.chain(windows).chain(bookings).cloned().collect();
        if self.windows_at.is_some() {
            for pool in &world.pools {
                named.insert(pool.name.parse()?);
            }
        }
        Ok(named)
    }

    /// Sets quotas of a pool as they hold and would hold, and says what is to be known of them.
    fn change_promises(
        &self,
        (before, after): (&Promises, &Promises),
        capacity: MilliGpu,
        (present, changed): (&mut World, &mut World),
        known: &mut Known,
    ) {
        let name = &after.pool;
        let at = self.windows_at.unwrap_or(changed.now);
        if self.windows_at.is_some() {
            set_quotas(
                &mut present.teams,
                before,
                &laid::open_at(&before.windows, at),
            );
        }
        let teams = self.quotas.iter().filter(|draft| draft.pool == *name);
        let teams: BTreeSet<&Name> = teams.map(|draft| &draft.team).collect();
        let quotas = !teams.is_empty();
        let windows: BTreeSet<&Name> = self
            .windows
            .iter()
            .filter(|draft| draft.pool == *name)
            .map(|draft| &draft.name)
            .collect();
        if quotas {
            warning::add(
                &mut known.warnings,
                warning::of_pool(capacity, after, changed.now),
            );
            warning::add(&mut known.warnings, warning::in_place(after, &teams, at));
        }
        if !windows.is_empty() {
            for (window, found) in warning::of_windows(capacity, after, changed.now) {
                if windows.contains(&window) {
                    warning::add(&mut known.warnings, found);
                }
            }
        }
        if self.windows_at.is_some() {
            let open = after.open_at(at);
            warning::add(&mut known.warnings, warning::at(capacity, after, &open));
        }
        if quotas || !windows.is_empty() || self.windows_at.is_some() {
            set_quotas(
                &mut changed.teams,
                after,
                &laid::open_at(&after.windows, at),
            );
        }
    }

    /// Puts the drafted bookings of a pool into a world; which bookings there would be in conflict.
    async fn change_bookings(
        &self,
        tx: &mut Tx,
        (pool, capacity): (PoolId, MilliGpu),
        (before, after): (&Promises, &Promises),
        world: &mut World,
    ) -> Result<Vec<BookingConflicts>, AppError> {
        let now = store::clock(tx).await?;
        let standing = store::bookings::standing(tx, Some(pool), now).await?;
        let mut changed = standing.clone();
        let mut drafted = BTreeSet::new();
        let drafts = self.bookings.iter().enumerate();
        for (index, draft) in drafts.filter(|(_, draft)| draft.pool == after.pool) {
            let booking = bookings::drafted(draft, after, &standing, now)
                .map_err(|error| under(&format!("bookings[{index}]"), error))?;
            changed.retain(|known| known.name != booking.name);
            changed.push(booking);
            drafted.insert(draft.name.clone());
            put_booking(world, draft);
        }
        changed.sort_by_key(|booking| (booking.starts_at, booking.id));
        let ends = changed.iter().map(|booking| booking.ends_at);
        let span = (now, ends.max().unwrap_or(now).max(now));
        let before = Calendar::of(before, capacity.milli(), standing, span);
        let after = Calendar::of(after, capacity.milli(), changed, span);
        Ok(conflicts::of(&before, &after, &drafted))
    }

    /// Refuses bookings of a pool that is not there.
    fn find_pools(&self, world: &World) -> Result<(), AppError> {
        let bookings = self.bookings.iter().map(|draft| &draft.pool);
        for (index, pool) in bookings.enumerate() {
            if !world.pools.iter().any(|known| known.name == pool.as_str()) {
                return Err(unknown(&format!("bookings[{index}]"), "pool", pool));
            }
        }
        Ok(())
    }

    /// Puts the drafted quotas of a pool into what is promised of it.
    fn draft_quotas(&self, promises: &mut Promises) -> Result<(), AppError> {
        let drafts = self.quotas.iter().enumerate();
        for (index, draft) in drafts.filter(|(_, draft)| draft.pool == promises.pool) {
            let team = promises.tree.iter().find(|node| node.name == draft.team);
            let place = format!("quotas[{index}]");
            let team = team.ok_or_else(|| unknown(&place, "team", &draft.team))?.id;
            let amounts =
                quotas::checked(&draft.quota).map_err(|error| quotas::at(index, error))?;
            promises.quotas.insert(team, amounts);
        }
        Ok(())
    }

    /// The same of the drafted windows.
    async fn draft_windows(
        &self,
        app: &App,
        tx: &mut Tx,
        promises: &mut Promises,
    ) -> Result<(), AppError> {
        let drafts = self.windows.iter().enumerate();
        for (index, draft) in drafts.filter(|(_, draft)| draft.pool == promises.pool) {
            let zone = app.config.organisation.time_zone;
            let drafted = windows::drafted(tx, &draft.pool, &draft.new_window(), zone).await;
            let window = drafted.map_err(|error| under(&format!("windows[{index}]"), error))?;
            promises.windows.retain(|known| known.name != window.name);
            promises.windows.push(window);
        }
        windows::check_count(promises.windows.len())
    }
}

/// Gives teams what is promised of a pool while these of its windows are open.
fn set_quotas(teams: &mut [Team], promises: &Promises, open: &[&Window]) {
    let mut amounts = promises.quotas.clone();
    let pool = promises.pool.as_str();
    laid::lay_over(&mut amounts, open, |_, quota| quota.team_id);
    for node in &promises.tree {
        let team = teams.iter_mut().find(|t| t.name == node.name.as_str());
        match (team, amounts.get(&node.id)) {
            (Some(team), Some(amounts)) => translate::set_quota(team, pool, *amounts),
            // It has one only while some window is open.
            (Some(team), None) => translate::take_quota(team, pool, None),
            (None, _) => {}
        }
    }
}

fn change_pools(world: &mut World, drafts: &[PoolDraft]) -> Result<(), AppError> {
    for (index, draft) in drafts.iter().enumerate() {
        let place = format!("pools[{index}]");
        let pool = world
            .pools
            .iter_mut()
            .find(|p| p.name == draft.pool.as_str());
        let pool = pool.ok_or_else(|| unknown(&place, "pool", &draft.pool))?;
        draft.policy.clone().onto(&mut pool.policy);
        pool.policy
            .check()
            .map_err(|error| error.under(&format!("{place}.policy")))?;
    }
    Ok(())
}

fn under(place: &str, error: AppError) -> AppError {
    match error {
        AppError::Invalid(fault) => fault.under(place).into(),
        other => other,
    }
}

fn unknown(place: &str, noun: &str, name: &Name) -> AppError {
    AppError::invalid(
        &format!("{place}.{noun}"),
        name,
        format!("the name of a {noun}"),
    )
}

fn change_classes(world: &mut World, drafts: &[ClassDraft]) -> Result<(), AppError> {
    for draft in drafts {
        classes::check_priority(draft.priority)?;
        let class = Class::new(
            draft.name.as_str(),
            i64::from(draft.priority),
            draft.preemptible,
        );
        world.classes.retain(|known| known.name != class.name);
        world.classes.push(class);
    }
    Ok(())
}

fn put_booking(world: &mut World, draft: &BookingDraft) {
    let name = bookings::world_name(&draft.pool, &draft.name);
    world.bookings.retain(|known| known.name != name);
    world.bookings.push(Booking {
        name,
        team: draft.team.to_string(),
        pool: draft.pool.to_string(),
        gpus: draft.gpus,
        from: draft.from,
        to: draft.to,
    });
}
