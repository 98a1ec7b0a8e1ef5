//! Teams, one team, and users.

use domain::eviction::{EvictionKind, EvictionRule};
use web::draw::Quota;
use web::shell::{Notice, Section, Tone};
use web::views::*;

use super::jobs::eviction;
use super::{cost, minutes_ago, now, shell, team, words};

pub fn team_page() -> TeamView {
    let row = |pool: &str, guaranteed, used, lent, limit| QuotaRow {
        pool: pool.into(),
        quota: Quota {
            guaranteed,
            limit,
            used,
            lent,
        },
        promised: if pool == "h100" {
            guaranteed + 2000
        } else {
            guaranteed
        },
        booked: 0,
        devices_out: 2,
        window: (pool == "h100").then(|| "nights".to_owned()),
        leaving: 0,
        reclaimable: lent,
        starved_since: (pool == "a100").then(|| minutes_ago(40)),
        lend_limit: None,
        weight: Some("1".into()),
    };
    let line = |pool: &str, gpu_milli_seconds, cents| SpendLine {
        pool: pool.into(),
        mode: "exclusive".into(),
        gpu_milli_seconds,
        cost: cost(cents),
    };
    TeamView {
        shell: shell(Section::Teams, "/teams/vision"),
        team: team("vision"),
        ancestors: vec![("org".into(), false)],
        children: vec![],
        quotas: vec![
            row("h100", 4000, 4000, 0, None),
            row("a100", 2000, 500, 1000, Some(8000)),
            row("l40s", 1000, 3000, 0, None),
        ],
        evictions: vec![
            eviction(20, EvictionKind::Move, Gainer::Nobody),
            eviction(
                90,
                EvictionKind::Preemption,
                Gainer::Booking("demo".into(), "speech".into()),
            ),
        ],
        evictions_before: true,
        eviction_sums: vec![EvictionSum {
            month: now(),
            rule: EvictionRule::Reclaim,
            evictions: 2,
            gpus_milli: 16_000,
            lost_milli_seconds: 9_600_000,
        }],
        jobs: (1, 1),
        month: now(),
        spend: vec![
            line("h100", 69_360_000, 79_186),
            line("a100", 3_600_000, 2_055),
        ],
        total: cost(81_241),
        users: vec![UserSpend {
            user: "vision-member".into(),
            gpu_milli_seconds: 72_960_000,
            cost: cost(81_241),
        }],
        members: vec![
            MemberRow {
                user: "vision-owner".into(),
                role: "owner".into(),
                removable: false,
            },
            MemberRow {
                user: "vision-member".into(),
                role: "member".into(),
                removable: true,
            },
        ],
        add_member: Some(MemberForm::default()),
        submits: true,
    }
}

pub fn teams() -> TeamsView {
    let row = |name: &str, depth| TeamRow {
        team: team(name),
        depth,
        figures: (name != "org").then(|| TeamFigures {
            guaranteed_milli: 7000,
            holds_milli: if name == "vision" { 6000 } else { 7000 },
            used_milli: 7500,
            waiting: 1,
            spent: cost(81_241),
        }),
    };
    TeamsView {
        shell: shell(Section::Teams, "/teams"),
        rows: vec![
            row("org", 0),
            row("vision", 1),
            row("speech", 1),
            row("platform", 1),
        ],
        form: Some(TeamForm::default()),
    }
}

pub fn users() -> UsersView {
    let row = |name: &str, role: Option<&str>, disabled| UserRow {
        name: name.into(),
        platform_role: role.map(Into::into),
        display_name: if role.is_none() {
            "Wei Chen".into()
        } else {
            String::new()
        },
        disabled,
        created_at: minutes_ago(10_000),
        changeable: role != Some("admin"),
    };
    let mut shell = shell(Section::Users, "/users");
    shell.notice = Some(Notice {
        tone: Tone::Ok,
        text: words().word("done", "user_disabled"),
    });
    UsersView {
        shell,
        rows: vec![
            row("admin", Some("admin"), false),
            row("finance", Some("finance"), false),
            row("vision-member", None, true),
        ],
        form: Some(UserForm {
            name: "x y".into(),
            role: "".into(),
            error: Some(Refusal {
                field: "user_name".into(),
                value: "x y".into(),
                ..Refusal::default()
            }),
        }),
        older: None,
    }
}

/// A budget in its first day, one that stops what is new, and a grant that is over.
pub fn budgets() -> BudgetsView {
    let row = |name: &str, period, used: Option<&str>, forecast: Option<&str>, stopped| BudgetRow {
        team: "vision".into(),
        name: name.into(),
        period,
        amount: "¥5,000.00".into(),
        used: used.map(str::to_owned),
        committed: used.map(|_| "¥120.00".into()),
        left: used.map(|_| "−¥20.00".into()),
        linear: forecast.map(str::to_owned),
        recent: forecast.map(str::to_owned),
        stopped,
        hard: name == "demo",
    };
    BudgetsView {
        shell: shell(Section::Teams, "/budgets"),
        rows: vec![
            row("demo", "month", Some("¥10.00"), None, "none"),
            row(
                "demo2",
                "quarter",
                Some("¥4,900.00"),
                Some("¥12,000.00"),
                "all",
            ),
            row("exam", "grant", None, None, "borrowing"),
        ],
    }
}
