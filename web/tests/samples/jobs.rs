//! The list of jobs, and jobs that run, wait and have failed.

use chrono::Duration;
use domain::eviction::{EvictionKind, EvictionRule};
use domain::quota::QuotaBound;
use domain::state::{AttemptEnd, JobState};
use web::draw::Span;
use web::format::{Cost, Size};
use web::log;
use web::messages::Phrase;
use web::parts::{EventLine, State};
use web::shell::Section;
use web::views::*;

use super::{cost, minutes_ago, now, shell, team, words, yuan};

pub fn job_row(name: &str, state: JobState) -> JobRow {
    JobRow {
        id: format!("0190-{name}"),
        name: name.into(),
        team: team("vision"),
        user: "vision-member".into(),
        state,
        why: None,
        size: Size::fixed(4000),
        nodes: if state == JobState::Running {
            vec!["h100-1".into()]
        } else {
            vec![]
        },
        created_at: minutes_ago(130),
        ran_seconds: (state != JobState::Queued).then_some(6_720),
        cost: cost(30_687),
        attempt: 1,
        array: None,
        resumes: false,
    }
}

/// A state with how many elements of an array stand in it.
fn counts() -> Vec<(JobState, u32)> {
    vec![
        (JobState::Queued, 960),
        (JobState::Running, 10),
        (JobState::Succeeded, 28),
        (JobState::Failed, 2),
    ]
}

pub fn array() -> ArrayView {
    let id = "01900000-0000-8000-8000-000000000000";
    let grid = [
        (JobState::Succeeded, 28),
        (JobState::Failed, 2),
        (JobState::Running, 10),
        (JobState::Queued, 960),
    ];
    let rows = [
        (29, JobState::Failed),
        (30, JobState::Running),
        (40, JobState::Queued),
    ];
    ArrayView {
        shell: shell(Section::Jobs, "/jobs/0190"),
        id: id.into(),
        name: "sweep".into(),
        team: team("vision"),
        user: "vision-member".into(),
        state: JobState::Running,
        why: None,
        grid: grid
            .iter()
            .flat_map(|(state, elements)| vec![*state; *elements])
            .collect(),
        counts: counts(),
        at_most: Some(10),
        size: Size::fixed(1000),
        filter: String::new(),
        rows: rows
            .into_iter()
            .map(|(index, state)| JobRow {
                id: format!("{id}.{index}"),
                attempt: 2,
                ..job_row("sweep", state)
            })
            .collect(),
        first: None,
        more: Some(format!("/jobs/{id}?cursor=x")),
        events: vec![event(131, JobState::Queued, "submitted", None)],
        cost: cost(30_687),
        gpu_milli_seconds: 26_880_000,
        command: "python3 train.py".into(),
        asked: vec![("class", Phrase::literal("normal"))],
        actions: JobActions {
            cancel: true,
            suspend: true,
            resume: true,
            change: false,
            clone: true,
        },
        version: 1,
        change: None,
    }
}

pub fn jobs() -> JobsView {
    let mut waiting = job_row("pano-seg-pretrain", JobState::Queued);
    waiting.why = Some(words().word("waiting", "insufficient_capacity"));
    waiting.cost = Cost {
        priced: None,
        unpriced: false,
    };
    let mut failed = job_row(
        "digits-sweep-with-a-rather-long-name-that-wraps-somewhere",
        JobState::Failed,
    );
    failed.why = Some(words().say("ended.not_found"));
    let mut sweep = job_row("sweep", JobState::Running);
    sweep.array = Some(Unfolding {
        count: 1_000,
        counts: counts(),
        open: true,
        address: "/jobs".into(),
    });
    let mut suspended = job_row("lint", JobState::Suspended);
    suspended.resumes = true;
    suspended.attempt = 2;
    let mut unpriced = job_row("asr", JobState::Succeeded);
    unpriced.cost = Cost::unpriced();
    unpriced.team = team("speech");
    JobsView {
        shell: shell(Section::Jobs, "/jobs"),
        filter: JobsFilter::default(),
        unknown_user: false,
        teams: vec!["vision".into(), "speech".into(), "platform".into()],
        rows: vec![
            job_row("pano-depth-v2", JobState::Running),
            waiting,
            failed,
            unpriced,
            job_row("digits", JobState::Preempting),
            suspended,
            sweep,
            job_row("bench", JobState::Cancelled),
        ],
        waiting: 1,
        running: 1,
        newest: Some("/jobs".into()),
        older: Some("/jobs?cursor=x".into()),
    }
}

pub fn event(minutes: i64, state: JobState, code: &str, detail: Option<Phrase>) -> EventLine {
    EventLine {
        at: minutes_ago(minutes),
        state: State::job(state),
        code: code.into(),
        actor: None,
        detail,
    }
}

/// A time that a job of 8 GPUs gave way.
pub fn eviction(minutes: i64, kind: EvictionKind, gainer: Gainer) -> EvictionRow {
    let after = if kind == EvictionKind::Shrink { 4 } else { 0 };
    EvictionRow {
        at: minutes_ago(minutes),
        job: ("0191".into(), "pano-depth-v2".into()),
        kind,
        rule: EvictionRule::Reclaim,
        gainer,
        workers: (8, after),
        gpus_milli: (8 - after) * 1000,
        lost_milli_seconds: if after > 0 { 0 } else { 4_800_000 },
    }
}

/// An hour with a gap, of two measures.
pub fn utilisation() -> Utilisation {
    let begin = now() - Duration::hours(1);
    let step = |minute: i64| UtilisationStep {
        at: begin + Duration::minutes(minute),
        values: vec![Some(700 + minute * 4), Some(minute)],
    };
    Utilisation {
        from: begin,
        to: now(),
        step_seconds: 60,
        measures: vec!["compute", "lowest"],
        steps: (0..60)
            .filter(|minute| !(20..31).contains(minute))
            .map(step)
            .collect(),
    }
}

pub fn job() -> JobView {
    let output = "\u{1b}[32mepoch 1\u{1b}[0m loss 0.6631 accuracy 0.871\n\u{1b}[32mepoch 2\u{1b}[0m loss 0.4012 accuracy 0.904\n\u{1b}[1;31mWARNING\u{1b}[0m <b>dataloader</b> queue empty for 1.8 s\n";
    JobView {
        shell: shell(Section::Jobs, "/jobs/0190"),
        id: "01900000-0000-7000-8000-000000000001".into(),
        element: None,
        name: "pano-depth-v2".into(),
        team: team("vision"),
        user: "vision-member".into(),
        state: JobState::Running,
        version: 7,
        why: Why::Nothing,
        size: Size::fixed(4000),
        ran_seconds: Some(6_720),
        placement: vec![PlacedWorker {
            worker: 0,
            node: "h100-1".into(),
            leaves_by: Some(minutes_ago(-120)),
            image_digest: Some(format!("sha256:{}", "0f".repeat(32))),
            devices: (0..4)
                .map(|index| (index, 1000, "exclusive".into()))
                .collect(),
        }],
        spans: vec![
            Span {
                state: JobState::Queued,
                seconds: 5_040,
            },
            Span {
                state: JobState::Starting,
                seconds: 4,
            },
            Span {
                state: JobState::Running,
                seconds: 10_620,
            },
            Span {
                state: JobState::Preempting,
                seconds: 30,
            },
            Span {
                state: JobState::Queued,
                seconds: 1_800,
            },
            Span {
                state: JobState::Running,
                seconds: 6_720,
            },
        ],
        waits: waits(),
        attempts: vec![
            AttemptRow {
                number: 1,
                started_at: Some(minutes_ago(324)),
                ran_seconds: Some(10_620),
                nodes: vec!["h100-1".into()],
                ending: Some(Ending {
                    end: AttemptEnd::Preempted,
                    exit_code: Some(143),
                    signal: None,
                    message: None,
                    suspended_by: None,
                    memory_mib: None,
                }),
                evictions: vec![
                    eviction(200, EvictionKind::Shrink, Gainer::Others),
                    eviction(
                        147,
                        EvictionKind::Preemption,
                        Gainer::Job("0190".into(), "speech".into()),
                    ),
                ],
            },
            AttemptRow {
                number: 2,
                started_at: Some(minutes_ago(112)),
                ran_seconds: Some(6_720),
                nodes: vec!["h100-1".into()],
                ending: None,
                evictions: vec![],
            },
        ],
        events: vec![
            event(413, JobState::Queued, "submitted", None),
            event(329, JobState::Starting, "starting", None),
            event(324, JobState::Running, "running", None),
            event(
                147,
                JobState::Preempting,
                "preempting",
                Some(words().word("preempted_by", "reclaim")),
            ),
            event(112, JobState::Running, "running", None),
        ],
        costs: vec![
            CostLine {
                attempt: 1,
                gpu_milli_seconds: 42_480_000,
                cost: cost(48_498),
            },
            CostLine {
                attempt: 2,
                gpu_milli_seconds: 26_880_000,
                cost: cost(30_688),
            },
        ],
        cost: cost(79_186),
        gpu_milli_seconds: 69_360_000,
        price: Some(yuan(4_110)),
        command: "python3 train.py --epochs 20".into(),
        asked: vec![
            ("kind", words().word("kind", "training")),
            ("class", Phrase::literal("normal")),
            ("pools", Phrase::literal("h100")),
            ("workers", Phrase::literal("1")),
            (
                "per_worker",
                Phrase::list([words().gpus(4000), words().memory(32_768)]),
            ),
        ],
        utilisation: Some(utilisation()),
        log: LogPanel {
            choices: vec![
                LogChoice {
                    worker: 0,
                    attempt: 2,
                    filling: None,
                    node: Some("h100-1".into()),
                },
                LogChoice {
                    worker: 0,
                    attempt: 2,
                    filling: Some(1),
                    node: None,
                },
                LogChoice {
                    worker: 0,
                    attempt: 1,
                    filling: None,
                    node: Some("h100-1".into()),
                },
            ],
            worker: 0,
            attempt: 2,
            filling: None,
            lines: log::render(output.as_bytes()),
            has_earlier: false,
            stream: Some("/jobs/0190/log/stream".into()),
            download: Some("/jobs/0190/log.txt".into()),
            unavailable: None,
        },
        change: None,
        actions: JobActions {
            cancel: true,
            suspend: true,
            resume: false,
            change: true,
            clone: true,
        },
    }
}

/// What a job waited for: three causes, one of them several times.
pub fn waits() -> WaitHistory {
    let stretch = |code: &str, scope: &str, minutes: i64, times: i64, seconds: i64| WaitStretch {
        wait: Wait {
            code: code.into(),
            scope: (!scope.is_empty()).then(|| scope.into()),
            ..Wait::default()
        },
        from: minutes_ago(minutes),
        holds: false,
        times,
        seconds,
    };
    let cause = |code: &str, seconds: i64| WaitCause {
        code: code.into(),
        seconds,
    };
    WaitHistory {
        stretches: vec![
            stretch("over_limit", "team vision", 413, 1, 600),
            stretch("insufficient_capacity", "pool h100", 403, 3, 3_900),
            stretch("behind_in_order", "", 380, 1, 540),
        ],
        causes: vec![
            cause("insufficient_capacity", 3_900),
            cause("over_limit", 600),
            cause("behind_in_order", 540),
        ],
    }
}

pub fn waiting_job() -> JobView {
    JobView {
        change: Some(JobChange {
            class: "normal".into(),
            classes: vec!["normal".into(), "training-high".into()],
            time_limit_minutes: "90".into(),
            preemptible: "",
        }),
        state: JobState::Queued,
        name: "pano-seg-pretrain".into(),
        why: Why::Waits(Box::new(Wait {
            code: "insufficient_capacity".into(),
            scope: Some("pool h100".into()),
            need: Some(Size::fixed(8000)),
            have_milli: Some(3000),
            counts: vec![
                ("cordoned".into(), 1),
                ("nodes".into(), 7),
                ("too_few_free_gpus".into(), 4),
                ("unreachable".into(), 1),
                ("mode_not_offered".into(), 1),
            ],
            rank: Some(1),
            accuracy: Some(Accuracy {
                days: 14,
                cases: 31,
                near: 24,
                median_seconds: 240,
            }),
            remedies: vec![Remedy {
                change: vec![("per_worker.gpus".into(), Some("2".into()))],
                effect: "starts_now".into(),
            }],
            ..Wait::default()
        })),
        ran_seconds: None,
        placement: vec![],
        attempts: vec![],
        costs: vec![],
        cost: cost(0),
        gpu_milli_seconds: 0,
        spans: vec![Span {
            state: JobState::Queued,
            seconds: 95,
        }],
        events: vec![event(2, JobState::Queued, "submitted", None)],
        log: LogPanel::default(),
        ..job()
    }
}

/// A job that its team's quota never admits.
pub fn beyond_quota() -> JobView {
    JobView {
        why: Why::Waits(Box::new(Wait {
            code: "over_limit".into(),
            scope: Some("team vision".into()),
            beyond_quota: Some(BeyondQuota {
                bound: QuotaBound::Limit,
                team: Some("vision".into()),
                pool: "h100".into(),
                need_milli: 4000,
                have_milli: 2000,
                instances: None,
                preemptible_admitted: false,
            }),
            ..Wait::default()
        })),
        ..waiting_job()
    }
}

pub fn failed_job() -> JobView {
    let ending = Ending {
        end: AttemptEnd::Exit,
        exit_code: Some(127),
        signal: None,
        message: None,
        suspended_by: None,
        memory_mib: None,
    };
    let mut view = job();
    view.state = JobState::Failed;
    view.why = Why::Ended(ending.clone());
    view.placement = vec![];
    view.attempts.truncate(1);
    view.attempts[0].ending = Some(ending);
    view.actions = JobActions {
        clone: true,
        ..JobActions::default()
    };
    view.log.stream = None;
    view
}

pub fn doomed_job() -> JobView {
    JobView {
        state: JobState::Failed,
        why: Why::NeverRan("dependency".into()),
        actions: JobActions::default(),
        ..waiting_job()
    }
}
