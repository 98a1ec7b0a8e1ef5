//! One team: what it holds against what it was promised, what it spent, and who is in it.

use askama::Template;
use chrono::{DateTime, Utc};

use crate::draw::{self, Html, Quota};
use crate::format::{self, Cost};
use crate::messages::{Messages, Phrase};
use crate::parts::Team;
use crate::shell::{Section, Shell};

use super::{EvictionRow, EvictionSum, Refusal};

/// A team as its members see it.
#[derive(Debug, Clone, Template)]
#[template(path = "team.html")]
pub struct TeamView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The team.
    pub team: Team,
    /// The teams above it, the root first, with whether the reader may open each.
    pub ancestors: Vec<(String, bool)>,
    /// The teams below it.
    pub children: Vec<Team>,
    /// Its quotas, by pool.
    pub quotas: Vec<QuotaRow>,
    /// The last times that its work gave way, the newest first.
    pub evictions: Vec<EvictionRow>,
    /// Whether there were others before these.
    pub evictions_before: bool,
    /// All of them by month and rule, the newest month first.
    pub eviction_sums: Vec<EvictionSum>,
    /// Jobs that wait and that run.
    pub jobs: (i64, i64),
    /// The month that the spend is of.
    pub month: DateTime<Utc>,
    /// What it spent in this month, by pool and mode.
    pub spend: Vec<SpendLine>,
    /// All of it.
    pub total: Cost,
    /// The same by user.
    pub users: Vec<UserSpend>,
    /// Its members.
    pub members: Vec<MemberRow>,
    /// The form that adds one, when the reader may.
    pub add_member: Option<MemberForm>,
    /// Whether the reader may submit a job for it.
    pub submits: bool,
}

/// A team's quota in a pool, and what it holds of it with all below it; thousandths of a GPU.
#[derive(Debug, Clone)]
pub struct QuotaRow {
    /// The pool.
    pub pool: String,
    /// What is guaranteed now, and what is held and lent of it.
    pub quota: Quota,
    /// The guarantee as it was given: more than what is guaranteed now where the pool has less than
    /// it promised, less while something is booked.
    pub promised: i64,
    /// What is booked for the team now, beyond that.
    pub booked: i64,
    /// Devices of the pool that are out.
    pub devices_out: i64,
    /// The open window by which it is promised that.
    pub window: Option<String>,
    /// What of the pool work holds that is leaving it.
    pub leaving: i64,
    /// What it could take back at once.
    pub reclaimable: i64,
    /// Since when it holds less than its guarantee while its work waits.
    pub starved_since: Option<DateTime<Utc>>,
    /// What others may use of an idle guarantee; `None` is all.
    pub lend_limit: Option<i64>,
    /// Its claim on spare capacity; `None` for a team that has no quota of its own there, and so
    /// is promised what the teams below it are.
    pub weight: Option<String>,
}

/// What a team spent in one pool and mode: a line of its bill.
#[derive(Debug, Clone)]
pub struct SpendLine {
    /// The pool.
    pub pool: String,
    /// The sharing mode's code.
    pub mode: String,
    /// GPU-seconds in thousandths.
    pub gpu_milli_seconds: i64,
    /// What they cost.
    pub cost: Cost,
}

/// What one user spent.
#[derive(Debug, Clone)]
pub struct UserSpend {
    /// The user's name.
    pub user: String,
    /// GPU-seconds in thousandths.
    pub gpu_milli_seconds: i64,
    /// What they cost.
    pub cost: Cost,
}

/// A member of the team.
#[derive(Debug, Clone)]
pub struct MemberRow {
    /// The user's name.
    pub user: String,
    /// The role's code.
    pub role: String,
    /// Whether the reader may remove them.
    pub removable: bool,
}

/// The form that adds a member.
#[derive(Debug, Clone, Default)]
pub struct MemberForm {
    /// The name that was typed.
    pub user: String,
    /// The role's code that was chosen.
    pub role: String,
    /// What is wrong with it.
    pub error: Option<Refusal>,
}

impl MemberForm {
    fn is_role(&self, role: &str) -> bool {
        self.role == role || (self.role.is_empty() && role == "member")
    }
}

impl QuotaRow {
    /// Whether the guarantee is another one now than it was given.
    fn differs(&self) -> bool {
        self.promised != self.quota.guaranteed
    }

    /// What it holds above its limit.
    fn over_limit(&self) -> Option<i64> {
        let over = self.quota.used - self.quota.limit?;
        (over > 0).then_some(over)
    }

    /// Why another guarantee holds now than was given.
    fn holds(&self, t: &Messages) -> Phrase {
        let now = self.quota.guaranteed;
        let words = match (now < self.promised + self.booked, self.devices_out) {
            (true, 1..) => t.count("team.holds_out", self.devices_out),
            (true, _) => t.say("team.holds_short"),
            (false, _) => t.say("team.holds"),
        };
        let words = words
            .with("pool", &self.pool)
            .with("promised", t.amount(self.promised))
            .with("now", t.amount(now));
        if self.booked == 0 {
            return words;
        }
        t.say("team.holds_booked")
            .nest("holds", words)
            .nest("booked", t.gpus(self.booked))
    }

    fn words(&self, shell: &Shell) -> String {
        let t = &shell.t;
        let quota = &self.quota;
        t.say("team.bar")
            .with("pool", &self.pool)
            .with("used", t.amount(quota.used))
            .with("guaranteed", t.amount(quota.guaranteed))
            .with("borrowed", t.amount(quota.borrowed()))
            .with("lent", t.amount(quota.lent))
            .to_string()
    }
}

impl TeamView {
    /// Whether the month's bill tells an amount under a cent.
    fn tells_small(&self) -> bool {
        let lines = self.spend.iter().map(|line| &line.cost);
        let users = self.users.iter().map(|line| &line.cost);
        format::tells_small(lines.chain(users).chain([&self.total]))
    }

    fn used(&self) -> i64 {
        self.quotas.iter().map(|row| row.quota.used).sum()
    }

    fn guaranteed(&self) -> i64 {
        self.quotas.iter().map(|row| row.promised).sum()
    }

    /// What of that holds now.
    fn holds(&self) -> i64 {
        self.quotas.iter().map(|row| row.quota.guaranteed).sum()
    }

    fn differs(&self) -> bool {
        self.holds() != self.guaranteed()
    }

    fn reclaimable(&self) -> i64 {
        self.quotas.iter().map(|row| row.reclaimable).sum()
    }

    fn borrowed(&self) -> i64 {
        self.quotas.iter().map(|row| row.quota.borrowed()).sum()
    }

    fn lent(&self) -> i64 {
        self.quotas.iter().map(|row| row.quota.lent).sum()
    }

    fn work(&self) -> i64 {
        self.spend.iter().map(|line| line.gpu_milli_seconds).sum()
    }

    fn bar(&self, row: &QuotaRow) -> Html {
        let scale = self
            .quotas
            .iter()
            .map(|row| row.quota.reach())
            .max()
            .unwrap_or(1);
        draw::quota_bar(&row.words(&self.shell), self.team.hue, &row.quota, scale)
    }

    fn squares(&self, row: &QuotaRow) -> Option<Html> {
        draw::squares(&row.words(&self.shell), self.team.hue, &row.quota)
    }

    fn roles(&self) -> [&'static str; 3] {
        ["viewer", "member", "owner"]
    }
}
