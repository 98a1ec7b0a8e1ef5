//! The form that submits a job, filled in well and badly.

use chrono::Duration;
use web::shell::Section;
use web::views::*;

use super::{HOSTILE, now, shell, yuan};

pub fn submit() -> SubmitView {
    let class = |name: &str, preemptible| ClassChoice {
        name: name.into(),
        preemptible,
        before: if name == "batch-elastic" {
            vec![]
        } else {
            vec!["batch-elastic".into()]
        },
    };
    SubmitView {
        shell: shell(Section::Submit, "/submit?team=vision"),
        team: Some("vision".into()),
        teams: vec!["vision".into(), "speech".into()],
        pools: vec![
            PoolChoice {
                name: "h100".into(),
            },
            PoolChoice {
                name: "a100".into(),
            },
        ],
        classes: vec![
            class("normal", true),
            class("training-high", false),
            class("batch-elastic", true),
        ],
        form: SubmitForm {
            class: "normal".into(),
            pool: "h100".into(),
            ..SubmitForm::default()
        },
        errors: vec![],
        dry_run: Some(DryRun {
            outcome: Outcome::Waits {
                until: Some(now() + Duration::minutes(45)),
            },
            cause: Some(Cause::Waits(Box::new(Wait {
                code: "insufficient_capacity".into(),
                scope: Some("pool h100".into()),
                need: Some(web::format::Size::fixed(4000)),
                have_milli: Some(3000),
                remedies: vec![Remedy {
                    change: vec![
                        ("per_worker.gpus".into(), Some("2".into())),
                        ("topology.require".into(), None),
                    ],
                    effect: "starts_now".into(),
                }],
                ..Wait::default()
            }))),
            elements: Some(DryRunElements {
                count: 100,
                starts: 6,
                nodes: vec![("r3-<1>".into(), 4), ("r3-n9".into(), 2)],
                after_victims: 1,
                waits: vec![("over_limit".into(), 3)],
                held_by_at_most: 90,
                not_planned: 2,
                per_hour: None,
            }),
            placement: vec![PlacedWorker {
                worker: 0,
                node: "h100-1".into(),
                leaves_by: None,
                image_digest: None,
                devices: vec![(0, 500, "mig".into()), (3, 1000, "exclusive".into())],
            }],
            slices: vec![SliceLine {
                node: "h100-1".into(),
                index: 0,
                mode: Some("mig".into()),
                made: vec![("3g.40gb".into(), 4)],
                removed: vec![("1g.10gb".into(), 5)],
            }],
            kept_on: vec![],
            displaces: Some(Displaced {
                jobs: 2,
                own: 1,
                moved: 1,
                gpus_milli: 3500,
                lost_milli_seconds: 7_200_000,
            }),
            per_hour: Some(yuan(16_440)),
            per_hour_between: None,
            at_most: Some(yuan(32_880)),
        }),
        idempotency_key: "key".into(),
    }
}

pub fn refused_submit() -> SubmitView {
    let mut view = submit();
    view.form.name = HOSTILE.into();
    view.form.gpus = "1e12".into();
    view.dry_run = None;
    let wrong = |field: &str, value: &str| Refusal {
        field: field.into(),
        value: value.into(),
        ..Refusal::default()
    };
    view.errors = vec![
        wrong("name", HOSTILE),
        wrong("gpus", "1e12"),
        wrong("node", "n9"),
        Refusal {
            code: Some("no_quota".into()),
            ..wrong("pool", "h100")
        },
    ];
    view
}
