//! Quota statements: they add up in every state, say since when a team is short, and name no stranger.

use axum::http::StatusCode;
use chrono::TimeDelta;
use domain::MilliGpu;
use domain::ids::JobId;
use domain::state::JobState;
use serde_json::{Value, json};
use server::app::statements::{self, OtherSide, StatementLine};
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::{Fleet, add_node, turn};
use super::page_form::browser;
use super::simulated::{Clock, Dice};

/// Steps of the random state: enough to meet loans, spare devices, shrunk guarantees and shortages.
const STEPS: usize = 150;

#[sqlx::test(migrations = "../migrations")]
async fn statements_add_up_over_random_live_states(owner: PgPool) {
    let seed = 20_261_130;
    let policy = json!({ "sharing": ["exclusive", "time_slice"] });
    let fleet = Fleet::with_policy(owner, policy).await;
    fleet.node("n1", 4).await;
    fleet.node("n2", 5).await;
    let mut leader = fleet.lead().await;
    let mut dice = Dice(seed);
    let mut met = Met::default();
    let mut live: Vec<JobId> = Vec::new();
    for step in 0..STEPS {
        match dice.roll(6) {
            0 | 1 => {
                let gpus = ["1", "2", "3", "0.25"][dice.roll(4)];
                let mode = if gpus.contains('.') {
                    "time_slice"
                } else {
                    "exclusive"
                };
                let gpus: serde_json::Number = gpus.parse().expect("a number");
                let class = ["normal", "training-high"][dice.roll(2)];
                let spec = json!({ "name": "j", "command": ["x"], "class": class,
                                   "per_worker": { "gpus": gpus, "sharing": [mode] } });
                let team = ["vision", "speech"][dice.roll(2)];
                live.extend(
                    fleet
                        .submit_as(&fleet.root(), team, spec)
                        .await
                        .map(|job| job.id),
                );
            }
            2 => {
                for job in &live {
                    if fleet.job(*job).await.state == JobState::Starting {
                        fleet.run(*job).await;
                    }
                }
            }
            3 if !live.is_empty() => {
                let job = live.swap_remove(dice.roll(live.len()));
                match fleet.job(job).await.state {
                    JobState::Running | JobState::Preempting => fleet.exit(job, 0).await,
                    _ => live.push(job),
                }
            }
            4 if dice.roll(3) == 0 => lose_or_find(&fleet.owner, ["n1", "n2"][dice.roll(2)]).await,
            _ => {
                leader.turn().await.expect("a turn");
            }
        }
        let (_, lines) = statements::of_all(&fleet.app, &fleet.root())
            .await
            .expect("statements");
        check(&fleet, &lines).await.unwrap_or_else(|what| {
            panic!("step {step} of seed {seed}: {what}: {lines:#?}");
        });
        met.note(&lines);
    }
    assert_eq!(
        met,
        Met {
            lent: true,
            spare: true,
            shrunk: true,
            starved: true,
            reclaimable: true
        },
        "seed {seed} meets all of it"
    );
}

/// What the random states have met.
#[derive(Debug, Default, PartialEq, Eq)]
struct Met {
    lent: bool,
    spare: bool,
    shrunk: bool,
    starved: bool,
    reclaimable: bool,
}

impl Met {
    fn note(&mut self, lines: &[StatementLine]) {
        let any = |what: &dyn Fn(&StatementLine) -> bool| lines.iter().any(what);
        self.lent |= any(&|l| l.lent > MilliGpu::ZERO);
        self.spare |= any(&|l| l.spare > MilliGpu::ZERO);
        self.shrunk |= any(&|l| l.guaranteed < l.promised);
        self.starved |= any(&|l| l.starved_since.is_some());
        self.reclaimable |= any(&|l| l.reclaimable > MilliGpu::ZERO);
    }
}

fn sum<'l>(amounts: impl IntoIterator<Item = &'l MilliGpu>) -> MilliGpu {
    amounts.into_iter().copied().sum()
}

/// What does not add up, if anything.
async fn check(fleet: &Fleet, lines: &[StatementLine]) -> Result<(), String> {
    let line = |team: &str| lines.iter().find(|line| line.team == team).expect("a line");
    let amounts = |sides: &[OtherSide]| sides.iter().map(|side| side.amount).sum::<MilliGpu>();
    for line in lines {
        let team = &line.team;
        if line.guaranteed != sum([&line.within, &line.lent, &line.idle]) {
            return Err(format!("the guarantee of {team}"));
        }
        if line.held != sum([&line.within, &line.borrowed]) {
            return Err(format!("what {team} holds"));
        }
        if line.borrowed != amounts(&line.borrows_from) + line.spare {
            return Err(format!("what {team} borrows"));
        }
        if line.lent != amounts(&line.lends_to) {
            return Err(format!("what {team} lends"));
        }
        if line.reclaimable > line.lent {
            return Err(format!("what {team} can take back"));
        }
    }
    let (org, vision, speech) = (line("org"), line("vision"), line("speech"));
    if org.held != vision.held + speech.held {
        return Err("what org holds over its children".to_owned());
    }
    if org.guaranteed != vision.guaranteed + speech.guaranteed {
        return Err("what org is guaranteed over its children".to_owned());
    }
    // Counted another way: by the rows of what is held and does not leave.
    for (team, line) in [("vision", vision), ("speech", speech)] {
        let held = sqlx::query_scalar!(
            r#"SELECT COALESCE(sum(s.gpus_milli), 0)::bigint AS "held!"
               FROM assignment_devices AS s
               JOIN assignments AS a ON a.id = s.assignment_id
               JOIN attempts AS t ON t.id = a.attempt_id
               JOIN teams ON teams.id = s.team_id
               WHERE s.live AND t.state IN ('starting', 'running') AND teams.name = $1"#,
            team
        )
        .fetch_one(&fleet.owner)
        .await
        .expect("a sum");
        if line.held != MilliGpu::from_milli(held) {
            return Err(format!("what {team} holds, which is {held} by its rows"));
        }
    }
    Ok(())
}

async fn lose_or_find(owner: &PgPool, node: &str) {
    sqlx::query!(
        "UPDATE nodes SET reachability = CASE reachability WHEN 'ready' THEN 'unreachable' ELSE 'ready' END,
                          version = version + 1 WHERE name = $1",
        node
    )
    .execute(owner)
    .await
    .expect("changed");
}

/// The line of a team, as somebody reads it.
async fn line_of(fleet: &Fleet, team: &str) -> StatementLine {
    let (_, lines) = statements::of_all(&fleet.app, &fleet.root())
        .await
        .expect("statements");
    lines
        .into_iter()
        .find(|line| line.team == team)
        .expect("a line")
}

#[sqlx::test(migrations = "../migrations")]
async fn a_team_is_short_since_then_whoever_leads_meanwhile(owner: PgPool) {
    let never = json!({ "preemption": { "reclaim": "never" } });
    let fleet = Fleet::with_policy(owner.clone(), never).await;
    let clock = Clock::at(&owner, "2026-01-05T12:00:00Z").await;
    fleet.node("n1", 8).await;
    let spec = json!({ "name": "s", "command": ["x"], "per_worker": { "gpus": 8 } });
    let borrows = fleet.submit_as(&fleet.bob(), "speech", spec).await;
    let borrows = borrows.expect("accepted").id;
    fleet.turn().await;
    fleet.run(borrows).await;
    assert_eq!(line_of(&fleet, "vision").await.starved_since, None);
    let began = clock.now().await + TimeDelta::seconds(60);
    clock.pass_ms(60_000).await;
    let waits = fleet.submit(2).await.id;
    fleet.turn().await;
    // Another leader, an hour later, in another life of the server: the row is all that is left.
    clock.pass_ms(3_600_000).await;
    fleet.turn().await;
    let short = line_of(&fleet, "vision").await;
    assert_eq!(short.starved_since, Some(began));
    assert_eq!(line_of(&fleet, "speech").await.starved_since, None);
    fleet.exit(borrows, 0).await;
    fleet.turn().await;
    fleet.run(waits).await;
    fleet.turn().await;
    assert_eq!(line_of(&fleet, "vision").await.starved_since, None);
    let left = sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM starved_teams"#)
        .fetch_one(&owner)
        .await
        .expect("a number");
    assert_eq!(left, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_statement_names_own_teams_and_speaks_of_others_in_aggregate(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let job = json!({ "name": "j", "command": ["x"], "per_worker": { "gpus": 6 } });
    server
        .client("speech-member")
        .post("/teams/speech/jobs", job)
        .await
        .expect(StatusCode::CREATED);
    turn(&server.app).await;
    let asked = |user: &'static str, team: &str| {
        let path = format!("/teams/{team}/quota-statement");
        let client = server.client(user);
        async move { client.get(&path).await }
    };
    let told = asked("vision-viewer", "vision").await;
    assert!(!told.text.contains("speech"), "{}", told.text);
    let told = told.expect(StatusCode::OK);
    let items = told["items"].as_array().expect("lines");
    assert_eq!(items.len(), 1);
    assert_eq!(items[0]["lends_to"], json!([{ "team": null, "amount": 2 }]));
    assert_eq!(
        (
            &items[0]["lent"],
            &items[0]["idle"],
            &items[0]["reclaimable"]
        ),
        (&json!(2), &json!(2), &json!(2))
    );
    // Whoever may see both teams reads both names, and the parent over its children.
    for user in ["org-viewer", "auditor"] {
        let told = asked(user, "org").await.expect(StatusCode::OK);
        let items = told["items"].as_array().expect("lines");
        let of =
            |team: &str| -> &Value { items.iter().find(|i| i["team"] == team).expect("a line") };
        assert_eq!(of("vision")["lends_to"][0]["team"], "speech");
        assert_eq!(of("speech")["borrows_from"][0]["team"], "vision");
        assert_eq!(
            (&of("org")["held"], &of("org")["borrowed"]),
            (&json!(6), &json!(0))
        );
        assert_eq!(of("org")["promised"], 8);
    }
    asked("speech-viewer", "vision")
        .await
        .problem(StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = "../migrations")]
async fn where_guarantees_shrink_what_was_given_and_what_holds_stand_side_by_side(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 6).await;
    add_node(&owner, "h100", "n2", 2).await;
    let mut member = browser(&owner, &server, "org-viewer").await;
    let whole = member.get("/teams/org").await.html;
    assert!(!whole.contains("in force"), "{whole}");
    lose_or_find(&owner, "n2").await;
    let viewer = server.client("org-viewer");
    let told = viewer.get("/teams/org/quota-statement").await;
    let told = told.expect(StatusCode::OK);
    let lines = told["items"].as_array().expect("lines");
    let told: Vec<_> = lines
        .iter()
        .map(|l| {
            (
                &l["team"],
                &l["promised"],
                &l["guaranteed"],
                &l["devices_out"],
                &l["booked"],
            )
        })
        .collect();
    let line = |team: &str, promised: u32, holds: u32| json!([team, promised, holds, 2, 0]);
    assert_eq!(
        json!(told),
        json!([
            line("org", 8, 6),
            line("speech", 4, 3),
            line("vision", 4, 3)
        ])
    );
    let page = member.get("/teams/vision").await.html;
    for words in [
        "Guaranteed in h100: <b>4</b>; in force while 2 devices are out: <b>3</b>.",
        "against <b>4</b> guaranteed. In force now: <b>3</b>.",
        "4<small>in force now: 3</small>",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let all = member.get("/teams").await.html;
    assert!(all.contains("8<small>in force now: 6</small>"), "{all}");
}
