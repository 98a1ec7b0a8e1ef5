//! What the pages of policies have in common.

use axum::http::StatusCode;
use domain::Timestamp;
use domain::ids::RequestId;
use web::views::{Effect, PolicySave, PolicyTab, PolicyTabs, Refusal};

use super::PageError;
use super::fields::Fields;
use super::visit::Visit;
use crate::app::page::PageAsk;
use crate::app::{App, AppError, pools};

/// What came of a form that was sent: how it is shown again, what is wrong with the whole of it, and
/// what a try of it told.
pub struct Outcome<F> {
    /// The form as it was sent.
    pub form: Option<F>,
    /// What is wrong with the whole of it.
    pub errors: Vec<Refusal>,
    /// What would come of it, once it was tried.
    pub effect: Option<Effect>,
    reason: String,
    key: Option<String>,
    refused: bool,
}

impl<F> Outcome<F> {
    /// Where nothing was sent.
    pub fn none() -> Self {
        Self {
            form: None,
            errors: Vec::new(),
            effect: None,
            reason: String::new(),
            key: None,
            refused: false,
        }
    }

    /// Of fields that were sent, before they are looked at: who saves and sees the form again was refused.
    pub fn sent(fields: &Fields) -> Self {
        Self {
            reason: fields.text("reason").to_owned(),
            key: Some(fields.text("idempotency_key").to_owned()),
            refused: fields.saves(),
            ..Self::none()
        }
    }

    /// Of something that was refused and has no form.
    pub fn refused(error: Refusal) -> Self {
        Self {
            errors: vec![error],
            refused: true,
            ..Self::none()
        }
    }

    /// Whether something was sent, whose page is not that of its address.
    pub fn answers(&self) -> bool {
        self.form.is_some() || self.refused
    }

    /// What is sent with the form, to `address`; `back` leads away from it.
    pub fn save(&self, address: String, back: &str) -> PolicySave {
        PolicySave {
            address,
            back: back.to_owned(),
            reason: self.reason.clone(),
            key: key(self.key.clone()),
        }
    }

    /// How the page is answered.
    pub fn status(&self) -> StatusCode {
        if self.refused {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::OK
        }
    }
}

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
