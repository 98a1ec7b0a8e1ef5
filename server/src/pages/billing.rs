//! Money on pages: the price book with its drafts, periods and statements, reconciled days.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use chrono::NaiveDate;
use domain::Timestamp;
use domain::money::Money;
use domain::name::Name;
use domain::state::PriceBookState;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive as _;
use serde::Deserialize;
use serde_json::json;
use web::shell::Section;
use web::views::{
    BillingView, DayRow, FactorRow, PeriodRow, PriceBookRow, PriceBooksView, PriceForm,
    PricePreview, PriceRow, ReconciledRow, ReconciliationView, Refusal, StatementLine,
    StatementRow, StatementView, StatementsView,
};

use super::fault::encode;
use super::visit::{Posted, Visit};
use super::{Nothing, PageError, page, refusal};
use crate::accounting::usage::month_start;
use crate::app::authorise::{self, Action, Target, authorise};
use crate::app::idempotency::Repeat;
use crate::app::page::PageAsk;
use crate::app::price_books::{self, FactorLine, NewPriceBook, PriceBook, PriceLine};
use crate::app::{App, AppError, billing_statements, periods, pools, reconciliations};
use crate::front::fields::read_query;

/// Versions of the price book on a page: each is shown with all its lines.
const BOOKS_SHOWN: u32 = 20;
/// Days that the page of periods shows: a month.
const DAYS_SHOWN: u32 = 31;

/// Where in the price book to go on, and which version to try.
#[derive(Debug, Default, Deserialize)]
pub struct BooksQuery {
    cursor: Option<String>,
    preview: Option<i64>,
}

/// Shows the versions of the price book.
pub async fn list_books(
    State(app): State<App>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: BooksQuery = read_query(&uri)?;
    show_books(&app, &visit, query, PriceForm::default()).await
}

async fn show_books(
    app: &App,
    visit: &Visit,
    query: BooksQuery,
    mut form: PriceForm,
) -> Result<Response, PageError> {
    let ask = PageAsk::new(Some(BOOKS_SHOWN), query.cursor)?;
    let books = price_books::list(app, &visit.asker, &ask).await?;
    let preview = match query.preview {
        Some(number) => Some(tried(app, visit, number).await?),
        None => None,
    };
    let organisation = periods::organisation(app, &visit.asker).await?;
    let shell = visit.shell(app, Section::Billing).await?;
    if form.currency.is_empty() {
        form.currency = organisation.currency.unwrap_or_default();
    }
    if form.from.is_empty() {
        form.from = domain::time::format(month_start(shell.now));
    }
    let pools = pools::list(app, &visit.asker, &PageAsk::first()).await?;
    page(&PriceBooksView {
        shell,
        books: books.items.into_iter().map(book_row).collect(),
        preview,
        edits: authorise::may(&visit.asker, Action::CreatePriceBook, Target::Platform),
        pools: pools
            .items
            .iter()
            .map(|pool| pool.name.to_string())
            .collect(),
        form,
        older: books
            .next_cursor
            .map(|cursor| format!("/price-books?cursor={}", encode(&cursor))),
    })
}

async fn tried(app: &App, visit: &Visit, number: i64) -> Result<PricePreview, PageError> {
    let preview = price_books::preview(app, &visit.asker, number, None, None).await?;
    let row = |item: price_books::PreviewItem| (item.team, item.pool, item.now, item.then);
    Ok(PricePreview {
        number,
        from: preview.from,
        to: preview.to,
        rows: preview.items.into_iter().map(row).collect(),
        total: preview.now.zip(preview.then),
    })
}

fn book_row(book: PriceBook) -> PriceBookRow {
    PriceBookRow {
        number: book.number,
        state: book.state.to_string(),
        reason: book.reason,
        created_by: book.created_by,
        effective_from: book.effective_from,
        prices: book.prices.into_iter().map(price_row).collect(),
        factors: book.factors.into_iter().map(factor_row).collect(),
    }
}

fn price_row(line: PriceLine) -> PriceRow {
    let or_contracted = |money: Option<Money>| money.unwrap_or_else(|| line.per_hour.clone());
    PriceRow {
        pool: line.pool.to_string(),
        resource: line.resource.as_str().to_owned(),
        mode: line.mode.map(|mode| mode.to_string()),
        profile: line.mig_profile,
        list: or_contracted(line.list_per_hour),
        effective: or_contracted(line.effective_per_hour),
        per_hour: line.per_hour,
    }
}

fn factor_row(line: FactorLine) -> FactorRow {
    let window = line.window.map(|window| {
        (
            window.name.to_string(),
            window.days.iter().map(ToString::to_string).collect(),
            window.from.to_string(),
            window.to.to_string(),
            window.time_zone.to_string(),
        )
    });
    FactorRow {
        pool: line.pool.to_string(),
        kind: line.kind.as_str().to_owned(),
        factor: line.factor,
        window,
    }
}

/// The form that drafts a version with one price.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypedPrice {
    pool: String,
    mode: String,
    amount: String,
    currency: String,
    from: String,
    reason: String,
}

/// Drafts a version.
pub async fn draft_book(
    State(app): State<App>,
    Posted { visit, fields }: Posted<TypedPrice>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::CreatePriceBook, Target::Platform)?;
    let made = match new_book(&fields) {
        Ok(new) => price_books::create(&app, &visit.asker, Repeat::none(), new)
            .await
            .map(|_| ()),
        Err(error) => Err(error),
    };
    let error = match made {
        Ok(()) => return Ok(Redirect::to("/price-books?done=price_book_drafted").into_response()),
        Err(error) => refusal::of(error, field_of)?,
    };
    let form = PriceForm {
        pool: fields.pool,
        mode: fields.mode,
        amount: fields.amount,
        currency: fields.currency,
        from: fields.from,
        reason: fields.reason,
        error: Some(error),
    };
    refusal::answer(show_books(&app, &visit, BooksQuery::default(), form).await)
}

/// The form's field for a key.
fn field_of(key: &str) -> String {
    key.rsplit('.').next().unwrap_or(key).to_owned()
}

fn new_book(typed: &TypedPrice) -> Result<NewPriceBook, AppError> {
    let effective_from: Timestamp = typed.from.trim().parse().map_err(|_| {
        let remedy = "a time such as 2026-10-01T00:00:00Z";
        AppError::invalid("effective_from", &typed.from, remedy)
    })?;
    let money = json!({"amount": typed.amount.trim(), "currency": typed.currency.trim()});
    let per_hour = serde_json::from_value(money).map_err(|_| {
        let remedy = "digits, and a point before decimals, with a currency of three letters";
        AppError::invalid("amount", &typed.amount, remedy)
    })?;
    let line = PriceLine {
        pool: typed.pool.parse()?,
        resource: price_books::Resource::Gpu,
        mode: Some(typed.mode.parse()?),
        mig_profile: None,
        per_hour,
        list_per_hour: None,
        effective_per_hour: None,
    };
    Ok(NewPriceBook {
        reason: typed.reason.trim().to_owned(),
        effective_from,
        prices: vec![line],
        factors: Vec::new(),
    })
}

/// Puts a draft in force.
pub async fn activate_book(
    State(app): State<App>,
    Path(number): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    decide(&app, &visit, &number, PriceBookState::Active).await
}

/// Gives a draft up.
pub async fn discard_book(
    State(app): State<App>,
    Path(number): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    decide(&app, &visit, &number, PriceBookState::Discarded).await
}

async fn decide(
    app: &App,
    visit: &Visit,
    number: &str,
    to: PriceBookState,
) -> Result<Redirect, PageError> {
    let found = number.parse();
    let number = found.map_err(|_| AppError::not_found("price book", number))?;
    price_books::decide(app, &visit.asker, Repeat::none(), number, to).await?;
    let done = match to {
        PriceBookState::Active => "price_book_activated",
        _ => "price_book_discarded",
    };
    Ok(Redirect::to(&format!("/price-books?done={done}")))
}

/// Shows the billing periods and the reconciled days.
pub async fn show_billing(State(app): State<App>, visit: Visit) -> Result<Response, PageError> {
    show(&app, &visit, None).await
}

async fn show(app: &App, visit: &Visit, error: Option<Refusal>) -> Result<Response, PageError> {
    let ask = PageAsk::new(Some(DAYS_SHOWN), None)?;
    let days = reconciliations::list(app, &visit.asker, &ask).await?;
    let list = periods::list(app, &visit.asker, &PageAsk::first()).await?;
    let organisation = periods::organisation(app, &visit.asker).await?;
    page(&BillingView {
        shell: visit.shell(app, Section::Billing).await?,
        time_zone: organisation.time_zone.to_string(),
        currency: organisation.currency,
        credit_minutes: organisation.node_loss_credit_minutes,
        periods: list.items.into_iter().map(period_row).collect(),
        days: days.items.into_iter().map(day_row).collect(),
        edits: authorise::may(&visit.asker, Action::CloseBillingPeriod, Target::Platform),
        error,
    })
}

fn period_row(period: periods::BillingPeriod) -> PeriodRow {
    PeriodRow {
        name: period.name,
        state: period.state.to_string(),
        from: period.from,
        to: period.to,
    }
}

fn day_row(day: reconciliations::ReconciledDay) -> DayRow {
    DayRow {
        day: day.day.to_string(),
        devices: day.devices,
        off: day.off,
    }
}

/// Closes a period.
pub async fn close_period(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Response, PageError> {
    let closed = periods::close(&app, &visit.asker, Repeat::none(), &name).await;
    stepped(&app, &visit, closed.map(|_| "period_closing")).await
}

/// Issues a period's statements.
pub async fn issue_period(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Response, PageError> {
    let issued = periods::issue(&app, &visit.asker, Repeat::none(), &name).await;
    stepped(&app, &visit, issued.map(|_| "period_issued")).await
}

async fn stepped(
    app: &App,
    visit: &Visit,
    done: Result<&'static str, AppError>,
) -> Result<Response, PageError> {
    match done {
        Ok(done) => Ok(Redirect::to(&format!("/billing?done={done}")).into_response()),
        Err(error) => {
            let error = refusal::of(error, field_of)?;
            refusal::answer(show(app, visit, Some(error)).await)
        }
    }
}

/// Shows what a period bills each team.
pub async fn show_period(
    State(app): State<App>,
    Path(name): Path<String>,
    visit: Visit,
) -> Result<Response, PageError> {
    let list = billing_statements::of_period(&app, &visit.asker, &name).await?;
    page(&StatementsView {
        shell: visit.shell(&app, Section::Billing).await?,
        of: name,
        of_team: false,
        rows: list.items.into_iter().map(statement_row).collect(),
    })
}

/// Shows a team's statements.
pub async fn show_team_statements(
    State(app): State<App>,
    Path(team): Path<String>,
    visit: Visit,
) -> Result<Response, PageError> {
    let name = team_name(&team)?;
    let list = billing_statements::of_team(&app, &visit.asker, &name).await?;
    page(&StatementsView {
        shell: visit.shell(&app, Section::Teams).await?,
        of: team,
        of_team: true,
        rows: list.items.into_iter().map(statement_row).collect(),
    })
}

fn team_name(team: &str) -> Result<Name, AppError> {
    team.parse().map_err(|_| AppError::not_found("team", team))
}

fn statement_row(statement: billing_statements::BillingStatement) -> StatementRow {
    StatementRow {
        team: statement.team,
        period: statement.period,
        total: statement.total,
        verified: statement.verified,
    }
}

/// Shows a team's statement.
pub async fn show_statement(
    State(app): State<App>,
    Path((team, period)): Path<(String, String)>,
    visit: Visit,
) -> Result<Response, PageError> {
    let name = team_name(&team)?;
    let statement = billing_statements::get(&app, &visit.asker, &name, &period).await?;
    page(&StatementView {
        shell: visit.shell(&app, Section::Teams).await?,
        team: statement.team,
        period: statement.period,
        lines: statement.lines.into_iter().map(statement_line).collect(),
        total: statement.total,
        entries: statement.entries,
        sha256: statement.sha256,
        verified: statement.verified,
    })
}

fn statement_line(line: billing_statements::BillingLine) -> StatementLine {
    let milli = line.gpu_seconds * Decimal::from(1_000);
    StatementLine {
        kind: line.kind,
        pool: line.pool,
        mode: line.mode,
        resource: line.resource,
        gpu_milli_seconds: milli.to_i64().unwrap_or(i64::MAX),
        amount: line.amount,
    }
}

/// Where in the list of a day's devices to go on.
#[derive(Debug, Default, Deserialize)]
pub struct DayQuery {
    cursor: Option<String>,
}

/// Shows what became of each device's time on a day.
pub async fn show_day(
    State(app): State<App>,
    Path(day): Path<String>,
    visit: Visit,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: DayQuery = read_query(&uri)?;
    let date: Result<NaiveDate, _> = day.parse();
    let date = date.map_err(|_| AppError::not_found("reconciliation", &day))?;
    let ask = PageAsk::new(None, query.cursor)?;
    let list = reconciliations::get(&app, &visit.asker, date, &ask).await?;
    let row = |device: reconciliations::ReconciledDevice| ReconciledRow {
        micros: [
            device.wall_micros,
            device.held_micros,
            device.idle_micros,
            device.down_micros,
        ],
        node: device.node,
        index: device.index,
        difference: device.difference_micros,
    };
    page(&ReconciliationView {
        shell: visit.shell(&app, Section::Billing).await?,
        older: list
            .next_cursor
            .map(|cursor| format!("/reconciliations/{day}?cursor={}", encode(&cursor))),
        rows: list.items.into_iter().map(row).collect(),
        day,
    })
}
