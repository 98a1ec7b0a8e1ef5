//! The weekly windows of a pool: a grid of the week for each time zone, and the form that makes one.

use askama::Template;
use chrono::{DateTime, Utc};

use crate::messages::{Messages, Phrase};
use crate::parts::Team;
use crate::shell::{Section, Shell};

use super::{
    Changes, Effect, PolicySave, PolicyTabs, PolicyWarning, QUOTA_KEYS, QuotaCell, Refusal,
};

/// The weekly windows of a pool.
#[derive(Debug, Clone, Template)]
#[template(path = "windows.html")]
pub struct WindowsView {
    /// What surrounds the page.
    pub shell: Shell,
    /// Where it stands among the pages of policies.
    pub tabs: PolicyTabs,
    /// The pool.
    pub pool: String,
    /// A week for each time zone that windows are in.
    pub grids: Vec<WeekGrid>,
    /// The windows, by name.
    pub rows: Vec<WindowRow>,
    /// The form, for who may make windows.
    pub form: Option<WindowForm>,
    /// What is to be sent with the form.
    pub save: PolicySave,
    /// What is wrong with the whole of it.
    pub errors: Vec<Refusal>,
    /// What would come of it, once it was tried.
    pub effect: Option<Effect>,
    /// What was changed.
    pub changes: Changes,
}

/// A week by the clocks of one time zone.
#[derive(Debug, Clone)]
pub struct WeekGrid {
    /// The time zone.
    pub zone: String,
    /// The days, each with its lines.
    pub days: Vec<GridDay>,
}

/// A day of the week.
#[derive(Debug, Clone)]
pub struct GridDay {
    /// Its code, as `mon`.
    pub day: &'static str,
    /// The lines of its windows: what stands beside each other does not overlap.
    pub lanes: Vec<Vec<GridCell>>,
}

/// A part of a day: free, or of one window.
#[derive(Debug, Clone)]
pub struct GridCell {
    /// How many half hours.
    pub halves: usize,
    /// The place of the window among the rows.
    pub window: Option<usize>,
}

/// A window.
#[derive(Debug, Clone)]
pub struct WindowRow {
    /// Its name.
    pub name: String,
    /// The days on which it opens.
    pub days: Vec<&'static str>,
    /// When it opens and closes.
    pub span: (String, String),
    /// Whether it closes on the next day.
    pub overnight: bool,
    /// Whose clocks are meant.
    pub zone: String,
    /// Whether it is open.
    pub open: bool,
    /// When it opens or closes next.
    pub next_edge_at: Option<DateTime<Utc>>,
    /// What holds meanwhile.
    pub quotas: Vec<WindowQuota>,
    /// What does not keep it from holding.
    pub warnings: Vec<PolicyWarning>,
    /// Its version.
    pub version: i64,
    /// Where it is changed.
    pub edit: String,
}

/// What a team has while a window is open.
#[derive(Debug, Clone)]
pub struct WindowQuota {
    /// The team.
    pub team: Team,
    /// The numbers, in the order of [`QUOTA_KEYS`]; empty for none.
    pub values: [String; 5],
    /// The same while no window is open; none for a team that has no quota then.
    pub else_values: Option<[String; 5]>,
}

/// The form that makes a window, or changes one.
#[derive(Debug, Clone, Default)]
pub struct WindowForm {
    /// Whether it changes one that is there.
    pub changes: bool,
    /// The name.
    pub name: String,
    /// Each day, and whether it is chosen.
    pub days: Vec<(&'static str, bool)>,
    /// When it opens.
    pub from: String,
    /// When it closes.
    pub to: String,
    /// Whose clocks are meant.
    pub zone: String,
    /// A row for each team.
    pub lines: Vec<WindowLine>,
    /// The version that was read.
    pub version: i64,
    /// What is wrong, each with its field.
    pub errors: Vec<Refusal>,
}

/// A team's row of the form.
#[derive(Debug, Clone)]
pub struct WindowLine {
    /// The team.
    pub team: Team,
    /// How deep it stands in the tree, from 0.
    pub depth: usize,
    /// The numbers, in the order of [`QUOTA_KEYS`].
    pub cells: Vec<QuotaCell>,
}

/// Levels that are indented; deeper ones look like the last.
const INDENTED_LEVELS: usize = 2;
/// Looks of windows, which they take turns in.
const LOOKS: usize = 2;

impl WindowLine {
    fn level(&self) -> usize {
        self.depth.min(INDENTED_LEVELS)
    }
}

impl WindowForm {
    fn error(&self, field: &str) -> Option<&Refusal> {
        self.errors.iter().find(|error| error.field == field)
    }

    fn wrong(&self, field: &str) -> bool {
        self.error(field).is_some()
    }
}

impl WindowQuota {
    /// What differs from what holds else, each in words.
    fn differences(&self, t: &Messages) -> Vec<Phrase> {
        let empty = |key: &str, value: &String| match value.as_str() {
            "" => t.word("quota_empty", key),
            value => Phrase::literal(value),
        };
        QUOTA_KEYS
            .iter()
            .enumerate()
            .filter_map(|(at, key)| {
                let value = &self.values[at];
                let before = self.else_values.as_ref().map(|values| &values[at]);
                if before == Some(value) {
                    return None;
                }
                let words = match before {
                    Some(before) => t.say("changes.from_to").nest("before", empty(key, before)),
                    None => t.say("changes.set"),
                };
                Some(
                    words
                        .nest("key", t.word("policy_key", key))
                        .nest("after", empty(key, value)),
                )
            })
            .collect()
    }
}

impl WindowRow {
    fn days_words(&self, t: &Messages) -> Phrase {
        Phrase::list(self.days.iter().map(|day| t.word("policy_value", day)))
    }

    fn span_words(&self, t: &Messages) -> Phrase {
        let words = if self.overnight {
            t.say("windows.span_overnight")
        } else {
            t.say("bookings.span")
        };
        words.with("from", &self.span.0).with("to", &self.span.1)
    }
}

impl WindowsView {
    fn row(&self, place: &usize) -> &WindowRow {
        &self.rows[*place]
    }

    /// The look of a window, which differs from that of its neighbours.
    fn look(&self, place: &usize) -> usize {
        place % LOOKS + 1
    }

    fn open(&self) -> usize {
        self.rows.iter().filter(|row| row.open).count()
    }

    fn keys(&self) -> [&'static str; 5] {
        QUOTA_KEYS
    }

    /// Every third hour, at the head of the grid.
    fn hours(&self) -> Vec<String> {
        (0..24)
            .step_by(3)
            .map(|hour| format!("{hour:02}:00"))
            .collect()
    }
}
