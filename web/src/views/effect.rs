//! What would come of changed policies, beside what comes of the present ones.

use chrono::{DateTime, Utc};

use crate::messages::{Messages, Phrase};
use crate::parts::Team;
use crate::shell::Shell;

use super::{BeyondQuota, BookingConflict, PolicyWarning};

/// The outcome of a try on the live world.
#[derive(Debug, Clone)]
pub struct Effect {
    /// The moment of both plans.
    pub at: DateTime<Utc>,
    /// The moment by whose windows quotas were taken, where that is another one.
    pub windows_at: Option<DateTime<Utc>>,
    /// How many jobs each effect has, by its code.
    pub counts: Vec<(&'static str, usize)>,
    /// Jobs of which something else would become.
    pub jobs: Vec<EffectJob>,
    /// How many more there are.
    pub jobs_left_out: usize,
    /// The teams whose part changes.
    pub shares: Vec<EffectShare>,
    /// Teams that would hold more beyond their guarantee than now.
    pub cuts: Vec<EffectCut>,
    /// What would not keep the policies from holding.
    pub warnings: Vec<PolicyWarning>,
    /// Bookings that would be in conflict with what else is promised.
    pub conflicts: Vec<EffectConflicts>,
    /// How many more there are.
    pub conflicts_left_out: usize,
}

/// A job, and what would become of it.
#[derive(Debug, Clone)]
pub struct EffectJob {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: String,
    /// What the change means to it, as a code.
    pub effect: &'static str,
    /// What becomes of it by the present policies.
    pub before: Fate,
    /// What would become of it.
    pub after: Fate,
}

/// What a plan makes of a job.
#[derive(Debug, Clone)]
pub struct Fate {
    /// What is done with it, as a code.
    pub outcome: &'static str,
    /// The rule by which it gives way, or the code of its waiting.
    pub reason: Option<String>,
    /// When it is expected to start.
    pub expected_start: Option<DateTime<Utc>>,
    /// What of its quota can never admit it.
    pub beyond_quota: Option<BeyondQuota>,
}

/// A team's part of a pool before and after; thousandths of a GPU.
#[derive(Debug, Clone)]
pub struct EffectShare {
    /// The team.
    pub team: Team,
    /// The pool.
    pub pool: String,
    /// What it is guaranteed.
    pub guaranteed: (i64, i64),
    /// What it holds.
    pub used: (i64, i64),
    /// What of that is borrowed.
    pub borrowed: (i64, i64),
    /// What others use of its guarantee.
    pub lent: (i64, i64),
    /// What it would have if everybody took what is theirs.
    pub fair_share: (i64, i64),
}

/// What a team holds already and would hold as a borrower; thousandths of a GPU.
#[derive(Debug, Clone)]
pub struct EffectCut {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// What it holds.
    pub held: i64,
    /// Its guarantee before and after.
    pub guaranteed: (i64, i64),
    /// What would become borrowed.
    pub becomes_borrowed: i64,
    /// What others could take back.
    pub reclaimable: i64,
    /// What would be above its limit.
    pub over_limit: i64,
}

/// A booking that would be in conflict with what else is promised of its pool.
#[derive(Debug, Clone)]
pub struct EffectConflicts {
    /// The booking.
    pub booking: String,
    /// The team that it is for.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// When, and how much is promised then.
    pub conflicts: Vec<BookingConflict>,
    /// How many more there are.
    pub left_out: usize,
}

impl Effect {
    pub(crate) fn quiet(&self) -> bool {
        self.jobs.is_empty() && self.shares.is_empty() && self.cuts.is_empty()
    }
}

/// The class of what an effect means to somebody's work.
pub(crate) fn tone(effect: &str) -> &'static str {
    match effect {
        "starts" | "starts_after_victims" | "stays" | "sooner" => "ok",
        "stops" | "delayed" | "never_starts" => "warn",
        _ => "ink2",
    }
}

impl EffectJob {
    /// What happens to it now and then, as one line each.
    pub(crate) fn lines(&self, shell: &Shell) -> [Phrase; 2] {
        let t = &shell.t;
        [
            t.say("effect.now").nest("fate", self.before.words(shell)),
            t.say("effect.then").nest("fate", self.after.words(shell)),
        ]
    }
}

impl Fate {
    fn words(&self, shell: &Shell) -> Phrase {
        let t = &shell.t;
        let fate = t.word("fate", self.outcome);
        let cause = match (self.outcome, self.reason.as_deref()) {
            ("waits", _) if let Some(beyond) = &self.beyond_quota => Some(beyond.figures(t)),
            ("waits", Some(code)) => Some(t.word("waiting", code)),
            (_, Some(rule)) => Some(t.word("preempted_by", rule)),
            (_, None) => None,
        };
        let fate = match cause {
            Some(cause) => t
                .say("effect.because")
                .nest("fate", fate)
                .nest("cause", cause),
            None => fate,
        };
        match &self.expected_start {
            Some(at) => t
                .say("effect.expected")
                .nest("fate", fate)
                .nest("at", shell.moment(at)),
            None => fate,
        }
    }
}

impl EffectConflicts {
    /// The booking, then each time that is in conflict.
    pub(crate) fn words(&self, t: &Messages) -> Vec<Phrase> {
        let whose = t
            .say("effect.conflicts")
            .with("booking", &self.booking)
            .with("team", &self.team);
        let mut words = vec![whose];
        let told = self.conflicts.iter();
        words.extend(told.map(|conflict| conflict.words(t, &self.pool)));
        if self.left_out > 0 {
            words.push(t.count("effect.more_times", self.left_out));
        }
        words
    }
}

impl EffectCut {
    pub(crate) fn words(&self, shell: &Shell) -> Vec<Phrase> {
        let t = &shell.t;
        let (before, after) = self.guaranteed;
        let mut words = vec![
            t.say("effect.cut")
                .with("team", &self.team)
                .with("pool", &self.pool)
                .nest("held", t.gpus(self.held))
                .with("before", t.amount(before))
                .with("after", t.amount(after)),
        ];
        if self.becomes_borrowed > 0 {
            words.push(
                t.say("effect.becomes_borrowed")
                    .nest("gpus", t.gpus(self.becomes_borrowed)),
            );
        }
        if self.reclaimable > 0 {
            words.push(
                t.say("effect.reclaimable")
                    .nest("gpus", t.gpus(self.reclaimable)),
            );
        }
        if self.over_limit > 0 {
            words.push(
                t.say("effect.over_limit")
                    .nest("gpus", t.gpus(self.over_limit)),
            );
        }
        words
    }
}

/// An amount before and after: both where they differ, else the one.
pub(crate) fn before_after(shell: &Shell, pair: &(i64, i64)) -> Phrase {
    let t = &shell.t;
    let (before, after) = *pair;
    if before == after {
        Phrase::markup("<span class=\"muted\">{n}</span>").with("n", t.amount(after))
    } else {
        Phrase::markup("{before} → <b>{after}</b>")
            .with("before", t.amount(before))
            .with("after", t.amount(after))
    }
}
