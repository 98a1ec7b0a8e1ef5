//! Verdicts as their team may read them: of other teams only that there are some, of folders what the engine does not know.

use std::collections::BTreeSet;

use domain::ids::JobId;
use engine::plan::{Code, Waiting};
use engine::world::World;

use super::{capable, translate};
use crate::store::jobs::JobRow;
use crate::store::world::LiveJob;

/// What stands for a team whose name the reader may not know.
const SOMEBODY: &str = "another team";

/// What is said of an element that its array holds back.
pub const HELD_BY_ARRAY: &str = "as many elements of its array run as may run at once: it waits for one of them to end, however that ends";

/// What binds such an element.
pub fn array_scope(array: JobId) -> String {
    format!("array {array}")
}

/// The same verdict, on work of `team`, without the names of teams that are neither this one nor
/// above it.
pub fn verdict(world: &World, team: &str, waiting: &Waiting) -> Waiting {
    let mut told = waiting.clone();
    if waiting.code == Code::NeverFits
        && let Some(why) = capable::folder_gone(world, &waiting.workload)
    {
        told.message = why.into();
    }
    if let Some(array) = held_by_array(waiting) {
        told.message = HELD_BY_ARRAY.into();
        told.scope = array_scope(array).into();
        return told;
    }
    if let Some(words) = hidden(world, team, &waiting.scope) {
        told.message = told.message.replace(&words, SOMEBODY).into();
        told.scope = told.scope.replace(&words, SOMEBODY).into();
    }
    told
}

/// What a job has tried so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Attempts that it had.
    pub attempts: i32,
    /// The exit code of the last one.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub exit_signal: Option<i32>,
}

impl Tried {
    /// By a job's row.
    pub fn of(row: &JobRow) -> Self {
        Self {
            attempts: row.attempt,
            exit_code: row.exit_code,
            exit_signal: row.exit_signal,
        }
    }

    /// By the row of one that has not ended.
    pub fn of_live(row: &LiveJob) -> Self {
        Self {
            attempts: row.attempt,
            exit_code: row.exit_code,
            exit_signal: row.exit_signal,
        }
    }
}

/// The same verdict, where the job waits for its next attempt rather than for the earliest start that
/// its spec asks for: a job that was started before has had that.
pub fn retried(mut told: Waiting, tried: &Tried) -> Waiting {
    if told.code != Code::NotYet || tried.attempts == 0 {
        return told;
    }
    let next = i64::from(tried.attempts) + 1;
    let attempt = match (tried.exit_code, tried.exit_signal) {
        (Some(code), _) => format!("attempt {next} after exit code {code}"),
        (None, Some(signal)) => format!("attempt {next} after signal {signal}"),
        (None, None) => format!("attempt {next}"),
    };
    let until = &told.scope;
    told.message = format!("it waits for {attempt}, which begins at {until} at the soonest").into();
    told.scope = attempt.into();
    told
}

/// What binds work of `team`, likewise.
pub fn scope(world: &World, team: &str, scope: &str) -> String {
    match hidden(world, team, scope) {
        Some(words) => scope.replace(&words, SOMEBODY),
        None => scope.to_owned(),
    }
}

/// The words for a team that `team` may not know, where that is what binds.
fn hidden(world: &World, team: &str, scope: &str) -> Option<String> {
    let own = scope.strip_prefix("team ");
    let of = scope.split_once(" of team ").map(|(_, named)| named);
    let named = own.or(of)?;
    (!line(world, team).contains(named)).then(|| format!("team {named}"))
}

/// The array whose `at_most` holds an element back; it follows another element of it then, which no
/// spec can ask for.
fn held_by_array(waiting: &Waiting) -> Option<JobId> {
    if waiting.code != Code::Dependency {
        return None;
    }
    let before = waiting.scope.strip_prefix("workload ")?;
    let array = |name: &str| translate::job_id(name).and_then(JobId::array);
    let own = array(&waiting.workload)?;
    (array(before) == Some(own)).then_some(own)
}

/// A team with all above it.
fn line<'w>(world: &'w World, team: &'w str) -> BTreeSet<&'w str> {
    let mut line = BTreeSet::new();
    let mut at = Some(team);
    while let Some(name) = at.filter(|name| line.insert(*name)) {
        let row = world.teams.iter().find(|t| t.name == name);
        at = row.and_then(|t| t.parent.as_deref());
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use domain::{MilliGpu, Timestamp};
    use engine::world::Team;

    use super::*;

    fn told(scope: &str) -> Waiting {
        let now = Timestamp::UNIX_EPOCH;
        let mut world = World::empty(now);
        world.teams = vec![
            Team::new("org"),
            Team::new("vision").under("org"),
            Team::new("speech").under("org"),
        ];
        let waiting = Waiting {
            workload: "j".to_owned(),
            pool: None,
            code: Code::OverLimit,
            scope: scope.into(),
            message: format!("it needs 1 GPU, and {scope} leaves 0").into(),
            need: MilliGpu::whole(1),
            need_max: None,
            have: MilliGpu::ZERO,
            counts: Arc::default(),
            rank: None,
            expected_start: None,
            expected_once: None,
            remedies: Vec::new(),
        };
        verdict(&world, "vision", &waiting)
    }

    #[test]
    fn another_teams_name_is_not_in_a_verdict() {
        let verdict = told("lend_limit of team speech");
        assert_eq!(&*verdict.scope, "lend_limit of another team");
        assert!(!verdict.message.contains("speech"), "{}", verdict.message);
    }

    #[test]
    fn who_waits_to_be_tried_again_is_told_so_and_not_of_an_earliest_start() {
        let mut waits = told("2026-12-01T08:00:00Z");
        waits.code = Code::NotYet;
        let tried = |attempts, exit_code| Tried {
            attempts,
            exit_code,
            exit_signal: None,
        };
        let again = retried(waits.clone(), &tried(1, Some(3)));
        assert_eq!(&*again.scope, "attempt 2 after exit code 3");
        assert_eq!(
            &*again.message,
            "it waits for attempt 2 after exit code 3, which begins at 2026-12-01T08:00:00Z at the soonest"
        );
        assert_eq!(retried(waits.clone(), &tried(0, None)), waits);
    }

    #[test]
    fn the_own_team_and_those_above_it_are_named() {
        let rule = "preemption.within_team of pool h100";
        for scope in ["team vision", "team org", "pool h100", rule] {
            assert_eq!(&*told(scope).scope, scope);
        }
    }
}
