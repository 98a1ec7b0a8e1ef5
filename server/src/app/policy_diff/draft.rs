//! Policies as they might be, put into a copy of the live world and checked as if they were saved.

use std::collections::BTreeSet;

use domain::MilliGpu;
use domain::Timestamp;
use domain::name::Name;
use engine::world::{Booking, Class, World};
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::pool_policy::PolicyPatch;
use super::super::quotas::tree::Promises;
use super::super::quotas::{self, NewQuota, Warning};
use super::super::{App, AppError, Asker, bookings, classes, pools};
use crate::scheduler::{translate, windows};

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

impl PolicyDraft {
    /// Changes a world as it says; the pools of which more would be guaranteed than they have.
    pub(super) async fn apply(
        &self,
        app: &App,
        asker: &Asker,
        world: &mut World,
    ) -> Result<Vec<Warning>, AppError> {
        change_pools(world, &self.pools)?;
        change_classes(world, &self.classes)?;
        change_bookings(world, &self.bookings)?;
        change_quotas(app, asker, world, &self.quotas).await
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

/// Sets quotas as they would hold now, checked as if they were saved; the pools of which more
/// would be guaranteed than they have.
async fn change_quotas(
    app: &App,
    asker: &Asker,
    world: &mut World,
    drafts: &[QuotaDraft],
) -> Result<Vec<Warning>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let mut warnings = Vec::new();
    let named: BTreeSet<&Name> = drafts.iter().map(|draft| &draft.pool).collect();
    for name in named {
        let pool = pools::find(&mut tx, name).await?.id;
        let mut promises = Promises::load(&mut tx, pool).await?;
        for (index, draft) in drafts.iter().enumerate() {
            if draft.pool != *name {
                continue;
            }
            let team = promises.tree.iter().find(|node| node.name == draft.team);
            let place = format!("quotas[{index}]");
            let team = team.ok_or_else(|| unknown(&place, "team", &draft.team))?.id;
            let amounts =
                quotas::checked(&draft.quota).map_err(|error| quotas::at(index, error))?;
            promises.quotas.insert(team, amounts);
        }
        promises.check(world.now)?;
        warnings.extend(quotas::overpromised(world, name, &promises));
        set_quotas(world, name, &promises);
    }
    tx.commit().await?;
    Ok(warnings)
}

/// Puts what is promised of a pool at the world's moment into it.
fn set_quotas(world: &mut World, pool: &Name, promises: &Promises) {
    let mut amounts = promises.quotas.clone();
    let open = windows::open_at(&promises.windows, world.now);
    windows::lay_over(&mut amounts, &open, |_, quota| quota.team_id);
    for node in &promises.tree {
        let team = world
            .teams
            .iter_mut()
            .find(|t| t.name == node.name.as_str());
        if let (Some(team), Some(amounts)) = (team, amounts.get(&node.id)) {
            translate::set_quota(team, pool.as_str(), *amounts);
        }
    }
}

fn change_bookings(world: &mut World, drafts: &[BookingDraft]) -> Result<(), AppError> {
    for (index, draft) in drafts.iter().enumerate() {
        let place = format!("bookings[{index}]");
        if !world.pools.iter().any(|p| p.name == draft.pool.as_str()) {
            return Err(unknown(&place, "pool", &draft.pool));
        }
        if !world.teams.iter().any(|t| t.name == draft.team.as_str()) {
            return Err(unknown(&place, "team", &draft.team));
        }
        bookings::check(draft.gpus, (draft.from, draft.to), world.now)?;
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
    Ok(())
}
