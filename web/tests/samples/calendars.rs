//! The pages of bookings and weekly windows.

use web::shell::Section;
use web::views::*;

use super::{cells, changes, effect, minutes_ago, save, shell, tabs, team};

pub fn bookings() -> BookingsView {
    let days = |first| {
        ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
            .iter()
            .zip(first..)
            .map(|(weekday, day)| CalendarDay {
                weekday,
                day,
                month: 11,
                today: day == 18,
            })
            .collect()
    };
    let cell = |days, booking| CalendarCell { days, booking };
    let row = |name: &str, state, conflicts| BookingRow {
        name: name.into(),
        team: team("vision"),
        gpus: 4000,
        span: ("2026-11-17 09:00".into(), "2026-11-19 17:00".into()),
        state,
        conflicts,
        conflict_since: (name == "demo").then(|| "2026-11-12 08:30".into()),
        version: 1,
        edit: format!("/pools/h100/bookings?edit={name}#form"),
    };
    let conflict = BookingConflict {
        span: ("2026-11-17 09:00".into(), "2026-11-18 12:00".into()),
        excess: 2000,
        capacity: 8000,
        guaranteed: 6000,
        booked: 4000,
        with: vec!["demo2".into()],
    };
    let wrong = |field: &str, value: &str| Refusal {
        field: field.into(),
        value: value.into(),
        ..Refusal::default()
    };
    BookingsView {
        shell: shell(Section::Policies, "/pools/h100/bookings"),
        tabs: tabs(PolicyTab::Bookings),
        pool: "h100".into(),
        zone: "Asia/Shanghai".into(),
        weeks: vec![
            CalendarWeek {
                days: days(16),
                lanes: vec![
                    vec![cell(1, None), cell(3, Some(0)), cell(3, None)],
                    vec![cell(2, None), cell(5, Some(1))],
                ],
            },
            CalendarWeek {
                days: days(23),
                lanes: vec![],
            },
        ],
        steps: ["/a".into(), "/b".into(), "/c".into()],
        rows: vec![
            row("demo", "ahead", vec![conflict]),
            row("demo2", "lasts", vec![]),
        ],
        teams: vec!["speech".into(), "vision".into()],
        form: Some(BookingForm {
            name: "x y".into(),
            team: "vision".into(),
            gpus: "0".into(),
            from: "2026-12-01T09:00".into(),
            errors: vec![
                wrong("booking_name", "x y"),
                wrong("gpus", "0"),
                wrong("from", "1e12"),
                wrong("to", ""),
                wrong("team", "n9"),
            ],
            ..BookingForm::default()
        }),
        save: save("/pools/h100/bookings"),
        errors: vec![Refusal {
            code: Some("changed_meanwhile".into()),
            ..Refusal::default()
        }],
        effect: None,
        changes: changes(),
    }
}

/// The same as somebody sees it who may not book.
pub fn bookings_seen() -> BookingsView {
    BookingsView {
        form: None,
        rows: vec![],
        weeks: vec![],
        errors: vec![],
        ..bookings()
    }
}

pub fn windows() -> WindowsView {
    let cell = |halves, window| GridCell { halves, window };
    let texts = |values: [&str; 5]| values.map(Into::into);
    let row = |name: &str, open| WindowRow {
        name: name.into(),
        days: vec!["mon", "tue"],
        span: ("20:00".into(), "08:00".into()),
        overnight: true,
        zone: "Asia/Shanghai".into(),
        open,
        next_edge_at: Some(minutes_ago(-60)),
        quotas: vec![
            WindowQuota {
                team: team("vision"),
                values: texts(["8", "", "2", "1", ""]),
                else_values: Some(texts(["4", "8", "2", "1", ""])),
            },
            WindowQuota {
                team: team("speech"),
                values: texts(["4", "", "", "1", ""]),
                else_values: Some(texts(["4", "", "", "1", ""])),
            },
            WindowQuota {
                team: team("platform"),
                values: texts(["1", "", "", "1", ""]),
                else_values: None,
            },
        ],
        version: 1,
        edit: format!("/pools/h100/windows?edit={name}#form"),
    };
    let wrong = |field: &str, value: &str| Refusal {
        field: field.into(),
        value: value.into(),
        ..Refusal::default()
    };
    WindowsView {
        shell: shell(Section::Policies, "/pools/h100/windows"),
        tabs: tabs(PolicyTab::Windows),
        pool: "h100".into(),
        grids: vec![WeekGrid {
            zone: "Asia/Shanghai".into(),
            days: vec![
                GridDay {
                    day: "mon",
                    lanes: vec![
                        vec![cell(40, None), cell(8, Some(0))],
                        vec![cell(48, Some(1))],
                    ],
                },
                GridDay {
                    day: "tue",
                    lanes: vec![vec![cell(16, Some(0)), cell(32, None)]],
                },
            ],
        }],
        rows: vec![row("nights", true), row("nights2", false)],
        form: Some(WindowForm {
            name: "x y".into(),
            days: vec![("mon", true), ("tue", false)],
            from: "20:00".into(),
            to: "25:00".into(),
            zone: "Mars/Olympus".into(),
            lines: vec![WindowLine {
                team: team("vision"),
                depth: 1,
                cells: cells("quota/vision", ["x", "", "", "", ""], None),
            }],
            errors: vec![
                wrong("window_name", "x y"),
                wrong("days", ""),
                wrong("from", ""),
                wrong("to", "25:00"),
                wrong("time_zone", "Mars/Olympus"),
                wrong("quotas", ""),
            ],
            ..WindowForm::default()
        }),
        save: save("/pools/h100/windows"),
        errors: vec![],
        effect: Some(Effect {
            windows_at: Some(minutes_ago(-600)),
            ..effect()
        }),
        changes: changes(),
    }
}

/// The same as somebody sees it who may not change them, where there is none.
pub fn windows_seen() -> WindowsView {
    WindowsView {
        form: None,
        rows: vec![],
        grids: vec![],
        effect: None,
        changes: Changes::default(),
        ..windows()
    }
}
