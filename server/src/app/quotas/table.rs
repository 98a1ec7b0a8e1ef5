//! All quotas as one table: every team of the tree, in every pool.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::Timestamp;
use domain::name::Name;

use super::super::page::{PAGE_ITEMS_MAX, PageAsk};
use super::super::teams::Team;
use super::super::{App, AppError, Asker, pools, teams};
use super::{NewQuota, Quota, list_all, warning};
use crate::scheduler::windows;
use crate::store;

/// The quotas of the teams that the asker may know.
#[derive(Debug, Clone)]
pub struct QuotaTable {
    /// The teams, each after the team above it.
    pub teams: Vec<TableTeam>,
    /// The pools, by name.
    pub pools: Vec<TablePool>,
}

/// A team, with its place in the tree.
#[derive(Debug, Clone)]
pub struct TableTeam {
    /// The team.
    pub team: Team,
    /// How many of the teams that are shown stand above it.
    pub depth: usize,
}

/// The quotas of a pool.
#[derive(Debug, Clone)]
pub struct TablePool {
    /// Its name.
    pub name: Name,
    /// What it has, for who may see the quotas of all teams.
    pub capacity: Option<MilliGpu>,
    /// The quotas that are there, by team.
    pub quotas: BTreeMap<Name, Quota>,
    /// What open windows bring in their place, by team.
    pub in_place: BTreeMap<Name, InPlace>,
}

/// What an open window brings in the place of a team's quota.
#[derive(Debug, Clone)]
pub struct InPlace {
    /// The window.
    pub window: Name,
    /// What holds.
    pub quota: NewQuota,
    /// When it closes.
    pub until: Timestamp,
}

/// Reads the table.
pub async fn table(app: &App, asker: &Asker) -> Result<QuotaTable, AppError> {
    let pools = pools::list(app, asker, &PageAsk::first()).await?.items;
    let mut by_pool: BTreeMap<Name, BTreeMap<Name, Quota>> = BTreeMap::new();
    for quota in all(app, asker).await? {
        let pool = by_pool.entry(quota.pool.clone()).or_default();
        pool.insert(quota.team.clone(), quota);
    }
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let now = store::clock(&mut tx).await?;
    // What one brings for teams that the asker may not see is not in it.
    let all_windows = store::windows::all(&mut tx, None).await?;
    let mut capacities = BTreeMap::new();
    if asker.scope().sees_all {
        for pool in &pools {
            let id = pools::find(&mut tx, &pool.name).await?.id;
            capacities.insert(pool.name.clone(), warning::capacity(&mut tx, id).await?);
        }
    }
    tx.commit().await?;
    let found = windows::in_place(&all_windows, now);
    let in_place = |pool: &Name| {
        let here = found.values().filter(|found| found.window.pool == *pool);
        let told = here.map(|found| {
            let in_place = InPlace {
                window: found.window.name.clone(),
                quota: NewQuota::from(found.quota.amounts),
                until: found.until,
            };
            (found.quota.team.clone(), in_place)
        });
        told.collect()
    };
    let pools = pools.into_iter().map(|pool| TablePool {
        in_place: in_place(&pool.name),
        capacity: capacities.remove(&pool.name),
        quotas: by_pool.remove(&pool.name).unwrap_or_default(),
        name: pool.name,
    });
    Ok(QuotaTable {
        pools: pools.collect(),
        teams: in_tree(all_teams(app, asker).await?),
    })
}

/// Every quota; there are as many as teams times pools at most.
async fn all(app: &App, asker: &Asker) -> Result<Vec<Quota>, AppError> {
    let mut found = Vec::new();
    let mut ask = PageAsk::first();
    loop {
        let page = list_all(app, asker, &ask).await?;
        found.extend(page.items);
        let Some(cursor) = page.next_cursor else {
            return Ok(found);
        };
        ask = PageAsk::new(Some(PAGE_ITEMS_MAX), Some(cursor))?;
    }
}

async fn all_teams(app: &App, asker: &Asker) -> Result<Vec<Team>, AppError> {
    let mut found = Vec::new();
    let mut ask = PageAsk::first();
    loop {
        let page = teams::list(app, asker, &ask).await?;
        found.extend(page.items);
        let Some(cursor) = page.next_cursor else {
            return Ok(found);
        };
        ask = PageAsk::new(Some(PAGE_ITEMS_MAX), Some(cursor))?;
    }
}

/// The teams, each after the team above it; one whose parent is not shown begins a tree.
fn in_tree(teams: Vec<Team>) -> Vec<TableTeam> {
    let shown: Vec<Name> = teams.iter().map(|team| team.name.clone()).collect();
    let mut below: BTreeMap<Option<Name>, Vec<Team>> = BTreeMap::new();
    for team in teams {
        let parent = team.parent.clone().filter(|name| shown.contains(name));
        below.entry(parent).or_default().push(team);
    }
    let mut stack: Vec<(Team, usize)> = Vec::new();
    let push = |stack: &mut Vec<(Team, usize)>, teams: Vec<Team>, depth: usize| {
        stack.extend(teams.into_iter().rev().map(|team| (team, depth)));
    };
    push(&mut stack, below.remove(&None).unwrap_or_default(), 0);
    let mut ordered = Vec::new();
    while let Some((team, depth)) = stack.pop() {
        let children = below.remove(&Some(team.name.clone())).unwrap_or_default();
        push(&mut stack, children, depth + 1);
        ordered.push(TableTeam { team, depth });
    }
    ordered
}

impl QuotaTable {
    /// What each team is promised of a pool by these guarantees: its own or, without one, what
    /// the teams directly below it are promised together.
    pub fn promised(&self, guaranteed: &BTreeMap<Name, MilliGpu>) -> BTreeMap<Name, MilliGpu> {
        let mut below: BTreeMap<&Name, MilliGpu> = BTreeMap::new();
        let mut promised = BTreeMap::new();
        for TableTeam { team, .. } in self.teams.iter().rev() {
            let children = below.get(&team.name).copied().unwrap_or_default();
            let own = guaranteed.get(&team.name).copied().unwrap_or(children);
            if let Some(parent) = &team.parent {
                *below.entry(parent).or_default() += own;
            }
            promised.insert(team.name.clone(), own);
        }
        promised
    }

    /// What all teams together are promised, of what each is.
    pub fn sum(&self, promised: &BTreeMap<Name, MilliGpu>) -> MilliGpu {
        let roots = self.teams.iter().filter(|team| team.depth == 0);
        roots
            .filter_map(|team| promised.get(&team.team.name).copied())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::authorise::Target;
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn team(text: &str, parent: Option<&str>) -> Team {
        Team {
            name: name(text),
            parent: parent.map(name),
            hue: 1,
            role: None,
            created_at: Timestamp::UNIX_EPOCH,
            version: 1,
            target: Target::Platform,
        }
    }

    #[test]
    fn each_team_stands_below_the_team_above_it_and_a_parent_counts_once() {
        let table = QuotaTable {
            teams: in_tree(vec![
                team("lab", Some("org")),
                team("org", None),
                team("speech", Some("lab")),
                team("vision", Some("lab")),
                // The team above it is not shown.
                team("guests", Some("others")),
            ]),
            pools: Vec::new(),
        };
        let order: Vec<_> = table
            .teams
            .iter()
            .map(|t| (t.team.name.as_str(), t.depth))
            .collect();
        assert_eq!(
            order,
            [
                ("org", 0),
                ("lab", 1),
                ("speech", 2),
                ("vision", 2),
                ("guests", 0)
            ]
        );
        let own = [("vision", 4), ("speech", 2), ("guests", 1), ("org", 8)];
        let own = own.map(|(team, gpus)| (name(team), MilliGpu::whole(gpus)));
        let promised = table.promised(&BTreeMap::from(own));
        assert_eq!(promised[&name("lab")], MilliGpu::whole(6));
        assert_eq!(table.sum(&promised), MilliGpu::whole(9));
    }
}
