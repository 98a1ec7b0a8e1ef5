//! The queue of a pool.

use chrono::Duration;
use web::shell::Section;
use web::views::*;

use super::{now, shell, team};

pub fn queue() -> QueueView {
    let row = |name: &str, rank: Option<i64>, before: u64, wait: Wait| QueueRow {
        id: format!("0190-{name}"),
        name: name.into(),
        team: team("vision"),
        user: "vision-member".into(),
        class: "normal".into(),
        others_before: Crowd {
            jobs: before,
            gpus_milli: i64::try_from(before).unwrap() * 4000,
        },
        wait: Wait {
            rank,
            need: Some(web::format::Size::fixed(8000)),
            have_milli: Some(3000),
            ..wait
        },
    };
    let room = Wait {
        code: "insufficient_capacity".into(),
        scope: Some("pool h100".into()),
        expected_start: Some(now() + Duration::minutes(50)),
        remedies: vec![Remedy {
            change: vec![("per_worker.gpus".into(), Some("2".into()))],
            effect: "starts_now".into(),
        }],
        ..Wait::default()
    };
    let early = Wait {
        code: "not_yet".into(),
        expected_start: Some(now() + Duration::minutes(500)),
        ..Wait::default()
    };
    QueueView {
        shell: shell(Section::Queue, "/queue?pool=h100"),
        pools: vec!["a100".into(), "h100".into()],
        pool: Some("h100".into()),
        rows: vec![
            row("pano-seg-pretrain", Some(1), 0, room.clone()),
            row(
                "digits-sweep-with-a-rather-long-name-that-wraps-somewhere",
                Some(14),
                12,
                room,
            ),
            row("lint", None, 0, early),
        ],
        others_after: Some(Crowd {
            jobs: 1,
            gpus_milli: 500,
        }),
        all: Crowd {
            jobs: 16,
            gpus_milli: 72_500,
        },
        accuracy: Some(Accuracy {
            days: 14,
            cases: 1,
            near: 1,
            median_seconds: 40,
        }),
        first: Some("/queue?pool=h100".into()),
        next: Some("/queue?pool=h100&cursor=x".into()),
    }
}
