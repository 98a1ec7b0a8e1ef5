//! What the pages of policies have in common.

use domain::Timestamp;
use domain::ids::RequestId;
use web::views::{PolicyTab, PolicyTabs};

use super::PageError;
use super::fields::Fields;
use super::visit::Visit;
use crate::app::page::PageAsk;
use crate::app::{App, AppError, pools};

/// The tabs of a page; one that is about no pool leads on to the first.
pub async fn tabs(
    app: &App,
    visit: &Visit,
    here: PolicyTab,
    pool: Option<&str>,
) -> Result<PolicyTabs, PageError> {
    let pools = pools::list(app, &visit.asker, &PageAsk::first()).await?;
    let pools: Vec<String> = pools.items.iter().map(|p| p.name.to_string()).collect();
    Ok(PolicyTabs {
        here,
        pool: pool.map(str::to_owned).or_else(|| pools.first().cloned()),
        pools,
    })
}

/// The version that a form was made of.
pub fn version(fields: &Fields) -> Result<i64, AppError> {
    let text = fields.text("version");
    let refused = |_| AppError::invalid("form", text, "the version that the page had");
    text.parse().map_err(refused)
}

/// What makes a second press of a form's button the same change.
pub fn key(sent: Option<String>) -> String {
    sent.unwrap_or_else(|| RequestId::new().to_string())
}

/// A moment by the clocks of the organisation.
pub fn local(app: &App, at: Timestamp) -> String {
    app.config
        .organisation
        .time_zone
        .local(at)
        .replace('T', " ")
}
