//! Promises down the tree of teams: children are never promised more than their parent, whichever
//! windows are open.

use std::collections::BTreeMap;

use domain::FieldError;
use domain::MilliGpu;
use domain::Timestamp;
use domain::ids::{PoolId, TeamId};
use domain::name::Name;

use super::super::AppError;
use super::warning::while_open;
use crate::scheduler::windows;
use crate::store::quotas::Amounts;
use crate::store::teams::TreeTeam;
use crate::store::windows::Window;
use crate::store::{self, Tx};

/// The teams below a team are guaranteed more than it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// The team.
    pub team: Name,
    /// The pool.
    pub pool: Name,
    /// What the team is guaranteed.
    pub own: MilliGpu,
    /// What the teams directly below it are guaranteed together.
    pub below: MilliGpu,
    /// The windows that are open together when that is so; none while it is always so.
    pub windows: Vec<Name>,
    /// The field of what was sent that asks for it.
    pub field: String,
    /// What that held.
    pub value: String,
}

impl Excess {
    /// Refuses what was sent that asks for it.
    pub fn refused(
        mut self: Box<Self>,
        field: impl Into<String>,
        value: impl std::fmt::Display,
    ) -> AppError {
        self.field = field.into();
        self.value = value.to_string();
        AppError::Exceeded(self)
    }

    /// The same as a refused value.
    pub fn fault(&self) -> FieldError {
        let while_open = while_open(&self.windows);
        FieldError::new(
            &self.field,
            &self.value,
            format!(
                "the guarantees below team {} add up to {} and it has {}{while_open}: raise it there, or lower them first",
                self.team, self.below, self.own,
            ),
        )
    }
}

/// What is promised of one pool.
#[derive(Debug, Clone)]
pub struct Promises {
    /// The pool.
    pub pool: Name,
    /// The tree of teams.
    pub tree: Vec<TreeTeam>,
    /// The quotas while no window is open.
    pub quotas: BTreeMap<TeamId, Amounts>,
    /// What holds in their place for some hours.
    pub windows: Vec<Window>,
}

impl Promises {
    /// Loads what is promised of a pool.
    pub async fn load(tx: &mut Tx, (id, name): (PoolId, &Name)) -> Result<Self, AppError> {
        let tree = store::teams::tree(tx).await?;
        let rows = store::quotas::of_pool(tx, id).await?;
        Ok(Self {
            pool: name.clone(),
            tree,
            quotas: rows.into_iter().collect(),
            windows: store::windows::all(tx, Some(id)).await?,
        })
    }

    /// Refuses promises of which some set of open windows gives children more than their parent.
    pub fn check(&self, now: Timestamp) -> Result<(), Box<Excess>> {
        self.check_while(&[])?;
        for open in windows::combinations(&self.windows, now) {
            self.check_while(&open)?;
        }
        Ok(())
    }

    /// Whether a team is the one that has too little, or stands below it.
    pub fn below(&self, team: &Name, excess: &Excess) -> bool {
        let mut at = self.tree.iter().find(|node| node.name == *team);
        while let Some(node) = at {
            if node.name == excess.team {
                return true;
            }
            at = self
                .tree
                .iter()
                .find(|above| node.parent_id == Some(above.id));
        }
        false
    }

    /// The same while these windows are open.
    fn check_while(&self, open: &[usize]) -> Result<(), Box<Excess>> {
        let quotas = self.at(open);
        let below = promised_below(&self.tree, &quotas);
        for node in from_roots(&self.tree).into_iter().rev() {
            let children = below.get(&node.id).copied().unwrap_or(0);
            let own = promised(node.id, &quotas, &below);
            if children > own {
                let names = open.iter().map(|i| self.windows[*i].name.clone());
                return Err(Box::new(Excess {
                    team: node.name.clone(),
                    pool: self.pool.clone(),
                    own: MilliGpu::from_milli(own),
                    below: MilliGpu::from_milli(children),
                    windows: names.collect(),
                    // Until it is known what was sent.
                    field: "guaranteed".to_owned(),
                    value: MilliGpu::from_milli(own).to_string(),
                }));
            }
        }
        Ok(())
    }

    /// What all teams are guaranteed together while these windows are open.
    pub fn sum(&self, open: &[usize]) -> i64 {
        let quotas = self.at(open);
        let below = promised_below(&self.tree, &quotas);
        let roots = self.tree.iter().filter(|node| node.parent_id.is_none());
        roots.map(|root| promised(root.id, &quotas, &below)).sum()
    }

    /// The windows that are open at a moment, in the order in which they opened.
    pub fn open_at(&self, at: Timestamp) -> Vec<usize> {
        let open = windows::open_at(&self.windows, at);
        let place = |window: &Window| self.windows.iter().position(|w| w.name == window.name);
        open.into_iter().filter_map(place).collect()
    }

    fn at(&self, open: &[usize]) -> BTreeMap<TeamId, Amounts> {
        let mut quotas = self.quotas.clone();
        let open: Vec<&Window> = open.iter().map(|i| &self.windows[*i]).collect();
        windows::lay_over(&mut quotas, &open, |_, quota| quota.team_id);
        quotas
    }
}

/// Checks the promises of every pool against a tree that is about to change, since a team is to stand
/// below `parent`.
pub(in crate::app) async fn check_all_pools(
    tx: &mut Tx,
    tree: &[TreeTeam],
    parent: Option<&Name>,
) -> Result<(), AppError> {
    let now = store::clock(tx).await?;
    let mut after: Option<String> = None;
    loop {
        let pools = store::pools::page(tx, after.as_deref(), POOLS_AT_ONCE).await?;
        let Some(last) = pools.last() else {
            return Ok(());
        };
        after = Some(last.name.to_string());
        for pool in pools {
            store::quotas::lock_pool(tx, pool.id).await?;
            let promises = Promises {
                tree: tree.to_vec(),
                ..Promises::load(tx, (pool.id, &pool.name)).await?
            };
            promises
                .check(now)
                .map_err(|excess| excess.refused("parent", parent.map_or("null", Name::as_str)))?;
        }
    }
}

/// Pools read at a time while all are gone through.
const POOLS_AT_ONCE: i64 = 100;

/// What a team is promised: its own row or, without one, what its children are together.
fn promised(
    team: TeamId,
    quotas: &BTreeMap<TeamId, Amounts>,
    below: &BTreeMap<TeamId, i64>,
) -> i64 {
    let children = below.get(&team).copied().unwrap_or(0);
    quotas.get(&team).map_or(children, |q| q.guaranteed_milli)
}

/// What the children of each team are promised together.
fn promised_below(tree: &[TreeTeam], quotas: &BTreeMap<TeamId, Amounts>) -> BTreeMap<TeamId, i64> {
    let mut below: BTreeMap<TeamId, i64> = BTreeMap::new();
    for node in from_roots(tree).into_iter().rev() {
        let own = promised(node.id, quotas, &below);
        if let Some(parent) = node.parent_id {
            *below.entry(parent).or_default() += own;
        }
    }
    below
}

/// The tree's teams, each after the team above it.
fn from_roots(tree: &[TreeTeam]) -> Vec<&TreeTeam> {
    let mut ordered: Vec<&TreeTeam> = tree.iter().filter(|n| n.parent_id.is_none()).collect();
    let mut at = 0;
    while at < ordered.len() {
        let parent = ordered[at].id;
        ordered.extend(tree.iter().filter(|n| n.parent_id == Some(parent)));
        at += 1;
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, parent: Option<&TreeTeam>) -> TreeTeam {
        TreeTeam {
            id: TeamId::new(),
            name: name.parse().expect("a name"),
            parent_id: parent.map(|p| p.id),
        }
    }

    fn amounts(guaranteed_milli: i64) -> Amounts {
        Amounts {
            guaranteed_milli,
            limit_milli: None,
            lend_limit_milli: None,
            weight_milli: 1000,
            max_per_user_milli: None,
        }
    }

    #[test]
    fn children_are_never_promised_more_than_their_parent() {
        let org = node("org", None);
        let lab = node("lab", Some(&org));
        let vision = node("vision", Some(&lab));
        let speech = node("speech", Some(&lab));
        // Out of order, as rows may come.
        let tree = vec![vision.clone(), org.clone(), speech.clone(), lab.clone()];
        let sum = |pairs: &[(&TreeTeam, i64)]| {
            let promises = Promises {
                pool: "h100".parse().expect("a name"),
                tree: tree.clone(),
                quotas: pairs.iter().map(|(n, m)| (n.id, amounts(*m))).collect(),
                windows: Vec::new(),
            };
            let checked = promises.check(Timestamp::UNIX_EPOCH);
            checked.map(|()| promises.sum(&[])).ok()
        };
        assert_eq!(sum(&[(&vision, 8000), (&speech, 8000)]), Some(16_000));
        assert_eq!(
            sum(&[(&lab, 17_000), (&vision, 8000), (&speech, 8000)]),
            Some(17_000)
        );
        assert_eq!(
            sum(&[(&lab, 15_999), (&vision, 8000), (&speech, 8000)]),
            None
        );
        // Through a team without a row of its own.
        assert_eq!(sum(&[(&org, 9000), (&vision, 8000), (&speech, 2000)]), None);
    }

    #[test]
    fn the_order_is_from_the_roots_to_the_leaves() {
        let org = node("org", None);
        let lab = node("lab", Some(&org));
        let vision = node("vision", Some(&lab));
        let tree = [vision, lab, org];
        let names: Vec<String> = from_roots(&tree)
            .iter()
            .map(|n| n.name.to_string())
            .collect();
        assert_eq!(names, ["org", "lab", "vision"]);
    }
}
