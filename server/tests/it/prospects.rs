//! What can never run as things are: refused at submission where only the fleet could change it, told where a quota could.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use domain::ids::{NodeId, PoolId};
use domain::quota::QuotaBound;
use domain::state::JobState;
use serde_json::{Value, json};
use server::app::AppError;
use server::app::jobs::{self, QuotaCode};
use server::app::planning::{self, DryRunVerdict};
use sqlx::PgPool;

use super::fixture::Server;
use super::fleet::{Fleet, add_node};
use super::pages::{Browser, add_person};

/// A spec of so many GPUs with more keys.
pub fn spec(gpus: u32, more: Value) -> Value {
    let mut spec = json!({ "name": "j", "command": ["true"], "per_worker": { "gpus": gpus } });
    let keys = more.as_object().expect("an object").clone();
    spec.as_object_mut().expect("an object").extend(keys);
    spec
}

/// Gives a team a quota in pool `h100`, or changes it.
pub async fn set_quota(fleet: &Fleet, team: &str, guaranteed: i64, limit: Option<i64>) {
    sqlx::query!(
        "INSERT INTO quotas (team_id, pool_id, guaranteed_milli, limit_milli)
         SELECT id, $2, $3, $4 FROM teams WHERE name = $1
         ON CONFLICT (team_id, pool_id) DO UPDATE
         SET guaranteed_milli = EXCLUDED.guaranteed_milli, limit_milli = EXCLUDED.limit_milli",
        team,
        fleet.pool as PoolId,
        guaranteed,
        limit
    )
    .execute(&fleet.owner)
    .await
    .expect("a quota");
}

/// What is refused: its code, field and remedy.
fn refusal(refused: Result<jobs::Job, AppError>) -> (&'static str, String, String) {
    match refused {
        Err(AppError::Impossible { code, field }) => (code.as_str(), field.field, field.remedy),
        other => panic!("{other:?}"),
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn work_beyond_its_teams_limit_is_taken_and_told_what_would_let_it_start(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    set_quota(&fleet, "vision", 2000, Some(2000)).await;
    let job = fleet.submit(4).await;
    assert_eq!(job.state, JobState::Queued);
    assert_eq!(job.reason.as_deref(), Some("over_limit"));
    for words in [
        "needs 4",
        "the limit of team vision in pool h100 admits 2",
        "at most 2 GPUs",
    ] {
        assert!(job.message.contains(words), "{words} in {}", job.message);
    }
    fleet.turn().await;
    let looked_at = fleet.job(job.id).await;
    assert!(looked_at.waiting.is_some());
    assert_eq!(looked_at.message, job.message, "also after a cycle");
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id)
        .await
        .expect("explained");
    let beyond = told.beyond_quota.expect("its quota never admits it");
    assert_eq!(
        (
            beyond.code,
            beyond.bound,
            beyond.team.as_deref(),
            beyond.need.milli(),
            beyond.have.milli()
        ),
        (
            QuotaCode::OverLimit,
            QuotaBound::Limit,
            Some("vision"),
            4000,
            2000
        )
    );
    assert_eq!(told.message, beyond.to_string());
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let page = browser.get(&format!("/jobs/{}", job.id)).await.html;
    assert!(
        page.contains("It cannot start under the present quota"),
        "{page}"
    );

    // Within the limit, it is a wait like any other.
    let within = fleet.submit(2).await.id;
    let behind = fleet.submit(1).await.id;
    fleet.turn().await;
    assert_eq!(fleet.job(within).await.state, JobState::Starting);
    let told = planning::explain(&fleet.app, &fleet.ada(), behind)
        .await
        .expect("explained");
    assert_eq!(told.beyond_quota, None, "{}", told.message);

    set_quota(&fleet, "vision", 2000, None).await;
    fleet.turn().await;
    assert_eq!(fleet.job(job.id).await.state, JobState::Starting);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_limit_above_and_a_guarantee_that_cannot_hold_it_are_told_likewise(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 16).await;
    let firm = spec(5, json!({ "class": "training-high" }));
    let job = fleet.submit_spec(firm).await.expect("taken");
    assert_eq!(
        job.reason.as_deref(),
        Some("non_preemptible_over_guarantee")
    );
    for words in [
        "its team's guarantee in pool h100 admits 4",
        "let it be preempted",
    ] {
        assert!(job.message.contains(words), "{words} in {}", job.message);
    }
    set_quota(&fleet, "org", 8000, Some(8000)).await;
    let job = fleet.submit(9).await;
    assert_eq!(job.reason.as_deref(), Some("ancestor_over_limit"));
    assert!(
        job.message
            .contains("the limit of team org in pool h100 admits 8"),
        "{}",
        job.message
    );
    let dry = planning::dry_run(
        &fleet.app,
        &fleet.ada(),
        &"vision".parse().expect("a name"),
        serde_json::from_value(spec(9, json!({}))).expect("a spec"),
    )
    .await
    .expect("tried");
    assert_eq!(dry.verdict, DryRunVerdict::Waits);
    assert_eq!(
        dry.beyond_quota.expect("told").code,
        QuotaCode::AncestorOverLimit
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_is_away_makes_no_guarantee_too_small_for_good(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let away = fleet.node("n2", 4).await;
    sqlx::query!(
        "UPDATE nodes SET reachability = 'unreachable', version = version + 1 WHERE id = $1",
        away as NodeId
    )
    .execute(&fleet.owner)
    .await
    .expect("it is away");
    let firm = |gpus| spec(gpus, json!({ "class": "training-high" }));
    let job = fleet.submit_spec(firm(4)).await.expect("taken");
    fleet.turn().await;
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id)
        .await
        .expect("explained");
    let code = told.waiting.expect("it waits")["code"].clone();
    assert_eq!(code, "non_preemptible_over_guarantee", "for now");
    assert_eq!(told.beyond_quota, None, "its guarantee comes back");
    assert!(!job.message.contains("present quota"), "{}", job.message);

    // More than was ever guaranteed stays more than that.
    let five = json!({ "class": "training-high", "workers": 5 });
    let job = fleet.submit_spec(spec(1, five)).await.expect("taken");
    assert!(job.message.contains("present quota"), "{}", job.message);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pool_that_is_closed_for_now_counts_among_those_that_may_admit_work(owner: PgPool) {
    let fleet = Fleet::with_policy(owner.clone(), json!({ "state": "closed" })).await;
    fleet.node("n1", 8).await;
    sqlx::query!("INSERT INTO pools (id, name, policy) VALUES (gen_random_uuid(), 'a100', '{}')")
        .execute(&owner)
        .await
        .expect("a pool");
    sqlx::query!(
        "INSERT INTO quotas (team_id, pool_id, guaranteed_milli, limit_milli)
         SELECT teams.id, pools.id, 2000, 2000 FROM teams, pools
         WHERE teams.name = 'vision' AND pools.name = 'a100'"
    )
    .execute(&owner)
    .await
    .expect("a quota");
    add_node(&owner, "a100", "n2", 8).await;
    let either = spec(4, json!({ "pools": ["a100", "h100"] }));
    let job = fleet.submit_spec(either).await.expect("taken");
    assert!(!job.message.contains("present quota"), "{}", job.message);
    let limited = spec(4, json!({ "pools": ["a100"] }));
    let job = fleet.submit_spec(limited).await.expect("taken");
    assert!(job.message.contains("present quota"), "{}", job.message);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_start_time_hides_nothing_that_is_wrong_whatever_the_time(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let later = json!({ "not_before": "2199-01-01T00:00:00Z" });
    let refused = fleet.submit_spec(spec(9, later.clone())).await;
    assert_eq!(refusal(refused).0, "never_fits");
    set_quota(&fleet, "vision", 2000, Some(2000)).await;
    let job = fleet.submit_spec(spec(4, later)).await.expect("taken");
    assert!(job.message.contains("present quota"), "{}", job.message);
    fleet.turn().await;
    assert_eq!(fleet.job(job.id).await.reason.as_deref(), Some("not_yet"));
    let told = planning::explain(&fleet.app, &fleet.ada(), job.id)
        .await
        .expect("explained");
    assert_eq!(told.waiting.expect("it waits")["code"], "not_yet");
    let beyond = told.beyond_quota.expect("its quota never admits it");
    assert_eq!(told.message, beyond.to_string());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_working_directory_is_taken_where_a_node_allows_it_and_runs_there(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let other = fleet.node("n2", 2).await;
    let in_folder = |path: &str| spec(1, json!({ "working_directory": path }));
    let (code, field, remedy) = refusal(fleet.submit_spec(in_folder("/data/sets")).await);
    assert_eq!(
        (code, field.as_str()),
        ("no_such_hardware", "working_directory")
    );
    assert!(remedy.contains("no node of its pools"), "{remedy}");
    sqlx::query!(
        "UPDATE nodes SET work_roots = '{/data}', version = version + 1 WHERE id = $1",
        other as NodeId
    )
    .execute(&fleet.owner)
    .await
    .expect("a root");
    let (_, _, remedy) = refusal(fleet.submit_spec(in_folder("/home/ada")).await);
    assert!(remedy.ends_with(": /data"), "{remedy}");
    let mut nodes = BTreeMap::new();
    for path in ["/data/sets", "/data"] {
        let job = fleet.submit_spec(in_folder(path)).await.expect(path);
        fleet.turn().await;
        nodes.insert(path, fleet.job(job.id).await.placement[0].node.clone());
    }
    let here = |path| (path, "n2".to_owned());
    assert_eq!(
        nodes,
        [here("/data"), here("/data/sets")].into(),
        "not where it is refused"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_folder_no_node_lets_it_work_in_any_more_is_told_that(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let node = fleet.node("n1", 1).await;
    let allow = async |roots: &[&str]| {
        let roots: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
        sqlx::query!(
            "UPDATE nodes SET work_roots = $1, version = version + 1 WHERE id = $2",
            &roots,
            node as NodeId
        )
        .execute(&fleet.owner)
        .await
        .expect("roots");
    };
    allow(&["/data"]).await;
    let mut jobs = Vec::new();
    // The first takes the only device, and the others wait.
    for folder in ["/data", "/data/sets/", "sets"] {
        let asked = spec(1, json!({ "working_directory": folder }));
        jobs.push(fleet.submit_spec(asked).await.expect("accepted").id);
        fleet.turn().await;
    }
    assert_eq!(fleet.job(jobs[0]).await.state, JobState::Starting);
    allow(&[]).await;
    fleet.turn().await;
    for (job, told) in [
        (
            jobs[1],
            "no node of its pools lets a job work in /data/sets any more",
        ),
        (
            jobs[2],
            "no node of its pools lets a job work outside of its own folder any more",
        ),
    ] {
        assert_eq!(fleet.job(job).await.message, told);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dry_run_names_the_field_that_a_submission_is_refused_for(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let member = server.client("vision-member");
    for (body, code, field, value) in [
        (spec(9, json!({})), "never_fits", "per_worker.gpus", "9"),
        (
            spec(8, json!({ "workers": 3 })),
            "never_fits",
            "workers",
            "3",
        ),
        (
            spec(1, json!({ "runner": "container", "image": "a" })),
            "no_such_hardware",
            "runner",
            "container",
        ),
    ] {
        let tried = member
            .post("/teams/vision/jobs/dry-run", body.clone())
            .await;
        let tried = tried.expect(StatusCode::OK);
        assert_eq!(tried["verdict"], "refused", "{tried}");
        let refusal = &tried["refusal"];
        let refused = member.post("/teams/vision/jobs", body).await;
        let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(
            problem["type"],
            format!("/problems/{}", code.replace('_', "-"))
        );
        assert_eq!(refusal["code"], code);
        for key in ["field", "value", "remedy"] {
            assert_eq!(refusal[key], problem[key], "{key}");
        }
        assert_eq!(
            (&refusal["field"], &refusal["value"]),
            (&json!(field), &json!(value))
        );
    }
    let fits = member
        .post("/teams/vision/jobs/dry-run", spec(1, json!({})))
        .await;
    assert_eq!(fits.expect(StatusCode::OK)["refusal"], Value::Null);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_form_marks_the_field_that_its_check_found_wrong(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let csrf = super::pages::token(&browser.get("/submit?team=vision").await.html);
    let form = format!(
        "csrf={csrf}&team=vision&name=j&kind=batch&class=normal&command=true&workers=1&gpus=9&share=exclusive&retries=0&check=1"
    );
    let page = browser.post("/submit", &form).await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    let field = page.html.split("name=\"gpus\"").nth(1).expect("the field");
    let field = field.split('>').next().expect("its tag");
    assert!(field.contains("aria-invalid=\"true\""), "{field}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pool_that_promises_more_than_it_has_says_so_to_who_may_see_all_quotas(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 6).await;
    let told = async |user: &str| {
        let pool = server.client(user).get("/pools/h100").await;
        pool.expect(StatusCode::OK)["overpromised"].clone()
    };
    let over = json!({ "guaranteed": 8, "capacity": 6 });
    assert_eq!(told("admin").await, over);
    assert_eq!(told("auditor").await, over);
    assert_eq!(told("vision-owner").await, Value::Null);
    let admin = server.client("admin");
    let put = |version: u32, guaranteed: u32| {
        admin
            .put(
                "/teams/vision/quotas/h100",
                json!({ "guaranteed": guaranteed }),
            )
            .header("If-Match", &format!("\"{version}\""))
    };
    let raised = put(1, 5).send().await.expect(StatusCode::OK);
    assert_eq!(raised["warnings"][0]["code"], "overpromised");
    let words = raised["warnings"][0]["message"]
        .as_str()
        .expect("a sentence");
    assert!(words.contains("are 9 GPUs and it has 6"), "{words}");
    let lowered = put(2, 2).send().await.expect(StatusCode::OK);
    assert_eq!(lowered["warnings"], json!([]));
    assert_eq!(told("admin").await, Value::Null);
    let pools = admin.get("/pools").await.expect(StatusCode::OK);
    assert_eq!(pools["items"][0]["overpromised"], Value::Null);
}
