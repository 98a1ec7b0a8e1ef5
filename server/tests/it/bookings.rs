//! Bookings and weekly windows: by REST, and as the scheduler keeps them at their edges.

use axum::http::{Method, StatusCode};
use domain::ids::{JobId, TeamId};
use domain::state::JobState;
use domain::{MilliGpu, Timestamp};
use serde_json::{Value, json};
use server::scheduler::world::{Memory, Mirror};
use server::scheduler::{self, translate};
use sqlx::PgPool;

use super::fixture::{Client, Reply, Server};
use super::fleet::{Fleet, add_node, told_to_end};
use super::simulated::Clock;
use protocol::report::FactKind;

fn booking(name: &str, team: &str, gpus: i64, from: &str, to: &str) -> Value {
    json!({"name": name, "team": team, "gpus": gpus, "from": from, "to": to})
}

async fn remove(client: &Client, path: &str, version: i64) -> Reply {
    let ask = client.ask(Method::DELETE, path);
    ask.header("If-Match", &format!("\"{version}\""))
        .send()
        .await
}

#[sqlx::test(migrations = "../migrations")]
async fn a_booking_says_what_is_in_its_way_and_only_its_team_reads_of_it(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T08:00:00Z").await;
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 12).await;
    let operator = server.client("operator");
    let book = |new| operator.post("/pools/h100/bookings", new);
    let demo = booking(
        "demo",
        "vision",
        4,
        "2026-01-06T09:00:00Z",
        "2026-01-06T17:00:00Z",
    );
    let made = book(demo).await.expect(StatusCode::CREATED);
    assert_eq!(
        (&made["state"], &made["conflicts"]),
        (&json!("ahead"), &json!([]))
    );
    let exam = booking(
        "exam",
        "speech",
        3,
        "2026-01-06T12:00:00Z",
        "2026-01-06T20:00:00Z",
    );
    let made = book(exam.clone()).await.expect(StatusCode::CREATED);
    assert_eq!(
        made["conflicts"],
        json!([{"from": "2026-01-06T12:00:00Z", "to": "2026-01-06T17:00:00Z", "excess": 3,
                "capacity": 12, "guaranteed": 8, "booked": 7, "with": ["demo"]}])
    );
    book(exam).await.problem(StatusCode::CONFLICT);
    let list = async |user: &str| {
        let page = server.fresh(user).await.get("/pools/h100/bookings").await;
        page.expect(StatusCode::OK)["items"].clone()
    };
    let seen = list("speech-viewer").await;
    assert_eq!(seen.as_array().map(Vec::len), Some(1), "{seen}");
    // How much too much it is may be known, and not whose it is.
    assert_eq!(
        (
            &seen[0]["conflicts"][0]["excess"],
            &seen[0]["conflicts"][0]["with"]
        ),
        (&json!(3), &json!([]))
    );
    assert_eq!(list("operator").await.as_array().map(Vec::len), Some(2));
    let path = "/pools/h100/bookings/demo";
    operator
        .patch(path, 3, json!({"gpus": 1}))
        .await
        .problem(StatusCode::PRECONDITION_FAILED);
    let less = operator
        .patch(path, 1, json!({"gpus": 1}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&less["gpus"], &less["conflicts"], &less["version"]),
        (&json!(1), &json!([]), &json!(2))
    );
    clock.set("2026-01-06T18:00:00Z").await;
    assert_eq!(list("operator").await[0]["state"], "ended");
    // The sessions of before have run out meanwhile.
    remove(&server.fresh("operator").await, path, 2)
        .await
        .expect(StatusCode::NO_CONTENT);
    assert_eq!(list("operator").await.as_array().map(Vec::len), Some(1));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_booking_or_window_that_cannot_be_is_refused_by_its_field(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    let (from, to) = ("2031-01-06T09:00:00Z", "2031-01-06T17:00:00Z");
    for (new, field) in [
        (booking("b", "vision", 0, from, to), "gpus"),
        (booking("b", "vision", 1, to, from), "to"),
        (
            booking("b", "vision", 1, from, "2033-01-06T09:00:00Z"),
            "to",
        ),
        (
            booking(
                "b",
                "vision",
                1,
                "2020-01-06T09:00:00Z",
                "2020-01-06T10:00:00Z",
            ),
            "to",
        ),
        (booking("b", "nobody", 1, from, to), "team"),
        (booking("B!", "vision", 1, from, to), "name"),
    ] {
        let refused = operator.post("/pools/h100/bookings", new.clone()).await;
        let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{new}");
    }
    let window = |keys: Value| {
        let mut window = json!({"name": "w", "days": ["mon"], "from": "20:00", "to": "08:00",
                                "quotas": [{"team": "vision", "quota": {"guaranteed": 1}}]});
        for (key, value) in keys.as_object().expect("keys") {
            window[key] = value.clone();
        }
        window
    };
    let one = |team: &str, quota: Value| json!({"team": team, "quota": quota});
    for (keys, field) in [
        (json!({"days": []}), "days"),
        (json!({"days": ["mon", "mon"]}), "days"),
        (json!({"days": ["monday"]}), "days[0]"),
        (json!({"from": "8pm"}), "from"),
        (json!({"time_zone": "Mars/Olympus"}), "time_zone"),
        (json!({"quotas": []}), "quotas"),
        (
            json!({"quotas": [one("nobody", json!({"guaranteed": 1}))]}),
            "quotas[0].team",
        ),
        (
            json!({"quotas": [one("vision", json!({"guaranteed": 2, "limit": 1}))]}),
            "quotas[0].quota.guaranteed",
        ),
        (
            json!({"quotas": [one("org", json!({"guaranteed": 7}))]}),
            "quotas[0].quota.guaranteed",
        ),
    ] {
        let refused = operator
            .post("/pools/h100/windows", window(keys.clone()))
            .await;
        let problem = refused.problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], field, "{keys}: {problem}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_quota_that_a_window_would_break_is_refused_and_the_window_is_named(owner: PgPool) {
    let server = Server::start(&owner).await;
    let operator = server.client("operator");
    let new = json!({"name": "night", "days": ["mon", "tue"], "from": "20:00", "to": "08:00", "time_zone": "Asia/Shanghai",
                     "quotas": [{"team": "org", "quota": {"guaranteed": 9}}]});
    let made = operator
        .post("/pools/h100/windows?reason=nights", new)
        .await
        .expect(StatusCode::CREATED);
    assert_eq!(made["time_zone"], "Asia/Shanghai");
    let put = |guaranteed: i64| {
        operator
            .put(
                "/teams/vision/quotas/h100",
                json!({"guaranteed": guaranteed}),
            )
            .header("If-Match", "\"1\"")
    };
    let problem = put(6)
        .send()
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        problem["remedy"]
            .as_str()
            .is_some_and(|r| r.contains("window night")),
        "{problem}"
    );
    // A window that brings a reader's teams nothing is not the reader's to know of.
    let seen = server
        .client("speech-viewer")
        .get("/pools/h100/windows")
        .await;
    let seen = seen.expect(StatusCode::OK);
    assert_eq!(seen["items"], json!([]));
    let path = "/pools/h100/windows/night";
    let later = operator
        .patch(path, 1, json!({"from": "21:00"}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(later["quotas"], made["quotas"]);
    remove(&operator, path, 1)
        .await
        .problem(StatusCode::PRECONDITION_FAILED);
    remove(&operator, path, 2)
        .await
        .expect(StatusCode::NO_CONTENT);
    put(6).send().await.expect(StatusCode::OK);
    let kept = operator
        .get("/policy-versions?object=window/h100/night")
        .await
        .expect(StatusCode::OK);
    let first = &kept["items"][2];
    assert_eq!(
        (&first["reason"], &first["after"]["from"]),
        (&json!("nights"), &json!("20:00"))
    );
    // The tree has changed since: what was good then is not good now.
    let restore = |id: &Value| {
        let ask = operator.ask(Method::POST, &format!("/policy-versions/{id}/restore"));
        ask.json(json!({})).header("If-None-Match", "*")
    };
    restore(&first["id"])
        .send()
        .await
        .problem(StatusCode::UNPROCESSABLE_ENTITY);
}

/// Books 4 GPUs for speech between two times.
async fn book(fleet: &Fleet, (from, to): (&str, &str)) {
    sqlx::query!(
        "INSERT INTO bookings (id, pool_id, name, team_id, gpus_milli, starts_at, ends_at)
         SELECT gen_random_uuid(), id, 'demo', $1, 4000, $2, $3 FROM pools",
        fleet.speech as TeamId,
        from.parse::<Timestamp>().expect("a time"),
        to.parse::<Timestamp>().expect("a time"),
    )
    .execute(&fleet.owner)
    .await
    .expect("a booking");
}

/// Gives vision 2 GPUs, guaranteed and at most, in the night from Monday 20:00 to 08:00 in Shanghai.
async fn open_by_night(fleet: &Fleet) {
    sqlx::query!(
        "WITH made AS (
             INSERT INTO windows (id, pool_id, name, days, starts_minute, ends_minute, time_zone)
             SELECT gen_random_uuid(), id, 'night', '{mon}', 1200, 480, 'Asia/Shanghai' FROM pools
             RETURNING id)
         INSERT INTO window_quotas (window_id, team_id, guaranteed_milli, limit_milli, weight_milli)
         SELECT id, $1, 2000, 2000, 1000 FROM made",
        fleet.vision as TeamId
    )
    .execute(&fleet.owner)
    .await
    .expect("a window");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_world_in_memory_follows_what_is_booked_and_windows_with_names_and_time(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T08:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    let mut mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let known = async |mirror: &mut Mirror| {
        mirror.refresh(&fleet.app.db).await.expect("refreshed");
        let differences = mirror.clone().check(&fleet.app.db).await.expect("compared");
        assert_eq!(differences, Vec::<String>::new());
        let world = translate::world(&mirror.records, mirror.now, &Memory::default());
        let booked: Vec<_> = world
            .bookings
            .into_iter()
            .map(|b| (b.name, b.team))
            .collect();
        let windows = &mirror.records.windows;
        let opened = windows
            .iter()
            .flat_map(|w| &w.quotas)
            .map(|q| q.team.to_string());
        (booked, opened.collect::<Vec<_>>())
    };
    let demo = |team: &str| vec![("h100/demo".to_owned(), team.to_owned())];
    book(&fleet, ("2026-01-05T10:00:00Z", "2026-01-05T11:00:00Z")).await;
    open_by_night(&fleet).await;
    assert_eq!(
        known(&mut mirror).await,
        (demo("speech"), vec!["vision".to_owned()])
    );
    sqlx::query!("UPDATE teams SET name = name || '-2' WHERE parent_id IS NOT NULL")
        .execute(&owner)
        .await
        .expect("renamed");
    assert_eq!(
        known(&mut mirror).await,
        (demo("speech-2"), vec!["vision-2".to_owned()])
    );
    clock.set("2026-01-05T11:00:00Z").await;
    sqlx::query!("DELETE FROM windows")
        .execute(&owner)
        .await
        .expect("removed");
    assert_eq!(known(&mut mirror).await, (Vec::new(), Vec::new()));
}

#[sqlx::test(migrations = "../migrations")]
async fn booked_gpus_are_lent_until_they_begin_and_given_back_when_they_end(owner: PgPool) {
    let clock = Clock::at(&owner, "2026-01-05T08:00:00Z").await;
    let fleet = Fleet::with_policy(
        owner.clone(),
        json!({"preemption": {"min_runtime_seconds": 86400}}),
    )
    .await;
    fleet.node("n1", 12).await;
    let borrower = fleet.running(12).await;
    book(&fleet, ("2026-01-05T10:00:00Z", "2026-01-05T11:00:00Z")).await;
    let mut leader = fleet.lead().await;
    clock.set("2026-01-05T09:59:59Z").await;
    leader.turn().await.expect("a turn");
    assert_eq!(fleet.job(borrower).await.state, JobState::Running);
    clock.set("2026-01-05T10:00:00Z").await;
    leader.turn().await.expect("a turn");
    assert_eq!(
        fleet.job(borrower).await.state,
        JobState::Running,
        "what its team has no work for is lent"
    );
    let spec = json!({"name": "exam", "command": ["true"], "per_worker": {"gpus": 8}, "class": "training-high"});
    let exam = fleet
        .submit_as(&fleet.bob(), "speech", spec.clone())
        .await
        .expect("accepted")
        .id;
    leader.turn().await.expect("a turn");
    let job = fleet.job(borrower).await;
    assert_eq!(job.state, JobState::Preempting, "{}", job.message);
    let rule = sqlx::query_scalar!(
        "SELECT rule || ' for ' || for_booking FROM evictions WHERE job_id = $1",
        borrower as JobId
    )
    .fetch_one(&owner)
    .await
    .expect("its eviction");
    assert_eq!(rule.as_deref(), Some("reservation for demo"));
    fleet
        .report(borrower, &[told_to_end(), FactKind::Released])
        .await;
    leader.turn().await.expect("a turn");
    assert_eq!(
        fleet.job(exam).await.state,
        JobState::Starting,
        "booked and guaranteed together are eight"
    );
    clock.set("2026-01-05T11:00:00Z").await;
    let later = fleet
        .submit_as(&fleet.bob(), "speech", spec)
        .await
        .expect("accepted")
        .id;
    leader.turn().await.expect("a turn");
    assert_eq!(
        fleet.job(later).await.reason.as_deref(),
        Some("non_preemptible_over_guarantee")
    );
    let world = server::app::planning::scenario(&fleet.app, &fleet.root())
        .await
        .expect("a file");
    assert!(!world.contains("demo"), "what has ended is in no plan");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_windows_quota_holds_from_its_edge_to_its_other_edge(owner: PgPool) {
    // 2026-01-05 is a Monday; 20:00 in Shanghai is noon in UTC.
    let clock = Clock::at(&owner, "2026-01-05T11:59:59Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    open_by_night(&fleet).await;
    let mut leader = fleet.lead().await;
    leader.turn().await.expect("a turn");
    let early = fleet.submit(3).await.id;
    leader.turn().await.expect("a turn");
    assert_eq!(fleet.job(early).await.state, JobState::Starting);
    fleet.run(early).await;
    fleet.exit(early, 0).await;
    clock.set("2026-01-05T12:00:00Z").await;
    let held_back = fleet.submit(3).await.id;
    leader.turn().await.expect("a turn");
    let waits = fleet.job(held_back).await;
    assert_eq!(
        (waits.state, waits.reason.as_deref()),
        (JobState::Queued, Some("over_limit"))
    );
    let statement = async || {
        let (_, all) = server::app::statements::of_all(&fleet.app, &fleet.root())
            .await
            .expect("statements");
        let own = all
            .into_iter()
            .find(|h| h.team == "vision")
            .expect("it has a part");
        (
            own.promised.milli(),
            own.quota.and_then(|quota| quota.limit),
        )
    };
    assert_eq!(
        statement().await,
        (2000, Some(MilliGpu::whole(2))),
        "statements know of the window as well"
    );
    clock.set("2026-01-06T00:00:00Z").await;
    // Nothing was changed and nobody asked: the edge alone makes the leader plan anew.
    leader.turn().await.expect("a turn");
    assert_eq!(fleet.job(held_back).await.state, JobState::Starting);
    assert_eq!(statement().await, (4000, None));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_plan_made_before_a_window_was_changed_starts_nothing(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit(2).await;
    let epoch = scheduler::take_over(&fleet.app).await.expect("the lead");
    let mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let memory = Memory::default();
    let plan = engine::plan(&translate::world(&mirror.records, mirror.now, &memory));
    assert_eq!(plan.starts.len(), 1);
    open_by_night(&fleet).await;
    let none = std::collections::BTreeMap::new();
    let outcome = scheduler::commit(&fleet.app, epoch, &mirror, &plan, &none);
    let outcome = outcome.await.expect("a commit");
    assert_eq!((outcome.committed, outcome.refused.len()), (0, 1));
    assert_eq!(fleet.job(job.id).await.state, JobState::Queued);
}
