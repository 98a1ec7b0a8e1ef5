//! The priority classes: the table, making one, changing and removing one.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use domain::FieldError;
use domain::name::Name;
use web::shell::Section;
use web::views::{ClassForm, ClassRow, ClassesView, Effect, PolicyTab, Refusal};

use super::fields::Fields;
use super::jobs::Teams;
use super::visit::{Posted, Visit};
use super::{PageError, changes, effect, page, policies, refusal};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::classes::{self, Class, ClassPatch, NewClass};
use crate::app::idempotency::Repeat;
use crate::app::page::PageAsk;
use crate::app::policy_diff::{self, ClassDraft, PolicyDraft};
use crate::app::versions::{PolicyNoun, VersionFilter};
use crate::app::{App, AppError};

/// Shows the classes.
pub async fn list_classes(State(app): State<App>, visit: Visit) -> Result<Response, PageError> {
    show(&app, &visit, Outcome::default()).await
}

/// What came of a form that was sent.
#[derive(Default)]
struct Outcome {
    /// The form that makes one.
    form: ClassForm,
    /// The row that was to be changed.
    row: Option<ClassRow>,
    /// What would come of that.
    effect: Option<Effect>,
    /// Whether it was refused.
    refused: bool,
    /// What is about neither.
    error: Option<Refusal>,
}

async fn show(app: &App, visit: &Visit, outcome: Outcome) -> Result<Response, PageError> {
    let kept = classes::list(app, &visit.asker, &PageAsk::first()).await?;
    let mut kept = kept.items;
    kept.sort_by_key(|class| std::cmp::Reverse(class.priority));
    let rows = kept.into_iter().map(|class| match &outcome.row {
        Some(row) if row.name == class.name.as_str() => ClassRow {
            default: class.default,
            ..row.clone()
        },
        _ => row(class),
    });
    let filter = VersionFilter {
        noun: Some(PolicyNoun::Class),
        ..VersionFilter::default()
    };
    let mut shell = visit.shell(app, Section::Policies).await?;
    shell.here = "/classes".to_owned();
    let mut response = page(&ClassesView {
        tabs: policies::tabs(app, visit, PolicyTab::Classes, None).await?,
        rows: rows.collect(),
        edits: may(&visit.asker, Action::UpdateClass, Target::Platform),
        form: outcome.form,
        error: outcome.error,
        effect: outcome.effect,
        changes: changes::beside(app, visit, filter, "/classes").await?,
        shell,
    })?;
    if outcome.refused {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    Ok(response)
}

fn row(class: Class) -> ClassRow {
    ClassRow {
        name: class.name.to_string(),
        priority: class.priority.to_string(),
        preemptible: class.preemptible,
        default: class.default,
        version: class.version,
        reason: String::new(),
        error: None,
    }
}

/// Makes a class.
pub async fn make_class(
    State(app): State<App>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::CreateClass, Target::Platform)?;
    let field_of = |key: &str| if key == "priority" { key } else { "class_name" }.to_owned();
    let errors = match new_class(&fields) {
        Err(faults) => {
            let told = |fault: &FieldError| refusal::of_value(fault, field_of(&fault.field));
            faults.iter().map(told).collect()
        }
        Ok(new) => match classes::create(
            &app,
            &visit.asker,
            Repeat::none(),
            new,
            fields.text("reason"),
        )
        .await
        {
            Ok(_) => return Ok(Redirect::to("/classes?done=class_made").into_response()),
            Err(error) => vec![refusal::of(error, field_of)?],
        },
    };
    let outcome = Outcome {
        form: ClassForm {
            name: fields.text("name").to_owned(),
            priority: fields.text("priority").to_owned(),
            preemptible: fields.text("preemptible") == "true",
            reason: fields.text("reason").to_owned(),
            errors,
        },
        refused: true,
        ..Outcome::default()
    };
    show(&app, &visit, outcome).await
}

/// The class that is typed, or every fault of it.
fn new_class(fields: &Fields) -> Result<NewClass, Vec<FieldError>> {
    match (fields.text("name").parse(), priority(fields)) {
        (Ok(name), Ok(priority)) => Ok(NewClass {
            name,
            priority,
            preemptible: fields.text("preemptible") == "true",
        }),
        (name, priority) => Err(name.err().into_iter().chain(priority.err()).collect()),
    }
}

fn priority(fields: &Fields) -> Result<i32, FieldError> {
    let text = fields.text("priority");
    let refused = |_| FieldError::new("priority", text, "a whole number");
    let priority: i32 = text.parse().map_err(refused)?;
    classes::check_priority(priority)?;
    Ok(priority)
}

/// Tries a changed class on the live world, or saves it.
pub async fn change_class(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::UpdateClass, Target::Platform)?;
    let name = read_name(&name)?;
    let version = policies::version(&fields)?;
    let preemptible = fields.text("preemptible") == "true";
    let mut row = ClassRow {
        name: name.to_string(),
        priority: fields.text("priority").to_owned(),
        preemptible,
        default: false,
        version,
        reason: fields.text("reason").to_owned(),
        error: None,
    };
    let mut outcome = Outcome {
        refused: fields.saves(),
        ..Outcome::default()
    };
    let done = match priority(&fields) {
        Ok(priority) if fields.saves() => {
            let patch = ClassPatch {
                priority: Some(priority),
                preemptible: Some(preemptible),
            };
            match classes::update(&app, &visit.asker, &name, version, patch, &row.reason).await {
                Ok(_) => return Ok(Redirect::to("/classes?done=class_saved").into_response()),
                Err(error) => Err(error),
            }
        }
        Ok(priority) => {
            let draft = ClassDraft {
                name,
                priority,
                preemptible,
            };
            tried(&app, &visit, draft).await
        }
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(effect) => outcome.effect = Some(effect),
        Err(error) => row.error = Some(refusal::of(error, str::to_owned)?),
    }
    outcome.row = Some(row);
    show(&app, &visit, outcome).await
}

async fn tried(app: &App, visit: &Visit, class: ClassDraft) -> Result<Effect, AppError> {
    let draft = PolicyDraft {
        classes: vec![class],
        ..PolicyDraft::default()
    };
    let diff = policy_diff::diff(app, &visit.asker, draft).await?;
    let teams = Teams::load(app, &visit.asker).await?;
    let zone = app.config.organisation.time_zone;
    Ok(effect::of(diff, &teams, zone))
}

/// Removes a class.
pub async fn delete_class(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::DeleteClass, Target::Platform)?;
    let name = read_name(&name)?;
    let version = policies::version(&fields)?;
    match classes::delete(
        &app,
        &visit.asker,
        &name,
        Some(version),
        fields.text("reason"),
    )
    .await
    {
        Ok(()) => Ok(Redirect::to("/classes?done=class_deleted").into_response()),
        Err(error) => {
            let outcome = Outcome {
                error: Some(refusal::of(error, str::to_owned)?),
                refused: true,
                ..Outcome::default()
            };
            show(&app, &visit, outcome).await
        }
    }
}

fn read_name(text: &str) -> Result<Name, AppError> {
    text.parse().map_err(|_| AppError::not_found("class", text))
}
