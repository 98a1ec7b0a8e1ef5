//! Says what goes on: one line per stage, with the seconds since the start.

use std::io::Write;
use std::time::{Duration, Instant};

/// Prints the stages of one start.
#[derive(Debug, Clone, Copy)]
pub struct Stages {
    begun: Instant,
    before: Duration,
    quiet: bool,
}

impl Stages {
    /// Counts from now, `before` having passed already (in the shell that built all this).
    pub fn begin(before: Duration) -> Self {
        Self {
            begun: Instant::now(),
            before,
            quiet: false,
        }
    }

    /// Prints nothing: for tests.
    pub fn quiet() -> Self {
        Self {
            begun: Instant::now(),
            before: Duration::ZERO,
            quiet: true,
        }
    }

    /// Names the stage that begins.
    pub fn say(&self, what: impl std::fmt::Display) {
        if self.quiet {
            return;
        }
        let seconds = (self.before + self.begun.elapsed()).as_secs();
        let mut out = std::io::stdout().lock();
        // A closed pipe must not stop what is being started.
        let _ = writeln!(out, "[{seconds:>4} s] {what}");
        let _ = out.flush();
    }
}
