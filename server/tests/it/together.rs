//! What is written together, by few statements, is what would be written one by one.

use std::collections::BTreeMap;

use domain::ids::{AssignmentId, AttemptId, JobId};
use domain::state::JobState;
use protocol::report::{Fact, FactKind};
use server::lifecycle::Actor;
use server::lifecycle::report::{self, Heard, Outcome};
use server::scheduler::world::{Memory, Mirror};
use server::scheduler::{self, translate};
use sqlx::PgPool;

use super::fleet::{Fleet, exited};

/// The steps of a job and of all that belongs to it, in their order.
async fn steps(fleet: &Fleet, job: JobId) -> Vec<String> {
    sqlx::query_scalar!(
        r#"SELECT concat_ws(' ', subject, from_state, to_state, reason) AS "step!" FROM events WHERE job_id = $1 ORDER BY id"#,
        job as JobId
    )
    .fetch_all(&fleet.owner)
    .await
    .expect("events")
}

#[sqlx::test(migrations = "../migrations")]
async fn facts_of_several_jobs_in_one_transaction_do_what_they_do_one_by_one(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 8).await;
    let jobs = [fleet.submit(1).await.id, fleet.submit(1).await.id];
    let failing = fleet.submit(1).await.id;
    let alone = fleet.submit(1).await.id;
    fleet.turn().await;
    let mut facts: Vec<(JobId, FactKind)> = Vec::new();
    for kind in [
        FactKind::Accepted,
        FactKind::Started {
            pid: 7,
            image_digest: None,
        },
        exited(0),
        FactKind::Released,
    ] {
        facts.extend(jobs.map(|job| (job, kind.clone())));
    }
    let fails = [
        FactKind::Started {
            pid: 8,
            image_digest: None,
        },
        exited(3),
        FactKind::Released,
    ];
    facts.extend(fails.map(|kind| (failing, kind)));
    // Once more, as after an acknowledgement that was lost.
    facts.push((jobs[0], FactKind::Released));
    let mut told = Vec::new();
    let mut node = None;
    for (job, kind) in facts {
        let (assignment, attempt, on) = fleet.workers(job).await[0];
        node = Some(on);
        told.push(fact(assignment, attempt, kind));
    }
    told.push(fact(
        AssignmentId::new(),
        AttemptId::new(),
        FactKind::Accepted,
    ));
    told.push(fact(
        told[0].assignment,
        AttemptId::new(),
        FactKind::Accepted,
    ));

    let actor = Actor::Agent("n1".to_owned());
    let node_id = node.expect("a node");
    let heard = |fact| Heard {
        node_id,
        actor: &actor,
        fact,
    };
    let heard: Vec<Heard<'_>> = told.iter().map(heard).collect();
    let mut tx = fleet.app.db.begin_system().await.expect("a transaction");
    let outcomes = report::apply_all(&mut tx, &fleet.app.config.timers, &heard)
        .await
        .expect("applied");
    tx.commit().await.expect("committed");
    let (last, first) = outcomes
        .split_last_chunk::<3>()
        .map(|(a, b)| (b, a))
        .expect("many");
    assert!(
        first.iter().all(|outcome| *outcome == Outcome::Applied),
        "{outcomes:?}"
    );
    assert_eq!(*last, [Outcome::Known, Outcome::Unknown, Outcome::Foreign]);

    fleet.run(alone).await;
    fleet.exit(alone, 0).await;
    let expected = steps(&fleet, alone).await;
    for job in jobs {
        assert_eq!(fleet.job(job).await.state, JobState::Succeeded);
        assert_eq!(steps(&fleet, job).await, expected);
    }
    let failed = fleet.job(failing).await;
    assert_eq!(
        (failed.state, failed.exit_code),
        (JobState::Failed, Some(3))
    );
    assert_eq!(fleet.most_holders().await, 0);
    let open = sqlx::query_scalar!(
        r#"SELECT count(*) AS "open!" FROM usage_segments WHERE ended_at IS NULL"#
    );
    assert_eq!(open.fetch_one(&fleet.owner).await.expect("a count"), 0);
}

fn fact(assignment: AssignmentId, attempt: AttemptId, kind: FactKind) -> Fact {
    Fact {
        number: 1,
        assignment,
        attempt,
        at_micros: 0,
        kept_micros: 0,
        kind,
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn of_starts_that_are_refused_together_each_is_taken_that_can_be(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 2).await;
    let jobs = [fleet.submit(1).await.id, fleet.submit(1).await.id];
    let epoch = scheduler::take_over(&fleet.app).await.expect("the lead");
    let mirror = Mirror::load(&fleet.app.db).await.expect("the world");
    let mut plan = engine::plan(&translate::world(
        &mirror.records,
        mirror.now,
        &Memory::default(),
    ));
    assert_eq!(plan.starts.len(), 2);
    // As if it had given one device to both.
    plan.starts[1].placement = plan.starts[0].placement.clone();
    let outcome = scheduler::commit(&fleet.app, epoch, &mirror, &plan, &BTreeMap::new())
        .await
        .expect("answered");
    assert_eq!((outcome.committed, outcome.refused.len()), (1, 1));
    let mut states = Vec::new();
    for job in jobs {
        states.push(fleet.job(job).await.state);
    }
    states.sort_unstable_by_key(|state| state.as_str());
    assert_eq!(states, [JobState::Queued, JobState::Starting]);
    assert_eq!(fleet.most_holders().await, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn fractions_that_start_together_have_places_of_their_own_on_a_device(owner: PgPool) {
    let policy = serde_json::json!({ "sharing": ["exclusive", "time_slice"] });
    let fleet = Fleet::with_policy(owner, policy).await;
    fleet.node("n1", 1).await;
    let spec = serde_json::json!({
        "name": "j", "command": ["x"], "per_worker": { "gpus": 0.25, "sharing": ["time_slice"] },
    });
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(fleet.submit_spec(spec.clone()).await.expect("accepted").id);
    }
    fleet.turn().await;
    for job in jobs {
        assert_eq!(fleet.job(job).await.state, JobState::Starting);
    }
    assert_eq!(fleet.most_holders().await, 4);
}
