//! What an error's page says beyond its status, in the words of the message file.

use domain::FieldError;
use web::messages::{Messages, Phrase};

use super::refusal;
use crate::app::AppError;

/// Bytes in a KiB.
const KIB: usize = 1024;

/// The particulars of an error, where they help a person beyond what the status says.
pub fn detail(t: &Messages, error: &AppError) -> Option<Phrase> {
    match error {
        AppError::Invalid(fault) | AppError::Unreadable(fault) => Some(value(t, fault, None)),
        AppError::Impossible { code, field } => Some(value(t, field, Some(code))),
        AppError::Conflict { code, .. } => t
            .knows("refused_because", code)
            .then(|| t.word("refused_because", code)),
        AppError::TooMany {
            retry_after_seconds: seconds,
        }
        | AppError::TooBusy {
            retry_after_seconds: seconds,
        } => Some(
            t.say("error_detail.too_many")
                .nest("duration", t.duration(*seconds)),
        ),
        AppError::TooManyStreams { open, .. } => {
            Some(t.count("error_detail.too_many_streams", *open))
        }
        AppError::LogBusy { node, .. } => Some(t.say("error_detail.log_busy").with("node", node)),
        AppError::NodeAway { node } => Some(t.say("error_detail.node_away").with("node", node)),
        AppError::TooSlow { limit_seconds } => Some(
            t.say("error_detail.too_slow")
                .nest("duration", t.duration(*limit_seconds)),
        ),
        AppError::TooLarge { limit_bytes } => Some(
            t.say("error_detail.too_large")
                .with("kib", t.number(limit_bytes / KIB)),
        ),
        // The status says all that there is, or all that may be told.
        AppError::Unauthenticated
        | AppError::WrongCredentials
        | AppError::Forbidden { .. }
        | AppError::NotFound { .. }
        | AppError::Stale { .. }
        | AppError::PreconditionRequired
        | AppError::MediaType { .. }
        | AppError::Encoding { .. }
        | AppError::Unavailable(_)
        | AppError::Internal(_) => None,
    }
}

fn value(t: &Messages, fault: &FieldError, code: Option<&str>) -> Phrase {
    let mut refused = refusal::of_value(fault, fault.field.clone());
    refused.code = code.map(str::to_owned);
    refused.say(t)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Every code that a refusal of the server carries, from its source.
    fn codes(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("it can be listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                codes(&path, found);
            } else {
                let text = fs::read_to_string(&path).expect("it is text");
                let code = text.split("code: \"").skip(1);
                found.extend(code.filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
            }
        }
    }

    #[test]
    fn every_refusal_that_a_page_may_meet_has_words() {
        let mut found = Vec::new();
        let app = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/app");
        for noun in ["jobs", "nodes"] {
            codes(&app.join(noun), &mut found);
        }
        for file in ["error.rs", "teams.rs", "users.rs", "idempotency.rs"] {
            let text = fs::read_to_string(app.join(file)).expect("it is text");
            let code = text.split("code: \"").skip(1);
            found.extend(code.filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
        }
        assert!(found.len() > 10, "{found:?}");
        let t = Messages::english();
        found.retain(|code| !t.knows("refused_because", code));
        assert!(found.is_empty(), "no words for {found:?}");
    }
}
