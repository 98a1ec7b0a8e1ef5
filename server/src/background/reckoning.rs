//! Samples of minutes, hours and days that are over are reckoned up; every replica may, one does.

use crate::app::App;
use crate::store::samples;

/// Reckons up what is due, however much that is.
pub async fn reckon(app: &App) -> Result<(), sqlx::Error> {
    loop {
        let mut tx = app.db.begin_system().await?;
        let more = samples::reckon(&mut tx).await?;
        tx.commit().await?;
        if !more {
            return Ok(());
        }
    }
}
