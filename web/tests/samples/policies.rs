//! The pages of policies.

use web::shell::Section;
use web::views::*;

use super::{minutes_ago, now, shell, team};

pub fn tabs(here: PolicyTab) -> PolicyTabs {
    PolicyTabs {
        here,
        pool: Some("h100".into()),
        pools: vec!["a100".into(), "h100".into()],
    }
}

pub fn effect() -> Effect {
    let fate = |outcome, reason: Option<&str>| Fate {
        outcome,
        reason: reason.map(Into::into),
        expected_start: None,
        beyond_quota: None,
    };
    let job = |name: &str, effect, before, after| EffectJob {
        id: "0199a1b2-0000-7000-8000-000000000001".into(),
        name: name.into(),
        team: "vision".into(),
        effect,
        before,
        after,
    };
    let later = Fate {
        expected_start: Some(minutes_ago(-120)),
        ..fate("waits", Some("insufficient_capacity"))
    };
    Effect {
        at: now(),
        windows_at: None,
        counts: vec![("starts", 1), ("stops", 1), ("delayed", 1), ("moves", 0)],
        jobs: vec![
            job(
                "pretrain",
                "starts",
                fate("waits", Some("over_limit")),
                fate("starts", None),
            ),
            job(
                "sweep",
                "stops",
                fate("runs", None),
                fate("stops", Some("reclaim")),
            ),
            job("eval", "delayed", fate("starts", None), later),
        ],
        jobs_left_out: 3,
        shares: vec![EffectShare {
            team: team("vision"),
            pool: "h100".into(),
            guaranteed: (4000, 2000),
            used: (4000, 4000),
            borrowed: (0, 2000),
            lent: (0, 0),
            fair_share: (4000, 2500),
        }],
        cuts: vec![EffectCut {
            team: "vision".into(),
            pool: "h100".into(),
            held: 4000,
            guaranteed: (4000, 2000),
            becomes_borrowed: 2000,
            reclaimable: 1000,
            over_limit: 500,
        }],
        warnings: vec![
            PolicyWarning::Overpromised {
                pool: "h100".into(),
                windows: vec![],
                guaranteed: 10_000,
                capacity: 8000,
            },
            PolicyWarning::Overpromised {
                pool: "h100".into(),
                windows: vec!["nights".into(), "weekends".into()],
                guaranteed: 12_000,
                capacity: 8000,
            },
            PolicyWarning::WindowsOverlap {
                windows: vec!["nights".into(), "weekends".into()],
                teams: vec!["vision".into()],
            },
            PolicyWarning::WindowInPlace {
                window: "nights".into(),
                teams: vec!["speech".into()],
                until: minutes_ago(-120),
            },
        ],
        conflicts: vec![EffectConflicts {
            booking: "demo".into(),
            team: "vision".into(),
            pool: "h100".into(),
            conflicts: vec![BookingConflict {
                span: ("2026-12-01 09:00".into(), "2026-12-01 17:00".into()),
                excess: 2000,
                capacity: 8000,
                guaranteed: 8000,
                booked: 2000,
                with: vec!["exam".into()],
            }],
            left_out: 3,
        }],
        conflicts_left_out: 1,
    }
}

pub fn changes() -> Changes {
    let row = |id, kind, present: bool, restores| ChangeRow {
        id,
        version: id + 4,
        at: minutes_ago(id * 60),
        noun: "quota".into(),
        name: "vision/h100".into(),
        actor: "operator".into(),
        reason: "more for <speech>".into(),
        went_back_to: present.then_some(3),
        kind,
        keys: vec![
            ChangedKey {
                key: "guaranteed".into(),
                team: None,
                before: (kind == "changed").then(|| "4".into()),
                after: Some("2".into()),
            },
            ChangedKey {
                key: "limit".into(),
                team: Some("speech".into()),
                before: Some("null".into()),
                after: None,
            },
        ],
        present,
        restores,
    };
    Changes {
        rows: vec![
            row(3, "changed", true, None),
            row(2, "made", false, Some(3)),
            row(1, "removed", false, None),
        ],
        all_seen: true,
        back: "/quotas".into(),
        all: Some("/policy-versions".into()),
    }
}

pub fn cells(place: &str, values: [&str; 5], was: Option<&str>) -> Vec<QuotaCell> {
    QUOTA_KEYS
        .iter()
        .zip(values)
        .map(|(key, value)| QuotaCell {
            key,
            field: format!("{place}/{key}"),
            value: value.into(),
            was: was.filter(|_| *key == "guaranteed").map(Into::into),
            instead: None,
            error: (value == "x").then(|| Refusal {
                field: (*key).into(),
                value: value.into(),
                ..Refusal::default()
            }),
        })
        .collect()
}

pub fn quotas() -> QuotasView {
    let line = |name: &str, depth, values, was| QuotaLine {
        team: team(name),
        depth,
        known: true,
        cells: cells(&format!("{name}/h100"), values, was),
        read: "1 4 - - 1 -".into(),
        held: Some(4000),
        in_place: (name == "speech").then(|| QuotaInPlace {
            window: "nights".into(),
            until: minutes_ago(-120),
            values: ["2", "4", "", "1", ""].map(str::to_owned),
        }),
    };
    QuotasView {
        shell: shell(Section::Policies, "/quotas"),
        tabs: tabs(PolicyTab::Quotas),
        pools: vec![QuotaPool {
            name: "h100".into(),
            sum: Some((10_000, 8000)),
            lines: vec![
                line("org", 0, ["", "", "", "", ""], None),
                line("vision", 1, ["2", "8", "", "1", "4"], Some("4")),
                line("speech", 1, ["8", "x", "2", "1", ""], Some("")),
            ],
        }],
        edits: true,
        unsaved: 2,
        save: save("/quotas"),
        errors: vec![Refusal {
            code: Some("quota_changed".into()),
            ..Refusal::default()
        }],
        effect: Some(effect()),
        changes: changes(),
        add: Some(PoolForm {
            name: "x y".into(),
            error: Some(Refusal {
                field: "pool_name".into(),
                value: "x y".into(),
                ..Refusal::default()
            }),
        }),
    }
}

pub fn save(address: &str) -> PolicySave {
    PolicySave {
        address: address.into(),
        back: address.into(),
        reason: "more for <speech>".into(),
        key: "key".into(),
    }
}

/// The same as somebody sees it who may not change it.
pub fn quotas_seen() -> QuotasView {
    let mut view = quotas();
    view.edits = false;
    view.effect = None;
    view.errors.clear();
    view.pools[0].sum = None;
    view.pools[0].lines[0].known = false;
    view
}

pub fn policy_versions() -> ChangesView {
    ChangesView {
        shell: shell(Section::Policies, "/policy-versions"),
        tabs: tabs(PolicyTab::Changes),
        object: Some("quota/vision/h100".into()),
        tried: Some(GoingBack {
            id: 17,
            restores: 5,
            noun: "quota".into(),
            name: "vision/h100".into(),
            version: 3,
            save: save("/policy-versions/17/restore"),
        }),
        error: None,
        effect: Some(effect()),
        changes: changes(),
    }
}

pub fn pool() -> PoolView {
    let field = |key, kind, value: &str, was: Option<&str>| PolicyField {
        key,
        kind,
        value: value.into(),
        was: was.map(Into::into),
        error: None,
    };
    let number = |optional| FieldKind::Number { optional };
    let wrong = PolicyField {
        error: Some(Refusal {
            field: "time_slices".into(),
            value: "0".into(),
            ..Refusal::default()
        }),
        ..field("time_slices", number(false), "0", Some("4"))
    };
    let mut none = field(
        "sharing",
        FieldKind::Several(vec!["exclusive", "mig"]),
        "",
        None,
    );
    none.error = Some(Refusal {
        field: "sharing".into(),
        ..Refusal::default()
    });
    PoolView {
        shell: shell(Section::Policies, "/pools/h100"),
        tabs: tabs(PolicyTab::Pool),
        name: "h100".into(),
        overpromised: Some((10_000, 8000)),
        unavailable: vec!["mig".into()],
        version: 3,
        edits: true,
        groups: vec![
            PolicyGroup {
                code: "starts",
                fields: vec![
                    field(
                        "state",
                        FieldKind::Choice(vec!["open", "closed"]),
                        "closed",
                        Some("open"),
                    ),
                    field("usage_half_life_seconds", number(true), "", Some("3600")),
                ],
            },
            PolicyGroup {
                code: "sharing",
                fields: vec![
                    none,
                    wrong,
                    field("mps_across_teams", FieldKind::Switch, "true", Some("")),
                ],
            },
            PolicyGroup {
                code: "preemption",
                fields: vec![field(
                    "preemption.reclaim",
                    FieldKind::Choice(vec!["any", "lower_priority", "never"]),
                    "any",
                    None,
                )],
            },
        ],
        save: save("/pools/h100"),
        errors: vec![],
        effect: Some(Effect {
            jobs: vec![],
            shares: vec![],
            cuts: vec![],
            warnings: vec![],
            conflicts: vec![],
            conflicts_left_out: 0,
            ..effect()
        }),
        changes: changes(),
    }
}

/// The same as somebody sees it who may not change it.
pub fn pool_seen() -> PoolView {
    PoolView {
        edits: false,
        effect: None,
        ..pool()
    }
}

pub fn classes() -> ClassesView {
    let row = |name: &str, priority: &str, error| ClassRow {
        name: name.into(),
        reason: String::new(),
        priority: priority.into(),
        preemptible: name != "urgent",
        default: name == "normal",
        version: 1,
        error,
    };
    let wrong = |field: &str, value: &str| {
        Some(Refusal {
            field: field.into(),
            value: value.into(),
            ..Refusal::default()
        })
    };
    ClassesView {
        shell: shell(Section::Policies, "/classes"),
        tabs: tabs(PolicyTab::Classes),
        rows: vec![
            row("urgent", "100", None),
            row("normal", "1e12", wrong("priority", "1e12")),
            row("spare", "-50", None),
        ],
        edits: true,
        form: ClassForm {
            name: "x y".into(),
            reason: "a trial".into(),
            priority: "1".into(),
            preemptible: true,
            errors: wrong("class_name", "x y").into_iter().collect(),
        },
        error: Some(Refusal {
            code: Some("class_in_use".into()),
            ..Refusal::default()
        }),
        effect: Some(effect()),
        changes: changes(),
    }
}

/// The same as somebody sees it who may not change it.
pub fn classes_seen() -> ClassesView {
    ClassesView {
        edits: false,
        error: None,
        effect: None,
        ..classes()
    }
}
