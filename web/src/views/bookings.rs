//! The bookings of a pool: a calendar by weeks, what is in their way, and the form that makes one.

use askama::Template;

use crate::messages::{Messages, Phrase};
use crate::parts::Team;
use crate::shell::{Section, Shell};

use super::{Changes, Effect, PolicySave, PolicyTabs, Refusal};

/// The bookings of a pool.
#[derive(Debug, Clone, Template)]
#[template(path = "bookings.html")]
pub struct BookingsView {
    /// What surrounds the page.
    pub shell: Shell,
    /// Where it stands among the pages of policies.
    pub tabs: PolicyTabs,
    /// The pool.
    pub pool: String,
    /// Whose clocks are shown.
    pub zone: String,
    /// The weeks of the calendar.
    pub weeks: Vec<CalendarWeek>,
    /// The same calendar of earlier weeks, of the present ones, and of later ones.
    pub steps: [String; 3],
    /// The bookings that reach into these weeks.
    pub rows: Vec<BookingRow>,
    /// Teams that may be booked for.
    pub teams: Vec<String>,
    /// The form, for who may book.
    pub form: Option<BookingForm>,
    /// What is to be sent with the form.
    pub save: PolicySave,
    /// What is wrong with the whole of it.
    pub errors: Vec<Refusal>,
    /// What would come of it, once it was tried.
    pub effect: Option<Effect>,
    /// What was changed.
    pub changes: Changes,
}

/// A week of the calendar.
#[derive(Debug, Clone)]
pub struct CalendarWeek {
    /// Its days.
    pub days: Vec<CalendarDay>,
    /// The lines of its bookings: what stands beside each other does not overlap.
    pub lanes: Vec<Vec<CalendarCell>>,
}

/// A day of the calendar.
#[derive(Debug, Clone)]
pub struct CalendarDay {
    /// The day of the week, as `mon`.
    pub weekday: &'static str,
    /// The day of the month.
    pub day: u32,
    /// The month, from 1.
    pub month: u32,
    /// Whether it is today.
    pub today: bool,
}

/// Some days of a line: free, or of one booking.
#[derive(Debug, Clone)]
pub struct CalendarCell {
    /// How many days.
    pub days: usize,
    /// The place of the booking among the rows.
    pub booking: Option<usize>,
}

/// A booking.
#[derive(Debug, Clone)]
pub struct BookingRow {
    /// Its name.
    pub name: String,
    /// The team that it is for.
    pub team: Team,
    /// How much; thousandths of a GPU.
    pub gpus: i64,
    /// When it begins and ends, by the clocks that are shown.
    pub span: (String, String),
    /// Where it stands, as a code.
    pub state: &'static str,
    /// What is in its way.
    pub conflicts: Vec<BookingConflict>,
    /// Since when that is known, by the clocks that are shown.
    pub conflict_since: Option<String>,
    /// Its version.
    pub version: i64,
    /// Where it is changed.
    pub edit: String,
}

/// A time in which more is promised of the pool than it has; thousandths of a GPU.
#[derive(Debug, Clone)]
pub struct BookingConflict {
    /// When it begins and ends, by the clocks that are shown.
    pub span: (String, String),
    /// How much more.
    pub excess: i64,
    /// What the pool has.
    pub capacity: i64,
    /// What is guaranteed then.
    pub guaranteed: i64,
    /// What is booked then.
    pub booked: i64,
    /// The other bookings of that time that the reader may know.
    pub with: Vec<String>,
}

/// The form that makes a booking, or changes one.
#[derive(Debug, Clone, Default)]
pub struct BookingForm {
    /// Whether it changes one that is there.
    pub changes: bool,
    /// The name.
    pub name: String,
    /// The team.
    pub team: String,
    /// How much.
    pub gpus: String,
    /// When it begins, as `2026-12-01T09:00`.
    pub from: String,
    /// When it ends.
    pub to: String,
    /// The version that was read.
    pub version: i64,
    /// What is wrong, each with its field.
    pub errors: Vec<Refusal>,
}

/// From when to when.
pub(crate) fn span(t: &Messages, span: &(String, String)) -> Phrase {
    t.say("bookings.span")
        .with("from", &span.0)
        .with("to", &span.1)
}

impl BookingForm {
    fn error(&self, field: &str) -> Option<&Refusal> {
        self.errors.iter().find(|error| error.field == field)
    }

    fn wrong(&self, field: &str) -> bool {
        self.error(field).is_some()
    }
}

impl BookingRow {
    fn state_word(&self, t: &Messages) -> Phrase {
        t.word("booking_state", self.state)
    }

    fn tone(&self) -> &'static str {
        match (self.state, self.conflicts.is_empty()) {
            ("ended", _) => "w0",
            (_, true) => "w1",
            (_, false) => "w3",
        }
    }
}

impl BookingConflict {
    fn words(&self, t: &Messages, pool: &str) -> Phrase {
        let words = t
            .say("bookings.conflict")
            .nest("span", span(t, &self.span))
            .with("pool", pool)
            .nest("excess", t.gpus(self.excess))
            .with("guaranteed", t.amount(self.guaranteed))
            .with("booked", t.amount(self.booked))
            .with("capacity", t.amount(self.capacity));
        if self.with.is_empty() {
            return words;
        }
        t.say("bookings.conflict_with")
            .nest("conflict", words)
            .with("with", self.with.join(", "))
    }
}

impl BookingsView {
    fn row(&self, place: &usize) -> &BookingRow {
        &self.rows[*place]
    }

    fn conflicts(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|row| !row.conflicts.is_empty()).count()
    }

    fn coming(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|row| row.state != "ended").count()
    }
}
