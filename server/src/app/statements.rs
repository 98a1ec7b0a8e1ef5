//! Quota statements: what teams hold, borrow and lend of each pool now, by the engine's own reckoning.

use std::collections::{BTreeMap, BTreeSet};

use domain::name::Name;
use domain::quantity::Weight;
use domain::{MilliGpu, Timestamp};
use engine::statement::{self, Party, Statement};
use engine::world::{Booking, Team, WorkloadState, World};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::Action;
use super::quotas::NewQuota;
use super::{App, AppError, Asker, promises, questions, teams};
use crate::scheduler::starved;
use crate::scheduler::windows::{self, InPlace};
use crate::store;

/// What a team has of each pool, with all below it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QuotaStatement {
    /// The team.
    pub team: Name,
    /// When this was so.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// A line for the team and one for each team below it, pool by pool, in the order of the names. A
    /// team above others has all that they have, so that lines of one level add up.
    pub items: Vec<StatementLine>,
}

/// What one team has of one pool now, with all below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatementLine {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// Its guarantee as it was given, that of an open window in place of the kept one; without one
    /// of its own, that of the teams directly below it.
    pub promised: MilliGpu,
    /// The open window that brings its quota in place of the kept one; null where none does.
    pub window: Option<Name>,
    /// What is booked for it now, beyond that.
    pub booked: MilliGpu,
    /// How many devices of the pool are out: failed, or of nodes that do not answer. Where the rest
    /// is less than what is promised, all guarantees shrink in proportion.
    pub devices_out: i64,
    /// The guarantee that it has: with what is booked for it now, and shrunk where the pool has less
    /// than it promised. The sum of `within`, `lent` and `idle`.
    pub guaranteed: MilliGpu,
    /// The most that it may hold; null is no limit.
    pub limit: Option<MilliGpu>,
    /// What it holds above its limit, which fell below what was held: that stays, and nothing more
    /// starts.
    pub over_limit: MilliGpu,
    /// What it holds: the sum of `within` and `borrowed`.
    pub held: MilliGpu,
    /// What it holds of its guarantee.
    pub within: MilliGpu,
    /// What it holds beyond: the sum of `borrows_from` and `spare`.
    pub borrowed: MilliGpu,
    /// Of whom it borrows.
    pub borrows_from: Vec<OtherSide>,
    /// What it borrows of nobody: it is in no other team's guarantee.
    pub spare: MilliGpu,
    /// What others hold of its guarantee: the sum of `lends_to`.
    pub lent: MilliGpu,
    /// Who borrows of it.
    pub lends_to: Vec<OtherSide>,
    /// What of its guarantee nobody holds.
    pub idle: MilliGpu,
    /// What of the whole pool work holds that is leaving it: it counts for nobody any more, and is free
    /// once it has left.
    pub leaving: MilliGpu,
    /// What of `lent` it could take back at once, by the rules of the pool, for work of the highest
    /// class that has waited long enough.
    pub reclaimable: MilliGpu,
    /// Since when it holds less than its guarantee while its work waits; null where it does not.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub starved_since: Option<Timestamp>,
    /// Its own quota as it holds now; for its page.
    #[serde(skip)]
    pub quota: Option<NewQuota>,
}

/// An amount that is lent or borrowed, with who is on the other side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OtherSide {
    /// The team; null for all those together whose names are not the reader's to know.
    pub team: Option<String>,
    /// How much.
    pub amount: MilliGpu,
}

/// What a team and all below it have of each pool.
pub async fn of_team(app: &App, asker: &Asker, team: &Name) -> Result<QuotaStatement, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = teams::find_as(&mut tx, asker, Action::GetQuotaStatement, team).await?;
    let below = store::teams::with_children(&mut tx, row.id).await?;
    let below: BTreeSet<String> = store::teams::names_of(&mut tx, &below)
        .await?
        .into_iter()
        .collect();
    tx.commit().await?;
    let (at, mut items) = of_all(app, asker).await?;
    items.retain(|line| below.contains(&line.team));
    Ok(QuotaStatement {
        team: team.clone(),
        at,
        items,
    })
}

/// What the teams that the asker may see have of each pool, and when.
pub async fn of_all(app: &App, asker: &Asker) -> Result<(Timestamp, Vec<StatementLine>), AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let own = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    let known = starved::known(store::starved::all(&mut tx).await?);
    let all_windows = store::windows::all(&mut tx, None).await?;
    tx.commit().await?;
    let world = questions::live(app).await?;
    let made = move || {
        let statements = statement::statements(&world, &known);
        (world, statements)
    };
    let (world, statements) = app.questions.ask("make statements of quota", made).await?;
    let sees_all = asker.platform_role.is_some();
    let seen = |team: &str| sees_all || own.iter().any(|name| name == team);
    let in_place = windows::in_place(&all_windows, world.now);
    let lines = statements
        .into_iter()
        .filter(|statement| seen(&statement.team))
        .map(|statement| line(&world, &in_place, statement, &seen));
    Ok((world.now, lines.collect()))
}

fn line(
    world: &World,
    in_place: &BTreeMap<(&str, &str), InPlace>,
    statement: Statement,
    seen: &impl Fn(&str) -> bool,
) -> StatementLine {
    let within = statement.held.saturating_sub(statement.borrowed);
    let kept = within + statement.lent;
    StatementLine {
        promised: promises::of_team(&world.teams, &statement.team, &statement.pool),
        booked: booked(world, &statement.team, &statement.pool),
        devices_out: promises::out(world, &statement.pool),
        window: in_place
            .get(&(statement.pool.as_str(), statement.team.as_str()))
            .map(|found| found.window.name.clone()),
        leaving: leaving(world, &statement.pool),
        quota: quota(&world.teams, &statement.team, &statement.pool),
        guaranteed: statement.guaranteed,
        limit: statement.limit,
        over_limit: statement
            .limit
            .map_or(MilliGpu::ZERO, |limit| statement.held.saturating_sub(limit)),
        held: statement.held,
        within,
        borrowed: statement.borrowed,
        borrows_from: other_sides(statement.borrows_from, seen),
        spare: statement.spare,
        lent: statement.lent,
        lends_to: other_sides(statement.lends_to, seen),
        idle: statement.guaranteed.saturating_sub(kept),
        reclaimable: statement.reclaimable,
        starved_since: statement.starved_since,
        team: statement.team,
        pool: statement.pool,
    }
}

/// What of a pool work holds that is leaving it.
fn leaving(world: &World, pool: &str) -> MilliGpu {
    let here = world.nodes.iter().filter(|node| node.pool == pool);
    let here: BTreeSet<&str> = here.map(|node| node.name.as_str()).collect();
    let leaving = world.workloads.iter();
    leaving
        .filter(|work| work.state == WorkloadState::Leaving)
        .flat_map(|work| &work.placed)
        .filter(|place| here.contains(place.node.as_str()))
        .flat_map(|place| &place.devices)
        .map(|device| device.gpus)
        .sum()
}

/// What is booked in a pool now for a team and all below it.
fn booked(world: &World, team: &str, pool: &str) -> MilliGpu {
    let inside = |name: &str| {
        let mut at = Some(name);
        // The tree is bounded and has no circle.
        while let Some(name) = at {
            if name == team {
                return true;
            }
            let row = world.teams.iter().find(|row| row.name == name);
            at = row.and_then(|row| row.parent.as_deref());
        }
        false
    };
    let lasts = |b: &&Booking| b.pool == pool && b.from <= world.now && world.now < b.to;
    let lasting = world.bookings.iter().filter(lasts);
    lasting.filter(|b| inside(&b.team)).map(|b| b.gpus).sum()
}

/// The teams that the reader may know by name, then all others as one.
fn other_sides(parties: Vec<Party>, seen: &impl Fn(&str) -> bool) -> Vec<OtherSide> {
    let (named, others): (Vec<Party>, Vec<Party>) =
        parties.into_iter().partition(|party| seen(&party.team));
    let others: MilliGpu = others.into_iter().map(|party| party.amount).sum();
    let named = named.into_iter().map(|party| OtherSide {
        team: Some(party.team),
        amount: party.amount,
    });
    let rest = (others > MilliGpu::ZERO).then_some(OtherSide {
        team: None,
        amount: others,
    });
    named.chain(rest).collect()
}

/// A team's own quota in a pool.
fn quota(teams: &[Team], name: &str, pool: &str) -> Option<NewQuota> {
    let team = teams.iter().find(|team| team.name == name)?;
    let quota = team.quotas.get(pool)?;
    Some(NewQuota {
        guaranteed: quota.guaranteed,
        limit: quota.limit,
        lend_limit: quota.lend_limit,
        weight: Weight::from_milli(quota.weight_milli),
        max_per_user: team.max_per_user.get(pool).copied(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_one_sum_after_the_teams_that_may_be_named() {
        let party = |team: &str, gpus| Party {
            team: team.to_owned(),
            amount: MilliGpu::whole(gpus),
        };
        let all = vec![party("a", 1), party("b", 2), party("c", 4)];
        let told = other_sides(all, &|team| team == "b");
        let told: Vec<_> = told.iter().map(|o| (o.team.as_deref(), o.amount)).collect();
        assert_eq!(
            told,
            [(Some("b"), MilliGpu::whole(2)), (None, MilliGpu::whole(5))]
        );
        assert_eq!(other_sides(Vec::new(), &|_| true), []);
    }
}
