//! Arrays: many jobs that are submitted, listed, steered and billed as one, and each as itself.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use domain::ids::JobId;
use domain::state::JobState;
use serde_json::{Value, json};
use server::app::AppError;
use server::app::idempotency::Repeat;
use server::app::jobs::{self, Job, JobFilter, JobWish, Part};
use server::app::page::{Page, PageAsk};
use sqlx::PgPool;

use crate::fixture::Server;
use crate::fleet::{Fleet, add_node};

fn array(count: u32, at_most: Option<u32>) -> Value {
    json!({
        "name": "sweep", "command": ["true"], "per_worker": { "gpus": 1 },
        "array": { "count": count, "at_most": at_most },
    })
}

async fn submit(fleet: &Fleet, count: u32, at_most: Option<u32>) -> JobId {
    let array = fleet.submit_spec(array(count, at_most)).await;
    array.expect("accepted").id
}

async fn elements(fleet: &Fleet, id: JobId, states: &[JobState], ask: &PageAsk) -> Page<Job> {
    let page = jobs::elements(&fleet.app, &fleet.ada(), id, states, ask).await;
    page.expect("elements")
}

async fn counts(fleet: &Fleet, id: JobId) -> Value {
    let array = fleet.job(id).await.array.expect("it is an array");
    serde_json::to_value(array.elements).expect("an object")
}

/// Elements that hold a place.
async fn holding(fleet: &Fleet, id: JobId) -> Vec<u32> {
    let states = [
        JobState::Starting,
        JobState::Running,
        JobState::Preempting,
        JobState::Cancelling,
    ];
    let page = elements(fleet, id, &states, &PageAsk::first()).await;
    page.items.iter().filter_map(|job| job.id.index()).collect()
}

/// The leader looks until it has nothing to do.
async fn settle(fleet: &Fleet) {
    let mut leader = fleet.lead().await;
    for _ in 0..6 {
        leader.turn().await.expect("a turn");
    }
}

async fn steer(fleet: &Fleet, id: JobId, elements: &str, wish: JobWish) -> Job {
    let part: Part = serde_json::from_value(json!({ "elements": elements })).expect("a part");
    jobs::steer_part(&fleet.app, &fleet.ada(), Repeat::none(), id, part, wish)
        .await
        .expect("steered")
        .value
}

fn element(id: JobId, index: u32) -> JobId {
    id.element(index).expect("an array has elements")
}

#[sqlx::test(migrations = "../migrations")]
async fn no_more_elements_hold_their_places_at_once_than_may_and_all_run_in_the_end(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let id = submit(&fleet, 20, Some(4)).await;
    assert_eq!(counts(&fleet, id).await, json!({ "queued": 20 }));
    let mut ran = BTreeSet::new();
    while !fleet.job(id).await.state.terminal() {
        settle(&fleet).await;
        let holding = holding(&fleet, id).await;
        assert!((1..=4).contains(&holding.len()), "{holding:?}");
        // In the order of their indices, though names sort otherwise.
        assert_eq!(
            holding.first(),
            ran.iter().max().map(|n| n + 1).or(Some(0)).as_ref()
        );
        for index in holding {
            assert!(ran.insert(index), "{index} ran twice");
            fleet.run(element(id, index)).await;
            assert_eq!(fleet.job(id).await.state, JobState::Running);
            fleet.exit(element(id, index), 0).await;
        }
    }
    assert_eq!(ran.len(), 20);
    assert_eq!(counts(&fleet, id).await, json!({ "succeeded": 20 }));
    let done = fleet.job(id).await;
    assert_eq!(done.state, JobState::Succeeded);
    assert!(done.started_at.is_some() && done.finished_at > done.started_at);
    // The use of the whole is that of its elements.
    let all = elements(&fleet, id, &[], &PageAsk::first()).await.items;
    let sum: rust_decimal::Decimal = all.iter().map(|job| job.gpu_seconds).sum();
    assert!(sum > rust_decimal::Decimal::ZERO);
    let most = rust_decimal::Decimal::new(20, 3);
    assert!(
        (done.gpu_seconds - sum).abs() <= most,
        "{} {sum}",
        done.gpu_seconds
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn what_at_most_holds_back_is_told_so_and_does_not_stand_in_the_way_of_others(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 4).await;
    let id = submit(&fleet, 5, Some(1)).await;
    settle(&fleet).await;
    let other = fleet.submit(1).await.id;
    settle(&fleet).await;
    assert_eq!(fleet.job(other).await.state, JobState::Starting);
    assert_eq!(holding(&fleet, id).await, [0]);
    let held = fleet.job(element(id, 1)).await;
    assert_eq!(held.reason.as_deref(), Some("dependency"));
    assert!(
        held.message.contains("as may run at once"),
        "{}",
        held.message
    );
    // One with which nothing was done yet is told the same, wherever it is asked about.
    let far = element(id, 4);
    let job = fleet.job(far).await;
    assert_eq!((&job.reason, &job.message), (&held.reason, &held.message));
    let ada = fleet.ada();
    let told = server::app::planning::explain(&fleet.app, &ada, far).await;
    let told = told.expect("explained");
    assert_eq!(told.message, held.message);
    for one in [element(id, 1), far] {
        let waits = jobs::waits(&fleet.app, &fleet.ada(), one)
            .await
            .expect("waits");
        let wait = waits.items.last().expect("a stretch");
        assert_eq!(wait.scope, format!("array {id}"));
        assert_eq!(wait.code, "dependency");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_has_one_row_in_lists_and_each_element_has_its_own_page(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let job = fleet.submit(1).await.id;
    let id = submit(&fleet, 1000, None).await;
    settle(&fleet).await;
    let list = |states: Vec<JobState>, ask: PageAsk| {
        let filter = JobFilter {
            states,
            ..JobFilter::default()
        };
        let app = fleet.app.clone();
        let ada = fleet.ada();
        async move { jobs::list(&app, &ada, &filter, &ask).await.expect("jobs") }
    };
    let all = list(Vec::new(), PageAsk::first()).await;
    let ids: Vec<JobId> = all.items.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id, job], "the newest first");
    let first = list(Vec::new(), PageAsk::new(Some(1), None).expect("a page")).await;
    assert_eq!(first.items[0].id, id);
    let next = PageAsk::new(Some(1), first.next_cursor).expect("a page");
    assert_eq!(list(Vec::new(), next).await.items[0].id, job);
    assert_eq!(
        list(vec![JobState::Succeeded], PageAsk::first())
            .await
            .items
            .len(),
        0
    );
    let starting = list(vec![JobState::Starting], PageAsk::first()).await;
    assert_eq!(starting.items.len(), 2);
    // The last elements were not brought to life yet, and are there all the same.
    let last = fleet.job(element(id, 999)).await;
    assert_eq!(
        (last.state, last.name.as_str()),
        (JobState::Queued, "sweep")
    );
    assert_eq!(last.spec.expect("a spec").array, None);
    let waiting = [JobState::Queued];
    let ask = PageAsk::new(Some(500), None).expect("a page");
    let page = elements(&fleet, id, &waiting, &ask).await;
    assert_eq!(page.items.len(), 500);
    let ask = PageAsk::new(Some(500), page.next_cursor).expect("a page");
    let rest = elements(&fleet, id, &waiting, &ask).await;
    assert_eq!(rest.items.last().map(|job| job.id), Some(element(id, 999)));
    let row = sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM jobs"#)
        .fetch_one(&fleet.owner)
        .await
        .expect("a number");
    assert!(row < 600, "{row} rows for what is needed soon");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_is_cancelled_in_part_and_then_whole(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 2).await;
    let id = submit(&fleet, 1000, None).await;
    settle(&fleet).await;
    assert_eq!(holding(&fleet, id).await, [0, 1]);
    fleet.run(element(id, 0)).await;
    // One that runs, some that wait, and some that nothing was done with yet.
    let job = steer(&fleet, id, "0,10-19,900-999", JobWish::Cancel).await;
    assert_eq!(job.state, JobState::Starting);
    assert_eq!(
        counts(&fleet, id).await,
        json!({ "queued": 888, "starting": 1, "cancelling": 1, "cancelled": 110 })
    );
    fleet.cancel(element(id, 700)).await;
    assert_eq!(fleet.job(element(id, 700)).await.state, JobState::Cancelled);
    let events = jobs::steps(&fleet.app, &fleet.ada(), element(id, 950))
        .await
        .expect("events");
    let told: Vec<_> = events
        .iter()
        .map(|e| (e.to.as_str(), e.actor.as_str()))
        .collect();
    assert_eq!(told, [("cancelled", "ada")]);
    assert_eq!(events[0].subject_id, format!("{id}.950"));
    fleet.cancel(id).await;
    let whole = fleet.job(id).await;
    assert_eq!(whole.state, JobState::Cancelling);
    // 800 was never brought to life, and is over.
    let never = fleet.job(element(id, 800)).await;
    assert_eq!(never.state, JobState::Cancelled);
    assert!(never.finished_at.is_some());
    for index in [0, 1] {
        fleet.exit(element(id, index), 0).await;
    }
    settle(&fleet).await;
    let whole = fleet.job(id).await;
    assert_eq!(whole.state, JobState::Cancelled);
    assert_eq!(counts(&fleet, id).await, json!({ "cancelled": 1000 }));
    assert_eq!(holding(&fleet, id).await, [] as [u32; 0]);
    let audited =
        sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM audit WHERE action = 'cancel_job'"#)
            .fetch_one(&fleet.owner)
            .await
            .expect("a number");
    assert_eq!(audited, 3);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_suspended_array_starts_nothing_and_one_of_its_elements_may_be_resumed(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let id = submit(&fleet, 30, None).await;
    let (app, ada) = (&fleet.app, fleet.ada());
    jobs::suspend(app, &ada, Repeat::none(), id)
        .await
        .expect("suspended");
    settle(&fleet).await;
    assert_eq!(counts(&fleet, id).await, json!({ "suspended": 30 }));
    jobs::resume(app, &ada, Repeat::none(), element(id, 7))
        .await
        .expect("resumed");
    settle(&fleet).await;
    assert_eq!(holding(&fleet, id).await, [7]);
    steer(&fleet, id, "28-29", JobWish::Resume).await;
    settle(&fleet).await;
    assert_eq!(holding(&fleet, id).await, [7, 28, 29]);
    let refused = jobs::suspend(app, &ada, Repeat::none(), element(id, 30)).await;
    assert!(refused.is_err(), "there is no such element");
    jobs::resume(app, &ada, Repeat::none(), id)
        .await
        .expect("resumed");
    settle(&fleet).await;
    assert_eq!(holding(&fleet, id).await, [0, 1, 2, 3, 4, 7, 28, 29]);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_none_of_the_named_elements_can_follow_is_refused_as_of_one_by_itself(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let id = submit(&fleet, 10, None).await;
    steer(&fleet, id, "4-5", JobWish::Cancel).await;
    let (app, ada) = (&fleet.app, fleet.ada());
    for wish in [JobWish::Suspend, JobWish::Resume] {
        let by_itself = jobs::steer(app, &ada, Repeat::none(), element(id, 4), wish);
        let code = |error: AppError| match error {
            AppError::Conflict { code, field, .. } => (code, field.field, field.value),
            other => panic!("{other:?}"),
        };
        let by_itself = code(by_itself.await.expect_err("it has ended"));
        for named in ["4", "4-5"] {
            let part: Part = serde_json::from_value(json!({ "elements": named })).expect("a part");
            let part = jobs::steer_part(app, &ada, Repeat::none(), id, part, wish).await;
            let refused = code(part.expect_err("all of them have ended"));
            assert_eq!(refused, by_itself, "{named} {wish:?}");
        }
    }
    // What can follow does, beside what cannot.
    steer(&fleet, id, "3-4", JobWish::Suspend).await;
    let expected = json!({ "queued": 7, "suspended": 1, "cancelled": 2 });
    assert_eq!(counts(&fleet, id).await, expected);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_follows_an_array_waits_for_all_of_it_and_what_follows_an_element_for_that(
    owner: PgPool,
) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let id = submit(&fleet, 600, Some(1)).await;
    let follower = |after: JobId| {
        let spec = json!({ "name": "f", "command": ["true"], "after": [after] });
        fleet.submit_spec(spec)
    };
    let of_array = follower(id).await.expect("accepted").id;
    let of_first = follower(element(id, 0)).await.expect("accepted").id;
    let of_last = follower(element(id, 599)).await.expect("accepted").id;
    assert!(follower(element(id, 600)).await.is_err());
    settle(&fleet).await;
    let state = async |job: JobId| fleet.job(job).await.state;
    for job in [of_array, of_first, of_last] {
        assert_eq!(state(job).await, JobState::Queued);
    }
    fleet.run(element(id, 0)).await;
    fleet.exit(element(id, 0), 0).await;
    settle(&fleet).await;
    assert_eq!(state(of_first).await, JobState::Starting);
    assert_eq!(state(of_array).await, JobState::Queued);
    assert_eq!(state(of_last).await, JobState::Queued);
    fleet.cancel(id).await;
    fleet.exit(element(id, 1), 0).await;
    settle(&fleet).await;
    assert!(state(id).await.terminal());
    // Both follow what has not ended well.
    for job in [of_array, of_last] {
        let failed = fleet.job(job).await;
        assert_eq!(failed.state, JobState::Failed);
        assert_eq!(failed.reason.as_deref(), Some("dependency"));
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn class_and_time_limit_of_an_array_change_until_an_element_has_begun(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let id = submit(&fleet, 3, None).await;
    let patch = |value: Value| serde_json::from_value(value).expect("a patch");
    let ada = fleet.ada();
    let update = async |job: JobId, version: i64, change: Value| {
        jobs::update(&fleet.app, &ada, job, version, patch(change)).await
    };
    let changed = update(
        id,
        1,
        json!({ "class": "urgent", "time_limit_seconds": 60 }),
    )
    .await
    .expect("changed");
    assert_eq!(changed.version, 2);
    assert!(
        update(id, 1, json!({})).await.is_err(),
        "of another version"
    );
    let one = fleet.job(element(id, 2)).await;
    let own = update(one.id, one.version, json!({ "time_limit_seconds": 90 }))
        .await
        .expect("changed");
    let limit = |job: &Job| job.spec.as_ref().and_then(|spec| spec.time_limit_seconds);
    assert_eq!(limit(&own), Some(90));
    assert_eq!(limit(&fleet.job(element(id, 0)).await), Some(60));
    settle(&fleet).await;
    assert_eq!(holding(&fleet, id).await, [0]);
    assert!(update(id, 2, json!({})).await.is_err(), "one has begun");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_world_in_memory_stays_right_while_elements_come_and_go(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 2).await;
    let id = submit(&fleet, 700, Some(2)).await;
    let mut mirror = server::scheduler::world::Mirror::load(&fleet.app.db)
        .await
        .expect("the world");
    settle(&fleet).await;
    steer(&fleet, id, "50-60", JobWish::Suspend).await;
    let found = mirror.check(&fleet.app.db).await.expect("compared");
    assert_eq!(found, [] as [String; 0]);
    fleet.cancel(id).await;
    settle(&fleet).await;
    let found = mirror.check(&fleet.app.db).await.expect("compared");
    assert_eq!(found, [] as [String; 0]);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_by_rest_is_one_job_with_elements_and_refuses_what_it_cannot_be(owner: PgPool) {
    let server = Server::start(&owner).await;
    add_node(&owner, "h100", "n1", 8).await;
    let member = server.client("vision-member");
    let path = "/teams/vision/jobs";
    for (asked, field) in [
        (json!({ "count": 0 }), "array.count"),
        (json!({ "count": 10_001 }), "array.count"),
        (json!({ "count": 5, "at_most": 6 }), "array.at_most"),
        (json!({ "count": 5, "at_most": 0 }), "array.at_most"),
        (json!({ "at_most": 5 }), "array"),
    ] {
        let mut spec = array(1, None);
        spec["array"] = asked;
        let problem = member
            .post(path, spec)
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        let told = problem["field"].as_str().expect("a field");
        assert!(told.starts_with(field), "{problem}");
    }
    let job = member
        .post(path, array(10, Some(2)))
        .await
        .expect(StatusCode::CREATED);
    let id = job["id"].as_str().expect("an id").to_owned();
    assert_eq!(job["state"], "queued");
    assert_eq!(
        job["array"],
        json!({ "count": 10, "at_most": 2, "elements": { "queued": 10 } })
    );
    assert_eq!(job["spec"]["array"], json!({ "count": 10, "at_most": 2 }));
    let one = member
        .get(&format!("/jobs/{id}.9"))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        (&one["id"], &one["array"]),
        (&json!(format!("{id}.9")), &Value::Null)
    );
    for beyond in ["10", "x", "01"] {
        let reply = member.get(&format!("/jobs/{id}.{beyond}")).await;
        assert!(reply.status.is_client_error(), "{beyond}");
    }
    for part in ["events", "attempts", "explanation"] {
        for of in [id.clone(), format!("{id}.9")] {
            member
                .get(&format!("/jobs/{of}/{part}"))
                .await
                .expect(StatusCode::OK);
        }
    }
    let page = member
        .get(&format!("/jobs/{id}/elements?limit=3"))
        .await
        .expect(StatusCode::OK);
    assert_eq!(page["items"].as_array().map(Vec::len), Some(3));
    let cancelled = member
        .post(&format!("/jobs/{id}/cancel"), json!({ "elements": "0-3" }))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        cancelled["array"]["elements"],
        json!({ "queued": 6, "cancelled": 4 })
    );
    for (path, elements) in [
        (format!("/jobs/{id}/cancel"), "8-10"),
        (format!("/jobs/{id}/cancel"), "4-3"),
        (format!("/jobs/{id}.9/cancel"), "0"),
    ] {
        let problem = member
            .post(&path, json!({ "elements": elements }))
            .await
            .problem(StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(problem["field"], "elements", "{problem}");
    }
    // Nobody of another team sees any of it.
    let other = server.client("speech-member");
    for path in [id.clone(), format!("{id}.1"), format!("{id}/elements")] {
        let reply = other.get(&format!("/jobs/{path}")).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
    }
    let reply = other.post(&format!("/jobs/{id}/cancel"), json!({})).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
}
