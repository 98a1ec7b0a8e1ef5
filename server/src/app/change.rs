//! A change of something that has a version: what it builds on, and whether it changes anything.

use super::AppError;

/// Whether a change would leave a thing as it is: it is then not written, and makes no version, no
/// event and no row of the audit log. That the version is the one that was read is looked at first:
/// who builds on another one is told so, even where both want the same.
pub fn leaves<T: PartialEq>(
    (given, present): (i64, i64),
    before: &T,
    after: &T,
) -> Result<bool, AppError> {
    if given != present {
        return Err(AppError::Stale {
            given: given.to_string(),
            present,
        });
    }
    Ok(before == after)
}
