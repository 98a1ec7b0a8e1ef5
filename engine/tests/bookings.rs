//! Bookings: capacity booked ahead, lent while its team has no work for it, and taken back when it has.

use chrono::TimeDelta;
use domain::{MilliGpu, Timestamp};
use engine::cycles;
use engine::plan::{Code, Once, Plan, Reason};
use engine::rig::{Rig, before, noon};
use engine::world::{Backfill, Booking, Pool, PreemptionPolicy, Quota, Reclaim, Team, Workload};

fn hours(hours: i64) -> Timestamp {
    noon() + TimeDelta::hours(hours)
}

/// A pool that takes nothing back by itself, and protects what runs.
fn pool() -> Pool {
    Pool::new("p").preemption(PreemptionPolicy {
        reclaim: Reclaim::Never,
        grace_seconds: 30,
        min_runtime_seconds: 1_000_000,
        ..PreemptionPolicy::default()
    })
}

/// Eight devices of which team `demo` has booked some for an hour; teams `a` and `demo` borrow.
fn booked(gpus: i64, from: i64) -> Rig {
    Rig::new()
        .pool(pool())
        .nodes(1, 8)
        .team("a", 4)
        .team("demo", 0)
        .with(|w| {
            w.bookings.push(Booking {
                name: "show".to_owned(),
                team: "demo".to_owned(),
                pool: "p".to_owned(),
                gpus: MilliGpu::whole(gpus),
                from: hours(from),
                to: hours(from + 1),
            });
        })
}

fn job(name: &str, team: &str, gpus: i64, class: &str, hours: i64) -> Workload {
    let mut work = Workload::waiting(name, team, gpus, before(60)).class(class);
    work.time_limit_seconds = (hours > 0).then_some(hours * 3600);
    work
}

fn lent(name: &str, devices: std::ops::Range<u32>) -> Workload {
    let devices: Vec<u32> = devices.collect();
    job(name, "a", devices.len() as i64, "normal", 0).running_on("n1", &devices, before(30))
}

fn starts(plan: &Plan) -> Vec<&str> {
    plan.starts.iter().map(|s| s.workload.as_str()).collect()
}

fn victims(plan: &Plan) -> Vec<(&str, Reason, Option<&str>)> {
    plan.preemptions
        .iter()
        .map(|p| (p.workload.as_str(), p.reason, p.gainer.as_deref()))
        .collect()
}

#[test]
fn a_booking_is_part_of_the_guarantee_from_its_beginning_to_its_end() {
    let guaranteed = |from| {
        let plan = booked(4, from).plan();
        let share = plan.shares.iter().find(|s| s.team == "demo");
        share.expect("a row").guaranteed
    };
    assert_eq!(guaranteed(0), MilliGpu::whole(4));
    assert_eq!(guaranteed(1), MilliGpu::ZERO);
    assert_eq!(guaranteed(-1), MilliGpu::ZERO);
    let rig = booked(4, 0).with(|w| {
        w.teams[1].parent = Some("org".to_owned());
        let row = Quota::guaranteed(MilliGpu::ZERO);
        w.teams.push(Team::new("org").quota("p", row));
    });
    let plan = rig.plan();
    let org = plan.shares.iter().find(|s| s.team == "org");
    assert_eq!(org.expect("a row").guaranteed, MilliGpu::whole(4));
}

#[test]
fn work_that_may_not_be_preempted_may_start_in_the_booked_guarantee() {
    let fixed = |from| {
        booked(4, from)
            .work(job("talk", "demo", 4, "fixed", 1))
            .plan()
    };
    assert_eq!(starts(&fixed(0)), ["talk"]);
    assert_eq!(starts(&fixed(1)), [""; 0]);
}

#[test]
fn before_it_begins_only_what_may_be_preempted_or_ends_by_then_takes_what_is_booked() {
    // Four of eight are booked in two hours: four are open to all.
    let rig = |gpus, class, hours| booked(6, 2).work(job("j", "a", gpus, class, hours)).plan();
    assert_eq!(starts(&rig(4, "fixed", 2)), ["j"]);
    assert_eq!(starts(&rig(4, "fixed", 3)), [""; 0]);
    assert_eq!(starts(&rig(4, "fixed", 0)), [""; 0]);
    assert_eq!(starts(&rig(2, "fixed", 0)), ["j"]);
    assert_eq!(starts(&rig(8, "normal", 0)), ["j"]);
    // What waits for the booking to end is told so, and what waits for another's start is not.
    let plan = rig(4, "fixed", 3);
    assert_eq!(plan.reservations[0].start, hours(3));
    let told = plan.waiting_for("j").expect("it waits");
    assert_eq!(told.code, Code::HeldForReservation);
    assert_eq!(&*told.scope, "bookings of pool p");
    assert!(told.message.contains("booked"), "{}", told.message);
    assert_eq!(told.expected_once, Some(Once::BookingEnds));
}

#[test]
fn work_of_a_booking_is_told_to_start_when_it_begins_and_those_in_its_way_have_left() {
    let rig = booked(4, 2).work(lent("loan", 0..8));
    let told = |class: &str| {
        let plan = rig.clone().work(job("talk", "demo", 4, class, 1)).plan();
        let told = plan.waiting_for("talk").expect("it waits");
        (told.expected_start, told.expected_once)
    };
    let begins = Some(hours(2) + TimeDelta::seconds(30));
    for class in ["normal", "fixed"] {
        assert_eq!(told(class), (begins, Some(Once::BookingBegins)), "{class}");
    }
    let other = rig.clone().work(job("other", "a", 4, "fixed", 1)).plan();
    let other = other.waiting_for("other").expect("it waits");
    assert_ne!(other.expected_once, Some(Once::BookingBegins));
}

#[test]
fn two_jobs_together_do_not_take_what_one_alone_would_leave() {
    let plan = booked(5, 2)
        .work(job("one", "a", 2, "fixed", 0))
        .work(job("two", "a", 2, "fixed", 0))
        .plan();
    assert_eq!(starts(&plan), ["one"]);
}

/// Work of the booked team that waits for so many devices.
fn talk(gpus: i64) -> Workload {
    job("talk", "demo", gpus, "normal", 0)
}

#[test]
fn when_it_begins_lent_work_leaves_for_its_team_whatever_the_policy_protects() {
    let lent = |from| {
        booked(4, from)
            .work(lent("low", 0..4).class("low"))
            .work(lent("old", 4..8))
            .work(talk(4))
    };
    // Team `a` has a guarantee of four: only what it borrows leaves, the lowest first.
    let gone = [("low", Reason::Reservation, Some("show"))];
    assert_eq!(victims(&lent(0).plan()), gone);
    assert!(lent(1).plan().preemptions.is_empty());
}

#[test]
fn nobody_leaves_for_what_its_team_has_no_work_for() {
    let rig = booked(4, 0).work(lent("one", 0..4)).work(lent("two", 4..8));
    assert_eq!(rig.settles(60).evictions(), 0);
    let two = rig.work(talk(2)).settles(60);
    assert_eq!(two.evictions(), 1);
    assert_eq!(two.running("talk"), 1);
}

#[test]
fn no_more_leaves_than_its_work_needs() {
    let rig = booked(4, 0)
        .work(lent("one", 0..4))
        .work(lent("two", 4..5))
        .work(lent("three", 5..6));
    // Two are free already.
    assert!(rig.clone().work(talk(2)).plan().preemptions.is_empty());
    let plan = rig.work(lent("four", 6..7)).work(talk(2)).plan();
    assert_eq!(plan.preemptions.len(), 1);
    assert_ne!(plan.preemptions[0].workload, "one");
}

/// Work of team `a` that wants eight workers and has so many.
fn elastic(workers: u32) -> Workload {
    let mut elastic = lent("elastic", 0..1);
    elastic.min_workers = Some(2);
    elastic.workers = 8;
    elastic.placed = (0..workers)
        .map(|i| lent("x", i..i + 1).placed[0].clone())
        .collect();
    elastic
}

#[test]
fn elastic_work_is_shrunk_for_a_booking_before_it_is_stopped() {
    let plan = booked(4, 0).work(elastic(8)).work(talk(4)).plan();
    assert_eq!(plan.preemptions[0].to_workers, 4);
    assert_eq!(plan.preemptions[0].released, [4, 5, 6, 7]);
}

#[test]
fn what_was_shrunk_for_a_booking_does_not_grow_back_onto_it() {
    let rest = booked(4, 0).work(elastic(8)).work(talk(4)).settles(120);
    assert_eq!(rest.evictions(), 1);
    assert_eq!(rest.world.workloads[0].placed.len(), 4);
}

#[test]
fn nothing_leaves_for_what_a_limit_does_not_let_the_team_hold() {
    let limited = |limit| {
        let rig = booked(4, 0).work(lent("all", 0..8)).work(talk(4));
        let rig = rig.with(|w| {
            let row = Quota::guaranteed(MilliGpu::ZERO).limited(MilliGpu::whole(limit));
            w.teams[1].quotas.insert("p".to_owned(), row);
        });
        rig.plan().preemptions.len()
    };
    assert_eq!((limited(4), limited(3)), (1, 0));
}

#[test]
fn work_grows_onto_what_no_work_of_the_booked_team_waits_for() {
    let placed = |rig: Rig| {
        let rest = rig.settles(60);
        assert_eq!(rest.evictions(), 0);
        rest.world.workloads[0].placed.len()
    };
    assert_eq!(placed(booked(4, 0).work(elastic(2))), 8);
    assert_eq!(placed(booked(4, 0).work(elastic(2)).work(talk(4))), 4);
}

#[test]
fn work_that_may_not_be_preempted_borrows_nothing_of_a_booking_that_lasts() {
    let rig = |from, hours| {
        let rig = booked(4, from).with(|w| w.pools[0].non_preemptible_borrowing = true);
        rig.work(job("firm", "b", 5, "fixed", hours)).team("b", 0)
    };
    assert!(starts(&rig(0, 0).plan()).is_empty());
    assert!(starts(&rig(0, 9).plan()).is_empty());
    // Beside it, or of what is in its own guarantee, it starts as ever.
    assert_eq!(starts(&rig(-2, 0).plan()), ["firm"]);
    let beside = booked(4, 0).work(job("firm", "a", 4, "fixed", 0));
    assert_eq!(starts(&beside.plan()), ["firm"]);
    // It is told to start when the booking is over.
    let waits = rig(0, 0).plan();
    assert_eq!(waits.waiting[0].expected_start, Some(hours(1)));
}

#[test]
fn work_of_the_booked_team_gets_the_room_and_what_it_leaves_is_lent_again() {
    let world = booked(4, 1)
        .work(lent("all", 0..8))
        .work({
            let mut talk = job("talk", "demo", 2, "fixed", 1);
            talk.not_before = Some(hours(1) + TimeDelta::minutes(10));
            talk
        })
        .work(job("more", "a", 2, "normal", 0))
        .world()
        .clone();
    let plans = cycles::run(world, 40);
    let evicted: Vec<_> = plans.iter().flat_map(victims).collect();
    assert_eq!(evicted, [("all", Reason::Reservation, Some("show"))]);
    let at = |name: &str| {
        let plan = plans.iter().find(|p| p.start_of(name).is_some());
        plan.unwrap_or_else(|| panic!("{name} starts")).now
    };
    let talk = at("talk");
    assert!(
        at("more") >= hours(1) + TimeDelta::minutes(10),
        "the eight were lent until then"
    );
    assert!(talk >= hours(1) + TimeDelta::minutes(10));
    assert!(talk <= hours(1) + TimeDelta::minutes(11));
}

#[test]
fn work_of_the_booked_team_displaces_by_the_booking_when_policy_would_not() {
    let plan = booked(4, 0)
        .work(lent("all", 0..8))
        .work(job("talk", "demo", 4, "fixed", 1))
        .plan();
    assert_eq!(victims(&plan), [("all", Reason::Reservation, Some("show"))]);
    assert_eq!(plan.nominations[0].workload, "talk");
}

#[test]
fn a_booking_holds_in_a_pool_that_does_not_backfill() {
    let rig = booked(6, 2)
        .with(|w| w.pools[0].backfill = Backfill::None)
        .work(job("long", "a", 4, "fixed", 3))
        .work(job("short", "a", 4, "fixed", 2));
    let plan = rig.plan();
    assert_eq!(starts(&plan), ["short"]);
    assert!(plan.reservations.is_empty());
}

#[test]
fn nobody_leaves_for_work_whose_booking_is_over_before_they_have_left() {
    let ends_after = |seconds: i64| {
        booked(1, 0).with(|w| {
            w.bookings[0].to = noon() + TimeDelta::seconds(seconds);
            w.workloads.push(lent("x", 0..8));
            w.workloads.push(job("w", "demo", 1, "fixed", 0));
        })
    };
    assert_eq!(victims(&ends_after(30).plan()), []);
    assert_eq!(victims(&ends_after(31).plan()).len(), 1);
}
