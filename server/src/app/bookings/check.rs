//! What may be booked: how much, for whom and when, of what is saved, drafted or still being typed.

use domain::ids::{BookingId, PoolId, TeamId};
use domain::name::Name;
use domain::{FieldError, MilliGpu, Timestamp};

use super::super::authorise::{Action, Target, authorise};
use super::super::policy_diff::BookingDraft;
use super::super::quotas::tree::Promises;
use super::super::{App, AppError, Asker, pools};
use crate::store::bookings as rows;
use crate::store::teams::TreeTeam;
use crate::store::{self, Tx};

/// Longest booking, in days: what is a team's for longer than a year is a guarantee.
const DAYS_MAX: i64 = 366;

/// Checks what may be booked at `now`.
pub(super) fn check(
    gpus: MilliGpu,
    (from, to): (Timestamp, Timestamp),
    now: Timestamp,
) -> Result<(), AppError> {
    check_gpus(gpus)?;
    Ok(check_span(from, to, now)?)
}

fn check_gpus(gpus: MilliGpu) -> Result<(), FieldError> {
    if gpus == MilliGpu::ZERO {
        let remedy = "more than 0, with at most three decimals";
        return Err(FieldError::new("gpus", gpus, remedy));
    }
    Ok(())
}

fn check_span(from: Timestamp, to: Timestamp, now: Timestamp) -> Result<(), FieldError> {
    let refused = |remedy: String| Err(FieldError::new("to", domain::time::format(to), remedy));
    if to <= from {
        return refused(format!("later than from, {}", domain::time::format(from)));
    }
    if to <= now {
        return refused("a time that is not over yet".to_owned());
    }
    if to - from > chrono::TimeDelta::days(DAYS_MAX) {
        let remedy = "for longer, raise the team's guarantee";
        return refused(format!("at most {DAYS_MAX} days after from; {remedy}"));
    }
    Ok(())
}

/// A booking that somebody types, as far as it can be read.
#[derive(Debug, Clone, Default)]
pub struct Typed {
    /// The team that it is for.
    pub team: Option<Name>,
    /// How much.
    pub gpus: Option<MilliGpu>,
    /// When it begins and ends.
    pub span: Option<(Timestamp, Timestamp)>,
}

/// Everything that is wrong with a booking that is typed, for a form that tells it all at once.
pub async fn faults(
    app: &App,
    asker: &Asker,
    pool: &Name,
    typed: &Typed,
) -> Result<Vec<FieldError>, AppError> {
    authorise(asker, Action::CreateBooking, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let now = store::clock(&mut tx).await?;
    let mut faults = Vec::new();
    faults.extend(typed.gpus.and_then(|gpus| check_gpus(gpus).err()));
    faults.extend(
        typed
            .span
            .and_then(|(from, to)| check_span(from, to, now).err()),
    );
    if let Some(name) = &typed.team {
        let pool_id = pools::find(&mut tx, pool).await?.id;
        match team(&mut tx, pool_id, pool, name).await {
            Err(AppError::Invalid(fault)) => faults.push(fault),
            other => {
                other?;
            }
        }
    }
    tx.commit().await?;
    Ok(faults)
}

/// The team of that name, which must be able to use the pool.
pub(super) async fn team(
    tx: &mut Tx,
    pool_id: PoolId,
    pool: &Name,
    name: &Name,
) -> Result<TeamId, AppError> {
    let tree = store::teams::tree(tx).await?;
    let team = in_tree(&tree, name)?;
    if leaf(&tree, team) && !store::quotas::there(tx, team, pool_id).await? {
        return Err(without_quota(name, pool));
    }
    Ok(team)
}

fn in_tree(tree: &[TreeTeam], name: &Name) -> Result<TeamId, AppError> {
    let team = tree.iter().find(|node| node.name == *name);
    team.map(|node| node.id)
        .ok_or_else(|| AppError::invalid("team", name, "the name of a team"))
}

fn leaf(tree: &[TreeTeam], team: TeamId) -> bool {
    !tree.iter().any(|node| node.parent_id == Some(team))
}

fn without_quota(team: &Name, pool: &Name) -> AppError {
    let remedy = format!("a team with a quota in pool {pool}: give it one first");
    AppError::invalid("team", team, remedy)
}

/// A booking as it would be among those that stand, checked as if it were saved beside these
/// promises.
pub(in crate::app) fn drafted(
    draft: &BookingDraft,
    promises: &Promises,
    standing: &[rows::Booking],
    now: Timestamp,
) -> Result<rows::Booking, AppError> {
    check(draft.gpus, (draft.from, draft.to), now)?;
    let team_id = in_tree(&promises.tree, &draft.team)?;
    if leaf(&promises.tree, team_id) && !promises.quotas.contains_key(&team_id) {
        return Err(without_quota(&draft.team, &draft.pool));
    }
    let present = standing.iter().find(|b| b.name == draft.name);
    Ok(rows::Booking {
        id: present.map_or_else(BookingId::new, |b| b.id),
        name: draft.name.clone(),
        pool: draft.pool.clone(),
        team_id,
        team: draft.team.clone(),
        gpus_milli: draft.gpus.milli(),
        starts_at: draft.from,
        ends_at: draft.to,
        conflict_since: present.and_then(|b| b.conflict_since),
        version: present.map_or(0, |b| b.version),
    })
}
