//! Closing: a period that is closing gets its credits, its unused commitments and a statement for each team.

use domain::ids::StatementId;
use domain::money::{BILLED_DECIMALS, round_lines};
use domain::state::PeriodState;
use rust_decimal::Decimal;

use crate::store::billing_statements::{self, Billed, NewStatement};
use crate::store::{Database, Tx, commitments, ledger, periods};

/// Periods that are looked at for one to close: ten years, of which all but a few are closed already.
const PERIODS_MAX: i64 = 120;

/// Closes what is closing, each in a transaction of its own: all of a period's statements are there, or none.
pub async fn close_due(db: &Database) -> Result<(), sqlx::Error> {
    loop {
        let mut tx = db.begin_system().await?;
        ledger::lock(&mut tx).await?;
        let periods = periods::page(&mut tx, None, None, PERIODS_MAX).await?;
        let closing = |period: &periods::Period| period.state == PeriodState::Closing;
        let Some(period) = periods.into_iter().rfind(closing) else {
            return Ok(());
        };
        let credits = billing_statements::enter_credits(&mut tx, period.id).await?;
        commitments::enter_unused(&mut tx, period.id).await?;
        let statements = write_statements(&mut tx, &period).await?;
        periods::step(
            &mut tx,
            period.id,
            PeriodState::Closing,
            PeriodState::Closed,
        )
        .await?;
        tx.commit().await?;
        tracing::info!(
            period = period.name,
            statements,
            credits,
            "a billing period was closed"
        );
    }
}

/// A statement for each team and currency: one of each, since the organisation has one currency.
async fn write_statements(tx: &mut Tx, period: &periods::Period) -> Result<usize, sqlx::Error> {
    let billed = billing_statements::billed(tx, period.id).await?;
    let mut written = 0;
    for lines in billed.chunk_by(|a, b| a.team_id == b.team_id) {
        let (total, lines) = rounded(lines);
        let first = lines[0].0;
        let statement = NewStatement {
            id: StatementId::new(),
            period: period.id,
            team: first.team_id,
            currency: &first.currency,
            total,
            lines: &lines,
        };
        billing_statements::insert(tx, &statement).await?;
        written += 1;
    }
    Ok(written)
}

/// The total, rounded once, and each line with its part of it.
fn rounded(lines: &[Billed]) -> (Decimal, Vec<(&Billed, Decimal)>) {
    let exact: Vec<Decimal> = lines.iter().map(|line| line.amount).collect();
    let amounts = round_lines(&exact, BILLED_DECIMALS);
    let total = amounts.iter().sum();
    (total, lines.iter().zip(amounts).collect())
}
