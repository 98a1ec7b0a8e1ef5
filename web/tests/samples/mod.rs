//! Sample views that the page tests and the preview share.
#![allow(clippy::unwrap_used, reason = "samples are test code")]
#![allow(dead_code, reason = "each user of this module uses a part of it")]

use chrono::{DateTime, Duration, TimeZone, Utc};
use domain::money::Money;
use domain::sharing::SharingMode;
use domain::state::{AttemptEnd, DeviceHealth, JobState, NodeIntent, Reachability};
use rust_decimal::Decimal;
use web::draw::{Device, Holder, Quota, Share, Span};
use web::format::Cost;
use web::log;
use web::messages::{Messages, Phrase};
use web::parts::{EventLine, State, Team};
use web::shell::{Notice, Reader, Section, Shell, Theme, Tone};
use web::views::*;

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
        t: Messages::english(),
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

pub fn share(team_name: &str, job: &str, milli: u32, mode: SharingMode) -> Share {
    Share {
        holder: Holder::Known {
            team: team(team_name),
            job: Some((job.into(), job.into())),
        },
        milli,
        mode,
        used_percent: None,
    }
}

pub fn device(index: u32, shares: Vec<Share>) -> Device {
    Device {
        index,
        health: DeviceHealth::Healthy,
        out: false,
        shares,
    }
}

fn h100_devices() -> Vec<Device> {
    let mut devices: Vec<Device> = (0..8)
        .map(|index| match index {
            0..4 => device(
                index,
                vec![share(
                    "vision",
                    "pano-depth-v2",
                    1000,
                    SharingMode::Exclusive,
                )],
            ),
            4 => device(
                index,
                vec![Share {
                    holder: Holder::Other,
                    milli: 1000,
                    mode: SharingMode::Exclusive,
                    used_percent: None,
                }],
            ),
            _ => device(index, vec![]),
        })
        .collect();
    devices[6].health = DeviceHealth::Suspect;
    devices[7].health = DeviceHealth::Failed;
    devices
}

fn a100_devices() -> Vec<Device> {
    (0..8)
        .map(|index| match index {
            0 => device(
                index,
                vec![
                    share("speech", "asr", 500, SharingMode::TimeSlice),
                    share("platform", "lint", 250, SharingMode::TimeSlice),
                ],
            ),
            1..3 => device(
                index,
                vec![share("speech", "asr-large", 1000, SharingMode::Exclusive)],
            ),
            _ => device(index, vec![]),
        })
        .collect()
}

fn ready() -> State {
    State::node(NodeIntent::Open, Reachability::Ready)
}

pub fn fleet() -> FleetView {
    let draining = State::node(NodeIntent::Draining, Reachability::Ready);
    let mut l40s: Vec<Device> = (0..4).map(|index| device(index, vec![])).collect();
    l40s.iter_mut().for_each(|device| device.out = true);
    let offer = |mode: &str, available| ModeOffer {
        mode: mode.into(),
        available,
    };
    let pool = |name: &str, model: &str, nodes: Vec<FleetNode>| FleetPool {
        name: name.into(),
        gpu_model: Some(model.into()),
        modes: vec![offer("exclusive", true), offer("time_slice", true)],
        nodes,
        overpromised: None,
    };
    let node = |name: &str, state, devices| FleetNode {
        name: name.into(),
        state,
        devices,
    };
    let mut h100 = pool(
        "h100",
        "H100-80GB",
        vec![node("h100-1", ready(), h100_devices())],
    );
    h100.modes.push(offer("mig", false));
    h100.overpromised = Some((8000, 7000));
    FleetView {
        shell: shell(Section::Fleet, "/fleet"),
        pools: vec![
            h100,
            pool(
                "a100",
                "A100-80GB",
                vec![node("a100-1", ready(), a100_devices())],
            ),
            pool("l40s", "L40S", vec![node("l40s-1", draining, l40s)]),
        ],
        adds_nodes: true,
    }
}

pub fn event(minutes: i64, state: JobState, code: &str, detail: Option<&str>) -> EventLine {
    EventLine {
        at: minutes_ago(minutes),
        state: State::job(state),
        code: code.into(),
        actor: None,
        detail: detail.map(Into::into),
    }
}

pub fn node() -> NodeView {
    let devices = h100_devices();
    NodeView {
        shell: shell(Section::Fleet, "/nodes/h100-1"),
        name: "h100-1".into(),
        pool: "h100".into(),
        state: ready(),
        heard_at: Some(now() - Duration::seconds(3)),
        agent_version: Some("0.1.0".into()),
        driver_version: Some("580.95.05".into()),
        cpus_milli: 112_000,
        memory_mib: 2_097_152,
        labels: vec![("rack".into(), "r3".into())],
        runners: vec!["process".into()],
        modes: vec!["exclusive".into(), "time_slice".into()],
        notes: vec![NodeNote::NoIsolation],
        work: vec![
            NodeWork {
                device: 0,
                holder: devices[0].shares[0].holder.clone(),
                milli: 1000,
                mode: "exclusive".into(),
                since: Some(minutes_ago(112)),
            },
            NodeWork {
                device: 4,
                holder: Holder::Other,
                milli: 1000,
                mode: "exclusive".into(),
                since: None,
            },
        ],
        devices: devices
            .into_iter()
            .map(|cell| NodeDevice {
                uuid: format!("GPU-5e0b1c2d-0000-4000-8000-00000000000{}", cell.index),
                model: "NVIDIA H100 80GB HBM3".into(),
                memory_mib: 81_559,
                numa: Some(cell.index / 4),
                clique: Some(0),
                mode: "exclusive".into(),
                cell,
            })
            .collect(),
        events: vec![EventLine {
            at: minutes_ago(300),
            state: ready(),
            code: "enrolled".into(),
            actor: Some("admin".into()),
            detail: Some("8 devices of the pool h100".into()),
        }],
        actions: vec![NodeAction::Cordon, NodeAction::Drain],
        leaving: Some(Leaving {
            moves: 4000,
            stays: 1000,
        }),
    }
}

pub fn job_row(name: &str, state: JobState) -> JobRow {
    JobRow {
        id: format!("0190-{name}"),
        name: name.into(),
        team: team("vision"),
        user: "vision-member".into(),
        state,
        why: None,
        gpus_milli: 4000,
        nodes: if state == JobState::Running {
            vec!["h100-1".into()]
        } else {
            vec![]
        },
        created_at: minutes_ago(130),
        ran_seconds: (state != JobState::Queued).then_some(6_720),
        cost: cost(30_687),
    }
}

pub fn jobs() -> JobsView {
    let mut waiting = job_row("pano-seg-pretrain", JobState::Queued);
    waiting.why = Some("Not enough GPUs are free.".into());
    waiting.cost = Cost {
        priced: None,
        unpriced: false,
    };
    let mut failed = job_row(
        "digits-sweep-with-a-rather-long-name-that-wraps-somewhere",
        JobState::Failed,
    );
    failed.why = Some("The command was not found (exit code 127).".into());
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
            job_row("lint", JobState::Suspended),
            job_row("bench", JobState::Cancelled),
        ],
        waiting: 1,
        running: 1,
        newest: Some("/jobs".into()),
        older: Some("/jobs?cursor=x".into()),
    }
}

pub fn job() -> JobView {
    let output = "\u{1b}[32mepoch 1\u{1b}[0m loss 0.6631 accuracy 0.871\n\u{1b}[32mepoch 2\u{1b}[0m loss 0.4012 accuracy 0.904\n\u{1b}[1;31mWARNING\u{1b}[0m <b>dataloader</b> queue empty for 1.8 s\n";
    JobView {
        shell: shell(Section::Jobs, "/jobs/0190"),
        id: "01900000-0000-7000-8000-000000000001".into(),
        name: "pano-depth-v2".into(),
        team: team("vision"),
        user: "vision-member".into(),
        state: JobState::Running,
        why: Why::Nothing,
        gpus_milli: 4000,
        ran_seconds: Some(6_720),
        placement: vec![PlacedWorker {
            worker: 0,
            node: "h100-1".into(),
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
            },
            AttemptRow {
                number: 2,
                started_at: Some(minutes_ago(112)),
                ran_seconds: Some(6_720),
                nodes: vec!["h100-1".into()],
                ending: None,
            },
        ],
        events: vec![
            event(413, JobState::Queued, "submitted", Some("4 GPUs of h100")),
            event(
                329,
                JobState::Starting,
                "starting",
                Some("attempt 1 on h100-1"),
            ),
            event(324, JobState::Running, "running", None),
            event(
                147,
                JobState::Preempting,
                "preempting",
                Some("another team took back its guarantee (reclaim); 30 s of grace"),
            ),
            event(
                112,
                JobState::Running,
                "running",
                Some("attempt 2 on h100-1"),
            ),
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
            ("kind", "Training".into()),
            ("class", "normal".into()),
            ("pools", "h100".into()),
            ("workers", "1".into()),
            ("per_worker", "4 GPUs, 8 CPUs, 32 GiB".into()),
        ],
        log: LogPanel {
            choices: vec![
                LogChoice {
                    worker: 0,
                    attempt: 2,
                    node: Some("h100-1".into()),
                },
                LogChoice {
                    worker: 0,
                    attempt: 1,
                    node: Some("h100-1".into()),
                },
            ],
            worker: 0,
            attempt: 2,
            lines: log::render(output.as_bytes()),
            has_earlier: false,
            stream: Some("/jobs/0190/log/stream".into()),
            download: Some("/jobs/0190/log.txt".into()),
            unavailable: None,
        },
        actions: JobActions {
            cancel: true,
            suspend: true,
            resume: false,
            clone: true,
        },
    }
}

pub fn waiting_job() -> JobView {
    JobView {
        state: JobState::Queued,
        name: "pano-seg-pretrain".into(),
        why: Why::Waits(Wait {
            code: "insufficient_capacity".into(),
            scope: Some("pool h100".into()),
            need_milli: Some(8000),
            have_milli: Some(3000),
            counts: vec![
                ("nodes".into(), 2),
                ("too_few_free_gpus".into(), 1),
                ("cordoned".into(), 1),
            ],
            rank: Some(1),
            remedies: vec![Remedy {
                change: vec![("per_worker.gpus".into(), Some("2".into()))],
                effect: "starts_now".into(),
            }],
            ..Wait::default()
        }),
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
            cause: Some(Cause::Waits(Wait {
                code: "insufficient_capacity".into(),
                scope: Some("pool h100".into()),
                need_milli: Some(4000),
                have_milli: Some(3000),
                remedies: vec![Remedy {
                    change: vec![
                        ("per_worker.gpus".into(), Some("2".into())),
                        ("topology.require".into(), None),
                    ],
                    effect: "starts_now".into(),
                }],
                ..Wait::default()
            })),
            nodes: vec!["h100-1".into()],
            displaces: Some((2, 3500)),
            per_hour: Some(yuan(16_440)),
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
        message: "said by the server".into(),
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

pub fn team_page() -> TeamView {
    let row = |pool: &str, guaranteed, used, lent, limit| QuotaRow {
        pool: pool.into(),
        quota: Quota {
            guaranteed,
            limit,
            used,
            lent,
        },
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
        text: Phrase::literal("vision-member was disabled."),
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

pub fn signin() -> SigninView {
    let mut shell = shell(Section::Nowhere, "/signin");
    shell.reader = None;
    SigninView {
        csrf: "token".into(),
        next: "/jobs".into(),
        username: "vision-member".into(),
        refused: Some(Phrase::literal("That name and password do not match.")),
        shell,
    }
}

pub fn error(status: u16) -> ErrorView {
    ErrorView {
        shell: shell(Section::Nowhere, "/nowhere"),
        status,
        detail: Some("gpus is 1e12: use at most 64".into()),
        request_id: Some("4f1c".into()),
        back: Some("/submit".into()),
    }
}

/// Every page with its name and its HTML.
pub fn all() -> Vec<(&'static str, String)> {
    use askama::Template as _;
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
    let mut empty_node = node();
    (empty_node.devices, empty_node.work, empty_node.events) = (vec![], vec![], vec![]);
    vec![
        ("signin", signin().render().unwrap()),
        ("fleet", fleet().render().unwrap()),
        ("fleet-empty", empty_fleet.render().unwrap()),
        ("node", node().render().unwrap()),
        ("node-empty", empty_node.render().unwrap()),
        ("jobs", jobs().render().unwrap()),
        ("jobs-empty", empty_jobs.render().unwrap()),
        ("job", job().render().unwrap()),
        ("job-waiting", waiting_job().render().unwrap()),
        ("job-failed", failed_job().render().unwrap()),
        ("submit", submit().render().unwrap()),
        ("submit-refused", refused_submit().render().unwrap()),
        ("team", team_page().render().unwrap()),
        ("team-empty", empty_team.render().unwrap()),
        ("teams", teams().render().unwrap()),
        ("users", users().render().unwrap()),
        ("error-404", error(404).render().unwrap()),
        ("error-500", error(500).render().unwrap()),
    ]
}
