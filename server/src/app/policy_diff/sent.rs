//! What of a draft asks for more than a team above has.

use domain::name::Name;

use super::draft::PolicyDraft;
use crate::app::quotas::tree::{Excess, Promises};
use crate::app::{AppError, windows};

/// Too much as the draft asks for it: by one of the quotas or windows that were sent, which are
/// the first so many, or by a change that is gone back to.
pub(super) fn exceeded(
    draft: &PolicyDraft,
    (quotas, windows): (usize, usize),
    promises: &Promises,
    excess: Box<Excess>,
) -> AppError {
    let here = |pool: &Name| *pool == promises.pool;
    let quota = draft
        .quotas
        .iter()
        .take(quotas)
        .enumerate()
        .find(|(_, one)| here(&one.pool) && promises.below(&one.team, &excess));
    if let Some((index, one)) = quota {
        let field = format!("quotas[{index}].quota.guaranteed");
        return excess.refused(field, one.quota.guaranteed);
    }
    let mut windows = draft.windows.iter().take(windows).enumerate();
    let window = windows.find_map(|(index, one)| {
        let sent = windows::sent(&one.quotas, promises, &excess);
        let (at, asked) = sent.filter(|_| here(&one.pool))?;
        Some((format!("windows[{index}].{}", windows::at(at)), asked))
    });
    match window {
        Some((field, asked)) => excess.refused(field, asked),
        None => excess.refused("versions", "a change that is gone back to"),
    }
}
