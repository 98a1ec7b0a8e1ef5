//! Quotas at a moment: those of the rows, and in their place what windows bring that are open then.
//!
//! This is the one home of what holds when. Of two open windows that name the same team the one
//! that opened last holds, as if each edge set the quota anew; of two that opened at once the one
//! whose name comes last.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use domain::Timestamp;

use crate::store::quotas::Amounts;
use crate::store::windows::{Window, WindowQuota};

/// Windows that are open at a moment, in the order in which they opened.
pub fn open_at(windows: &[Window], at: Timestamp) -> Vec<&Window> {
    let mut open: Vec<_> = windows
        .iter()
        .filter_map(|window| Some((window.weekly.open_at(at)?.from, window)))
        .collect();
    open.sort_by_key(|(since, window)| (*since, &window.name));
    open.into_iter().map(|(_, window)| window).collect()
}

/// Puts what these windows bring in the place of what `quotas` has, in their order.
pub fn lay_over<K: Ord>(
    quotas: &mut BTreeMap<K, Amounts>,
    open: &[&Window],
    key: impl Fn(&Window, &WindowQuota) -> K,
) {
    for window in open {
        for quota in &window.quotas {
            quotas.insert(key(window, quota), quota.amounts);
        }
    }
}

/// What an open window brings in the place of a team's quota.
#[derive(Debug)]
pub struct InPlace<'w> {
    /// The window.
    pub window: &'w Window,
    /// What it brings.
    pub quota: &'w WindowQuota,
    /// When it closes.
    pub until: Timestamp,
}

/// Pool and team for which a window is open at a moment, each with the one that holds.
pub fn in_place(windows: &[Window], at: Timestamp) -> BTreeMap<(&str, &str), InPlace<'_>> {
    let mut found = BTreeMap::new();
    for window in open_at(windows, at) {
        let Some(opening) = window.weekly.open_at(at) else {
            continue;
        };
        for quota in &window.quotas {
            let until = opening.to;
            let in_place = InPlace {
                window,
                quota,
                until,
            };
            found.insert((window.pool.as_str(), quota.team.as_str()), in_place);
        }
    }
    found
}

/// The next moment after `at` at which a window opens or closes.
pub fn next_edge(windows: &[Window], at: Timestamp) -> Option<Timestamp> {
    windows.iter().filter_map(|w| w.weekly.next_edge(at)).min()
}

/// The windows that are open from a moment on until the next one, in the order in which they
/// opened, by their places in a list.
pub type Step = (Timestamp, Vec<usize>);

/// Which windows are open when, between two moments: a step at `from`, and one at each edge after
/// it.
pub fn timeline(windows: &[Window], from: Timestamp, to: Timestamp) -> Vec<Step> {
    let mut edges: Vec<(Timestamp, bool, usize)> = Vec::new();
    for (index, window) in windows.iter().enumerate() {
        for opening in window.weekly.openings(from, to) {
            edges.push((opening.from, true, index));
            edges.push((opening.to, false, index));
        }
    }
    // At one moment what closes goes first, and what opens in the order of the names.
    edges.sort_by_key(|(at, opens, index)| (*at, *opens, &windows[*index].name));
    let mut steps: Vec<Step> = vec![(from, Vec::new())];
    for (at, opens, index) in edges {
        let (since, open) = steps.last().expect("it begins with one");
        let (since, mut open) = (*since, open.clone());
        open.retain(|known| *known != index);
        if opens {
            open.push(index);
        }
        if at <= since {
            steps.pop();
        }
        if at < to {
            steps.push((at.max(from), open));
        }
    }
    steps
}

/// Sets of open windows are looked for over so long: a year has every change of the clocks once,
/// and a week more every week around them.
const AHEAD: TimeDelta = TimeDelta::days(53 * 7);

/// Every set of windows that is open together within a year, each in the order of its openings;
/// the empty one with them, if it comes.
pub fn combinations(windows: &[Window], from: Timestamp) -> BTreeSet<Vec<usize>> {
    let steps = timeline(windows, from, from + AHEAD);
    steps.into_iter().map(|(_, open)| open).collect()
}

#[cfg(test)]
mod tests {
    use domain::ids::{TeamId, WindowId};
    use domain::weekly::{Day, Weekly, Zone};

    use super::*;

    fn window(name: &str, days: &[Day], from: &str, to: &str, guaranteed_milli: i64) -> Window {
        Window {
            id: WindowId::new(),
            pool: "h100".parse().expect("a name"),
            name: name.parse().expect("a name"),
            weekly: Weekly {
                days: days.to_vec(),
                from: from.parse().expect("a time"),
                to: to.parse().expect("a time"),
                zone: Zone::UTC,
            },
            quotas: vec![WindowQuota {
                team_id: TeamId::new(),
                team: "vision".parse().expect("a name"),
                amounts: Amounts {
                    guaranteed_milli,
                    limit_milli: None,
                    lend_limit_milli: None,
                    weight_milli: 1000,
                    max_per_user_milli: None,
                },
            }],
            version: 1,
        }
    }

    fn held(windows: &[Window], at: &str) -> Option<i64> {
        let mut quotas = BTreeMap::new();
        let open = open_at(windows, at.parse().expect("a time"));
        lay_over(&mut quotas, &open, |_, quota| quota.team.to_string());
        quotas.get("vision").map(|amounts| amounts.guaranteed_milli)
    }

    #[test]
    fn of_two_open_windows_the_one_that_opened_last_holds() {
        // 2026-01-05 is a Monday.
        let windows = [
            window("late", &[Day::Mon], "20:00", "23:00", 3000),
            window("early", &[Day::Mon], "18:00", "22:00", 2000),
        ];
        for (at, expected) in [
            ("2026-01-05T17:59:59Z", None),
            ("2026-01-05T18:00:00Z", Some(2000)),
            ("2026-01-05T20:00:00Z", Some(3000)),
            ("2026-01-05T22:30:00Z", Some(3000)),
            ("2026-01-05T23:00:00Z", None),
        ] {
            assert_eq!(held(&windows, at), expected, "{at}");
        }
        let moment = "2026-01-05T12:00:00Z".parse().expect("a time");
        let found = combinations(&windows, moment);
        assert_eq!(
            found,
            BTreeSet::from([vec![], vec![1], vec![1, 0], vec![0]])
        );
        let edge = next_edge(&windows, moment);
        assert_eq!(edge, Some("2026-01-05T18:00:00Z".parse().expect("a time")));
    }
}
