//! Versions of the price book: drafted, looked at, tried on what was used, and put in force or given up.

mod preview;
mod read;

use domain::Timestamp;
use domain::ids::PriceBookId;
use domain::money::{Currency, Money};
use domain::name::Name;
use domain::sharing::SharingMode;
use domain::state::PriceBookState;
use domain::weekly::{Day, TimeOfDay, Zone};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::prices::trimmed;
use super::{App, AppError, Asker, RefusalCode, audit, pools};
use crate::store::price_books::{Book, Factor, Line};
use crate::store::{self, Tx};

pub use preview::{PreviewItem, PricePreview, preview};
use read::{check_frame, read_factor, read_price};

/// Most lines of a draft: each pool in each mode with every profile there is, many times over.
const LINES_MAX: usize = 1_000;
/// Decimals of a factor; the table's.
const FACTOR_DECIMALS: u32 = 6;
/// Highest factor: a hundred times a price is a mistake.
const FACTOR_MAX: i64 = 100;

/// What a price is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// A GPU, or an instance of a profile.
    Gpu,
    /// A core.
    Cpu,
    /// A GiB of memory.
    Memory,
}

impl Resource {
    /// The word that stands for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    fn read(word: &str) -> Result<Self, AppError> {
        match word {
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            "memory" => Ok(Self::Memory),
            other => Err(AppError::Internal(anyhow::anyhow!("resource {other}"))),
        }
    }
}

/// A line that says what something costs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceLine {
    /// The pool.
    pub pool: Name,
    /// What it is the price of: a GPU, a core, a GiB of memory; a GPU unless given.
    #[serde(default = "gpu")]
    pub resource: Resource,
    /// The sharing mode, of a GPU; absent of cores and memory.
    #[serde(default)]
    pub mode: Option<SharingMode>,
    /// The profile of an instance, such as `1g.10gb`: that instance has a price of its own, and is not billed by its
    /// share of the device.
    #[serde(default)]
    pub mig_profile: Option<String>,
    /// Contracted: what is charged for an hour.
    pub per_hour: Money,
    /// The list's price; the contracted one unless given.
    #[serde(default)]
    pub list_per_hour: Option<Money>,
    /// What an hour is worth once reserved capacity is spread over it; the contracted price unless given.
    #[serde(default)]
    pub effective_per_hour: Option<Money>,
}

fn gpu() -> Resource {
    Resource::Gpu
}

/// For what a factor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FactorKind {
    /// Work that may be preempted.
    Preemptible,
    /// Use beyond its team's guarantee when it was given.
    Borrowed,
    /// Use within a weekly window.
    Weekly,
}

impl FactorKind {
    /// The word that stands for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Preemptible => "preemptible",
            Self::Borrowed => "borrowed",
            Self::Weekly => "weekly",
        }
    }

    fn read(word: &str) -> Result<Self, AppError> {
        match word {
            "preemptible" => Ok(Self::Preemptible),
            "borrowed" => Ok(Self::Borrowed),
            "weekly" => Ok(Self::Weekly),
            other => Err(AppError::Internal(anyhow::anyhow!("factor {other}"))),
        }
    }
}

/// A line that multiplies the prices of a pool; those that apply at once are multiplied with each other.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FactorLine {
    /// The pool.
    pub pool: Name,
    /// For what.
    pub kind: FactorKind,
    /// By what: 0 to 100, a decimal as text; 1 ends one of the same kind and name.
    #[schema(example = "0.6")]
    pub factor: String,
    /// When it holds, of a weekly one.
    #[serde(default)]
    pub window: Option<PriceWindow>,
}

/// When a weekly factor holds.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceWindow {
    /// Its name: a later line of the same name takes its place.
    pub name: Name,
    /// The days on which it begins.
    pub days: Vec<Day>,
    /// When it begins.
    pub from: TimeOfDay,
    /// When it ends; no later than it begins is on the next day.
    pub to: TimeOfDay,
    /// Whose clocks are meant.
    pub time_zone: Zone,
}

/// A version to be drafted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPriceBook {
    /// Why, in words.
    #[schema(min_length = 1, max_length = 200)]
    pub reason: String,
    /// From when on its lines are to hold. In the past, what was used since is rated anew once it is in force.
    #[serde(deserialize_with = "domain::time::read")]
    #[schema(value_type = String, format = DateTime)]
    pub effective_from: Timestamp,
    /// Prices; what has none here keeps the one that it has.
    #[serde(default)]
    pub prices: Vec<PriceLine>,
    /// Factors.
    #[serde(default)]
    pub factors: Vec<FactorLine>,
}

/// A version of the price book.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PriceBook {
    /// Its number.
    pub number: i64,
    /// `draft`, `active` or `discarded`.
    pub state: PriceBookState,
    /// Why it was drafted.
    pub reason: String,
    /// From when on its lines are to hold.
    #[schema(value_type = String, format = DateTime)]
    pub effective_from: Timestamp,
    /// Who drafted it.
    pub created_by: String,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Who put it in force or gave it up.
    pub decided_by: Option<String>,
    /// When it was put in force.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub activated_at: Option<Timestamp>,
    /// Its prices.
    pub prices: Vec<PriceLine>,
    /// Its factors.
    pub factors: Vec<FactorLine>,
}

/// Lists versions with their lines, the latest first.
pub async fn list(app: &App, asker: &Asker, ask: &PageAsk) -> Result<Page<PriceBook>, AppError> {
    authorise(asker, Action::ListPriceBooks, Target::Platform)?;
    let before: Option<i64> = ask.after("price book")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let mut books = Vec::new();
    for book in store::price_books::page(&mut tx, before, None, ask.rows_wanted()).await? {
        books.push(with_lines(&mut tx, book).await?);
    }
    tx.commit().await?;
    Ok(page::cut(ask, "price book", books, |book: &PriceBook| {
        book.number
    }))
}

/// Reads one.
pub async fn get(app: &App, asker: &Asker, number: i64) -> Result<PriceBook, AppError> {
    authorise(asker, Action::GetPriceBook, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let book = find(&mut tx, number).await?;
    let book = with_lines(&mut tx, book).await?;
    tx.commit().await?;
    Ok(book)
}

async fn find(tx: &mut Tx, number: i64) -> Result<Book, AppError> {
    let mut books = store::price_books::page(tx, None, Some(number), 1).await?;
    books
        .pop()
        .ok_or_else(|| AppError::not_found("price book", number))
}

async fn with_lines(tx: &mut Tx, book: Book) -> Result<PriceBook, AppError> {
    let prices = store::price_books::prices(tx, book.id).await?;
    let factors = store::price_books::factors(tx, book.id).await?;
    Ok(PriceBook {
        number: book.number,
        state: book.state.parse()?,
        reason: book.reason,
        effective_from: book.effective_from,
        created_by: book.created_by,
        created_at: book.created_at,
        decided_by: book.decided_by,
        activated_at: book.activated_at,
        prices: prices.into_iter().map(shown).collect::<Result<_, _>>()?,
        factors: factors
            .into_iter()
            .map(shown_factor)
            .collect::<Result<_, _>>()?,
    })
}

fn shown(line: Line) -> Result<PriceLine, AppError> {
    let currency: Currency = line.currency.parse()?;
    let money = |amount: Decimal| Money {
        amount: trimmed(amount),
        currency: currency.clone(),
    };
    Ok(PriceLine {
        pool: line.pool.parse()?,
        resource: Resource::read(&line.resource)?,
        mode: line.mode.as_deref().map(str::parse).transpose()?,
        mig_profile: line.mig_profile,
        per_hour: money(line.per_hour),
        list_per_hour: Some(money(line.list_per_hour)),
        effective_per_hour: Some(money(line.effective_per_hour)),
    })
}

fn shown_factor(factor: Factor) -> Result<FactorLine, AppError> {
    let minute = |minute: i32| {
        let minute = u16::try_from(minute).ok().and_then(TimeOfDay::from_minutes);
        minute.ok_or_else(|| AppError::Internal(anyhow::anyhow!("a minute beyond the day")))
    };
    let window = match (
        factor.days,
        factor.from_minute,
        factor.to_minute,
        factor.time_zone,
    ) {
        (Some(days), Some(from), Some(to), Some(zone)) => Some(PriceWindow {
            name: factor.name.parse()?,
            days: Day::ALL
                .iter()
                .zip(1..)
                .filter(|(_, number)| days.contains(number))
                .map(|(day, _)| *day)
                .collect(),
            from: minute(from)?,
            to: minute(to)?,
            time_zone: zone.parse()?,
        }),
        _ => None,
    };
    Ok(FactorLine {
        pool: factor.pool.parse()?,
        kind: FactorKind::read(&factor.kind)?,
        factor: factor.factor.normalize().to_string(),
        window,
    })
}

/// Drafts a version.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewPriceBook,
) -> Result<Answer<PriceBook>, AppError> {
    authorise(asker, Action::CreatePriceBook, Target::Platform)?;
    check_frame(&new)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let mut lines = Vec::with_capacity(new.prices.len());
    for (place, line) in new.prices.iter().enumerate() {
        let read = read_price(tx, line).await;
        lines.push(read.map_err(|error| error.under(&format!("prices[{place}]")))?);
    }
    let mut factors = Vec::with_capacity(new.factors.len());
    for (place, line) in new.factors.iter().enumerate() {
        let read = read_factor(tx, line).await;
        factors.push(read.map_err(|error| error.under(&format!("factors[{place}]")))?);
    }
    let id = PriceBookId::new();
    let number =
        store::price_books::insert(tx, id, &new.reason, new.effective_from, asker.user_id).await?;
    store::price_books::insert_prices(tx, id, &lines, asker.user_id)
        .await
        .map_err(|error| twice(error, "prices"))?;
    store::price_books::insert_factors(tx, id, &factors, asker.user_id)
        .await
        .map_err(|error| twice(error, "factors"))?;
    let found = find(tx, number).await?;
    let book = with_lines(tx, found).await?;
    record(tx, asker, Action::CreatePriceBook, &book).await?;
    work.finish(app, Answer::created(book, None)).await
}

async fn record(
    tx: &mut Tx,
    asker: &Asker,
    action: Action,
    book: &PriceBook,
) -> Result<(), AppError> {
    let change = Change {
        reason: &book.reason,
        after: Some(json!(book)),
        ..Change::of(action, format!("price-book/{}", book.number))
    };
    audit::record(tx, asker, change).await
}

fn twice(error: sqlx::Error, field: &'static str) -> AppError {
    match store::violated(&error) {
        Some("price_taken" | "factor_taken") => {
            AppError::invalid(field, "two lines of the same thing", "one line for each")
        }
        _ => error.into(),
    }
}

/// Puts a draft in force, or gives it up. What was rated by other prices since it is to hold is rated anew.
pub async fn decide(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    number: i64,
    to: PriceBookState,
) -> Result<Answer<PriceBook>, AppError> {
    let action = match to {
        PriceBookState::Active => Action::ActivatePriceBook,
        _ => Action::DiscardPriceBook,
    };
    authorise(asker, action, Target::Platform)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let found = find(tx, number).await?;
    let decided = store::price_books::decide(tx, found.id, to.as_str(), asker.user_id).await?;
    if !decided {
        return Err(AppError::wrong_state(
            RefusalCode::IllegalStep,
            format!("price book {number} is {}", found.state),
            found.state,
            "a version that is a draft",
        ));
    }
    let found = find(tx, number).await?;
    let book = with_lines(tx, found).await?;
    if to == PriceBookState::Active {
        rate_anew(tx, asker, &book).await?;
    }
    record(tx, asker, action, &book).await?;
    app.wake.background.notify_one();
    work.finish(app, Answer::done(book, None)).await
}

async fn rate_anew(tx: &mut Tx, asker: &Asker, book: &PriceBook) -> Result<(), AppError> {
    if book.effective_from >= store::clock(tx).await? {
        return Ok(());
    }
    let prices = book.prices.iter().map(|line| &line.pool);
    let mut names: Vec<&Name> = prices
        .chain(book.factors.iter().map(|line| &line.pool))
        .collect();
    names.sort_by_key(|name| name.as_str());
    names.dedup();
    for name in names {
        let pool = pools::find(tx, name).await?;
        store::reratings::ask(tx, pool.id, book.effective_from, asker.user_id).await?;
    }
    Ok(())
}
