//! Teams: the tree of tenants, made by administrators; who belongs to a team is its owners' affair.

use domain::FieldError;
use domain::Timestamp;
use domain::ids::{TeamId, UserId};
use domain::name::Name;
use domain::role::{PlatformRole, TeamRole};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, RefusalCode, audit, change, quotas};
use crate::store::teams::TreeTeam;
use crate::store::{self, Tx};

/// Deepest tree: organisation, division, department, team and some. Bounds what is computed
/// along a path, and what a page can indent.
const DEPTH_MAX: usize = 8;

/// A team.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Team {
    /// Its name.
    pub name: Name,
    /// The team above it.
    pub parent: Option<Name>,
    /// Its colour on the pages, 1 to 12; given when it is made and kept.
    pub hue: i16,
    /// The asker's role in it, of the team itself or of one above; null for a team that the
    /// asker knows by name only, or through a platform role.
    pub role: Option<TeamRole>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Its version.
    pub version: i64,
    /// On what actions on it are judged; for its page.
    #[serde(skip)]
    pub target: Target,
}

/// A team to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTeam {
    /// Its name.
    pub name: Name,
    /// The team above it; null is at the root.
    #[serde(default)]
    pub parent: Option<Name>,
}

/// What is to be changed of a team; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TeamPatch {
    /// Its name.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub name: Option<Name>,
    /// The team above it; null moves it to the root.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<String>)]
    pub parent: Option<Option<Name>>,
}

/// Lists the teams that the asker may know: its own with all below, and the names of those above.
pub async fn list(app: &App, asker: &Asker, ask: &PageAsk) -> Result<Page<Team>, AppError> {
    authorise(asker, Action::ListTeams, Target::Platform)?;
    let after: Option<String> = ask.after("team")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::teams::page(&mut tx, after.as_deref(), ask.rows_wanted()).await?;
    tx.commit().await?;
    let teams = rows.into_iter().map(|row| shown(asker, row)).collect();
    Ok(page::cut(ask, "team", teams, |t: &Team| t.name.to_string()))
}

/// Shows one team, as far as it is listed: one above the asker's own with its name and place alone.
pub async fn get(app: &App, asker: &Asker, name: &Name) -> Result<Team, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let known = find(&mut tx, name).await?;
    let row = if asker.ancestors.contains(&known.id) {
        known
    } else {
        find_as(&mut tx, asker, Action::GetTeam, name).await?
    };
    tx.commit().await?;
    Ok(shown(asker, row))
}

/// Makes a team.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewTeam,
) -> Result<Answer<Team>, AppError> {
    authorise(asker, Action::CreateTeam, Target::Platform)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    store::teams::lock_tree(tx).await?;
    let parent = match &new.parent {
        Some(parent) => Some(parent_for(tx, parent).await?),
        None => None,
    };
    let id = TeamId::new();
    let mut tree = store::teams::tree(tx).await?;
    tree.push(TreeTeam {
        id,
        name: new.name.clone(),
        parent_id: parent,
    });
    check_depth(&tree, id, new.parent.as_ref())?;
    let hue = store::teams::free_hue(tx).await?;
    store::teams::insert(tx, id, &new.name, parent, hue)
        .await
        .map_err(|error| AppError::name_taken(error, "team_name_taken", "team", &new.name))?;
    let row = find(tx, &new.name).await?;
    let change = Change {
        team_id: Some(id),
        after: Some(described(&row)),
        ..Change::of(Action::CreateTeam, format!("team/{}", new.name))
    };
    audit::record(tx, asker, change).await?;
    let (team, version) = (shown(asker, row.clone()), row.version);
    work.finish(app, Answer::created(team, version)).await
}

/// Renames a team or moves it in the tree.
pub async fn update(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: i64,
    patch: TeamPatch,
) -> Result<Team, AppError> {
    authorise(asker, Action::UpdateTeam, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    store::teams::lock_tree(&mut tx).await?;
    let before = find(&mut tx, name).await?;
    let parent = match &patch.parent {
        None => before.parent_id,
        Some(None) => None,
        Some(Some(parent)) if before.parent.as_ref() == Some(parent) => before.parent_id,
        Some(Some(parent)) => Some(parent_for(&mut tx, parent).await?),
    };
    let new_name = patch.name.unwrap_or_else(|| name.clone());
    let was = (&before.name, before.parent_id);
    if change::leaves((version, before.version), &was, &(&new_name, parent))? {
        return Ok(shown(asker, before));
    }
    if parent != before.parent_id {
        let mut tree = store::teams::tree(&mut tx).await?;
        for node in tree.iter_mut().filter(|node| node.id == before.id) {
            node.parent_id = parent;
        }
        let asked = patch.parent.as_ref().and_then(Option::as_ref);
        for node in &tree {
            check_depth(&tree, node.id, asked)?;
        }
        quotas::check_all_pools(&mut tx, &tree, asked).await?;
    }
    let updated = store::teams::update(&mut tx, before.id, version, &new_name, parent)
        .await
        .map_err(|error| AppError::name_taken(error, "team_name_taken", "team", &new_name))?;
    if !updated {
        return Err(AppError::Stale {
            given: version.to_string(),
            present: before.version,
        });
    }
    let after = find(&mut tx, &new_name).await?;
    let change = Change {
        team_id: Some(after.id),
        before: Some(described(&before)),
        after: Some(described(&after)),
        ..Change::of(Action::UpdateTeam, format!("team/{name}"))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(shown(asker, after))
}

/// A person's role in a team.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// The person.
    pub user: Name,
    /// How it is called; may be empty.
    pub display_name: String,
    /// Its role.
    pub role: TeamRole,
    /// Whether it may not sign in.
    pub disabled: bool,
    /// Since when it belongs to the team.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
}

/// A person to be added, or to be given another role.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// The person.
    pub user: Name,
    /// Its role.
    pub role: TeamRole,
}

/// Lists a team's members, by name; not those of the teams above.
pub async fn list_members(
    app: &App,
    asker: &Asker,
    team: &Name,
    ask: &PageAsk,
) -> Result<Page<Member>, AppError> {
    let after: Option<String> = ask.after("member")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = find_as(&mut tx, asker, Action::ListMembers, team).await?;
    let rows = store::teams::members(&mut tx, row.id, after.as_deref(), ask.rows_wanted()).await?;
    tx.commit().await?;
    let members = rows
        .into_iter()
        .map(|m| Member {
            user: m.user,
            display_name: m.display_name,
            role: m.role,
            disabled: m.disabled,
            since: m.created_at,
        })
        .collect();
    Ok(page::cut(ask, "member", members, |m: &Member| {
        m.user.to_string()
    }))
}

/// Adds a person to a team, or gives it another role there. Owners add whom they may know, and
/// who belongs to no team yet: whether a name is that of somebody in another team is not theirs
/// to find out, so it is answered as a name that nobody has. Administrators add anybody.
pub async fn add_member(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    new: NewMember,
) -> Result<Answer<Member>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = find_as(&mut tx, asker, Action::AddMember, team).await?;
    tx.commit().await?;
    let mut system = app.db.begin_system().await?;
    let newcomer = store::users::find_teamless(&mut system, new.user.as_str()).await?;
    system.commit().await?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let known = store::users::find(&mut work.tx, new.user.as_str()).await?;
    let person = known
        .or(newcomer)
        .ok_or_else(|| AppError::not_found("user", &new.user))?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let (before, since) = join(&mut work.tx, asker, &row, person.id, new.role).await?;
    if before != Some(new.role) {
        let change = Change {
            team_id: Some(row.id),
            before: before.map(|role| json!({"role": role})),
            after: Some(json!({"role": new.role})),
            ..Change::of(Action::AddMember, format!("member/{team}/{}", new.user))
        };
        audit::record(&mut work.tx, asker, change).await?;
    }
    let member = Member {
        user: person.name,
        display_name: person.display_name,
        role: new.role,
        disabled: person.disabled_at.is_some(),
        since,
    };
    let answer = if before.is_some() {
        Answer::done(member, None)
    } else {
        Answer::created(member, None)
    };
    work.finish(app, answer).await
}

/// Gives a person a role in a team: the one that it had, and since when it is a member. Of several
/// who add it at once one has added it, which the insertion says and no look before it could.
async fn join(
    tx: &mut Tx,
    asker: &Asker,
    team: &store::teams::Team,
    person: UserId,
    role: TeamRole,
) -> Result<(Option<TeamRole>, Timestamp), AppError> {
    if let Some(since) = store::teams::add_member(tx, team.id, person, role).await? {
        return Ok((None, since));
    }
    if role != TeamRole::Owner {
        check_owned_without(tx, asker, team, person).await?;
    }
    let before = store::teams::role_of(tx, team.id, person).await?;
    let since = store::teams::put_member(tx, team.id, person, role).await?;
    Ok((before, since))
}

/// Takes a person out of a team. Its work there stays the team's.
pub async fn remove_member(
    app: &App,
    asker: &Asker,
    team: &Name,
    user: &Name,
) -> Result<(), AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = find_as(&mut tx, asker, Action::RemoveMember, team).await?;
    let absent = || AppError::not_found("member", user);
    let person = store::users::find(&mut tx, user.as_str())
        .await?
        .ok_or_else(absent)?;
    let before = store::teams::role_of(&mut tx, row.id, person.id).await?;
    check_owned_without(&mut tx, asker, &row, person.id).await?;
    if !store::teams::remove_member(&mut tx, row.id, person.id).await? {
        return Err(absent());
    }
    let change = Change {
        team_id: Some(row.id),
        before: before.map(|role| json!({"role": role})),
        ..Change::of(Action::RemoveMember, format!("member/{team}/{user}"))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

/// Finds a team that the transaction may see, or says that it is not there.
pub async fn find(tx: &mut Tx, name: &Name) -> Result<store::teams::Team, AppError> {
    store::teams::find(tx, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("team", name))
}

/// A team by name, in which the asker may do `action`. One that it may not see is not there; one
/// above its own, of which it may know the name and nothing else, is not there for it either.
pub async fn find_as(
    tx: &mut Tx,
    asker: &Asker,
    action: Action,
    name: &Name,
) -> Result<store::teams::Team, AppError> {
    let team = find(tx, name).await?;
    authorise(asker, action, Target::Team(team.id)).map_err(|error| match error {
        AppError::NotFound { .. } => AppError::not_found("team", name),
        other => other,
    })?;
    Ok(team)
}

/// Refuses the last owner of a team who would give that up: nobody who may add another would be
/// left. Whom an owner of a team above or an administrator takes out leaves those behind.
async fn check_owned_without(
    tx: &mut Tx,
    asker: &Asker,
    team: &store::teams::Team,
    person: UserId,
) -> Result<(), AppError> {
    let owners = store::teams::lock_owners(tx, team.id).await?;
    let above = match &team.parent {
        Some(parent) => store::teams::find(tx, parent.as_str()).await?,
        None => None,
    };
    let owner_above =
        above.is_some_and(|above| asker.teams.get(&above.id) == Some(&TeamRole::Owner));
    let stays = asker.user_id != person
        || asker.platform_role == Some(PlatformRole::Admin)
        || owner_above
        || owners != [person];
    if stays {
        return Ok(());
    }
    Err(AppError::conflict(
        RefusalCode::LastOwner,
        format!("you are the last owner of team {}", team.name),
        FieldError::new("user", &asker.name, "make somebody else its owner first"),
    ))
}

/// A team under which another may stand: one without work of its own, since work belongs to leaves.
async fn parent_for(tx: &mut Tx, name: &Name) -> Result<TeamId, AppError> {
    let parent = find(tx, name).await.map_err(|error| match error {
        AppError::NotFound { .. } => {
            AppError::invalid("parent", name, "a team that is there, or null for the root")
        }
        other => other,
    })?;
    if store::teams::has_live_work(tx, parent.id).await? {
        return Err(AppError::conflict(
            RefusalCode::TeamHasWork,
            format!(
                "team {name} has work that has not ended, and work belongs to teams without teams below"
            ),
            FieldError::new("parent", name, "wait for its work or cancel it"),
        ));
    }
    Ok(parent.id)
}

/// Refuses a tree that is too deep or goes round in a circle above a team, now that `asked` is the
/// parent of one.
fn check_depth(tree: &[TreeTeam], team: TeamId, asked: Option<&Name>) -> Result<(), AppError> {
    let mut at = Some(team);
    for _ in 0..DEPTH_MAX {
        let Some(id) = at else { return Ok(()) };
        at = tree.iter().find(|n| n.id == id).and_then(|n| n.parent_id);
    }
    if at.is_none() {
        return Ok(());
    }
    Err(AppError::invalid(
        "parent",
        asked.map_or("null", Name::as_str),
        format!("a team that is not below it, in a tree of at most {DEPTH_MAX} levels"),
    ))
}

fn shown(asker: &Asker, row: store::teams::Team) -> Team {
    Team {
        target: Target::Team(row.id),
        role: asker.teams.get(&row.id).copied(),
        name: row.name,
        parent: row.parent,
        hue: row.hue,
        created_at: row.created_at,
        version: row.version,
    }
}

fn described(team: &store::teams::Team) -> serde_json::Value {
    json!({"name": team.name, "parent": team.parent})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_of_teams_is_refused() {
        let (a, b) = (TeamId::new(), TeamId::new());
        let team = |id, parent_id| TreeTeam {
            id,
            name: "t".parse().expect("a name"),
            parent_id,
        };
        let asked: Name = "t2".parse().expect("a name");
        let circle = check_depth(&[team(a, Some(b)), team(b, Some(a))], b, Some(&asked));
        assert!(
            matches!(&circle, Err(AppError::Invalid(fault)) if fault.value == "t2"),
            "what was sent is told: {circle:?}"
        );
        assert!(check_depth(&[team(a, None), team(b, Some(a))], b, None).is_ok());
        assert!(check_depth(&[team(a, Some(b)), team(b, Some(a))], b, None).is_err());
    }
}
