//! Whose quotas are other than those that a plan was made with.

use std::collections::{BTreeMap, BTreeSet};

use engine::plan::Plan;

use crate::scheduler::translate;
use crate::scheduler::world::Mirror;
use crate::store::world as rows;
use crate::store::{self, Tx};

/// Teams of work that starts or grows whose quotas, or those above them, changed since the plan was made. The rows
/// stay locked, so that no quota is lowered beside an admission that it should have stopped.
pub(super) async fn teams(
    tx: &mut Tx,
    mirror: &Mirror,
    plan: &Plan,
) -> Result<BTreeSet<String>, sqlx::Error> {
    let parents: BTreeMap<&str, Option<&str>> = mirror
        .records
        .teams
        .iter()
        .map(|t| (t.name.as_str(), t.parent.as_deref()))
        .collect();
    let line = |team: &str| {
        let mut line = vec![team.to_owned()];
        let mut at = parents.get(team).copied().flatten();
        while let Some(parent) = at.filter(|parent| !line.iter().any(|seen| seen == parent)) {
            line.push(parent.to_owned());
            at = parents.get(parent).copied().flatten();
        }
        line
    };
    let starters: BTreeSet<&str> = plan
        .starts
        .iter()
        .map(|start| &start.workload)
        .chain(plan.resizes.iter().map(|resize| &resize.workload))
        .filter_map(|workload| translate::job_id(workload))
        .filter_map(|id| mirror.records.jobs.get(&id))
        .map(|job| job.row.team.as_str())
        .collect();
    let lines: BTreeMap<&str, Vec<String>> =
        starters.iter().map(|team| (*team, line(team))).collect();
    let wanted: Vec<String> = lines
        .values()
        .flatten()
        .cloned()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let windows = store::windows::share(tx).await?;
    let known = mirror.records.windows.iter().map(|w| (w.id, w.version));
    if !starters.is_empty() && windows != known.collect::<BTreeMap<_, _>>() {
        // What they bring may have been lowered, for whomever.
        return Ok(lines.into_keys().map(str::to_owned).collect());
    }
    let found = rows::share_quotas(tx, &wanted).await?;
    let known: Vec<_> = mirror
        .records
        .quotas
        .iter()
        .filter(|q| wanted.contains(&q.team))
        .collect();
    let differs = |team: &String| {
        found
            .iter()
            .filter(|q| q.team == *team)
            .ne(known.iter().copied().filter(|q| q.team == *team))
    };
    Ok(lines
        .into_iter()
        .filter(|(_, line)| line.iter().any(differs))
        .map(|(team, _)| team.to_owned())
        .collect())
}
