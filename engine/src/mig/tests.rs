//! The derived rules of the table: what adds up and is impossible all the same.

use super::*;

/// The profiles of an H100 without `+me`, by kind.
const KINDS: [&str; 6] = [
    "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb",
];

fn h100(name: &str) -> &'static Profile {
    profile("H100-80GB", name).expect("a profile of the table")
}

fn listed(profiles: &[&str]) -> Vec<MigInstance> {
    let instance = |text: &&str| {
        let (profile, start) = text
            .split_once('@')
            .map_or((*text, None), |(p, s)| (p, s.parse().ok()));
        MigInstance {
            profile: profile.to_owned(),
            start,
        }
    };
    profiles.iter().map(instance).collect()
}

fn cut(profiles: &[&str]) -> Cut {
    let slices = lay_out("H100-80GB", &listed(profiles)).expect("a layout that exists");
    slices.into_iter().fold(Cut::default(), Cut::with)
}

fn room(cut: Cut, name: &str) -> bool {
    h100(name).places().any(|slice| cut.admits(slice))
}

/// All placed layouts of these profiles, each with the profiles in it.
fn states(profiles: &[&'static Profile]) -> Vec<Vec<Slice>> {
    fn go(profiles: &[&'static Profile], placed: &mut Vec<Slice>, all: &mut Vec<Vec<Slice>>) {
        let cut = placed.iter().fold(Cut::default(), |cut, s| cut.with(*s));
        let last = placed.last().map(|s| s.start);
        all.push(placed.clone());
        for profile in profiles {
            for slice in profile.places() {
                if last.is_none_or(|last| slice.start > last) && cut.admits(slice) {
                    placed.push(slice);
                    go(profiles, placed, all);
                    placed.pop();
                }
            }
        }
    }
    let mut all = Vec::new();
    go(profiles, &mut Vec::new(), &mut all);
    all
}

fn kinds() -> Vec<&'static Profile> {
    KINDS.iter().map(|name| h100(name)).collect()
}

fn multiset(state: &[Slice]) -> Vec<&'static str> {
    let mut names: Vec<&str> = state.iter().map(|s| s.profile.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn on_an_empty_device_sums_tell_the_truth_for_every_multiset() {
    let states = states(&kinds());
    let mut placeable: Vec<Vec<&str>> = states.iter().map(|s| multiset(s)).collect();
    placeable.sort();
    placeable.dedup();
    // The empty one is the 78th.
    assert_eq!((states.len(), placeable.len()), (723, 78));
    let most = |name: &str| h100(name).starts.len() as u32;
    let mut adding_up = 0;
    let mut count = [0_u32; 6];
    'all: loop {
        let sum = |of: fn(&Profile) -> u32| -> u32 {
            let each = KINDS.iter().zip(count).map(|(name, n)| of(h100(name)) * n);
            each.sum()
        };
        adding_up += usize::from(sum(|p| p.compute) <= 7 && sum(|p| p.size) <= 8);
        for (digit, name) in count.iter_mut().zip(KINDS) {
            *digit += 1;
            if *digit <= most(name) {
                continue 'all;
            }
            *digit = 0;
        }
        break;
    }
    assert_eq!(adding_up, 78);
}

#[test]
fn on_a_used_device_most_states_refuse_a_profile_that_would_add_up() {
    let refusing = states(&kinds()).into_iter().filter(|state| {
        let cut = state.iter().fold(Cut::default(), |cut, s| cut.with(*s));
        let sum = |of: fn(&Profile) -> u32| state.iter().map(|s| of(s.profile)).sum::<u32>();
        let (compute, size) = (sum(|p| p.compute), sum(|p| p.size));
        kinds().iter().any(|p| {
            compute + p.compute <= 7 && size + p.size <= 8 && !p.places().any(|s| cut.admits(s))
        })
    });
    assert_eq!(refusing.count(), 460);
}

#[test]
fn there_are_nineteen_full_layouts_of_eight_slices_and_five_of_four() {
    let full = |profiles: &[&'static Profile]| {
        let states = states(profiles);
        let full = states.into_iter().filter(|state| {
            let cut = state.iter().fold(Cut::default(), |cut, s| cut.with(*s));
            !profiles
                .iter()
                .any(|p| p.places().any(|slice| cut.admits(slice)))
        });
        full.count()
    };
    let without_doubles: Vec<_> = kinds()
        .into_iter()
        .filter(|p| p.name != "1g.20gb")
        .collect();
    let small: Vec<_> = ["1g.6gb", "2g.12gb", "4g.24gb"]
        .iter()
        .map(|name| profile("A30-24GB", name).expect("a profile of the table"))
        .collect();
    assert_eq!((full(&without_doubles), full(&small)), (19, 5));
}

#[test]
fn what_adds_up_in_compute_alone_is_impossible() {
    let (one, double, two, three, four) = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb");
    let traps: [&[&str]; 11] = [
        &[three, three, one],
        &[three, three, double],
        &[four, double, double, one],
        &[three, double, double, one],
        &[three, two, double, one],
        &[three, double, one, one, one],
        &[two, two, double, double, one],
        &[double, double, double, double, one],
        &[two, double, double, double, one],
        &[one, one, one, one, one, double, double],
        &[one, one, one, double, double, double],
    ];
    let placeable: Vec<Vec<&str>> = states(&kinds()).iter().map(|s| multiset(s)).collect();
    for trap in traps {
        let mut trap = trap.to_vec();
        trap.sort_unstable();
        let compute: u32 = trap.iter().map(|name| h100(name).compute).sum();
        assert!(compute <= 7 && !placeable.contains(&trap), "{trap:?}");
    }
}

#[test]
fn strays_block_what_their_slices_would_leave_room_for() {
    for start in 0..4 {
        assert!(!room(cut(&[&format!("1g.10gb@{start}")]), "4g.40gb"));
    }
    assert!(!room(cut(&["1g.10gb@1", "1g.10gb@5"]), "3g.40gb"));
    for start in [4, 5] {
        let stray = format!("1g.10gb@{start}");
        assert!(!room(cut(&["3g.40gb@0", &stray]), "2g.20gb"));
    }
    let last = cut(&["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]);
    assert!(KINDS.iter().all(|name| !room(last, name)));
    assert!(KINDS.iter().all(|name| !room(cut(&["1g.10gb"; 7]), name)));
}

#[test]
fn three_and_three_fill_a_device_and_leave_no_room_for_one() {
    assert!(lay_out("H100-80GB", &listed(&["3g.40gb", "3g.40gb"])).is_ok());
    assert!(lay_out("H100-80GB", &listed(&["3g.40gb", "3g.40gb", "1g.10gb"])).is_err());
    assert!(lay_out("H100-80GB", &listed(&["4g.40gb@4"])).is_err());
}

#[test]
fn one_instance_has_the_extra_engines_and_one_that_has_all_leaves_none() {
    let lays =
        |profiles: &[&str]| lay_out("RTX-PRO-6000-Blackwell-96GB", &listed(profiles)).is_ok();
    assert!(lays(&["1g.24gb+me", "1g.24gb", "1g.24gb-me"]));
    assert!(!lays(&["1g.24gb+me", "1g.24gb+me"]));
    assert!(!lays(&["1g.24gb+me", "2g.48gb+me.all"]));
    assert!(lays(&["1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me"]));
    assert!(!lays(&["1g.24gb+me.all", "1g.24gb"]));
    assert!(!lays(&["1g.24gb+gfx", "1g.24gb+me.all"]));
    assert!(lay_out("A30-24GB", &listed(&["1g.6gb+me", "2g.12gb+me"])).is_err());
}

#[test]
fn the_start_that_keeps_most_within_reach_is_known() {
    let model = model("H100-80GB").expect("a model of the table");
    let kept = |name: &str| -> Vec<(u32, u32)> {
        let of = |s: Slice| (s.start, model.reach(model.whole() & !s.bits()));
        h100(name).places().map(of).collect()
    };
    assert_eq!(model.reach(model.whole()), 78);
    assert_eq!(
        kept("1g.10gb"),
        [
            (0, 43),
            (1, 43),
            (2, 43),
            (3, 43),
            (4, 45),
            (5, 45),
            (6, 40)
        ]
    );
    let best = |name: &str| kept(name).into_iter().max_by_key(|(_, reach)| *reach);
    assert_eq!(best("1g.20gb").map(|b| b.0), Some(6));
    assert_eq!(best("2g.20gb").map(|b| b.0), Some(4));
    assert_eq!(best("3g.40gb").map(|b| b.0), Some(4));
}

/// What the placement leans on: instances of one profile never overlap but for having the
/// same start, so that how many fit is a matter of counting.
#[test]
fn starts_of_one_profile_are_apart_and_its_slices_share_the_device_exactly() {
    for (name, model) in table() {
        for profile in model.profiles.values() {
            for pair in profile.starts.windows(2) {
                assert!(pair[1] - pair[0] >= profile.size, "{name} {}", profile.name);
            }
            let last = profile.starts.last().expect("a start");
            assert!(
                last + profile.size <= model.slices,
                "{name} {}",
                profile.name
            );
            assert_eq!(
                DEVICE * i64::from(profile.size) % i64::from(model.slices),
                0
            );
        }
    }
}

#[test]
fn a_profile_of_another_model_does_not_exist() {
    assert!(profile("H100-80GB", "1g.6gb").is_none() && profile("A30-24GB", "1g.6gb").is_some());
    assert_eq!((models(), h100("3g.40gb").milli()), (13, 500));
    assert_eq!(profile("A30-24GB", "1g.6gb").map(Profile::milli), Some(250));
}

#[test]
fn what_is_tried_on_top_of_what_is_held_is_taken_away_without_a_trace() {
    let (large, small) = (h100("7g.80gb").at(0), h100("3g.40gb").at(4));
    let held = Cut::default().with(large);
    assert_eq!(held.with(small).without(small), held);
    assert_eq!(held.with(small).without(large), Cut::default().with(small));
    assert_eq!(held.without(large), Cut::default());
}

#[test]
fn a_profile_that_a_driver_calls_otherwise_is_known_by_slices_engines_and_memory() {
    let named = |name: &str, size| alike("GB200-186GB", name, size);
    assert_eq!(named("1g.23gb", None), Some("1g.23gb"));
    assert_eq!(named("1g.24gb", Some(1)), Some("1g.23gb"));
    assert_eq!(named("1g.24gb+me", Some(1)), Some("1g.23gb+me"));
    assert_eq!(
        named("1g.48gb", Some(2)),
        Some("1g.47gb"),
        "as many slices, twice the memory"
    );
    assert_eq!(
        named("1g.48gb", None),
        Some("1g.47gb"),
        "the nearest memory"
    );
    assert_eq!(named("7g.189gb", Some(8)), Some("7g.186gb"));
    for none in ["5g.100gb", "1g.24gb+gfx", "whole", "g.gb", ""] {
        assert_eq!(named(none, None), None, "{none}");
    }
    assert_eq!(named("1g.24gb", Some(4)), None, "no such size");
    assert_eq!(alike("L40S", "1g.24gb", None), None, "it cannot be cut");
}
