//! The database's present time, for pages that tell ages.

use domain::Timestamp;

use super::{App, AppError};
use crate::store;

/// The database's present time.
pub async fn now(app: &App) -> Result<Timestamp, AppError> {
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    tx.commit().await?;
    Ok(now)
}
