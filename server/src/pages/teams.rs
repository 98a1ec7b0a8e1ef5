//! The list of teams, and making one.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use web::format::Cost;
use web::shell::Section;
use web::views::{TeamFigures, TeamForm, TeamRow, TeamsView};

use super::jobs::Teams;
use super::visit::{Posted, Visit};
use super::{PageError, page, refusal, spend};
use crate::app::authorise::{Action, Target, may};
use crate::app::idempotency::Repeat;
use crate::app::teams::{self, NewTeam, Team};
use crate::app::{App, AppError, holdings, statements};

/// Shows the teams that the asker may see.
pub async fn list_teams(State(app): State<App>, visit: Visit) -> Result<Response, PageError> {
    show(&app, &visit, TeamForm::default()).await
}

/// What a team has in all pools; thousandths of a GPU.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    guaranteed: i64,
    holds: i64,
    used: i64,
}

async fn show(app: &App, visit: &Visit, form: TeamForm) -> Result<Response, PageError> {
    let known = Teams::load(app, &visit.asker).await?;
    let mut held: BTreeMap<String, Sums> = BTreeMap::new();
    for line in statements::of_all(app, &visit.asker).await?.1 {
        let sums = held.entry(line.team).or_default();
        sums.guaranteed += line.promised.milli();
        sums.holds += line.guaranteed.milli();
        sums.used += line.held.milli();
    }
    let live = holdings::live_jobs(app, &visit.asker).await?;
    let spent = spend::by_team(app, &visit.asker).await?;
    let figures = |name: &str| {
        let sums = held.get(name).copied().unwrap_or_default();
        let below = known.with_children(name);
        TeamFigures {
            guaranteed_milli: sums.guaranteed,
            holds_milli: sums.holds,
            used_milli: sums.used,
            waiting: below
                .iter()
                .filter_map(|team| live.get(team))
                .map(|jobs| jobs.waiting)
                .sum(),
            spent: below
                .iter()
                .filter_map(|team| spent.get(team))
                .cloned()
                .fold(spend::nothing(), Cost::plus),
        }
    };
    let rows = in_tree(&known)
        .into_iter()
        .map(|(team, depth)| TeamRow {
            team: known.shown(team.name.as_str()),
            depth,
            figures: known
                .opens(team.name.as_str())
                .then(|| figures(team.name.as_str())),
        })
        .collect();
    let makes = may(&visit.asker, Action::CreateTeam, Target::Platform);
    page(&TeamsView {
        shell: visit.shell(app, Section::Teams).await?,
        rows,
        form: makes.then_some(form),
    })
}

/// The teams, each after its parent, with its depth. One whose parent the asker may not see begins a tree.
fn in_tree(known: &Teams) -> Vec<(&Team, usize)> {
    let roots = known.all().filter(|team| {
        team.parent
            .as_ref()
            .is_none_or(|parent| known.get(parent.as_str()).is_none())
    });
    let mut stack: Vec<(&Team, usize)> = roots.map(|team| (team, 0)).collect();
    stack.reverse();
    let mut ordered = Vec::new();
    while let Some((team, depth)) = stack.pop() {
        ordered.push((team, depth));
        stack.extend(
            known
                .children(team.name.as_str())
                .into_iter()
                .rev()
                .map(|child| (child, depth + 1)),
        );
    }
    ordered
}

/// The form that makes a team.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Typed {
    name: String,
    #[serde(default)]
    parent: String,
}

/// Makes a team.
pub async fn make_team(
    State(app): State<App>,
    Posted { visit, fields }: Posted<Typed>,
) -> Result<Response, PageError> {
    let made = match new_team(&fields) {
        Ok(new) => teams::create(&app, &visit.asker, Repeat::none(), new).await,
        Err(error) => Err(error),
    };
    let refusal = match made {
        Ok(answer) => {
            return Ok(
                Redirect::to(&format!("/teams/{}?done=team_made", answer.value.name))
                    .into_response(),
            );
        }
        Err(error) => refusal::of(error, field_of)?,
    };
    let form = TeamForm {
        name: fields.name,
        parent: fields.parent,
        error: Some(refusal),
    };
    refusal::answer(show(&app, &visit, form).await)
}

/// The form's field for a key, or for what stands in the way.
fn field_of(key: &str) -> String {
    match key {
        "parent" | "team_has_work" => "parent",
        _ => "team_name",
    }
    .to_owned()
}

fn new_team(typed: &Typed) -> Result<NewTeam, AppError> {
    let parent = match typed.parent.as_str() {
        "" => None,
        parent => Some(parent.parse()?),
    };
    Ok(NewTeam {
        name: typed.name.trim().parse()?,
        parent,
    })
}
