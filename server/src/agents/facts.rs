//! Facts: applied in the order of their numbers, each once, acknowledged after the commit.
//!
//! What all nodes of this replica tell at about the same time is applied in one transaction
//! ([`super::group`]); where that fails, each node's facts by themselves, and then one by one.

use std::collections::BTreeMap;

use domain::ids::{IncarnationId, JournalId, NodeId};
use protocol::report::{Fact, FactKind};

use super::inbox::keep_first;
use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::report::{self, Heard, Outcome};
use crate::store::events::Actor;
use crate::store::nodes::{self, KnownFacts};
use crate::store::refused;

/// Facts that wait for a missing one before it. Of more the later ones are let fall: the agent
/// sends them again.
const AHEAD_MAX: usize = 4_096;
/// Most facts of one node that share a transaction: four for each of some jobs, as they come when many
/// start and end at once. What a node tells after an absence takes several.
const RUN_MAX: usize = 64;
/// How often a fact is tried whose object changed at the same moment.
pub(super) const TRIES_MAX: usize = 5;

/// Whose facts these are.
#[derive(Debug, Clone)]
pub struct Source {
    /// The node.
    pub node_id: NodeId,
    /// Its agent, as events name it.
    pub actor: Actor,
    /// The life of the agent process.
    pub incarnation: IncarnationId,
    /// The journal that numbers the facts.
    pub journal: JournalId,
}

/// Facts of one connection, brought into order.
#[derive(Debug)]
pub struct InOrder {
    last: u64,
    ahead: BTreeMap<u64, Fact>,
}

impl InOrder {
    /// Begins after fact `last`, which is known.
    pub fn after(last: u64) -> Self {
        Self {
            last,
            ahead: BTreeMap::new(),
        }
    }

    /// Takes a fact in; one that is known is dropped.
    pub fn put(&mut self, fact: Fact) {
        if fact.number > self.last {
            keep_first(&mut self.ahead, fact, AHEAD_MAX);
        }
    }

    /// The next facts in order: as many as share a transaction.
    pub fn next(&mut self) -> Vec<Fact> {
        let mut run: Vec<Fact> = Vec::new();
        while let Some(entry) = self.ahead.first_entry() {
            let next = self.last + 1 + u64::try_from(run.len()).unwrap_or(u64::MAX);
            if *entry.key() != next || run.len() == RUN_MAX {
                break;
            }
            run.push(entry.remove());
        }
        run
    }

    /// Notes that facts up to `number` are known.
    pub fn known(&mut self, number: u64) {
        self.last = self.last.max(number);
        self.ahead = self.ahead.split_off(&(self.last + 1));
    }

    /// Whether facts wait for one that has not come.
    pub fn gap(&self) -> bool {
        self.ahead
            .first_key_value()
            .is_some_and(|(number, _)| *number > self.last + 1)
    }

    /// Gives up waiting for facts that do not come. What is there is taken as it is.
    pub fn skip_gap(&mut self) {
        if let Some((number, _)) = self.ahead.first_key_value() {
            self.last = number - 1;
        }
    }

    /// The last fact that is known.
    pub fn last(&self) -> u64 {
        self.last
    }
}

/// Why facts were not applied.
#[derive(Debug, thiserror::Error)]
pub enum FactError {
    /// Another connection speaks for the node now.
    #[error("another connection speaks for the node")]
    Superseded,
    /// The database is away: try again.
    #[error("the database does not answer")]
    Unavailable(#[source] sqlx::Error),
    /// The server stops.
    #[error("the server stops")]
    Over,
}

/// Facts of one node, in order.
#[derive(Debug)]
pub struct Run {
    /// Whose they are.
    pub source: Source,
    /// The facts.
    pub facts: Vec<Fact>,
}

/// Applies facts of one node and notes them as known, in one transaction. A fact that
/// cannot be applied at all is told to the log and passed over: the rest of the node's facts
/// must not wait for it. Where the database only cannot now, the facts wait: passing over an end
/// would leave its job running for ever.
pub async fn apply(app: &App, run: &Run) -> Result<(), FactError> {
    for _ in 0..TRIES_MAX {
        match try_apply(app, &[(&run.source, &run.facts)]).await {
            Ok(()) => return Ok(()),
            Err(Failure::Superseded) => return Err(FactError::Superseded),
            Err(Failure::Lifecycle(LifecycleError::Database(error))) if !refused(&error) => {
                return Err(FactError::Unavailable(error));
            }
            Err(Failure::Lifecycle(error)) => {
                tracing::debug!(node.id = %run.source.node_id, %error, "facts met a change and are tried again");
            }
        }
    }
    for fact in &run.facts {
        apply_or_pass_over(app, &run.source, fact).await?;
    }
    Ok(())
}

/// Applies facts of different nodes and notes them as known, in one transaction; whether it could.
/// Where it could not, nothing is done, and each node's are for [`apply`].
pub async fn apply_together(app: &App, runs: &[&Run]) -> bool {
    let all: Vec<(&Source, &[Fact])> = runs
        .iter()
        .map(|run| (&run.source, run.facts.as_slice()))
        .collect();
    match try_apply(app, &all).await {
        Ok(()) => true,
        Err(failure) => {
            tracing::debug!(%failure, nodes = runs.len(), "facts of several nodes are applied by themselves");
            false
        }
    }
}

async fn apply_or_pass_over(app: &App, source: &Source, fact: &Fact) -> Result<(), FactError> {
    match try_apply(app, &[(source, std::slice::from_ref(fact))]).await {
        Ok(()) => return Ok(()),
        Err(Failure::Superseded) => return Err(FactError::Superseded),
        Err(Failure::Lifecycle(LifecycleError::Database(error))) if !refused(&error) => {
            return Err(FactError::Unavailable(error));
        }
        Err(Failure::Lifecycle(error)) => {
            metrics::counter!("allotment_agent_facts_passed_over").increment(1);
            tracing::error!(
                node.id = %source.node_id, assignment.id = %fact.assignment, fact = fact.number, %error,
                "a fact cannot be applied and is passed over"
            );
        }
    }
    try_apply_nothing(app, source, fact.number).await
}

/// Notes a fact as known without applying it, if this connection may still say so.
async fn try_apply_nothing(app: &App, source: &Source, number: u64) -> Result<(), FactError> {
    let noted = async {
        let mut tx = app.db.begin_system().await?;
        let noted = nodes::advance_facts(&mut tx, &[known(source, number)]).await?;
        tx.commit().await?;
        Ok(noted)
    };
    match noted.await.map_err(FactError::Unavailable)? {
        0 => Err(FactError::Superseded),
        _ => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("another connection speaks for a node")]
    Superseded,
    #[error(transparent)]
    Lifecycle(LifecycleError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Lifecycle(error.into())
    }
}

/// Applies facts of different nodes in one transaction.
async fn try_apply(app: &App, all: &[(&Source, &[Fact])]) -> Result<(), Failure> {
    let heard: Vec<(&Source, Heard<'_>)> = all
        .iter()
        .flat_map(|(source, facts)| {
            let heard = |fact| Heard {
                node_id: source.node_id,
                actor: &source.actor,
                fact,
            };
            facts.iter().map(move |fact| (*source, heard(fact)))
        })
        .collect();
    let facts: Vec<Heard<'_>> = heard.iter().map(|(_, heard)| *heard).collect();
    let last = all.iter().filter_map(|(source, facts)| {
        let last = facts.last()?;
        Some(known(source, last.number))
    });
    let last: Vec<KnownFacts> = last.collect();
    let mut tx = app.db.begin_system().await?;
    let outcomes = report::apply_all(&mut tx, &app.config.timers, &facts)
        .await
        .map_err(Failure::Lifecycle)?;
    if nodes::advance_facts(&mut tx, &last).await? < last.len() {
        return Err(Failure::Superseded);
    }
    tx.commit().await?;
    for ((source, heard), outcome) in heard.iter().zip(&outcomes) {
        note(source, heard.fact, *outcome);
    }
    if outcomes.contains(&Outcome::Applied) {
        app.wake.all();
    }
    Ok(())
}

fn known(source: &Source, number: u64) -> KnownFacts {
    KnownFacts {
        node_id: source.node_id,
        incarnation: source.incarnation,
        journal: source.journal,
        up_to: i64::try_from(number).expect("checked on receipt"),
    }
}

fn note(source: &Source, fact: &Fact, outcome: Outcome) {
    let kind = match fact.kind {
        FactKind::Accepted => "accepted",
        FactKind::Refused { .. } => "refused",
        FactKind::Started { .. } => "started",
        FactKind::Exited(_) => "exited",
        FactKind::Released => "released",
    };
    match outcome {
        Outcome::Applied | Outcome::Known => {}
        Outcome::Foreign => {
            metrics::counter!("allotment_agent_facts_refused").increment(1);
            tracing::warn!(
                node.id = %source.node_id, assignment.id = %fact.assignment, kind,
                "a node reported an assignment that is not its own: refused"
            );
        }
        Outcome::Unknown => tracing::warn!(
            node.id = %source.node_id, assignment.id = %fact.assignment, kind,
            "a node reported an assignment that nobody knows"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::ids::{AssignmentId, AttemptId};

    fn fact(number: u64, assignment: AssignmentId) -> Fact {
        Fact {
            number,
            assignment,
            attempt: AttemptId::new(),
            at_micros: 0,
            kept_micros: 0,
            kind: FactKind::Accepted,
        }
    }

    #[test]
    fn facts_that_come_reversed_and_twice_are_taken_in_order_and_once() {
        let (a, b) = (AssignmentId::new(), AssignmentId::new());
        let mut order = InOrder::after(2);
        for number in [5, 4, 3, 3, 5, 2, 7] {
            order.put(fact(number, if number == 5 { b } else { a }));
        }
        let numbers = |facts: &[Fact]| facts.iter().map(|f| f.number).collect::<Vec<_>>();
        let first = order.next();
        assert_eq!(numbers(&first), [3, 4, 5]);
        order.known(5);
        assert!(order.next().is_empty() && order.gap());
    }

    #[test]
    fn a_missing_fact_is_taken_however_many_came_after_it() {
        let a = AssignmentId::new();
        let mut order = InOrder::after(0);
        let last = u64::try_from(AHEAD_MAX).expect("small") + 1;
        for number in 2..=last {
            order.put(fact(number, a));
        }
        assert!(order.gap());
        order.put(fact(1, a));
        let mut taken = 0;
        while let Some(last) = order.next().last() {
            taken = last.number;
            order.known(taken);
        }
        assert_eq!(taken, AHEAD_MAX as u64);
    }

    #[test]
    fn a_gap_is_waited_for_and_can_be_given_up() {
        let a = AssignmentId::new();
        let mut order = InOrder::after(0);
        order.put(fact(7, a));
        assert!(order.next().is_empty());
        assert!(order.gap());
        order.skip_gap();
        assert_eq!(order.next().len(), 1);
    }
}
