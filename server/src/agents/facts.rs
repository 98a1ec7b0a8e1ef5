//! Facts: applied in the order of their numbers, each once, acknowledged after the commit.

use std::collections::BTreeMap;

use domain::ids::{IncarnationId, JournalId, NodeId};
use protocol::report::{Fact, FactKind};

use super::inbox::keep_first;
use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::report::{self, Outcome};
use crate::store::events::Actor;
use crate::store::{nodes, refused};

/// Facts that wait for a missing one before it. Of more the later ones are let fall: the agent
/// sends them again.
const AHEAD_MAX: usize = 4_096;
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

    /// The next facts in order: as many as concern one assignment, so that they can share a
    /// transaction.
    pub fn next(&mut self) -> Vec<Fact> {
        let mut run: Vec<Fact> = Vec::new();
        while let Some(entry) = self.ahead.first_entry() {
            let next = self.last + 1 + u64::try_from(run.len()).unwrap_or(u64::MAX);
            let same = run
                .first()
                .is_none_or(|first| first.assignment == entry.get().assignment);
            if *entry.key() != next || !same {
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
}

/// Applies facts of one assignment and notes them as known, in one transaction. A fact that
/// cannot be applied at all is told to the log and passed over: the rest of the node's facts
/// must not wait for it. Where the database only cannot now, the facts wait: passing over an end
/// would leave its job running for ever.
pub async fn apply(app: &App, source: &Source, facts: &[Fact]) -> Result<(), FactError> {
    for _ in 0..TRIES_MAX {
        match try_apply(app, source, facts).await {
            Ok(()) => return Ok(()),
            Err(Failure::Superseded) => return Err(FactError::Superseded),
            Err(Failure::Lifecycle(LifecycleError::Database(error))) if !refused(&error) => {
                return Err(FactError::Unavailable(error));
            }
            Err(Failure::Lifecycle(error)) => {
                tracing::debug!(node.id = %source.node_id, %error, "facts met a change and are tried again");
            }
        }
    }
    for fact in facts {
        apply_or_pass_over(app, source, fact).await?;
    }
    Ok(())
}

async fn apply_or_pass_over(app: &App, source: &Source, fact: &Fact) -> Result<(), FactError> {
    match try_apply(app, source, std::slice::from_ref(fact)).await {
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
        let noted = advance(&mut tx, source, number).await?;
        tx.commit().await?;
        Ok(noted)
    };
    match noted.await.map_err(FactError::Unavailable)? {
        true => Ok(()),
        false => Err(FactError::Superseded),
    }
}

enum Failure {
    Superseded,
    Lifecycle(LifecycleError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Lifecycle(error.into())
    }
}

async fn try_apply(app: &App, source: &Source, facts: &[Fact]) -> Result<(), Failure> {
    let Some(last) = facts.last() else {
        return Ok(());
    };
    let mut tx = app.db.begin_system().await?;
    let mut changed = false;
    for fact in facts {
        let outcome = report::apply(
            &mut tx,
            &app.config.timers,
            source.node_id,
            &source.actor,
            fact,
        )
        .await
        .map_err(Failure::Lifecycle)?;
        changed |= outcome == Outcome::Applied;
        note(source, fact, outcome);
    }
    if !advance(&mut tx, source, last.number).await? {
        return Err(Failure::Superseded);
    }
    tx.commit().await?;
    if changed {
        app.wake.all();
    }
    Ok(())
}

async fn advance(
    tx: &mut crate::store::Tx,
    source: &Source,
    number: u64,
) -> Result<bool, sqlx::Error> {
    let number = i64::try_from(number).expect("checked on receipt");
    nodes::advance_facts(
        tx,
        source.node_id,
        source.incarnation,
        source.journal,
        number,
    )
    .await
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
            kind: FactKind::Accepted,
        }
    }

    #[test]
    fn facts_that_come_reversed_and_twice_are_taken_in_order_and_once() {
        let (a, b) = (AssignmentId::new(), AssignmentId::new());
        let mut order = InOrder::after(2);
        for number in [5, 4, 3, 3, 5, 2] {
            order.put(fact(number, if number == 5 { b } else { a }));
        }
        let numbers = |facts: &[Fact]| facts.iter().map(|f| f.number).collect::<Vec<_>>();
        let first = order.next();
        assert_eq!(numbers(&first), [3, 4]);
        order.known(4);
        assert_eq!(numbers(&order.next()), [5]);
        order.known(5);
        assert!(order.next().is_empty() && !order.gap());
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
        assert_eq!(order.next().len(), AHEAD_MAX);
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
