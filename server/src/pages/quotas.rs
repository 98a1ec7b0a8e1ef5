//! The quotas of all teams in all pools: one table, tried on the live world and saved all or none.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use domain::MilliGpu;
use domain::name::Name;
use web::messages::Messages;
use web::parts::Team;
use web::shell::Section;
use web::views::{
    Effect, PolicySave, PolicyTab, PoolForm, QUOTA_KEYS, QuotaCell, QuotaInPlace, QuotaLine,
    QuotaPool, QuotasView, Refusal,
};

use super::fields::Fields;
use super::jobs::Teams;
use super::quota_fields::{self, Texts};
use super::visit::{Posted, Visit};
use super::{PageError, changes, effect, page, policies, refusal, told};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::policy_diff::{self, PolicyDraft, QuotaDraft};
use crate::app::quotas::table::{InPlace, QuotaTable, TablePool, TableTeam, table};
use crate::app::quotas::{self, Quota, QuotaBatch, QuotaRow};
use crate::app::versions::{PolicyNoun, VersionFilter};
use crate::app::{App, AppError, RefusalCode, statements};

/// The route that keys of this form belong to.
const ROUTE: &str = "POST /quotas";
/// Where the table stands.
const ADDRESS: &str = "/quotas";

/// Shows the table.
pub async fn show_quotas(State(app): State<App>, visit: Visit) -> Result<Response, PageError> {
    let table = table(&app, &visit.asker).await?;
    let sheet = Sheet::kept(&table);
    show(&app, &visit, table, sheet, Outcome::default()).await
}

/// What came of a form that was sent.
#[derive(Default)]
struct Outcome {
    errors: Vec<Refusal>,
    effect: Option<Effect>,
    reason: String,
    /// Makes a second press of the button the same change.
    key: Option<String>,
    refused: bool,
    /// The form that makes a pool.
    add: PoolForm,
}

/// Shows the table with the form of a pool that was refused.
pub async fn show_beside_pool(
    app: &App,
    visit: &Visit,
    add: PoolForm,
) -> Result<Response, PageError> {
    let table = table(app, &visit.asker).await?;
    let sheet = Sheet::kept(&table);
    let outcome = Outcome {
        add,
        refused: true,
        ..Outcome::default()
    };
    show(app, visit, table, sheet, outcome).await
}

/// The table as somebody fills it in.
struct Sheet {
    lines: BTreeMap<Place, Line>,
}

/// A team and a pool.
type Place = (Name, Name);

/// A row as somebody fills it in.
struct Line {
    texts: Texts,
    /// What is kept, beside what is filled in.
    read: Read,
    /// The version on which the form was made.
    version: Option<i64>,
    /// Whether the form asks for another quota than it was made with.
    asked: bool,
    /// Whether somebody else has changed it since.
    stale: bool,
    errors: BTreeMap<&'static str, Refusal>,
}

/// A row as it was read.
#[derive(Clone, PartialEq, Eq)]
struct Read {
    version: Option<i64>,
    texts: Texts,
}

impl Read {
    fn of(quota: Option<&Quota>) -> Self {
        Self {
            version: quota.map(|quota| quota.version),
            texts: quota
                .map(|q| quota_fields::texts(&q.into()))
                .unwrap_or_default(),
        }
    }

    /// As the form carries it: the version, and what is not there as a dash.
    fn written(&self) -> String {
        let version = self
            .version
            .map_or_else(|| "-".to_owned(), |v| v.to_string());
        let texts = self.texts.iter().map(|text| match text.as_str() {
            "" => "-",
            text => text,
        });
        let words: Vec<&str> = std::iter::once(version.as_str()).chain(texts).collect();
        words.join(" ")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let version = match words.next()? {
            "-" => None,
            version => Some(version.parse().ok()?),
        };
        let texts: Vec<String> = words
            .map(|word| if word == "-" { "" } else { word }.to_owned())
            .collect();
        Some(Self {
            version,
            texts: texts.try_into().ok()?,
        })
    }
}

impl Line {
    /// Puts what is kept by now beside what was typed; what was not touched becomes that.
    fn rebase(&mut self, present: Read) {
        let typed = self.texts.iter_mut().zip(&self.read.texts);
        for ((text, read), present) in typed.zip(&present.texts) {
            if text == read {
                text.clone_from(present);
            }
        }
        self.read = present;
    }

    fn changed(&self) -> bool {
        self.texts != self.read.texts
    }
}

impl Sheet {
    /// The table as it is kept.
    fn kept(table: &QuotaTable) -> Self {
        Self::filled(table, |_| None)
    }

    /// The table as a form has it; what a form does not have, or has as it was read, is as it is kept by
    /// now, so that a change of somebody else's is never undone by who did not touch it.
    fn typed(table: &QuotaTable, fields: &Fields) -> Self {
        Self::filled(table, |prefix| {
            let read = fields.text(&format!("{prefix}/read"));
            let read = Read::parse(read).filter(|_| fields.has(&format!("{prefix}/read")))?;
            Some((quota_fields::typed(fields, prefix), read))
        })
    }

    fn filled(table: &QuotaTable, typed: impl Fn(&str) -> Option<(Texts, Read)>) -> Self {
        let mut lines = BTreeMap::new();
        for pool in &table.pools {
            for TableTeam { team, .. } in &table.teams {
                let present = Read::of(pool.quotas.get(&team.name));
                let prefix = format!("{}/{}", team.name, pool.name);
                let (texts, read) =
                    typed(&prefix).unwrap_or_else(|| (present.texts.clone(), present.clone()));
                let mut line = Line {
                    stale: texts != read.texts && read != present,
                    version: read.version,
                    asked: texts != read.texts,
                    texts,
                    read,
                    errors: BTreeMap::new(),
                };
                line.rebase(present);
                lines.insert((team.name.clone(), pool.name.clone()), line);
            }
        }
        Self { lines }
    }

    /// The rows that differ from what was read, in the order of the table; what no quota can be
    /// is noted in its cell.
    fn rows(&mut self, table: &QuotaTable) -> Vec<QuotaRow> {
        let mut rows = Vec::new();
        for (team, pool) in places(table) {
            let Some(line) = self.lines.get_mut(&(team.clone(), pool.clone())) else {
                continue;
            };
            if !line.asked {
                continue;
            }
            match quota_fields::quota(&line.texts) {
                Ok(quota) => rows.push(QuotaRow {
                    team,
                    pool,
                    version: line.version,
                    quota,
                }),
                Err(refused) => line.errors.extend(refused),
            }
        }
        rows
    }

    /// Notes which rows somebody else has changed since they were read.
    fn note_stale(&mut self) {
        for line in self.lines.values_mut().filter(|line| line.stale) {
            let refused = Refusal {
                told: Some(Messages::english().say("quotas.changed_meanwhile")),
                ..Refusal::default()
            };
            line.errors.insert(QUOTA_KEYS[0], refused);
        }
    }

    fn wrong(&self) -> bool {
        self.lines.values().any(|line| !line.errors.is_empty())
    }

    /// Notes a refusal in its cell; one that is about none comes back.
    fn refuse(&mut self, rows: &[QuotaRow], error: AppError) -> Result<Option<Refusal>, AppError> {
        let mut note = |place: Place, key: &'static str, refused: Refusal| {
            if let Some(line) = self.lines.get_mut(&place) {
                line.errors.insert(key, refused);
            }
        };
        match error {
            AppError::Exceeded(excess) => {
                let refused = Refusal {
                    told: Some(told::excess(&Messages::english(), &excess)),
                    ..Refusal::default()
                };
                note((excess.team, excess.pool), QUOTA_KEYS[0], refused);
                Ok(None)
            }
            AppError::Invalid(fault) => {
                let row = quota_fields::place_of(&fault.field)
                    .and_then(|(index, key)| Some((rows.get(index)?, key)));
                let Some((row, key)) = row else {
                    return Ok(Some(refusal::of_value(&fault, fault.field.clone())));
                };
                let place = (row.team.clone(), row.pool.clone());
                note(place, key, refusal::of_value(&fault, key.to_owned()));
                Ok(None)
            }
            AppError::Conflict {
                code: RefusalCode::QuotaChanged,
                ..
            } if self.lines.values().any(|line| line.stale) => {
                self.note_stale();
                Ok(None)
            }
            other => refusal::of(other, str::to_owned).map(Some),
        }
    }
}

/// Every place of the table, pool by pool.
fn places(table: &QuotaTable) -> Vec<Place> {
    let of_pool = |pool: &TablePool| {
        let teams = table.teams.iter().map(|team| team.team.name.clone());
        let pool = pool.name.clone();
        teams
            .map(move |team| (team, pool.clone()))
            .collect::<Vec<_>>()
    };
    table.pools.iter().flat_map(of_pool).collect()
}

/// Tries the table on the live world, or saves it.
pub async fn put_quotas(
    State(app): State<App>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::PutQuotas, Target::Platform)?;
    let table = table(&app, &visit.asker).await?;
    let mut sheet = Sheet::typed(&table, &fields);
    let rows = sheet.rows(&table);
    let mut outcome = Outcome {
        reason: fields.text("reason").to_owned(),
        key: Some(fields.text("idempotency_key").to_owned()),
        ..Outcome::default()
    };
    if !fields.saves() {
        // Of what is saved the database tells, which knows a form that was sent twice.
        sheet.note_stale();
    }
    if sheet.wrong() {
        outcome.refused = fields.saves();
        return show(&app, &visit, table, sheet, outcome).await;
    }
    if fields.saves() && rows.is_empty() {
        return Ok(Redirect::to("/quotas?done=nothing_changed").into_response());
    }
    let done = if fields.saves() {
        let batch = QuotaBatch {
            quotas: rows.clone(),
        };
        let repeat = fields.repeat(ROUTE);
        match quotas::put_all(&app, &visit.asker, repeat, batch, &outcome.reason).await {
            Ok(_) => return Ok(Redirect::to("/quotas?done=quotas_saved").into_response()),
            Err(error) => Err(error),
        }
    } else {
        policy_diff::diff(&app, &visit.asker, draft(&rows)).await
    };
    match done {
        Ok(diff) => {
            let teams = Teams::load(&app, &visit.asker).await?;
            outcome.effect = Some(effect::of(diff, &teams, app.config.organisation.time_zone));
        }
        Err(error) => {
            outcome.errors.extend(sheet.refuse(&rows, error)?);
            outcome.refused = fields.saves();
        }
    }
    show(&app, &visit, table, sheet, outcome).await
}

fn draft(rows: &[QuotaRow]) -> PolicyDraft {
    let quotas = rows.iter().map(|row| QuotaDraft {
        team: row.team.clone(),
        pool: row.pool.clone(),
        quota: row.quota.clone(),
    });
    PolicyDraft {
        quotas: quotas.collect(),
        ..PolicyDraft::default()
    }
}

async fn show(
    app: &App,
    visit: &Visit,
    table: QuotaTable,
    sheet: Sheet,
    outcome: Outcome,
) -> Result<Response, PageError> {
    let asker = &visit.asker;
    let (_, lines) = statements::of_all(app, asker).await?;
    let held: BTreeMap<(String, String), i64> = lines
        .into_iter()
        .map(|line| ((line.team, line.pool), line.held.milli()))
        .collect();
    let mut shell = visit.shell(app, Section::Policies).await?;
    // A refused form's own address is for sending alone.
    shell.here = ADDRESS.to_owned();
    let shown = table.pools.iter();
    let pools = shown.map(|pool| shown_pool(&table, pool, &sheet, &held));
    let mut response = page(&QuotasView {
        tabs: policies::tabs(app, visit, PolicyTab::Quotas, None).await?,
        pools: pools.collect(),
        edits: may(asker, Action::PutQuotas, Target::Platform),
        unsaved: sheet.lines.values().filter(|line| line.changed()).count(),
        save: PolicySave {
            address: ADDRESS.to_owned(),
            back: ADDRESS.to_owned(),
            reason: outcome.reason,
            key: policies::key(outcome.key),
        },
        errors: outcome.errors,
        effect: outcome.effect,
        changes: changes::beside(
            app,
            visit,
            VersionFilter {
                noun: Some(PolicyNoun::Quota),
                ..VersionFilter::default()
            },
            ADDRESS,
        )
        .await?,
        add: may(asker, Action::CreatePool, Target::Platform).then_some(outcome.add),
        shell,
    })?;
    if outcome.refused {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    Ok(response)
}

fn shown_pool(
    table: &QuotaTable,
    pool: &TablePool,
    sheet: &Sheet,
    held: &BTreeMap<(String, String), i64>,
) -> QuotaPool {
    let guaranteed: BTreeMap<Name, MilliGpu> = sheet
        .lines
        .iter()
        .filter(|((_, of), _)| *of == pool.name)
        .filter_map(|((team, _), line)| Some((team.clone(), line.texts[0].parse().ok()?)))
        .collect();
    let promised = table.promised(&guaranteed);
    let line = |shown: &TableTeam| {
        let team = &shown.team;
        let line = sheet.lines.get(&(team.name.clone(), pool.name.clone()))?;
        let prefix = format!("{}/{}", team.name, pool.name);
        let below = promised
            .get(&team.name)
            .filter(|sum| **sum > MilliGpu::ZERO);
        let cells = QUOTA_KEYS.iter().enumerate().map(|(at, key)| QuotaCell {
            key,
            field: format!("{prefix}/{key}"),
            value: line.texts[at].clone(),
            was: (line.texts[at] != line.read.texts[at]).then(|| line.read.texts[at].clone()),
            instead: below.filter(|_| at == 0).map(MilliGpu::to_string),
            error: line.errors.get(key).cloned(),
        });
        Some(QuotaLine {
            known: pool.capacity.is_some() || team.role.is_some(),
            depth: shown.depth,
            in_place: pool.in_place.get(&team.name).map(in_place),
            cells: cells.collect(),
            read: line.read.written(),
            held: held
                .get(&(team.name.to_string(), pool.name.to_string()))
                .copied(),
            team: Team {
                name: team.name.to_string(),
                hue: u8::try_from(team.hue).unwrap_or(0),
            },
        })
    };
    QuotaPool {
        name: pool.name.to_string(),
        sum: pool
            .capacity
            .map(|capacity| (table.sum(&promised).milli(), capacity.milli())),
        lines: table.teams.iter().filter_map(line).collect(),
    }
}

fn in_place(found: &InPlace) -> QuotaInPlace {
    QuotaInPlace {
        window: found.window.to_string(),
        until: found.until,
        values: quota_fields::texts(&found.quota),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_as_it_was_read_survives_its_form() {
        for text in ["7 4 - - 1 -", "- - - - - -", "1 0.5 8 2 3 1"] {
            let read = Read::parse(text).expect("a row");
            assert_eq!(read.written(), text);
        }
        for text in ["", "x 4 - - 1 -", "7 4 - - 1", "7 4 - - 1 - -"] {
            assert!(Read::parse(text).is_none(), "{text}");
        }
    }
}
