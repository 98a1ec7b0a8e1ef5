//! MPS: which teams share a device.

use domain::MilliGpu;
use domain::sharing::SharingMode;
use engine::rig::{Rig, before};
use engine::world::{Node, Pool, Workload};

#[test]
fn teams_share_a_device_by_mps_only_where_pool_and_node_let_them() {
    let part = |name, team| {
        let work = Workload::waiting(name, team, 0, before(90));
        work.fraction(SharingMode::Mps, MilliGpu::from_milli(500), None)
    };
    let rig = |pool: bool, nodes: &[bool]| {
        let by_mps = Pool::new("p").sharing(&[SharingMode::Mps]);
        let rig = Rig::new().pool(by_mps.with(|policy| policy.mps_across_teams = pool));
        let teams = rig.team("a", 1).team("b", 1);
        let nodes = nodes.iter().zip(1..).map(|(lets, i)| Node {
            mps_across_teams: *lets,
            ..Node::new(&format!("n{i}"), "p", 1)
        });
        nodes.fold(teams, Rig::node)
    };
    let both = |rig: Rig| rig.work(part("one", "a")).work(part("two", "b"));
    for (pool, node, starts) in [(true, true, 2), (true, false, 1), (false, true, 1)] {
        let plan = both(rig(pool, &[node])).plan();
        assert_eq!(plan.starts.len(), starts, "pool {pool}, node {node}");
    }
    // One node is as good as the other for who is alone, and not for who comes second.
    let plan = both(rig(true, &[false, false])).plan();
    assert_eq!(plan.starts.len(), 2, "each on a node of its own");
    let two = both(rig(true, &[false, true]));
    let third = part("three", "b");
    let plan = two.work(third).plan();
    assert_eq!(plan.starts.len(), 3, "one node for each team");
}
