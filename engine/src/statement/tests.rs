//! Statements with figures that were computed by hand.

use chrono::TimeDelta;

use super::*;
use crate::rig::{Rig, before, noon};
use crate::world::{Pool, PreemptionPolicy, Quota, Reclaim, Team, Workload};

/// Twelve devices: department `a` has teams of 4 and 2, and 1 of its own beside; `b` has 3.
fn rig() -> Rig {
    let row = |gpus| Quota::guaranteed(MilliGpu::whole(gpus));
    Rig::new()
        .pool(Pool::new("p").preemption(PreemptionPolicy::default()))
        .nodes(1, 12)
        .tenant(Team::new("a").quota("p", row(7)))
        .tenant(
            Team::new("a1")
                .under("a")
                .quota("p", row(4).limited(MilliGpu::whole(9))),
        )
        .tenant(Team::new("a2").under("a").quota("p", row(2)))
        .tenant(Team::new("b").quota("p", row(3)))
}

fn runs(name: &str, team: &str, devices: std::ops::Range<u32>) -> Workload {
    let devices: Vec<u32> = devices.collect();
    Workload::waiting(name, team, devices.len() as i64, before(60)).running_on(
        "n1",
        &devices,
        before(30),
    )
}

fn made(rig: &Rig) -> Vec<Statement> {
    statements(rig.world(), &Starved::new())
}

/// The statement of a team, as text: held, borrowed = lenders + spare, lent = borrowers.
fn told(all: &[Statement], team: &str) -> String {
    let s = all.iter().find(|s| s.team == team).expect("a statement");
    let parties = |parties: &[Party]| {
        let each = parties.iter().map(|p| format!("{} {}", p.team, p.amount));
        each.collect::<Vec<_>>().join(", ")
    };
    format!(
        "holds {} of {}; borrows {} ({}; spare {}); lends {} ({}); may take {}",
        s.held,
        s.guaranteed,
        s.borrowed,
        parties(&s.borrows_from),
        s.spare,
        s.lent,
        parties(&s.lends_to),
        s.reclaimable,
    )
}

#[test]
fn what_is_borrowed_is_of_the_nearest_whose_guarantee_is_idle() {
    // b holds 8 of 3: of the 5 beyond, 2 are of nobody (12 - 7 - 3); a2 holds 3 of 2: one is
    // of its department's own 1. The 3 that are left b has of a1, which is idle with 4.
    let all = made(
        &rig()
            .work(runs("one", "b", 0..8))
            .work(runs("two", "a2", 8..11)),
    );
    assert_eq!(
        told(&all, "a1"),
        "holds 0 of 4; borrows 0 (; spare 0); lends 3 (b 3); may take 3"
    );
    assert_eq!(
        told(&all, "a2"),
        "holds 3 of 2; borrows 1 (; spare 1); lends 0 (); may take 0"
    );
    assert_eq!(
        told(&all, "a"),
        "holds 3 of 7; borrows 0 (; spare 0); lends 3 (b 3); may take 3"
    );
    assert_eq!(
        told(&all, "b"),
        "holds 8 of 3; borrows 5 (a1 3; spare 2); lends 0 (); may take 0"
    );
    assert_eq!(all[1].limit, Some(MilliGpu::whole(9)));
}

#[test]
fn siblings_lend_before_others_and_in_proportion_to_what_is_idle() {
    // a2 holds 6 of 2: 1 is of its department, 3 of a1. b has 3 of 3.
    let all = made(
        &rig()
            .work(runs("one", "a2", 0..6))
            .work(runs("two", "b", 6..9)),
    );
    assert_eq!(
        told(&all, "a1"),
        "holds 0 of 4; borrows 0 (; spare 0); lends 3 (a2 3); may take 3"
    );
    assert_eq!(
        told(&all, "a"),
        "holds 6 of 7; borrows 0 (; spare 0); lends 0 (); may take 0"
    );
    // c takes 6: 2 of nobody, and 4 of a1 (4 idle), a2 (2 idle), a (1) and b (3): 10 in all.
    let row = Quota::guaranteed(MilliGpu::ZERO);
    let all = made(
        &rig()
            .tenant(Team::new("c").quota("p", row))
            .work(runs("one", "c", 0..6)),
    );
    assert_eq!(
        told(&all, "c"),
        "holds 6 of 0; borrows 6 (a 0.4, a1 1.6, a2 0.8, b 1.2; spare 2); lends 0 (); may take 0"
    );
    assert_eq!(
        told(&all, "b"),
        "holds 0 of 3; borrows 0 (; spare 0); lends 1.2 (c 1.2); may take 1.2"
    );
}

#[test]
fn what_could_be_taken_back_is_what_no_rule_protects() {
    let takes = |policy: PreemptionPolicy, change: &dyn Fn(&mut Workload)| {
        let mut work = runs("one", "b", 0..12);
        change(&mut work);
        let rig = rig().pool(Pool::new("p").preemption(policy)).work(work);
        let all = made(&rig);
        all.iter().find(|s| s.team == "a1").expect("a1").reclaimable
    };
    let plain = PreemptionPolicy::default;
    let none = |_: &mut Workload| {};
    // b has 9 beyond its guarantee; a1 lacks 4, all of which b has.
    assert_eq!(takes(plain(), &none), MilliGpu::whole(4));
    let never = PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..plain()
    };
    assert_eq!(takes(never, &none), MilliGpu::ZERO);
    let lower = || PreemptionPolicy {
        reclaim: Reclaim::LowerPriority,
        ..plain()
    };
    assert_eq!(takes(lower(), &none), MilliGpu::whole(4));
    assert_eq!(
        takes(lower(), &|w| w.class = "high".to_owned()),
        MilliGpu::ZERO
    );
    // It has run for 30 minutes.
    let young = |seconds| PreemptionPolicy {
        min_runtime_reclaim_seconds: Some(seconds),
        ..plain()
    };
    assert_eq!(takes(young(1800), &none), MilliGpu::whole(4));
    assert_eq!(takes(young(1801), &none), MilliGpu::ZERO);
    let capped = PreemptionPolicy {
        max_per_day: Some(1),
        ..plain()
    };
    assert_eq!(takes(capped, &|w| w.preemptions_today = 1), MilliGpu::ZERO);
    assert_eq!(
        takes(plain(), &|w| w.preemptible = Some(false)),
        MilliGpu::ZERO
    );
    let hour = PreemptionPolicy {
        max_per_team_hour: Some(0),
        ..plain()
    };
    assert_eq!(takes(hour, &none), MilliGpu::ZERO);
}

#[test]
fn what_is_taken_across_departments_must_be_in_the_guarantees_of_both() {
    // a2 holds 5: department a has 2 of its 7 left, so that a1 takes 2 of b beside 3 of a2.
    let rig = rig()
        .work(runs("one", "b", 0..7))
        .work(runs("two", "a2", 7..12));
    let all = made(&rig);
    assert_eq!(all[1].team, "a1");
    assert_eq!(all[1].reclaimable, MilliGpu::whole(4));
    assert_eq!(all[0].reclaimable, MilliGpu::whole(2));
    // Without a2's loan only what the department has left.
    let kept = rig.with(|w| w.workloads[1].preemptible = Some(false));
    assert_eq!(made(&kept)[1].reclaimable, MilliGpu::whole(2));
}

#[test]
fn who_is_short_while_its_work_waits_is_so_since_it_was_first_seen() {
    let waits = rig().jobs("j", "a1", 1, 1);
    let since = |known: &Starved| statements(waits.world(), known)[1].starved_since;
    assert_eq!(since(&Starved::new()), Some(noon()));
    let earlier = noon() - TimeDelta::hours(2);
    let known = Starved::from([(("a1".to_owned(), "p".to_owned()), earlier)]);
    assert_eq!(since(&known), Some(earlier));
    let all = statements(waits.world(), &known);
    // The department is short too, since now; nobody else is, for nothing of theirs waits.
    let short = starved(&all);
    assert_eq!(short.len(), 2);
    assert_eq!(short[&("a".to_owned(), "p".to_owned())], noon());
    assert_eq!(short[&("a1".to_owned(), "p".to_owned())], earlier);
    // Who has its guarantee, or nothing that waits, is not short, and begins anew later.
    let full = waits
        .work(runs("one", "a1", 0..4))
        .work(runs("two", "b", 4..7));
    let all = statements(full.world(), &known);
    assert_eq!(all[1].starved_since, None);
    assert_eq!(statements(rig().world(), &known)[1].starved_since, None);
}

#[test]
fn shrunk_guarantees_are_dealt_at_every_level_out_of_what_was_given_there() {
    // 10 devices for 18 in three departments: thirds are rounded down, and one of the departments up.
    let mut rig = Rig::new().pool(Pool::new("p")).nodes(1, 10);
    for name in ["x", "y", "z"] {
        rig = rig.tenant(Team::new(name));
        for part in ["1", "2"] {
            let row = Quota::guaranteed(MilliGpu::whole(3));
            let team = Team::new(&format!("{name}{part}")).under(name);
            rig = rig.tenant(team.quota("p", row));
        }
    }
    let all = made(&rig);
    let of = |team: &str| {
        let found = all.iter().find(|s| s.team == team);
        found.expect("a statement").guaranteed.milli()
    };
    assert_eq!(["x", "y", "z"].map(of), [3334, 3333, 3333]);
    // Of two times 1666.667 that are 3333.333 together one is rounded up, under each of them.
    for name in ["x", "y", "z"] {
        assert_eq!(
            ["1", "2"].map(|part| of(&format!("{name}{part}"))),
            [1667, 1666]
        );
    }
}
