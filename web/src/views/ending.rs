//! How an attempt ended, by code and number, in the words of the message file.

use domain::state::AttemptEnd;

use crate::messages::{Messages, Phrase};

/// The shell's code for a program that was found but may not be run.
const CODE_NOT_EXECUTABLE: i32 = 126;
/// The shell's code for a program that was not found.
const CODE_NOT_FOUND: i32 = 127;
/// Shells add this to a signal's number when a program was ended by it.
const CODE_SIGNAL_BASE: i32 = 128;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The end.
    pub end: AttemptEnd,
    /// The exit code, when the process gave one.
    pub exit_code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
    /// More, as the server says it.
    pub message: Option<String>,
    /// Who suspended the job, where that is what ended it.
    pub suspended_by: Option<String>,
    /// The memory that each worker had asked for, in MiB.
    pub memory_mib: Option<i64>,
}

impl Ending {
    /// The end in words: exit codes and signals that have a meaning say it.
    pub fn explain(&self, t: &Messages) -> Phrase {
        let signal = self
            .signal
            .or_else(|| self.exit_code.map(|code| code - CODE_SIGNAL_BASE))
            .filter(|n| *n > 0);
        match (self.end, self.exit_code) {
            (AttemptEnd::Exit, Some(0)) => t.say("ended.well"),
            (AttemptEnd::Exit | AttemptEnd::Invalid, Some(CODE_NOT_FOUND)) => {
                t.say("ended.not_found")
            }
            (AttemptEnd::Exit | AttemptEnd::Invalid, Some(CODE_NOT_EXECUTABLE)) => {
                t.say("ended.not_executable")
            }
            (AttemptEnd::Exit, Some(code)) => {
                match signal.filter(|n| t.knows("signal", &n.to_string())) {
                    Some(n) => t
                        .say("ended.exit_signal")
                        .with("code", code)
                        .nest("signal", t.word("signal", &n.to_string())),
                    None => t.say("ended.exit").with("code", code),
                }
            }
            (AttemptEnd::Signal, _) => match signal.map(|number| number.to_string()) {
                Some(number) => t
                    .say("ended.signal")
                    .with("number", &number)
                    .nest("signal", t.word("signal", &number)),
                None => t.say("ended.some_signal"),
            },
            (end, _) => match (end, &self.suspended_by, self.memory_mib) {
                (AttemptEnd::Preempted, Some(name), _) => {
                    t.say("ended.suspended").with("name", name)
                }
                (AttemptEnd::Oom, _, Some(mib)) => {
                    t.say("ended.over_memory").nest("memory", t.memory(mib))
                }
                _ => t.word("ended_by", end.as_str()),
            },
        }
    }

    /// What may help, where there is something general to say.
    pub fn advise(&self, t: &Messages) -> Option<Phrase> {
        let code = match (self.end, self.exit_code) {
            (AttemptEnd::Exit | AttemptEnd::Invalid, Some(CODE_NOT_FOUND)) => "not_found",
            (AttemptEnd::Exit | AttemptEnd::Invalid, Some(CODE_NOT_EXECUTABLE)) => "not_executable",
            (AttemptEnd::Exit, Some(0)) => return None,
            (AttemptEnd::Preempted, _) if self.suspended_by.is_some() => return None,
            (end, _) => end.as_str(),
        };
        t.knows("advice", code).then(|| t.word("advice", code))
    }

    /// What a node said of a start that it refused: its own words, which no code has.
    pub fn said(&self) -> Option<&str> {
        let own = matches!(self.end, AttemptEnd::StartRefused | AttemptEnd::Invalid);
        self.message
            .as_deref()
            .filter(|_| own && self.exit_code.is_none())
    }

    /// Whether the state says all of it already.
    pub(super) fn told_by_state(&self) -> bool {
        self.end == AttemptEnd::Cancelled
    }

    /// Whether it ended well.
    pub(super) fn good(&self) -> bool {
        self.end == AttemptEnd::Exit && self.exit_code == Some(0)
    }
}
