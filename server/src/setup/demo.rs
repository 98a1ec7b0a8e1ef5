//! `allotment-server seed-demo`: an organisation to try things on, made once, in one transaction.

use anyhow::Context;
use domain::ids::{PoolId, PriceId, RequestId, TeamId, UserId};
use domain::name::Name;
use domain::policy::PoolPolicy;
use domain::role::{PlatformRole, TeamRole};
use domain::sharing::SharingMode;
use serde::Serialize;
use serde_json::json;

use super::admin::{add_person, random_password};
use crate::app::sessions::{self, SessionKind};
use crate::app::{App, passwords};
use crate::store::{self, Tx};

/// The organisation, over its teams.
const ORGANISATION: &str = "org";
const TEAMS: [&str; 3] = ["vision", "speech", "platform"];
/// Pools with the price of a GPU-hour, and what each of the teams is promised there.
const POOLS: [(&str, &str, [i64; 3]); 3] = [
    ("h100", "41.10", [4, 2, 2]),
    ("a100", "20.55", [2, 4, 2]),
    ("l40s", "8.20", [1, 1, 2]),
];
const CURRENCY: &str = "CNY";
/// The modes that the demo's pools offer, all at the same price of a GPU-hour.
const MODES: [SharingMode; 4] = [
    SharingMode::Exclusive,
    SharingMode::TimeSlice,
    SharingMode::Mig,
    SharingMode::Mps,
];
/// Life of the administrator's token, in seconds: a demo is looked at for weeks.
const TOKEN_SECONDS: i64 = 30 * 24 * 3600;

/// What was made, with every secret in the clear: printed once and kept by whoever asked.
#[derive(Debug, Serialize)]
pub struct Seeded {
    /// Everybody who can sign in.
    pub users: Vec<SeededUser>,
    /// A bearer token of the administrator.
    pub token: String,
}

/// A person of the demo.
#[derive(Debug, Serialize)]
pub struct SeededUser {
    /// The log-in.
    pub name: String,
    /// The password.
    pub password: String,
    /// The role, in the team or on the platform.
    pub role: String,
    /// The team, for roles in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
}

/// Makes the demo; nothing where it is there already.
pub async fn seed(app: &App) -> anyhow::Result<Option<Seeded>> {
    let people = people();
    let mut hashed = Vec::with_capacity(people.len());
    for person in people {
        let hash = passwords::hash(person.password.clone()).await?;
        hashed.push((person, hash));
    }
    let mut tx = app.db.begin_system().await.context("begin")?;
    // Two who seed at once: the second waits here and then finds the first one's work.
    store::teams::lock_tree(&mut tx).await.context("lock")?;
    let there = store::teams::find(&mut tx, ORGANISATION)
        .await
        .context("look for the organisation")?;
    if there.is_some() {
        return Ok(None);
    }
    let teams = add_teams(&mut tx).await?;
    let mut admin = None;
    let mut users = Vec::with_capacity(hashed.len());
    for (person, hash) in hashed {
        let id = add_member(&mut tx, &teams, &person, &hash).await?;
        if person.name == PlatformRole::Admin.as_str() {
            admin = Some(id);
        }
        users.push(person);
    }
    let admin = admin.context("the demo has an administrator")?;
    add_pools(&mut tx, &teams, admin).await?;
    let token = sessions::open_in(&mut tx, admin, SessionKind::Token, TOKEN_SECONDS).await?;
    record(&mut tx, &users).await.context("record it")?;
    tx.commit().await.context("commit")?;
    Ok(Some(Seeded {
        users,
        token: token.secret,
    }))
}

/// One line of the audit log for all that was made.
async fn record(tx: &mut Tx, users: &[SeededUser]) -> Result<(), sqlx::Error> {
    let names: Vec<&str> = users.iter().map(|user| user.name.as_str()).collect();
    let pools = POOLS.map(|(pool, ..)| pool);
    let entry = store::audit::NewEntry {
        actor_kind: "system",
        actor_id: None,
        actor_name: "seed-demo",
        action: "seed_demo",
        object: &format!("team/{ORGANISATION}"),
        team_id: None,
        request_id: RequestId::new(),
        outcome: "done",
        reason: "made on the server's command line",
        before: None,
        after: Some(json!({ "teams": TEAMS, "users": names, "pools": pools })),
    };
    store::audit::insert(tx, entry).await
}

fn people() -> Vec<SeededUser> {
    let person = |name: String, role: String, team: Option<&str>| SeededUser {
        name,
        password: random_password(),
        role,
        team: team.map(str::to_owned),
    };
    let platform = [
        PlatformRole::Admin,
        PlatformRole::Operator,
        PlatformRole::Finance,
    ]
    .map(|role| person(role.to_string(), role.to_string(), None));
    let in_teams = [ORGANISATION]
        .into_iter()
        .chain(TEAMS)
        .flat_map(|team| {
            [TeamRole::Owner, TeamRole::Member, TeamRole::Viewer].map(|role| (team, role))
        })
        .map(|(team, role)| person(format!("{team}-{role}"), role.to_string(), Some(team)));
    platform.into_iter().chain(in_teams).collect()
}

async fn add_teams(tx: &mut Tx) -> anyhow::Result<Vec<(&'static str, TeamId)>> {
    let mut made: Vec<(&'static str, TeamId)> = Vec::new();
    for name in [ORGANISATION].into_iter().chain(TEAMS) {
        let parent = made.first().map(|(_, organisation)| *organisation);
        let hue = store::teams::free_hue(tx)
            .await
            .context("choose a colour")?;
        let id = TeamId::new();
        store::teams::insert(tx, id, &named(name), parent, hue)
            .await
            .with_context(|| format!("make team {name}"))?;
        made.push((name, id));
    }
    Ok(made)
}

async fn add_member(
    tx: &mut Tx,
    teams: &[(&'static str, TeamId)],
    person: &SeededUser,
    hash: &str,
) -> anyhow::Result<UserId> {
    let name = named(&person.name);
    let Some(team) = &person.team else {
        return add_person(tx, &name, person.role.parse().ok(), hash).await;
    };
    let id = add_person(tx, &name, None, hash).await?;
    let team_id = teams
        .iter()
        .find(|(name, _)| name == team)
        .map(|(_, id)| *id)
        .context("its team was made before")?;
    let role: TeamRole = person.role.parse().context("a role")?;
    store::teams::put_member(tx, team_id, id, role)
        .await
        .with_context(|| format!("make {name} a member of {team}"))?;
    Ok(id)
}

async fn add_pools(
    tx: &mut Tx,
    teams: &[(&'static str, TeamId)],
    admin: UserId,
) -> anyhow::Result<()> {
    let policy = PoolPolicy {
        sharing: MODES.to_vec(),
        ..PoolPolicy::default()
    };
    let policy = serde_json::to_value(policy).context("write a policy")?;
    let now = store::clock(tx).await.context("read the clock")?;
    for (name, price, guarantees) in POOLS {
        // A pool that an earlier set-up made keeps its policy.
        let pool = match store::pools::find(tx, name)
            .await
            .context("look for the pool")?
        {
            Some(pool) => pool.id,
            None => {
                let id = PoolId::new();
                store::pools::insert(tx, id, &named(name), &policy)
                    .await
                    .with_context(|| format!("make pool {name}"))?;
                id
            }
        };
        for (team, guaranteed) in TEAMS.into_iter().zip(guarantees) {
            let team_id = teams
                .iter()
                .find(|(name, _)| *name == team)
                .map(|(_, id)| *id)
                .context("its team was made before")?;
            let amounts = store::quotas::Amounts {
                guaranteed_milli: guaranteed * domain::quantity::MILLI,
                limit_milli: None,
                lend_limit_milli: None,
                weight_milli: domain::quantity::MILLI,
                max_per_user_milli: None,
            };
            store::quotas::insert(tx, team_id, pool, amounts)
                .await
                .with_context(|| format!("promise {team} its part of {name}"))?;
        }
        for mode in MODES {
            let price = store::prices::NewPrice {
                id: PriceId::new(),
                pool,
                mode,
                per_gpu_hour: price.parse().context("a price")?,
                currency: CURRENCY,
                effective_from: now,
                created_by: admin,
            };
            store::prices::insert(tx, &price)
                .await
                .with_context(|| format!("price pool {name}"))?;
        }
    }
    Ok(())
}

fn named(text: &str) -> Name {
    text.parse().expect("the demo's names are well-formed")
}
