//! The pages, rendered without a server or a database.

mod samples;

use askama::Template as _;
use samples::HOSTILE;
use web::messages::Phrase;

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let start = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    tag[start..].split('"').next()
}

/// The opening tags of one kind, with their attributes.
fn tags<'a>(html: &'a str, kind: &str) -> Vec<&'a str> {
    html.match_indices(&format!("<{kind}"))
        .filter(|(at, text)| html[at + text.len()..].starts_with([' ', '>']))
        .map(|(at, _)| &html[at..at + html[at..].find('>').expect("a tag ends")])
        .collect()
}

#[test]
fn names_and_texts_that_people_chose_are_escaped_everywhere() {
    let mut jobs = samples::jobs();
    jobs.rows[0].name = HOSTILE.into();
    jobs.rows[1].why = Some(Phrase::literal(HOSTILE));
    jobs.filter.user = HOSTILE.into();
    let mut job = samples::job();
    job.name = HOSTILE.into();
    job.command = HOSTILE.into();
    job.events[0].detail = Some(Phrase::literal(HOSTILE));
    job.log.lines = web::log::render(HOSTILE.as_bytes());
    let mut fleet = samples::fleet();
    fleet.pools[0].nodes[0].devices[0].shares = vec![samples::share(
        "vision",
        HOSTILE,
        1000,
        domain::sharing::SharingMode::Exclusive,
    )];
    let mut error = samples::error(422);
    error.detail = Some(Phrase::literal(HOSTILE));
    for html in [
        jobs.render().unwrap(),
        job.render().unwrap(),
        fleet.render().unwrap(),
        error.render().unwrap(),
        samples::refused_submit().render().unwrap(),
    ] {
        assert!(!html.contains("<script>alert"), "{html}");
        assert!(html.contains("script&"), "the text is still there, escaped");
    }
}

#[test]
fn every_page_has_one_h1_one_main_and_a_title() {
    for (name, html) in samples::all() {
        assert_eq!(tags(&html, "h1").len(), 1, "{name}");
        assert_eq!(tags(&html, "main").len(), 1, "{name}");
        assert!(
            html.contains("· Allotment</title>") && !html.contains("<title> ·"),
            "{name}"
        );
    }
}

#[test]
fn every_input_has_a_label_and_every_table_a_caption() {
    for (name, html) in samples::all() {
        for kind in ["input", "select", "textarea"] {
            for tag in tags(&html, kind) {
                let hidden = attribute(tag, "type") == Some("hidden");
                let wrapped = matches!(attribute(tag, "type"), Some("checkbox" | "radio"));
                let labelled =
                    attribute(tag, "id").is_some_and(|id| html.contains(&format!("for=\"{id}\"")));
                assert!(hidden || wrapped || labelled, "{name}: {tag}");
            }
        }
        assert_eq!(
            tags(&html, "table").len(),
            tags(&html, "caption").len(),
            "{name}"
        );
    }
}

#[test]
fn every_form_that_changes_something_carries_the_token() {
    for (name, html) in samples::all() {
        for form in html.split("<form").skip(1) {
            let form = form.split("</form>").next().unwrap();
            let posts = form.split('>').next().unwrap().contains("method=\"post\"");
            assert_eq!(
                posts,
                form.contains("name=\"csrf\" value=\"token\""),
                "{name}: {form}"
            );
        }
    }
}

#[test]
fn no_page_has_inline_style_or_script() {
    for (name, html) in samples::all() {
        assert!(
            !html.contains(" style=") && !html.contains("<style"),
            "{name}"
        );
        for tag in tags(&html, "script") {
            assert!(attribute(tag, "src").is_some(), "{name}: {tag}");
        }
        for handler in [" onclick=", " onload=", " hx-on", "javascript:"] {
            assert!(!html.contains(handler), "{name}: {handler}");
        }
    }
}

#[test]
fn ids_are_unique_and_references_to_them_hold() {
    for (name, html) in samples::all() {
        let ids: Vec<&str> = html
            .split(" id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let unique: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(ids.len(), unique.len(), "{name}: {ids:?}");
        for reference in [
            "aria-describedby",
            "aria-labelledby",
            "popovertarget",
            "aria-controls",
            "for",
        ] {
            for value in html
                .split(&format!(" {reference}=\""))
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
            {
                assert!(
                    value.split(' ').all(|id| ids.contains(&id)),
                    "{name}: {reference}={value}"
                );
            }
        }
        for symbol in html
            .split("href=\"#")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
        {
            assert!(ids.contains(&symbol), "{name}: #{symbol}");
        }
    }
}

#[test]
fn empty_lists_say_what_to_do_next() {
    let pages = samples::all();
    for name in ["fleet-empty", "jobs-empty", "team-empty", "node-empty"] {
        let (_, html) = pages.iter().find(|(known, _)| *known == name).unwrap();
        assert!(html.contains("class=\"empty\""), "{name}");
    }
}

#[test]
fn a_failure_is_told_in_words() {
    use domain::state::AttemptEnd;
    use web::messages::Messages;
    use web::views::Ending;
    let told = |end, exit_code, signal| {
        Ending {
            end,
            exit_code,
            signal,
            message: None,
            suspended_by: None,
            memory_mib: None,
        }
        .explain(&Messages::english())
        .to_string()
    };
    assert_eq!(
        told(AttemptEnd::Exit, Some(127), None),
        "The command was not found (exit code 127)."
    );
    assert_eq!(
        told(AttemptEnd::Exit, Some(3), None),
        "The command failed with exit code 3."
    );
    assert_eq!(
        told(AttemptEnd::Exit, Some(139), None),
        "The command failed with exit code 139, which says: invalid memory access."
    );
    assert_eq!(
        told(AttemptEnd::Signal, None, Some(9)),
        "It was ended by signal 9: killed."
    );
    assert_eq!(
        told(AttemptEnd::Oom, Some(137), Some(9)),
        "It ran out of memory and was stopped."
    );
    assert_eq!(
        told(AttemptEnd::TimeLimit, None, None),
        "It reached its time limit and was stopped."
    );
    assert!(
        samples::failed_job()
            .render()
            .unwrap()
            .contains("The command was not found")
    );
}

#[test]
fn the_theme_of_the_cookie_is_on_the_page() {
    use web::shell::Theme;
    let mut view = samples::jobs();
    assert!(!view.render().unwrap().contains("data-theme=\""));
    view.shell.theme = Theme::from_cookie("dark");
    assert!(
        view.render()
            .unwrap()
            .contains("<html lang=\"en\" data-theme=\"dark\">")
    );
    assert_eq!(Theme::from_cookie("\"><script>"), Theme::System);
}

#[test]
fn a_refused_field_is_marked_and_keeps_what_was_typed() {
    let html = samples::refused_submit().render().unwrap();
    assert!(html.contains("id=\"gpus\" name=\"gpus\" value=\"1e12\""));
    assert!(
        html.contains("aria-invalid=\"true\" aria-describedby=\"gpus-e gpus-h\""),
        "{html}"
    );
    for words in [
        "<b>GPUs per worker</b>: “1e12” is not accepted. Write a whole number of devices up to 64",
        "<b>Pool</b>: The team has no quota in an acceptable pool.",
        "<b>node</b>: “n9” is not accepted.",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
}

#[test]
fn an_end_is_told_once() {
    use domain::state::AttemptEnd;
    use web::views::{Ending, Why};
    let told = |end, exit_code, message: &str| {
        let mut view = samples::failed_job();
        view.why = Why::Ended(Ending {
            end,
            exit_code,
            signal: None,
            message: Some(message.into()),
            suspended_by: None,
            memory_mib: None,
        });
        view.render().unwrap()
    };
    let memory = told(
        AttemptEnd::Oom,
        None,
        "worker 0 was killed: it used more memory than it had asked for",
    );
    assert!(memory.contains("It ran out of memory") && !memory.contains("more memory than it"));
    let missing = told(
        AttemptEnd::Invalid,
        Some(127),
        "n1 would not start worker 0: command not found: train",
    );
    assert!(
        missing.contains("The command was not found (exit code 127)."),
        "{missing}"
    );
    assert!(
        !missing.contains("It cannot be run as it is written"),
        "{missing}"
    );
    // What a node alone knows, no code says.
    let refused = told(AttemptEnd::StartRefused, None, "the disk is full");
    assert!(
        refused.contains("The node refused to start it.") && refused.contains("the disk is full")
    );
}

#[test]
fn a_job_that_has_ended_has_a_cost_and_no_cost_so_far() {
    let html = samples::failed_job().render().unwrap();
    assert!(
        html.contains("and cost <b>") && !html.to_lowercase().contains("so far"),
        "{html}"
    );
    assert!(samples::job().render().unwrap().contains("</b> so far."));
}

#[test]
fn what_is_refused_displaces_nobody_and_does_not_say_so() {
    use web::views::{Cause, DryRunView, Outcome, Refusal};
    let sample = samples::submit();
    let shows = |view: &DryRunView| view.render().unwrap().contains("Displaces");
    let mut view = DryRunView {
        shell: sample.shell,
        dry_run: sample.dry_run,
    };
    assert!(shows(&view));
    let told = view.render().unwrap();
    assert!(
        told.contains("hx-swap-oob=\"true\">Submit, and wait until about"),
        "the button says what it leads to: {told}"
    );
    let dry_run = view.dry_run.as_mut().unwrap();
    dry_run.outcome = Outcome::Refused;
    dry_run.cause = Some(Cause::Refused(vec![Refusal::default()]));
    assert!(!shows(&view));
}

#[test]
fn what_a_quota_never_admits_is_told_before_it_is_submitted() {
    use domain::quota::QuotaBound;
    use web::views::{BeyondQuota, Cause, DryRunView, Outcome, Wait};
    let sample = samples::submit();
    let told = |instances: Option<i64>| {
        let mut view = DryRunView {
            shell: sample.shell.clone(),
            dry_run: sample.dry_run.clone(),
        };
        let dry_run = view.dry_run.as_mut().unwrap();
        dry_run.outcome = Outcome::Never;
        dry_run.cause = Some(Cause::Waits(Box::new(Wait {
            code: "over_limit".into(),
            beyond_quota: Some(BeyondQuota {
                bound: QuotaBound::Limit,
                team: Some("vision".into()),
                pool: "h100".into(),
                need_milli: 4000,
                have_milli: 2000,
                instances,
                preemptible_admitted: false,
            }),
            ..Wait::default()
        })));
        view.render().unwrap()
    };
    let html = told(None);
    for words in [
        "never start under the present quota",
        "It needs <b>4 GPUs</b>, and team vision may hold <b>2 GPUs</b> of pool h100",
        "Ask for at most 2 GPUs, or have an administrator raise the quota.",
        "Submit it all the same",
    ] {
        assert!(html.contains(words), "{words} in {html}");
    }
    assert!(!html.contains("It would wait"), "{html}");
    assert!(told(Some(14)).contains("Ask for at most 14 instances"));
}

#[test]
fn a_job_is_asked_about_by_what_a_cancel_would_lose() {
    let asks = |view: &web::views::JobView| view.render().unwrap();
    assert!(asks(&samples::job()).contains("has its grace to save"));
    assert!(asks(&samples::waiting_job()).contains("It has not started; nothing is lost."));
    let mut suspended = samples::job();
    suspended.placement.clear();
    suspended.state = domain::state::JobState::Suspended;
    let html = asks(&suspended);
    assert!(html.contains("It does not run now.") && !html.contains("It has not started"));
}

#[test]
fn a_cancelled_job_says_so_in_its_state_alone() {
    use domain::state::{AttemptEnd, JobState};
    let mut view = samples::failed_job();
    view.state = JobState::Cancelled;
    view.attempts.clear();
    if let web::views::Why::Ended(ending) = &mut view.why {
        ending.end = AttemptEnd::Cancelled;
        ending.exit_code = None;
    }
    let html = view.render().unwrap();
    assert!(!html.contains("It was cancelled."), "{html}");
    assert!(!html.contains("id=\"ending\""), "{html}");
}

#[test]
fn a_free_device_has_no_mode_and_a_drain_that_leaves_nothing_says_nothing_of_it() {
    let mut node = samples::node();
    node.devices[0].mode = None;
    node.devices[0].laying = None;
    node.leaving = Some(web::views::Leaving {
        moves: 2000,
        stays: 0,
    });
    let html = node.render().unwrap();
    assert!(html.contains("data-l=\"Sharing\"><span class=\"muted\">–</span>"));
    assert!(html.contains("placed elsewhere: <b>2 GPUs</b>."));
    assert!(!html.contains("The rest ends by itself"));
    node.leaving = Some(web::views::Leaving {
        moves: 0,
        stays: 1000,
    });
    let html = node.render().unwrap();
    assert!(html.contains("The rest ends by itself: <b>1 GPU</b>."));
}

#[test]
fn a_mode_that_is_refused_is_told_by_its_words() {
    let refusal = web::views::Refusal {
        field: "share".into(),
        value: "exclusive".into(),
        ..web::views::Refusal::default()
    };
    let said = refusal.say(&web::messages::Messages::english()).to_string();
    assert!(said.contains("“Whole device” is not accepted"), "{said}");
}

#[test]
fn the_amounts_of_a_bill_are_written_as_finely_as_its_smallest() {
    use rust_decimal::Decimal;
    let cost = |amount| {
        web::format::Cost::priced(domain::money::Money {
            amount,
            currency: "CNY".parse().unwrap(),
        })
    };
    let mut job = samples::job();
    job.costs.truncate(1);
    job.costs[0].cost = cost(Decimal::new(12, 4));
    job.cost = cost(Decimal::new(1_254, 3));
    let html = job.render().unwrap();
    assert!(html.contains("¥0.0012</td>") && html.contains("¥1.2540</td>"));
    assert!(html.contains("its start counts too"));
}

#[test]
fn a_conflict_is_not_told_as_a_race() {
    let html = samples::error(409).render().unwrap();
    assert!(
        !html.contains("faster") && !html.contains("meanwhile"),
        "{html}"
    );
}
