//! A weekly window as the fields of a form: its week, and a row of numbers for each team.

use std::collections::BTreeMap;

use domain::FieldError;
use domain::name::Name;
use domain::weekly::{Day, TimeOfDay, Zone};
use web::messages::Messages;
use web::parts::Team;
use web::views::{QUOTA_KEYS, QuotaCell, Refusal, WindowForm, WindowLine};

use super::fields::Fields;
use super::quota_fields::{self, Texts};
use super::{refusal, told};
use crate::app::AppError;
use crate::app::quotas::table::QuotaTable;
use crate::app::windows::{NewWindow, Window, WindowQuota};

/// What each team has of the pool while no window is open.
pub fn kept(table: &QuotaTable, pool: &Name) -> BTreeMap<Name, Texts> {
    let pool = table.pools.iter().find(|known| known.name == *pool);
    let quotas = pool.into_iter().flat_map(|pool| &pool.quotas);
    quotas
        .map(|(team, quota)| (team.clone(), quota_fields::texts(&quota.into())))
        .collect()
}

/// An empty form.
pub fn fresh(zone: Zone, pool: &Name, table: &QuotaTable) -> WindowForm {
    WindowForm {
        days: days(&[]),
        zone: zone.to_string(),
        lines: lines(table, pool, &|_| Texts::default(), &BTreeMap::new()),
        ..WindowForm::default()
    }
}

/// The form of a window that is there.
pub fn edited(window: &Window, table: &QuotaTable) -> WindowForm {
    let quotas: BTreeMap<&Name, Texts> = window
        .quotas
        .iter()
        .map(|quota| (&quota.team, quota_fields::texts(&quota.quota)))
        .collect();
    let typed = |team: &Name| quotas.get(team).cloned().unwrap_or_default();
    WindowForm {
        changes: true,
        name: window.name.to_string(),
        days: days(&window.days),
        from: window.from.to_string(),
        to: window.to.to_string(),
        zone: window.time_zone.to_string(),
        lines: lines(table, &window.pool, &typed, &BTreeMap::new()),
        version: window.version,
        errors: Vec::new(),
    }
}

fn days(chosen: &[Day]) -> Vec<(&'static str, bool)> {
    let days = Day::ALL.iter();
    days.map(|day| (day.as_str(), chosen.contains(day)))
        .collect()
}

/// What is wrong with cells of the form, by team and key.
pub type CellErrors = BTreeMap<(Name, &'static str), Refusal>;

/// A row for each team; what holds else stands where nothing is typed.
pub fn lines(
    table: &QuotaTable,
    pool: &Name,
    typed: &dyn Fn(&Name) -> Texts,
    errors: &CellErrors,
) -> Vec<WindowLine> {
    let kept = kept(table, pool);
    table
        .teams
        .iter()
        .map(|shown| {
            let name = &shown.team.name;
            let texts = typed(name);
            let blank = quota_fields::blank(&texts);
            let cells = QUOTA_KEYS.iter().enumerate().map(|(at, key)| QuotaCell {
                key,
                field: format!("quota/{name}/{key}"),
                value: texts[at].clone(),
                was: None,
                instead: kept
                    .get(name)
                    .map(|kept| kept[at].clone())
                    .filter(|text| blank && !text.is_empty()),
                error: errors.get(&(name.clone(), *key)).cloned(),
            });
            WindowLine {
                depth: shown.depth,
                cells: cells.collect(),
                team: Team {
                    name: name.to_string(),
                    hue: u8::try_from(shown.team.hue).unwrap_or(0),
                },
            }
        })
        .collect()
}

/// A window as it is typed, and what is wrong with it.
pub struct Typed {
    /// The window, where nothing is wrong with it.
    pub new: Option<NewWindow>,
    /// What is wrong, each with its field.
    pub errors: Vec<Refusal>,
    /// What is wrong with the numbers.
    pub cells: CellErrors,
}

/// Reads a form.
pub fn read(table: &QuotaTable, changed: Option<&Name>, fields: &Fields) -> Typed {
    let mut errors = Vec::new();
    let mut keep = |field: &str, fault: FieldError| {
        errors.push(own_words(refusal::of_value(&fault, field.to_owned())));
    };
    let name = match changed {
        Some(name) => Some(name.clone()),
        None => {
            let name = fields.text("name").parse::<Name>();
            name.map_err(|fault| keep("window_name", fault)).ok()
        }
    };
    let mut time = |field: &str| {
        let text = fields.text(field);
        // A browser may send the seconds, too.
        let minutes = text.strip_suffix(":00").filter(|m| m.contains(':'));
        let time = minutes.unwrap_or(text).parse::<TimeOfDay>();
        time.map_err(|fault| keep(field, fault)).ok()
    };
    let (from, to) = (time("from"), time("to"));
    let zone = fields.text("time_zone").parse::<Zone>();
    let zone = zone.map_err(|fault| keep("time_zone", fault)).ok();
    let days = Day::ALL
        .iter()
        .filter(|day| fields.has(&format!("day.{day}")));
    let days: Vec<Day> = days.copied().collect();
    if days.is_empty() {
        keep("days", FieldError::new("days", "", "at least one day"));
    }
    let mut cells = CellErrors::new();
    let mut quotas = Vec::new();
    for shown in &table.teams {
        let team = &shown.team.name;
        let texts = quota_fields::typed(fields, &format!("quota/{team}"));
        if quota_fields::blank(&texts) {
            continue;
        }
        match quota_fields::quota(&texts) {
            Ok(quota) => quotas.push(WindowQuota {
                team: team.clone(),
                quota,
            }),
            Err(wrong) => {
                let wrong = wrong.into_iter();
                cells.extend(wrong.map(|(key, refused)| ((team.clone(), key), refused)));
            }
        }
    }
    if quotas.is_empty() && cells.is_empty() {
        keep("quotas", FieldError::new("quotas", "", "at least one team"));
    }
    let whole = errors.is_empty() && cells.is_empty();
    let new = match (name, from, to, zone) {
        (Some(name), Some(from), Some(to), Some(zone)) if whole => Some(NewWindow {
            name,
            days,
            from,
            to,
            time_zone: Some(zone),
            quotas,
        }),
        _ => None,
    };
    Typed { new, errors, cells }
}

impl Typed {
    /// Notes a refusal at its field or cell; one that is about neither comes back.
    pub fn refuse(&mut self, teams: &[Name], error: AppError) -> Result<Option<Refusal>, AppError> {
        match error {
            AppError::Exceeded(excess) => {
                let refused = Refusal {
                    told: Some(told::excess(&Messages::english(), &excess)),
                    ..Refusal::default()
                };
                if !teams.contains(&excess.team) {
                    return Ok(Some(refused));
                }
                self.cells.insert((excess.team, QUOTA_KEYS[0]), refused);
                Ok(None)
            }
            AppError::Invalid(fault) => {
                let key = fault.field.rsplit("windows[0].").next().unwrap_or_default();
                let place = quota_fields::place_of(key)
                    .and_then(|(index, key)| Some((teams.get(index)?.clone(), key)));
                match place {
                    Some((team, key)) => {
                        let refused = refusal::of_value(&fault, key.to_owned());
                        self.cells.insert((team, key), refused);
                    }
                    None => self.errors.push(own_words(refusal::of_value(
                        &fault,
                        field_of(key).to_owned(),
                    ))),
                }
                Ok(None)
            }
            other => {
                let refused = refusal::of(other, |key| field_of(key).to_owned())?;
                if refused.field == "window_name" {
                    self.errors.push(refused);
                    return Ok(None);
                }
                Ok(Some(refused))
            }
        }
    }
}

/// The form's field for a key of the API, or for what stands in the way.
fn field_of(key: &str) -> &str {
    match key {
        "name" | "name_taken" => "window_name",
        other => other,
    }
}

/// A window's times are not a booking's.
fn own_words(mut refused: Refusal) -> Refusal {
    let t = Messages::english();
    if t.knows("refused_window", &refused.field) {
        refused.told = Some(t.word("refused_window", &refused.field));
    }
    refused
}
