//! Causes of a wait whose code alone says too little: what binds, and what lets work start, in words.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use web::messages::{Messages, Phrase};
use web::views::Wait;

fn wait(code: &str, scope: &str) -> Wait {
    Wait {
        code: code.into(),
        scope: Some(scope.into()),
        ..Wait::default()
    }
}

#[test]
fn a_cause_that_its_scope_tells_apart_has_words_of_its_own() {
    let t = Messages::english();
    for (code, scope, sentence, short) in [
        (
            "dependency",
            "array 7f",
            "As many elements of its array run as may run at once.",
            "For its array: as many run as may",
        ),
        (
            "not_yet",
            "attempt 2 after exit code 3",
            "It waits for attempt 2 after exit code 3.",
            "For its next attempt",
        ),
        (
            "over_limit",
            "max_per_user of team vision",
            "Its user holds as much as one user of the team may.",
            "Limit of its user reached",
        ),
        (
            "over_limit",
            "lend_limit of another team",
            "What others lend of their guarantees is used.",
            "Nothing more is lent",
        ),
        (
            "over_limit",
            "team vision",
            "The team’s limit is reached.",
            "Limit reached",
        ),
        (
            "held_for_reservation",
            "bookings of pool h100",
            "The free GPUs are booked for a time at which it would still run.",
            "Free GPUs booked",
        ),
    ] {
        let wait = wait(code, scope);
        assert_eq!(wait.explain(&t).plain(), sentence);
        assert_eq!(wait.short(&t).plain(), short);
    }
}

#[test]
fn an_expected_start_is_told_with_what_lets_work_start_then() {
    let t = Messages::english();
    for (once, words) in [
        (None, "once enough of what runs has reached its time limit"),
        (
            Some("ended"),
            "once enough of what runs has reached its time limit",
        ),
        (
            Some("of_a_newer_server"),
            "once enough of what runs has reached its time limit",
        ),
        (
            Some("victims_left"),
            "once those have left who make room for it",
        ),
        (Some("delay_over"), "once it has waited as long as it must"),
        (
            Some("protection_over"),
            "have run as long as they are protected",
        ),
        (Some("booking_begins"), "when a booking of its team begins"),
        (
            Some("booking_ends"),
            "once a booking has ended that room is kept for",
        ),
        (
            Some("quotas_change"),
            "when a weekly window changes the quotas",
        ),
    ] {
        let told = Wait {
            expected_start: Some("2026-11-30T12:00:00Z".parse().unwrap()),
            expected_once: once.map(str::to_owned),
            ..wait("insufficient_capacity", "pool h100")
        };
        let said = told.next_by(&t, |_| Phrase::literal("noon")).plain();
        assert!(said.contains(words), "{words} in {said}");
    }
}
