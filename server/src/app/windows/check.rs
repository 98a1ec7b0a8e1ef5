//! What a window may be: its days, its quotas, and how many a pool has.

use domain::weekly::Day;
use domain::{FieldError, MilliGpu};

use super::{TEAMS_MAX, WINDOWS_MAX, WindowForm, WindowQuota};
use crate::app::quotas::{
    self,
    tree::{Excess, Promises},
};
use crate::app::{AppError, RefusalCode};
use crate::store::windows::WindowQuota as QuotaRow;
use crate::store::{self, Tx};

/// Checks what a window alone can tell.
pub(super) fn check(form: &WindowForm) -> Result<(), AppError> {
    if form.days.is_empty() {
        let remedy = "at least one day, such as mon";
        return Err(AppError::invalid("days", "[]", remedy));
    }
    let again = |(i, day): &(usize, &Day)| form.days[..*i].contains(day);
    if let Some((_, day)) = form.days.iter().enumerate().find(again) {
        return Err(AppError::invalid("days", day, "each day once"));
    }
    if form.quotas.is_empty() || form.quotas.len() > TEAMS_MAX {
        let remedy = format!("the quotas of 1 to {TEAMS_MAX} teams");
        return Err(AppError::invalid("quotas", form.quotas.len(), remedy));
    }
    Ok(())
}

/// The rows of a window's quotas.
pub(super) async fn quota_rows(
    tx: &mut Tx,
    asked: &[WindowQuota],
) -> Result<Vec<QuotaRow>, AppError> {
    let tree = store::teams::tree(tx).await?;
    let mut rows: Vec<QuotaRow> = Vec::with_capacity(asked.len());
    for (index, quota) in asked.iter().enumerate() {
        let refused =
            |remedy| AppError::invalid(&format!("quotas[{index}].team"), &quota.team, remedy);
        let team = tree.iter().find(|node| node.name == quota.team);
        let team = team.ok_or_else(|| refused("the name of a team"))?;
        if rows.iter().any(|row| row.team_id == team.id) {
            return Err(refused("each team once"));
        }
        let amounts = quotas::checked(&quota.quota).map_err(|error| quotas::at(index, error))?;
        rows.push(QuotaRow {
            team_id: team.id,
            team: quota.team.clone(),
            amounts,
        });
    }
    Ok(rows)
}

/// Refuses more windows than a pool may have.
pub(in crate::app) fn check_count(windows: usize) -> Result<(), AppError> {
    if windows <= WINDOWS_MAX {
        return Ok(());
    }
    Err(AppError::conflict(
        RefusalCode::TooManyWindows,
        format!("a pool has at most {WINDOWS_MAX} windows"),
        FieldError::new("windows", windows, "remove one first"),
    ))
}

/// Which of a window's quotas asks for too much, and the guarantee that it asks for: the first that
/// sets what the team has or a team below it has.
pub(in crate::app) fn sent(
    quotas: &[WindowQuota],
    promises: &Promises,
    excess: &Excess,
) -> Option<(usize, MilliGpu)> {
    let index = quotas
        .iter()
        .position(|asked| promises.below(&asked.team, excess))?;
    Some((index, quotas[index].quota.guaranteed))
}

/// The field of a guarantee among a window's quotas.
pub(in crate::app) fn at(index: usize) -> String {
    format!("quotas[{index}].quota.guaranteed")
}
