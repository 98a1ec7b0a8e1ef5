//! Whether a world that was kept is what a fresh one is.

use super::Planner;
use crate::index::{Index, WorkFacts};
use crate::ledger::Ledger;
use crate::world::World;

impl Planner<'_> {
    /// In which ways it is not what these rows are; none where it is. Costs as much as taking
    /// the world in anew.
    pub fn unlike(&mut self, world: &World) -> Vec<&'static str> {
        let fresh = Index::of(world);
        let fresh = Ledger::of(&fresh);
        let futures = self.futures_alike();
        self.with(|kept| {
            let mut herds = std::mem::take(&mut kept.herds);
            let alike = herds.are_like(kept);
            kept.herds = herds;
            let parts = [
                ("time", kept.index.world.now == fresh.index.world.now),
                ("pools", pools(kept.index).eq(pools(fresh.index))),
                ("nodes", nodes(kept.index).eq(nodes(fresh.index))),
                ("teams", teams(kept.index).eq(teams(fresh.index))),
                ("work", works(kept).eq(works(&fresh))),
                ("devices", kept.spaces == fresh.spaces),
                ("who stands where", seats(kept).eq(seats(&fresh))),
                ("what teams hold", kept.all_held() == fresh.all_held()),
                ("what users hold", kept.all_users() == fresh.all_users()),
                ("herds", alike),
                ("futures", futures),
            ];
            let unlike = parts.into_iter().filter(|(_, alike)| !alike);
            unlike.map(|(part, _)| part).collect()
        })
    }
}

impl Planner<'_> {
    /// Whether the futures that are kept are those of how things stand; those that have changes to take
    /// in yet are taken to be.
    fn futures_alike(&mut self) -> bool {
        if !self.touched.is_empty() || !self.struck.is_empty() {
            return true;
        }
        let state = self.state.take().expect("it is put back below");
        let ledger = state.resume(&self.index);
        let mut alike = true;
        for (pool, future) in self.futures.iter_mut().enumerate() {
            *future = future.take().and_then(|paused| {
                let mut kept = paused.resume(&self.index);
                alike &= kept.is_like(&ledger, pool);
                kept.pause()
            });
        }
        self.state = Some(ledger.pause());
        alike
    }
}

fn pools<'a>(index: &'a Index<'_>) -> impl Iterator<Item = impl PartialEq + 'a> {
    let pools = index.pools.iter();
    pools.map(|p| {
        (
            p.row, &p.nodes, p.unit, p.capacity, p.cpus, p.memory, &p.rows,
        )
    })
}

fn nodes<'a>(index: &'a Index<'_>) -> impl Iterator<Item = impl PartialEq + 'a> {
    index.nodes.iter().map(|n| (n.row, n.pool, n.failed, n.mig))
}

fn teams<'a>(index: &'a Index<'_>) -> impl Iterator<Item = impl PartialEq + 'a> {
    index
        .teams
        .iter()
        .map(|t| (t.row, t.stopped, t.by_user, &t.path))
}

fn works<'a>(ledger: &'a Ledger<'_, '_>) -> impl Iterator<Item = impl PartialEq + 'a> {
    let works = ledger.index.works.iter().enumerate();
    let there = works.filter(|(_, facts)| !facts.is_vacant());
    there.map(|(work, facts)| {
        (
            facts.row,
            told(facts),
            ledger.standing(work),
            ledger.slots(work),
        )
    })
}

fn told<'a>(facts: &'a WorkFacts<'_>) -> impl PartialEq + 'a {
    (
        facts.team,
        facts.service,
        facts.priority,
        facts.preemptible,
        &facts.pools,
    )
}

fn seats<'a>(ledger: &'a Ledger<'_, '_>) -> impl Iterator<Item = Vec<&'a str>> {
    let name = |&work: &usize| ledger.index.works[work].row.name.as_str();
    let nodes = 0..ledger.index.nodes.len();
    nodes.map(move |node| ledger.seated(node).iter().map(name).collect())
}
