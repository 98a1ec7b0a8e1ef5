//! A value that a form or an address was refused for, in the words of the message file.

use domain::name::{JOB_NAME_CHARS_MAX, NAME_CHARS_MAX};
use domain::password::PASSWORD_CHARS_MIN;
use domain::spec::{
    ARRAY_COUNT_MAX, FILES_BYTES_MAX, GPUS_PER_WORKER_MAX, RETRIES_MAX, WORKERS_MAX,
};

use crate::format::grouped;
use crate::messages::{Messages, Phrase};

/// Bytes in a KiB.
const KIB: usize = 1024;

/// Why a form or an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// The form's field, or the address's parameter; a field that the form does not show is of the whole.
    pub field: String,
    /// What stands in the way, as a code, where it is not the value alone.
    pub code: Option<String>,
    /// The value as it was given, shortened.
    pub value: String,
    /// What is wrong, where it takes more words than its code has.
    pub told: Option<Phrase>,
}

impl Refusal {
    /// What is wrong, and what would be accepted.
    pub fn say(&self, t: &Messages) -> Phrase {
        if let Some(told) = &self.told {
            return told.clone();
        }
        let code = self
            .code
            .as_deref()
            .filter(|code| t.knows("refused_because", code));
        match code {
            Some(code) => self.labelled(t, t.word("refused_because", code)),
            None if t.knows("refused", &self.field) => {
                let rule = t
                    .word("refused", &self.field)
                    .with("name", NAME_CHARS_MAX)
                    .with("job_name", JOB_NAME_CHARS_MAX)
                    .with("workers", grouped(WORKERS_MAX.into()))
                    .with("gpus", GPUS_PER_WORKER_MAX)
                    .with("retries", RETRIES_MAX)
                    .with("array_count", grouped(ARRAY_COUNT_MAX.into()))
                    .with("password", PASSWORD_CHARS_MIN)
                    .with("kib", FILES_BYTES_MAX / KIB);
                let rule = if self.value.trim().is_empty() {
                    rule
                } else {
                    t.say("refusal.value")
                        .nest("value", self.shown_value(t))
                        .nest("rule", rule)
                };
                self.labelled(t, rule)
            }
            None if self.value.trim().is_empty() => {
                t.say("refusal.missing").with("field", &self.field)
            }
            None => t
                .say("refusal.other")
                .with("field", &self.field)
                .with("value", &self.value),
        }
    }

    /// The value as the form shows it: a mode by its words.
    fn shown_value(&self, t: &Messages) -> Phrase {
        if self.field == "share" && t.knows("mode", &self.value) {
            return t.word("mode", &self.value);
        }
        Phrase::literal(&self.value)
    }

    fn labelled(&self, t: &Messages, rule: Phrase) -> Phrase {
        if t.knows("field", &self.field) {
            t.say("refusal.field")
                .nest("field", t.word("field", &self.field))
                .nest("rule", rule)
        } else {
            rule
        }
    }
}
