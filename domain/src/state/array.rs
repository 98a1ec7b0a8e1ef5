//! Where an array of jobs stands: derived from its elements, and kept nowhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::JobState;
use crate::text_enum::text_enum;

text_enum!(
    /// What people want of an array as a whole, and so of the elements that nothing was done with yet.
    ArrayIntent, "intent" {
        /// Its elements queue and run.
        Open = "open",
        /// They are held back.
        Suspended = "suspended",
        /// None of them starts any more.
        Cancelled = "cancelled",
    }
);

impl ArrayIntent {
    /// Where an element stands with which nothing was done yet.
    pub fn untouched(self) -> JobState {
        match self {
            Self::Open => JobState::Queued,
            Self::Suspended => JobState::Suspended,
            Self::Cancelled => JobState::Cancelled,
        }
    }
}

/// How many elements of an array stand where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ElementCounts(BTreeMap<JobState, u32>);

/// Which state of its elements an array that has not ended is told by: the first that one has. What
/// runs comes before what will, and that before what leaves.
const TOLD_BY: [JobState; 6] = [
    JobState::Running,
    JobState::Starting,
    JobState::Preempting,
    JobState::Queued,
    JobState::Suspended,
    JobState::Cancelling,
];

/// Which end of its elements an array that has ended is told by: it ended well if all have.
const ENDED_BY: [JobState; 3] = [JobState::Failed, JobState::Cancelled, JobState::Succeeded];

impl ElementCounts {
    /// Adds elements that stand in a state.
    pub fn add(&mut self, state: JobState, elements: u32) {
        if elements > 0 {
            *self.0.entry(state).or_default() += elements;
        }
    }

    /// Elements in a state.
    pub fn in_state(&self, state: JobState) -> u32 {
        self.0.get(&state).copied().unwrap_or(0)
    }

    /// The states that elements stand in, with how many, in the order of a job's life.
    pub fn iter(&self) -> impl Iterator<Item = (JobState, u32)> {
        self.0.iter().map(|(state, elements)| (*state, *elements))
    }

    /// All elements.
    pub fn all(&self) -> u32 {
        self.0.values().sum()
    }

    /// Where the array stands.
    pub fn state(&self, intent: ArrayIntent) -> JobState {
        let has = |state: &JobState| self.in_state(*state) > 0;
        match TOLD_BY.into_iter().find(has) {
            Some(_) if intent == ArrayIntent::Cancelled => JobState::Cancelling,
            Some(state) => state,
            None => ENDED_BY.into_iter().find(has).unwrap_or(intent.untouched()),
        }
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ElementCounts {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, Type};
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(utoipa::openapi::schema::Schema::from(number.build())))
            .description(Some("How many elements stand in each state that one has."))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ElementCounts {
    fn name() -> std::borrow::Cow<'static, str> {
        std::borrow::Cow::Borrowed("ElementCounts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(JobState, u32)]) -> ElementCounts {
        let mut counts = ElementCounts::default();
        for (state, elements) in of {
            counts.add(*state, *elements);
        }
        counts
    }

    #[test]
    fn an_array_runs_while_one_element_does_and_ends_when_all_have() {
        use JobState::{Cancelled, Failed, Queued, Running, Succeeded, Suspended};
        let cases = [
            (vec![(Queued, 9)], Queued),
            (vec![(Queued, 5), (Running, 1), (Failed, 3)], Running),
            (vec![(Queued, 5), (Succeeded, 4)], Queued),
            (vec![(Suspended, 1), (Succeeded, 4)], Suspended),
            (vec![(Succeeded, 4)], Succeeded),
            (vec![(Succeeded, 3), (Cancelled, 1)], Cancelled),
            (vec![(Succeeded, 3), (Cancelled, 1), (Failed, 1)], Failed),
        ];
        for (of, state) in cases {
            assert_eq!(counts(&of).state(ArrayIntent::Open), state, "{of:?}");
        }
        let leaving = counts(&[(Running, 2), (Cancelled, 8)]);
        assert_eq!(leaving.state(ArrayIntent::Cancelled), JobState::Cancelling);
        let gone = counts(&[(Cancelled, 10)]);
        assert_eq!(gone.state(ArrayIntent::Cancelled), Cancelled);
    }

    #[test]
    fn every_state_of_an_element_tells_where_its_array_stands() {
        for state in JobState::ALL {
            let one = counts(&[(*state, 1)]);
            assert_eq!(one.state(ArrayIntent::Open), *state);
            assert_eq!(one.state(ArrayIntent::Open).terminal(), state.terminal());
        }
    }
}
