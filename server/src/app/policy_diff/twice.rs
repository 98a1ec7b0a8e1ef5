//! A draft names each object once.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::draft::PolicyDraft;
use crate::app::{AppError, quotas};

/// Refuses an object that is there twice: which of both would hold is nobody's to guess.
pub(super) fn refuse(draft: &PolicyDraft) -> Result<(), AppError> {
    let pools = again(draft.pools.iter().map(|one| &one.pool));
    let classes = again(draft.classes.iter().map(|one| &one.name));
    let quotas = again(draft.quotas.iter().map(|one| (&one.team, &one.pool)));
    let bookings = again(draft.bookings.iter().map(|one| (&one.pool, &one.name)));
    let windows = again(draft.windows.iter().map(|one| (&one.pool, &one.name)));
    let versions = again(draft.versions.iter());
    let refused = |field: String, value: &dyn Display, remedy: &str| {
        Err(AppError::invalid(&field, value, remedy))
    };
    if let Some((at, pool)) = pools {
        return refused(format!("pools[{at}].pool"), pool, "each pool once");
    }
    if let Some((at, name)) = classes {
        return refused(format!("classes[{at}].name"), name, "each class once");
    }
    if let Some((at, (team, _))) = quotas {
        return refused(format!("quotas[{at}].team"), team, quotas::ROW_ONCE);
    }
    if let Some((at, (_, name))) = bookings {
        let remedy = "each booking of a pool once";
        return refused(format!("bookings[{at}].name"), name, remedy);
    }
    if let Some((at, (_, name))) = windows {
        let remedy = "each window of a pool once";
        return refused(format!("windows[{at}].name"), name, remedy);
    }
    if let Some((at, change)) = versions {
        return refused(format!("versions[{at}]"), change, "each change once");
    }
    Ok(())
}

/// The first of these that is there a second time, and its place.
fn again<T: Ord + Copy>(all: impl Iterator<Item = T>) -> Option<(usize, T)> {
    let mut known = BTreeSet::new();
    all.enumerate().find(|(_, one)| !known.insert(*one))
}
