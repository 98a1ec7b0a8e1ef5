//! Why a person does something, in words: kept with what was done, and shown beside it.

use super::AppError;

/// Longest reason that is kept, in characters; a sentence.
const REASON_CHARS_MAX: usize = 200;

/// Checks what a person says.
pub fn check_reason(reason: &str) -> Result<(), AppError> {
    let printable = reason.chars().all(domain::error::printable);
    if printable && reason.chars().count() <= REASON_CHARS_MAX {
        return Ok(());
    }
    Err(AppError::invalid(
        "reason",
        reason,
        format!("at most {REASON_CHARS_MAX} characters without control characters"),
    ))
}
