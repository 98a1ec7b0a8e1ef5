//! Sample views that the page tests and the preview share.
#![allow(clippy::unwrap_used, reason = "samples are test code")]
#![allow(dead_code, reason = "each user of this module uses a part of it")]

use std::cell::Cell;

use chrono::{DateTime, Duration, TimeZone, Utc};
use domain::money::Money;
use rust_decimal::Decimal;
use web::format::Cost;
use web::messages::Messages;
use web::parts::Team;
use web::shell::{Reader, Section, Shell, Theme};

mod billing;
mod calendars;
mod fleet;
mod jobs;
mod outside;
mod policies;
mod queue;
mod submit;
mod teams;

pub use billing::*;
pub use calendars::*;
pub use fleet::*;
pub use jobs::*;
pub use outside::*;
pub use policies::*;
pub use queue::*;
pub use submit::*;
pub use teams::*;

thread_local! {
    static WORDS: Cell<Messages> = Cell::new(Messages::english());
}

/// The words that samples are made with.
pub fn words() -> Messages {
    WORDS.get()
}

/// Every page in other words than English.
pub fn all_in(words: Messages) -> Vec<(&'static str, String)> {
    WORDS.set(words);
    let pages = all();
    WORDS.set(Messages::english());
    pages
}

/// A name that would run a script, were it not escaped.
pub const HOSTILE: &str = "<script>alert('x')</script>";

pub fn now() -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 11, 29, 14, 55, 0).unwrap()
}

pub fn minutes_ago(minutes: i64) -> DateTime<Utc> {
    now() - Duration::minutes(minutes)
}

pub fn yuan(cents: i64) -> Money {
    Money {
        amount: Decimal::new(cents, 2),
        currency: "CNY".parse().unwrap(),
    }
}

pub fn cost(cents: i64) -> Cost {
    Cost::priced(yuan(cents))
}

pub fn shell(section: Section, here: &str) -> Shell {
    Shell {
        t: words(),
        theme: Theme::System,
        reader: Some(Reader {
            name: "vision-owner".into(),
            platform_role: Some("admin".into()),
            sees_users: true,
            submits: true,
            csrf: "token".into(),
        }),
        section,
        here: here.into(),
        now: now(),
        notice: None,
        version: "0.1.0".into(),
    }
}

pub fn team(name: &str) -> Team {
    let place = ["org", "vision", "speech", "platform"]
        .iter()
        .position(|known| *known == name)
        .unwrap_or(4);
    Team::with_place(name, place)
}

/// Every page with its name and its HTML.
pub fn all() -> Vec<(&'static str, String)> {
    use web::Template as _;
    let mut empty_jobs = jobs();
    empty_jobs.rows.clear();
    let mut empty_fleet = fleet();
    empty_fleet.pools.clear();
    let mut empty_team = team_page();
    (
        empty_team.quotas,
        empty_team.spend,
        empty_team.users,
        empty_team.members,
    ) = (vec![], vec![], vec![], vec![]);
    let mut empty_queue = queue();
    (empty_queue.rows, empty_queue.others_after) = (vec![], None);
    empty_queue.all = web::views::Crowd::default();
    let mut outsider = error(403);
    (outsider.shell.reader, outsider.detail) = (None, None);
    let mut empty_node = node();
    (empty_node.devices, empty_node.work, empty_node.events) = (vec![], vec![], vec![]);
    vec![
        ("signin", signin().render().unwrap()),
        ("fleet", fleet().render().unwrap()),
        ("fleet-empty", empty_fleet.render().unwrap()),
        ("node", node().render().unwrap()),
        ("node-empty", empty_node.render().unwrap()),
        ("array", array().render().unwrap()),
        ("jobs", jobs().render().unwrap()),
        ("jobs-empty", empty_jobs.render().unwrap()),
        ("job", job().render().unwrap()),
        ("job-waiting", waiting_job().render().unwrap()),
        ("job-failed", failed_job().render().unwrap()),
        ("job-beyond-quota", beyond_quota().render().unwrap()),
        ("job-never-ran", doomed_job().render().unwrap()),
        ("queue", queue().render().unwrap()),
        ("queue-empty", empty_queue.render().unwrap()),
        ("submit", submit().render().unwrap()),
        ("submit-refused", refused_submit().render().unwrap()),
        ("team", team_page().render().unwrap()),
        ("team-empty", empty_team.render().unwrap()),
        ("teams", teams().render().unwrap()),
        ("quotas", quotas().render().unwrap()),
        ("quotas-seen", quotas_seen().render().unwrap()),
        ("pool", pool().render().unwrap()),
        ("pool-seen", pool_seen().render().unwrap()),
        ("budgets", budgets().render().unwrap()),
        ("classes", classes().render().unwrap()),
        ("classes-seen", classes_seen().render().unwrap()),
        ("bookings", bookings().render().unwrap()),
        ("bookings-seen", bookings_seen().render().unwrap()),
        ("windows", windows().render().unwrap()),
        ("windows-seen", windows_seen().render().unwrap()),
        ("policy-versions", policy_versions().render().unwrap()),
        ("price-books", price_books().render().unwrap()),
        ("billing", billing().render().unwrap()),
        ("statements", statements().render().unwrap()),
        ("statement", statement().render().unwrap()),
        ("reconciliation", reconciliation().render().unwrap()),
        ("users", users().render().unwrap()),
        ("error-403", outsider.render().unwrap()),
        ("error-404", error(404).render().unwrap()),
        ("error-500", error(500).render().unwrap()),
    ]
}
