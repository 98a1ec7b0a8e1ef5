//! Why a job waits, as its page tells it.

mod samples;

use askama::Template as _;

#[test]
fn a_waiting_job_says_why() {
    let html = samples::waiting_job().render().unwrap();
    for words in [
        "Not enough GPUs are free.",
        "8 GPUs",
        "Too few free GPUs",
        "pool h100",
    ] {
        assert!(html.contains(words), "{words}");
    }
}

#[test]
fn a_job_that_waits_while_nothing_is_planned_says_so_and_since_when() {
    let mut viewed = samples::waiting_job();
    viewed.why = web::views::Why::Waits(Box::new(web::views::Wait {
        code: "planning_stopped".into(),
        scope: Some("2026-11-29T14:00:00.5Z".into()),
        ..web::views::Wait::default()
    }));
    let html = viewed.render().unwrap();
    assert!(html.contains("Planning is stopped, because every plan fails"));
    assert!(html.contains("It is stopped since <b><time datetime=\"2026-11-29T14:00:00Z\""));
    assert!(!html.contains("has not looked at it"));
}

#[test]
fn what_would_start_it_sooner_is_a_press_away() {
    let html = samples::waiting_job().render().unwrap();
    assert!(html.contains("&amp;gpus=2\">"), "{html}");
    let mut viewed = samples::waiting_job();
    viewed.actions.clone = false;
    assert!(!viewed.render().unwrap().contains("&amp;gpus=2"));
    let html = samples::submit().render().unwrap();
    let press = "form=\"job-form\" name=\"change\" value=\"gpus=2\"";
    assert!(html.contains(press) && html.contains("id=\"job-form\""));
}

#[test]
fn a_wait_is_told_by_its_code_and_numbers() {
    use web::messages::Messages;
    use web::views::Wait;
    let t = Messages::english();
    let wait = |code: &str, scope: &str| Wait {
        code: code.into(),
        scope: Some(scope.into()),
        need: Some(web::format::Size::fixed(2000)),
        have_milli: Some(500),
        ..Wait::default()
    };
    let told = |wait: &Wait| {
        let figures = wait.figures(&t).map(|words| format!(" {words}"));
        format!("{}{}", wait.explain(&t), figures.unwrap_or_default())
    };
    assert_eq!(
        told(&wait("insufficient_capacity", "pool h100")),
        "Not enough GPUs are free. It needs <b>2 GPUs</b>; free in pool h100: <b>0.5 GPU</b>."
    );
    let held = |scope: &str| told(&wait("held_for_reservation", scope));
    assert!(held("pool h100").contains("kept for work that comes first"));
    assert!(held("bookings of pool h100").contains("are booked for a time"));
    let shell = samples::shell(web::shell::Section::Jobs, "/jobs");
    let binds = |scope: &str| {
        wait("over_limit", scope)
            .binds(&shell)
            .map(|words| words.to_string())
    };
    for (scope, words) in [
        ("team vision", Some("team vision")),
        ("bookings of pool h100", Some("the bookings of pool h100")),
        ("lend_limit of team speech", Some("what team speech lends")),
        (
            "max_per_user of another team",
            Some("what one user of another team may hold"),
        ),
        ("guarantee", Some("the team’s guarantee")),
        ("workload", None),
        ("something <new>", Some("something &lt;new&gt;")),
    ] {
        assert_eq!(binds(scope).as_deref(), words, "{scope}");
    }
    assert_ne!(
        binds("2026-11-29T15:00:00Z").as_deref(),
        Some("2026-11-29T15:00:00Z")
    );
}

#[test]
fn a_wait_without_evidence_shows_no_empty_heading() {
    use web::views::{Wait, Why};
    let mut view = samples::waiting_job();
    assert!(view.render().unwrap().contains(">Evidence<"));
    for (code, next) in [
        ("suspended", "It stays so until somebody resumes it."),
        ("not_yet", "when that time has come."),
        ("dependency", "once they have ended well."),
        ("behind_in_order", "No start can be estimated."),
    ] {
        view.why = Why::Waits(Box::new(Wait {
            code: code.into(),
            ..Wait::default()
        }));
        let html = view.render().unwrap();
        assert!(!html.contains(">Evidence<"), "{code}");
        assert!(html.contains(next), "{code}: {html}");
    }
}

#[test]
fn a_pool_that_only_its_nodes_states_close_is_called_so() {
    use web::messages::Messages;
    use web::views::Wait;
    let t = Messages::english();
    let told = |counts: &[(&str, i64)]| {
        let wait = Wait {
            code: "insufficient_capacity".into(),
            scope: Some("pool l40s".into()),
            need: Some(web::format::Size::fixed(2000)),
            have_milli: Some(0),
            counts: counts
                .iter()
                .map(|(key, count)| ((*key).to_owned(), *count))
                .collect(),
            ..Wait::default()
        };
        (wait.explain(&t).to_string(), wait.figures(&t).is_some())
    };
    let out = |words: &str| (words.to_owned(), false);
    assert_eq!(
        told(&[("nodes", 2), ("cordoned", 2)]),
        out("All nodes of pool l40s are cordoned.")
    );
    assert_eq!(
        told(&[("nodes", 1), ("unreachable", 1)]),
        out("All nodes of pool l40s are not answering.")
    );
    assert_eq!(
        told(&[("nodes", 3), ("cordoned", 1), ("draining", 2)]),
        out(
            "All nodes of pool l40s are cordoned, draining, out of room on their disks, or not answering."
        )
    );
    assert_eq!(
        told(&[("nodes", 2), ("unhealthy", 2)]).0,
        "The disks of all nodes of pool l40s are full."
    );
    assert_eq!(
        told(&[("nodes", 2), ("cordoned", 1), ("too_few_free_gpus", 1)]),
        ("Not enough GPUs are free.".to_owned(), true)
    );
}

#[test]
fn nodes_are_counted_as_they_are_sifted_the_most_first() {
    let html = samples::waiting_job().render().unwrap();
    let evidence = html.split(">Evidence<").nth(1).unwrap();
    let places: Vec<usize> = [
        "Nodes looked at",
        "Too few free GPUs",
        "Unreachable",
        "Cordoned",
        "Not shared as it asks",
    ]
    .iter()
    .map(|words| {
        evidence
            .find(words)
            .unwrap_or_else(|| panic!("{words}: {evidence}"))
    })
    .collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn an_expected_start_is_told_as_an_estimate_and_a_kept_time_as_it_is() {
    use web::views::Wait;
    let shell = samples::shell(web::shell::Section::Jobs, "/jobs");
    let next = |code: &str| {
        let wait = Wait {
            code: code.into(),
            expected_start: Some(samples::now()),
            ..Wait::default()
        };
        wait.next(&shell).to_string()
    };
    assert!(next("insufficient_capacity").starts_with("Expected to start about <b>"));
    let kept = next("not_yet");
    assert!(
        kept.starts_with("It takes its place in the order at <b>"),
        "{kept}"
    );
}

#[test]
fn an_expected_start_stands_beside_how_far_such_are_out() {
    use web::views::{Accuracy, DryRunView, Wait};
    let shell = samples::shell(web::shell::Section::Jobs, "/jobs");
    let told = |accuracy: Option<Accuracy>| {
        let wait = Wait {
            code: "insufficient_capacity".into(),
            expected_start: Some(samples::now()),
            accuracy,
            ..Wait::default()
        };
        wait.next(&shell).to_string()
    };
    let measured = |cases: i64| {
        told(Some(Accuracy {
            days: 14,
            cases,
            near: 1,
            median_seconds: 240,
        }))
    };
    assert!(
        told(None).contains("(no starts measured yet)"),
        "{}",
        told(None)
    );
    let one = measured(1);
    assert!(one.contains("(±4 min, from 1 start measured)"), "{one}");
    let many = measured(12);
    assert!(
        many.contains("(±4 min for half of 12 starts measured)"),
        "{many}"
    );
    let sample = samples::submit();
    let view = DryRunView {
        shell: sample.shell,
        dry_run: sample.dry_run,
    };
    let html = view.render().unwrap();
    assert!(html.contains("measured"), "{html}");
}

#[test]
fn a_job_that_never_ran_is_not_said_to_have_ended() {
    let html = samples::doomed_job().render().unwrap();
    assert!(html.contains("It never ran: a job that it follows did not end well."));
    assert!(!html.contains("The command ended."), "{html}");
}

#[test]
fn a_rule_that_binds_and_a_time_limit_that_helps_are_told_in_words() {
    use web::views::{Remedy, Wait, Why};
    let mut view = samples::waiting_job();
    view.why = Why::Waits(Box::new(Wait {
        code: "preemption_not_allowed".into(),
        scope: Some("preemption.max_per_day, preemption.reclaim of pool h100".into()),
        need: Some(web::format::Size::fixed(8000)),
        have_milli: Some(3000),
        remedies: vec![Remedy {
            change: vec![("time_limit_seconds".into(), Some("4320".into()))],
            effect: "starts_now".into(),
        }],
        ..Wait::default()
    }));
    let html = view.render().unwrap();
    for words in [
        "What keeps it from making room: Preemptions of a job in 24 hours, To a team that takes its guarantee back (policy of pool h100).",
        "<b>Time limit</b>: 1 h 12 min",
    ] {
        assert!(html.contains(words), "{words} in {html}");
    }
}

#[test]
fn a_node_without_enough_cpus_or_memory_is_no_want_of_gpus() {
    use web::views::{Wait, Why};
    for (count, words) in [
        (
            "too_few_free_cpus",
            "No node that could take it has enough CPUs free.",
        ),
        (
            "too_little_free_memory",
            "No node that could take it has enough memory free.",
        ),
    ] {
        for code in ["insufficient_capacity", "fragmented"] {
            let told = |more: Option<&str>| {
                let mut counts = vec![("nodes".to_owned(), 3), (count.to_owned(), 1)];
                counts.extend(more.map(|more| (more.to_owned(), 1)));
                let mut view = samples::beyond_quota();
                view.why = Why::Waits(Box::new(Wait {
                    code: code.into(),
                    scope: Some("pool h100".into()),
                    need: Some(web::format::Size {
                        least_milli: 1000,
                        most_milli: 1000,
                    }),
                    have_milli: Some(2000),
                    counts,
                    ..Wait::default()
                }));
                view.render().unwrap()
            };
            let html = told(Some("cordoned"));
            assert!(
                html.contains(words) && !html.contains("free in pool"),
                "{html}"
            );
            let html = told(Some("too_few_free_gpus"));
            assert!(!html.contains(words), "{html}");
        }
    }
}

#[test]
fn a_quota_that_never_admits_is_told_with_what_helps() {
    use domain::quota::QuotaBound;
    use web::views::{BeyondQuota, Wait, Why};
    let html = samples::beyond_quota().render().unwrap();
    for words in [
        "It needs <b>4 GPUs</b>, and team vision may hold <b>2 GPUs</b> of pool h100, even when nothing else runs.",
        "submit one of at most 2 GPUs, or have an administrator raise the quota.",
    ] {
        assert!(html.contains(words), "{words} in {html}");
    }
    let told = |bound: QuotaBound, team: Option<&str>, have_milli: i64| {
        let mut view = samples::beyond_quota();
        view.why = Why::Waits(Box::new(Wait {
            code: "over_limit".into(),
            beyond_quota: Some(BeyondQuota {
                bound,
                team: team.map(str::to_owned),
                pool: "h100".into(),
                need_milli: 4000,
                have_milli,
                instances: None,
                preemptible_admitted: bound == QuotaBound::Guarantee,
            }),
            ..Wait::default()
        }));
        view.render().unwrap()
    };
    let lent = told(QuotaBound::LendLimit, None, 0);
    assert!(
        lent.contains("what another team lends of pool h100 leaves it <b>0 GPUs</b>"),
        "{lent}"
    );
    assert!(lent.contains("would have to raise the quota") && !lent.contains("submit one"));
    let firm = told(QuotaBound::Guarantee, Some("vision"), 0);
    assert!(
        firm.contains("must fit in the guarantee of team vision in pool h100"),
        "{firm}"
    );
    assert!(
        firm.contains("Let it be preempted, or have an administrator raise the guarantee."),
        "{firm}"
    );
    assert!(!firm.contains("of at most"), "{firm}");
    for bound in QuotaBound::ALL {
        let html = told(*bound, Some("vision"), 1000);
        assert!(html.contains("It cannot start under the present quota."));
    }
}

#[test]
fn what_a_job_waited_for_is_drawn_summed_and_told_stretch_by_stretch() {
    let html = samples::job().render().unwrap();
    let part = html.split("id=\"waits\"").nth(1).expect("it has waited");
    let part = part.split("</section>").next().unwrap();
    for words in [
        "Not enough is free 1 h 5 min",
        "Limit reached 10 min",
        "Not enough is free, 3 times",
        "pool h100",
        "class=\"f-p\"",
    ] {
        assert!(part.contains(words), "{words}: {part}");
    }
    let mut view = samples::job();
    view.waits = web::views::WaitHistory::default();
    assert!(!view.render().unwrap().contains("What it waited for"));
}

#[test]
fn a_change_that_the_job_itself_may_have_is_made_by_a_press() {
    use web::views::{Remedy, Wait, Why};
    let mut view = samples::waiting_job();
    let remedy = |key: &str, value: &str| Remedy {
        change: vec![(key.into(), Some(value.into()))],
        effect: "starts_now".into(),
    };
    view.why = Why::Waits(Box::new(Wait {
        code: "held_for_reservation".into(),
        remedies: vec![
            remedy("time_limit_seconds", "4320"),
            remedy("preemptible", "true"),
        ],
        ..Wait::default()
    }));
    let html = view.render().unwrap();
    let path = format!("action=\"/jobs/{}/change\"", view.id);
    assert_eq!(
        html.matches(&path).count(),
        3,
        "each, and the form of all: {html}"
    );
    for field in [
        "name=\"version\" value=\"7\"",
        "name=\"time_limit_seconds\" value=\"4320\"",
        "name=\"preemptible\" value=\"true\"",
    ] {
        assert!(html.contains(field), "{field}: {html}");
    }
    // Who may not change it may submit one like it.
    view.actions.change = false;
    view.change = None;
    let html = view.render().unwrap();
    assert!(!html.contains(&path), "{html}");
    assert!(html.contains("&amp;time_limit_minutes=72\""), "{html}");
}

#[test]
fn a_dry_run_tells_where_what_is_cut_and_whom_it_displaces() {
    let html = samples::submit().render().unwrap();
    for words in [
        "device 3: 1 GPU, Whole device",
        "h100-1, device 0: switched to MIG slice, 1g.10gb at 5 removed, 3g.40gb cut at 4",
        "2 jobs that hold 3.5 GPUs, of them 1 of your own teams, 2 GPU-h of their work lost, 1 job moved elsewhere",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
}

#[test]
fn nothing_one_and_two_are_told_in_their_numbers() {
    use web::format::Size;
    use web::messages::Messages;
    use web::views::{Crowd, Displaced, Wait, Why};
    let t = Messages::english();
    let mut view = samples::waiting_job();
    for (have, words) in [
        (0, "<b>0 GPUs</b> are free"),
        (1000, "<b>1 GPU</b> is free"),
        (2000, "<b>2 GPUs</b> are free"),
    ] {
        view.why = Why::Waits(Box::new(Wait {
            code: "preemption_not_allowed".into(),
            scope: Some("preemption.reclaim of pool h100".into()),
            need: Some(Size::fixed(1000)),
            have_milli: Some(have),
            ..Wait::default()
        }));
        let html = view.render().unwrap();
        assert!(html.contains(words), "{words} in {html}");
        assert!(html.contains("It needs <b>1 GPU</b>"), "{html}");
    }
    let mut view = samples::submit();
    for (jobs, words) in [(1, "1 job that holds 1 GPU"), (2, "2 jobs that hold 1 GPU")] {
        view.dry_run.as_mut().expect("it has one").displaces = Some(Displaced {
            jobs,
            own: 0,
            moved: 0,
            gpus_milli: 1000,
            lost_milli_seconds: 0,
        });
        let html = view.render().unwrap();
        assert!(html.contains(words), "{words} in {html}");
    }
    let mut view = samples::queue();
    for (jobs, words) in [
        (1, "<b>1 job</b> waits in h100 for <b>1 GPU</b>"),
        (2, "<b>2 jobs</b> wait"),
    ] {
        view.all = Crowd {
            jobs,
            gpus_milli: 1000,
        };
        let html = view.render().unwrap();
        assert!(html.contains(words), "{words} in {html}");
    }
    let elements = |n: usize| t.count("array.lede", n).with("ended", 0).to_string();
    assert_eq!(elements(1), "<b>0</b> of <b>1</b> element has ended.");
    assert_eq!(elements(2), "<b>0</b> of <b>2</b> elements have ended.");
}

#[test]
fn an_elastic_job_is_told_once_from_its_least_to_its_most() {
    use web::format::Size;
    use web::views::{Wait, Why};
    let size = Size {
        least_milli: 1000,
        most_milli: 2000,
    };
    let mut view = samples::waiting_job();
    view.size = size;
    view.why = Why::Waits(Box::new(Wait {
        code: "insufficient_capacity".into(),
        scope: Some("pool h100".into()),
        need: Some(size),
        have_milli: Some(0),
        ..Wait::default()
    }));
    let html = view.render().unwrap();
    for words in ["for <b>1 to 2 GPUs</b>", "It needs <b>1 to 2 GPUs</b>"] {
        assert!(html.contains(words), "{words} in {html}");
    }
}
