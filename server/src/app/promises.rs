//! What is promised of a pool in all, and what the pool has.

use domain::MilliGpu;
use engine::world::{Node, NodeState, Team, World};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Guarantees in a pool that are more than it has: all of them shrink in proportion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Overpromised {
    /// The guarantees of all teams together, as they were given.
    pub guaranteed: MilliGpu,
    /// The devices that have not failed, of nodes that answer.
    pub capacity: MilliGpu,
}

/// What the guarantees of a pool exceed it by, where they do.
pub(super) fn overpromised(fleet: &World, pool: &str) -> Option<Overpromised> {
    let roots = fleet.teams.iter().filter(|team| team.parent.is_none());
    let guaranteed = roots
        .map(|team| of_team(&fleet.teams, &team.name, pool))
        .sum();
    let capacity = capacity(fleet.nodes.iter().filter(|node| node.pool == pool));
    (guaranteed > capacity).then_some(Overpromised {
        guaranteed,
        capacity,
    })
}

/// Whether a node answers: what it has counts, whether or not new work starts on it.
pub(super) fn answers(node: &Node) -> bool {
    node.state != NodeState::Unreachable
}

/// The devices of these nodes that have not failed, where the node answers.
pub(super) fn capacity<'n>(nodes: impl Iterator<Item = &'n Node>) -> MilliGpu {
    let well = nodes.filter(|node| answers(node)).map(|node| {
        let failed = i64::try_from(node.failed.len()).unwrap_or(i64::MAX);
        i64::from(node.gpus) - failed
    });
    MilliGpu::whole(well.sum())
}

/// The devices of a pool that are out: failed, or of nodes that do not answer.
pub(super) fn out(fleet: &World, pool: &str) -> i64 {
    let nodes = || fleet.nodes.iter().filter(|node| node.pool == pool);
    let all: i64 = nodes().map(|node| i64::from(node.gpus)).sum();
    (MilliGpu::whole(all).saturating_sub(capacity(nodes()))).milli() / MilliGpu::whole(1).milli()
}

/// A team's guarantee in a pool as it was given, not as it shrinks while devices are away.
pub(super) fn of_team(teams: &[Team], name: &str, pool: &str) -> MilliGpu {
    let quota = teams
        .iter()
        .find(|team| team.name == name)
        .and_then(|team| team.quotas.get(pool));
    quota.map_or_else(
        // The tree is bounded and has no circle.
        || {
            teams
                .iter()
                .filter(|team| team.parent.as_deref() == Some(name))
                .map(|team| of_team(teams, &team.name, pool))
                .sum()
        },
        |quota| quota.guaranteed,
    )
}

#[cfg(test)]
mod tests {
    use domain::Timestamp;
    use engine::world::{Node, Quota};

    use super::*;

    fn quota(gpus: i64) -> Quota {
        Quota::guaranteed(MilliGpu::whole(gpus))
    }

    #[test]
    fn a_parents_promise_counts_once_and_devices_that_are_out_do_not() {
        let mut fleet = World::empty(Timestamp::UNIX_EPOCH);
        fleet.nodes = vec![Node::new("n1", "h100", 8), Node::new("n2", "a100", 8)];
        fleet.teams = vec![
            Team::new("org"),
            Team::new("vision").under("org"),
            Team::new("speech").under("org"),
        ];
        for team in &mut fleet.teams[1..] {
            team.quotas.insert("h100".to_owned(), quota(4));
        }
        assert_eq!(overpromised(&fleet, "h100"), None);
        fleet.nodes[0].failed = vec![3];
        let over = |guaranteed, capacity| {
            Some(Overpromised {
                guaranteed: MilliGpu::whole(guaranteed),
                capacity: MilliGpu::whole(capacity),
            })
        };
        assert_eq!(overpromised(&fleet, "h100"), over(8, 7));
        fleet.teams[0].quotas.insert("h100".to_owned(), quota(12));
        assert_eq!(overpromised(&fleet, "h100"), over(12, 7));
        fleet.nodes[0].state = NodeState::Unreachable;
        assert_eq!(overpromised(&fleet, "h100"), over(12, 0));
        assert_eq!(overpromised(&fleet, "a100"), None);
    }
}
