//! The week as a grid of days and half hours, with the windows of a pool.

use domain::weekly::{Day, Zone};
use web::views::{GridCell, GridDay, WeekGrid};

use super::lanes::{Part, Span, pack};
use crate::app::windows::Window;

/// Half hours of a day: the columns of the grid.
const HALVES: usize = 48;
/// Minutes in half an hour.
const HALF_MINUTES: usize = 30;

/// A week for each time zone that windows are in.
pub fn grids(windows: &[Window]) -> Vec<WeekGrid> {
    let mut zones: Vec<Zone> = Vec::new();
    for window in windows {
        if !zones.contains(&window.time_zone) {
            zones.push(window.time_zone);
        }
    }
    let grid = |zone: Zone| {
        let here = windows
            .iter()
            .enumerate()
            .filter(|(_, w)| w.time_zone == zone);
        let spans: Vec<Span> = here.flat_map(|(place, w)| spans(w, place)).collect();
        let day = |(at, day): (usize, &Day)| GridDay {
            day: day.as_str(),
            lanes: lanes(&spans, at * HALVES),
        };
        WeekGrid {
            zone: zone.to_string(),
            days: Day::ALL.iter().enumerate().map(day).collect(),
        }
    };
    zones.into_iter().map(grid).collect()
}

/// The half hours of the week that a window touches, from and to, day by day, with its place.
fn spans(window: &Window, place: usize) -> Vec<Span> {
    let (from, to) = (window.from.minutes(), window.to.minutes());
    let first = usize::from(from) / HALF_MINUTES;
    let last = usize::from(to).div_ceil(HALF_MINUTES);
    let mut spans = Vec::new();
    for day in &window.days {
        let at = Day::ALL.iter().position(|known| known == day).unwrap_or(0);
        if to > from {
            spans.push((at * HALVES + first, at * HALVES + last, place));
            continue;
        }
        // It ends on the next day, which after Sunday is Monday.
        let next = (at + 1) % Day::ALL.len();
        spans.push((at * HALVES + first, (at + 1) * HALVES, place));
        if last > 0 {
            spans.push((next * HALVES, next * HALVES + last, place));
        }
    }
    spans
}

/// The lines of a day that begins at a half hour of the week; at least one, which may be free.
fn lanes(spans: &[Span], midnight: usize) -> Vec<Vec<GridCell>> {
    let today = spans
        .iter()
        .filter(|(from, ..)| (midnight..midnight + HALVES).contains(from))
        .map(|(from, to, place)| (from - midnight, to - midnight, *place));
    let cell = |part: Part| GridCell {
        halves: part.length,
        window: part.of,
    };
    let lanes = pack(today.collect(), HALVES).into_iter();
    let mut lanes: Vec<Vec<GridCell>> = lanes
        .map(|lane| lane.into_iter().map(cell).collect())
        .collect();
    if lanes.is_empty() {
        lanes.push(vec![GridCell {
            halves: HALVES,
            window: None,
        }]);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(name: &str, days: &[Day], from: &str, to: &str) -> Window {
        Window {
            name: name.parse().expect("a name"),
            pool: "h100".parse().expect("a name"),
            days: days.to_vec(),
            from: from.parse().expect("a time"),
            to: to.parse().expect("a time"),
            time_zone: Zone::UTC,
            quotas: Vec::new(),
            open: false,
            next_edge_at: None,
            warnings: Vec::new(),
            version: 1,
        }
    }

    #[test]
    fn the_week_shows_a_night_on_both_of_its_days_and_what_overlaps_in_lines_of_its_own() {
        let windows = [
            window("night", &[Day::Sun], "22:00", "06:15"),
            window("day", &[Day::Mon], "06:00", "20:00"),
        ];
        let grids = grids(&windows);
        let told = |day: usize| -> Vec<Vec<(usize, Option<usize>)>> {
            let lanes = grids[0].days[day].lanes.iter();
            lanes
                .map(|lane| lane.iter().map(|cell| (cell.halves, cell.window)).collect())
                .collect()
        };
        assert_eq!(told(6), [vec![(44, None), (4, Some(0))]]);
        // The quarter of an hour takes the whole half.
        assert_eq!(
            told(0),
            [
                vec![(13, Some(0)), (35, None)],
                vec![(12, None), (28, Some(1)), (8, None)]
            ]
        );
        assert_eq!(told(1), [vec![(48, None)]]);
    }
}
