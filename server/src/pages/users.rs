//! The users' page: the list, adding one, disabling and enabling.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use domain::name::Name;
use serde::Deserialize;
use web::shell::Section;
use web::views::{UserForm, UserRow, UsersView};

use super::fault::encode;
use super::visit::{Posted, Visit};
use super::{Nothing, PageError, page, refusal};
use crate::app::authorise::{self, Action, Target};
use crate::app::idempotency::Repeat;
use crate::app::page::PageAsk;
use crate::app::users::{self, NewUser, UserPatch};
use crate::app::{App, AppError};
use crate::front::fields::read_query;

/// Where in the list to go on.
#[derive(Debug, Default, Deserialize)]
pub struct ListQuery {
    cursor: Option<String>,
}

/// Shows the users that the asker may know.
pub async fn list_users(
    State(app): State<App>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: ListQuery = read_query(&uri)?;
    show(&app, &visit, query.cursor, UserForm::default()).await
}

async fn show(
    app: &App,
    visit: &Visit,
    cursor: Option<String>,
    form: UserForm,
) -> Result<Response, PageError> {
    let list = users::list(app, &visit.asker, &PageAsk::new(None, cursor)?).await?;
    let may = |action| authorise::may(&visit.asker, action, Target::Platform);
    let changes = may(Action::UpdateUser);
    let rows = list.items.into_iter().map(|user| UserRow {
        changeable: changes && user.name != visit.asker.name,
        name: user.name.to_string(),
        display_name: user.display_name,
        platform_role: user.role.map(|role| role.as_str().to_owned()),
        disabled: user.disabled,
        created_at: user.created_at,
    });
    page(&UsersView {
        shell: visit.shell(app, Section::Users).await?,
        rows: rows.collect(),
        form: may(Action::CreateUser).then_some(form),
        older: list
            .next_cursor
            .map(|cursor| format!("/users?cursor={}", encode(&cursor))),
    })
}

/// The form that adds a user.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Typed {
    name: String,
    password: String,
    #[serde(default)]
    role: String,
}

/// Adds a user.
pub async fn add_user(
    State(app): State<App>,
    Posted { visit, fields }: Posted<Typed>,
) -> Result<Response, PageError> {
    let shown = UserForm {
        name: fields.name.clone(),
        role: fields.role.clone(),
        error: None,
    };
    let made = match new_user(fields) {
        Ok(new) => users::create(&app, &visit.asker, Repeat::none(), new)
            .await
            .map(|_| ()),
        Err(error) => Err(error),
    };
    let refusal = match made {
        Ok(()) => return Ok(Redirect::to("/users?done=user_added").into_response()),
        Err(error) => refusal::of(error, field_of)?,
    };
    let form = UserForm {
        error: Some(refusal),
        ..shown
    };
    refusal::answer(show(&app, &visit, None, form).await)
}

/// The form's field for a key, or for what stands in the way.
fn field_of(key: &str) -> String {
    match key {
        "password" | "role" => key.to_owned(),
        _ => "user_name".to_owned(),
    }
}

fn new_user(typed: Typed) -> Result<NewUser, AppError> {
    let role = match typed.role.as_str() {
        "" => None,
        role => Some(role.parse()?),
    };
    Ok(NewUser {
        name: typed.name.trim().parse()?,
        display_name: String::new(),
        role,
        password: Some(typed.password),
    })
}

/// Keeps a user from signing in.
pub async fn disable_user(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    set_disabled(&app, &visit, &name, true).await
}

/// Lets a user sign in again.
pub async fn enable_user(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    set_disabled(&app, &visit, &name, false).await
}

async fn set_disabled(
    app: &App,
    visit: &Visit,
    name: &str,
    disabled: bool,
) -> Result<Redirect, PageError> {
    let name: Name = name
        .parse()
        .map_err(|_| AppError::not_found("user", name))?;
    let version = users::get(app, &visit.asker, &name).await?.version;
    let patch = UserPatch {
        disabled: Some(disabled),
        ..UserPatch::default()
    };
    users::update(app, &visit.asker, &name, version, patch).await?;
    let done = if disabled {
        "user_disabled"
    } else {
        "user_enabled"
    };
    Ok(Redirect::to(&format!("/users?done={done}")))
}
