//! What may be wrong with a spec for its own sake, or beside the names that it uses.

use std::collections::{BTreeMap, BTreeSet};

use domain::FieldError;
use domain::ids::JobId;
use domain::name::Name;
use domain::spec::JobSpec;
use domain::state::JobState;
use engine::world::World;

use super::prospect;
use crate::app::authorise::Action;
use crate::app::{AppError, Asker, teams};
use crate::scheduler::capable;
use crate::store::teams::Team;
use crate::store::{self, Tx};

/// Labels that a refusal names: enough to recognise the one that was meant.
const LABELS_NAMED_MAX: usize = 20;

/// Everything that is wrong with a spec for its own sake, or beside the names that it uses.
/// Returns the team that it is for.
pub(in crate::app) async fn check(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    action: Action,
    team: &Name,
    spec: &JobSpec,
) -> Result<Team, AppError> {
    let known = Known::load(tx, asker, action, team, std::slice::from_ref(spec)).await?;
    known.check(fleet, spec, &[])?;
    Ok(known.team)
}

/// What specs of one request name, as far as it is there: read once for all of them.
pub(super) struct Known {
    team: Team,
    /// Whether teams are below it.
    above: bool,
    pools: BTreeSet<String>,
    classes: BTreeSet<String>,
    followed: BTreeMap<JobId, JobState>,
}

impl Known {
    /// Reads it for who may submit for the team.
    pub async fn load(
        tx: &mut Tx,
        asker: &Asker,
        action: Action,
        team: &Name,
        specs: &[JobSpec],
    ) -> Result<Self, AppError> {
        let team = teams::find_as(tx, asker, action, team).await?;
        let above = store::teams::with_children(tx, team.id).await?.len() > 1;
        let pools: BTreeSet<&str> = specs
            .iter()
            .flat_map(|spec| spec.pools.iter().map(Name::as_str))
            .collect();
        let classes: BTreeSet<&str> = specs.iter().map(|spec| spec.class.as_str()).collect();
        let followed: BTreeSet<JobId> = specs
            .iter()
            .flat_map(|spec| spec.after.iter().filter_map(|id| id.parse().ok()))
            .collect();
        let pools = match pools.is_empty() {
            true => Vec::new(),
            false => store::pools::named(tx, &Vec::from_iter(pools)).await?,
        };
        let classes = store::classes::named(tx, &Vec::from_iter(classes)).await?;
        let followed = match followed.is_empty() {
            true => Vec::new(),
            false => {
                let ids = Vec::from_iter(followed);
                store::arrays::states_of(tx, Some(team.id), &ids).await?
            }
        };
        Ok(Self {
            team,
            above,
            pools: pools.into_iter().collect(),
            classes: classes.into_iter().collect(),
            followed: followed.into_iter().collect(),
        })
    }

    /// Refuses one of the specs with all that is wrong with it. It may follow `others`, which are
    /// submitted before it with it, and whose ids are known already.
    pub fn check(&self, fleet: &World, spec: &JobSpec, others: &[JobId]) -> Result<(), AppError> {
        let mut faults = Vec::new();
        if self.above {
            let remedy = "a team without teams below it: work belongs to leaves";
            faults.push(FieldError::new("team", &self.team.name, remedy));
        }
        faults.extend(spec.faults());
        let mut found = Vec::new();
        let unknown = |pool: &&Name| !self.pools.contains(pool.as_str());
        if let Some(pool) = spec.pools.iter().find(unknown) {
            let remedy = "names of pools that are there";
            found.push(FieldError::new("pools", pool, remedy));
        }
        if !self.classes.contains(spec.class.as_str()) {
            let remedy = "the name of a class that is there";
            found.push(FieldError::new("class", &spec.class, remedy));
        }
        found.extend(self.check_after(spec, others).err());
        found.extend(topology_faults(fleet, spec));
        if let Some(node) = &spec.node
            && !fleet.nodes.iter().any(|n| n.name == node.as_str())
        {
            let remedy = "the name of a node that is there";
            found.push(FieldError::new("node", node, remedy));
        }
        // What is no name cannot be there, which its own fault says already.
        found.retain(|fault| !faults.iter().any(|known| known.field == fault.field));
        faults.extend(found);
        AppError::of_faults(faults)
    }

    /// The jobs that a spec follows must be its own team's, and not have failed already. None of
    /// them can follow it in turn: it has no id yet, and of `others` it follows those before it.
    fn check_after(&self, spec: &JobSpec, others: &[JobId]) -> Result<(), FieldError> {
        for id in &spec.after {
            let id: JobId = id.parse().map_err(|error| FieldError {
                field: "after".into(),
                ..error
            })?;
            if others.contains(&id.array().unwrap_or(id)) {
                continue;
            }
            let remedy = match self.followed.get(&id) {
                None => "ids of jobs of the same team that are there",
                Some(JobState::Failed | JobState::Cancelled) => {
                    "a job that may still end well; this one has not"
                }
                Some(_) => continue,
            };
            return Err(FieldError::new("after", id, remedy));
        }
        Ok(())
    }
}

/// The labels of nodes in the pools that a spec accepts.
pub(super) fn labels_known<'f>(fleet: &'f World, spec: &'f JobSpec) -> BTreeSet<&'f str> {
    prospect::nodes(fleet, spec)
        .flat_map(|node| node.labels.keys())
        .map(String::as_str)
        .filter(|label| !capable::internal(label))
        .collect()
}

/// Labels that no node of its pools has: they are no domains of anything, and what requires one would
/// be waited for in vain.
fn topology_faults(fleet: &World, spec: &JobSpec) -> Vec<FieldError> {
    let known = labels_known(fleet, spec);
    let unknown = |label: &&str| !known.contains(label);
    let asked = [
        ("topology.require", &spec.topology.require),
        ("anti_affinity", &spec.anti_affinity),
    ];
    let asked = asked.into_iter();
    let wrong =
        asked.filter_map(|(field, label)| Some((field, label.as_deref().filter(|l| unknown(l))?)));
    let named: Vec<&str> = known.iter().copied().take(LABELS_NAMED_MAX).collect();
    let remedy = if named.is_empty() {
        "null, since the nodes of its pools have no labels".to_owned()
    } else {
        format!("a label that nodes of its pools have: {}", named.join(", "))
    };
    wrong
        .map(|(field, label)| FieldError::new(field, label, remedy.as_str()))
        .collect()
}
