//! One team: where it stands, what it spent, and its members.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use domain::MilliGpu;
use domain::name::Name;
use serde::Deserialize;
use web::draw::Quota;
use web::shell::{Notice, Section, Tone};
use web::views::{MemberForm, MemberRow, QuotaRow, Refusal, TeamView};

use super::jobs::Teams;
use super::visit::{Posted, Visit};
use super::{Nothing, PageError, evictions, page, refusal, spend};
use crate::app::authorise::{self, Action};
use crate::app::holdings;
use crate::app::idempotency::Repeat;
use crate::app::page::PageAsk;
use crate::app::statements::{self, StatementLine};
use crate::app::teams::{self, NewMember};
use crate::app::{App, AppError, Asker};

/// Shows one team.
pub async fn show_team(
    State(app): State<App>,
    visit: Visit,
    Path(name): Path<String>,
) -> Result<Response, PageError> {
    show(
        &app,
        &visit,
        &read_team(&name)?,
        MemberForm::default(),
        None,
    )
    .await
}

async fn show(
    app: &App,
    visit: &Visit,
    name: &Name,
    form: MemberForm,
    kept: Option<Refusal>,
) -> Result<Response, PageError> {
    let asker = &visit.asker;
    let team = teams::get(app, asker, name).await?;
    let known = Teams::load(app, asker).await?;
    let members = teams::list_members(app, asker, name, &PageAsk::first())
        .await?
        .items;
    let may = |action| authorise::may(asker, action, team.target);
    let removable = may(Action::RemoveMember);
    let children: Vec<_> = known
        .children(name.as_str())
        .into_iter()
        .map(|child| known.shown(child.name.as_str()))
        .collect();
    let below = known.with_children(name.as_str());
    let live = holdings::live_jobs(app, asker).await?;
    let jobs = below
        .iter()
        .filter_map(|team| live.get(team))
        .fold((0, 0), |(w, a), jobs| (w + jobs.waiting, a + jobs.active));
    let mut shell = visit.shell(app, Section::Teams).await?;
    // A refused form's own address is for sending alone.
    shell.here = format!("/teams/{name}");
    let not_added = form.error.as_ref().map(|refusal| {
        let rule = refusal.say(&shell.t);
        shell.t.say("team.not_added").nest("rule", rule)
    });
    let not_removed = kept.map(|refusal| refusal.say(&shell.t));
    shell.notice = not_added
        .or(not_removed)
        .map(|text| Notice {
            tone: Tone::Bad,
            text,
        })
        .or(shell.notice);
    let spent = spend::of_team(app, asker, name).await?;
    let evictions = evictions::of_team(app, asker, name).await?;
    page(&TeamView {
        team: known.shown(name.as_str()),
        ancestors: ancestors(&known, &team),
        quotas: quota_rows(app, asker, name).await?,
        evictions: evictions.last,
        evictions_before: evictions.more,
        eviction_sums: evictions.sums,
        jobs,
        month: shell.now,
        spend: spent.lines,
        total: spent.total,
        users: spent.users,
        members: members
            .into_iter()
            .map(|member| MemberRow {
                user: member.user.to_string(),
                role: member.role.as_str().into(),
                removable,
            })
            .collect(),
        add_member: may(Action::AddMember).then_some(form),
        submits: children.is_empty() && may(Action::SubmitJob),
        children,
        shell,
    })
}

fn ancestors(known: &Teams, team: &teams::Team) -> Vec<(String, bool)> {
    let mut names: Vec<(String, bool)> = Vec::new();
    let mut parent = team.parent.as_ref();
    // The tree of teams is bounded and has no circle.
    while let Some(above) = parent.and_then(|name| known.get(name.as_str())) {
        names.push((above.name.to_string(), known.opens(above.name.as_str())));
        parent = above.parent.as_ref();
    }
    names.reverse();
    names
}

/// A row for each pool in which the team, with all below it, is promised or holds something.
async fn quota_rows(app: &App, asker: &Asker, team: &Name) -> Result<Vec<QuotaRow>, PageError> {
    let counts = |line: &StatementLine| {
        line.team == team.as_str()
            && (line.quota.is_some()
                || line.promised > MilliGpu::ZERO
                || line.held > MilliGpu::ZERO)
    };
    let (_, lines) = statements::of_all(app, asker).await?;
    let row = |line: StatementLine| {
        let quota = line.quota.as_ref();
        QuotaRow {
            quota: Quota {
                guaranteed: line.guaranteed.milli(),
                limit: line.limit.map(MilliGpu::milli),
                used: line.held.milli(),
                lent: line.lent.milli(),
            },
            promised: line.promised.milli(),
            booked: line.booked.milli(),
            devices_out: line.devices_out,
            window: line.window.as_ref().map(Name::to_string),
            leaving: line.leaving.milli(),
            reclaimable: line.reclaimable.milli(),
            starved_since: line.starved_since,
            lend_limit: quota
                .and_then(|quota| quota.lend_limit)
                .map(MilliGpu::milli),
            weight: quota.map(|quota| quota.weight.to_string()),
            pool: line.pool,
        }
    };
    Ok(lines.into_iter().filter(counts).map(row).collect())
}

/// Members have no page of their own; who reloads a refused form comes by here.
pub async fn show_members(_: Visit, Path(name): Path<String>) -> Result<Redirect, PageError> {
    Ok(Redirect::to(&format!("/teams/{}", read_team(&name)?)))
}

/// The form that adds a member.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Typed {
    user: String,
    role: String,
}

/// Adds a member.
pub async fn add_member(
    State(app): State<App>,
    Path(name): Path<String>,
    Posted { visit, fields }: Posted<Typed>,
) -> Result<Response, PageError> {
    let team = read_team(&name)?;
    let added = match new_member(&fields) {
        Ok(new) => teams::add_member(&app, &visit.asker, Repeat::none(), &team, new).await,
        Err(error) => Err(error),
    };
    let refusal = match added {
        Ok(_) => {
            return Ok(Redirect::to(&format!("/teams/{team}?done=member_added")).into_response());
        }
        Err(error) => refusal::of(error, field_of)?,
    };
    let form = MemberForm {
        user: fields.user,
        role: fields.role,
        error: Some(refusal),
    };
    refusal::answer(show(&app, &visit, &team, form, None).await)
}

/// The form's field for a key, or for what stands in the way.
fn field_of(key: &str) -> String {
    if key == "role" { "role" } else { "user_name" }.to_owned()
}

fn new_member(typed: &Typed) -> Result<NewMember, AppError> {
    Ok(NewMember {
        user: typed.user.trim().parse()?,
        role: typed.role.parse()?,
    })
}

/// Removes a member.
pub async fn remove_member(
    State(app): State<App>,
    Path((name, user)): Path<(String, String)>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Response, PageError> {
    let team = read_team(&name)?;
    let user: Name = user
        .parse()
        .map_err(|_| AppError::not_found("member", user))?;
    match teams::remove_member(&app, &visit.asker, &team, &user).await {
        Ok(_) => Ok(Redirect::to(&format!("/teams/{team}?done=member_removed")).into_response()),
        Err(conflict @ AppError::Conflict { .. }) => {
            let kept = refusal::of(conflict, field_of)?;
            let page = show(&app, &visit, &team, MemberForm::default(), Some(kept));
            refusal::answer(page.await)
        }
        Err(error) => Err(error.into()),
    }
}

/// A team's name from the path; what is none names no team.
fn read_team(text: &str) -> Result<Name, AppError> {
    text.parse().map_err(|_| AppError::not_found("team", text))
}
