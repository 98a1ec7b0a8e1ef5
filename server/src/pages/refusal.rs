//! Refusals that a form shows beside its fields, in place of a page of their own.

use axum::http::StatusCode;
use axum::response::Response;
use domain::FieldError;
use web::messages::Messages;
use web::views::Refusal;

use super::{PageError, told};
use crate::app::{AppError, RefusalCode};

/// The page of a refused form, with its form again: it says by its status, too, that nothing was done.
pub fn answer(page: Result<Response, PageError>) -> Result<Response, PageError> {
    let mut response = page?;
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    Ok(response)
}

/// The refusal of a form whose field for a key `field_of` knows; any other error comes back.
pub fn of(error: AppError, field_of: impl Fn(&str) -> String) -> Result<Refusal, AppError> {
    match error {
        AppError::Invalid(fault) => Ok(of_value(&fault, field_of(&fault.field))),
        AppError::Impossible { code, field: fault } => Ok(Refusal {
            code: Some(code.as_str().to_owned()),
            ..of_value(&fault, field_of(&fault.field))
        }),
        AppError::Conflict { code, .. } => Ok(Refusal {
            field: field_of(code.as_str()),
            code: Some(code.as_str().to_owned()),
            ..Refusal::default()
        }),
        AppError::Stale { .. } | AppError::AlreadyThere { .. } => {
            let code = RefusalCode::ChangedMeanwhile.as_str();
            Ok(Refusal {
                field: field_of(code),
                code: Some(code.to_owned()),
                ..Refusal::default()
            })
        }
        AppError::Exceeded(excess) => Ok(Refusal {
            field: field_of("guaranteed"),
            told: Some(told::excess(&Messages::english(), &excess)),
            ..Refusal::default()
        }),
        AppError::NotFound { what: "user", name } => Ok(Refusal {
            field: field_of("user"),
            code: Some("unknown_user".to_owned()),
            value: name,
            told: None,
        }),
        other => Err(other),
    }
}

/// The refusal of a value of the form's `field`.
pub fn of_value(fault: &FieldError, field: String) -> Refusal {
    // Of a password nothing is said back.
    let value = if field == "password" {
        ""
    } else {
        &fault.value
    };
    Refusal {
        value: value.to_owned(),
        field,
        ..Refusal::default()
    }
}
