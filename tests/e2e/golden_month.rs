//! The golden month, rated, rated anew and closed by a server that is killed in the middle of each (T-3.10, T-3.11).

use rig::api::Api;
use rig::postgres::DATABASE;
use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, Scene};

/// A pool of its own with two prices, and what three teams held there: the rows of T-3.10, a year earlier. Places on
/// devices are told apart by the slot, since one machine stands for eight devices.
const MONTH: &str = "
    INSERT INTO pools (id, name, policy) SELECT gen_random_uuid(), 'golden', policy FROM pools WHERE name = 'l40s';
    INSERT INTO prices (id, pool_id, mode, per_gpu_hour, list_per_hour, effective_per_hour, currency, effective_from, created_by)
    SELECT gen_random_uuid(), p.id, 'exclusive', v.price, v.price, v.price, o.currency, v.since, u.id
    FROM pools AS p, organisation AS o, users AS u,
        (VALUES (3.00, '2025-01-01T00:00:00Z'::timestamptz), (2.40, '2025-10-16T00:00:00Z')) AS v (price, since)
    WHERE p.name = 'golden' AND u.name = 'admin';
    INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id, device_id, slot,
        mode, kind, gpus_milli, billed_milli, started_at, ended_at)
    SELECT gen_random_uuid(), t.id, j.user_id, j.id, a.attempt_id, a.id, p.id, a.node_id, d.id, v.slot, 'exclusive',
        'charged', 1000, 1000, v.began, v.ended
    FROM (VALUES
        ('vision', 4, 0, '2025-10-15T12:00:00Z'::timestamptz, '2025-10-16T12:00:00Z'::timestamptz),
        ('speech', 4, 1, '2025-10-15T12:00:00Z', '2025-10-15T18:00:00Z'),
        ('speech', 4, 1, '2025-10-16T00:00:00Z', '2025-10-16T06:00:30Z'),
        ('platform', 2, 2, '2025-09-30T22:00:00Z', '2025-10-01T02:00:00Z')
    ) AS v (team, devices, slot, began, ended)
    JOIN teams AS t ON t.name = v.team
    JOIN pools AS p ON p.name = 'golden'
    CROSS JOIN (SELECT * FROM assignments LIMIT 1) AS a
    JOIN jobs AS j ON j.id = a.job_id
    JOIN devices AS d ON d.node_id = a.node_id AND d.index < v.devices;";

/// Lets the database keep whoever writes such a row waiting, inside its transaction, once it has written others.
fn hold(table: &str, when: &str) -> String {
    format!(
        "CREATE FUNCTION public.hold_the_books() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$;
         CREATE TRIGGER hold_the_books BEFORE INSERT ON {table}
             FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION public.hold_the_books();"
    )
}

fn release(table: &str) -> String {
    format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep';
         DROP TRIGGER hold_the_books ON {table};
         DROP FUNCTION public.hold_the_books();"
    )
}

#[tokio::test]
async fn the_golden_month_is_the_same_wherever_the_server_is_killed() {
    let mut scene = Scene::on_one_machine("golden", "platform").await;
    let id = scene.run("golden", "l40s").await;
    scene.let_succeed(&id).await;
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();

    // While it is rated: some of its entries are written, and none is committed.
    write(
        &scene,
        &hold("ledger_entries", "NEW.started_at = '2025-10-16T03:00:00Z'"),
    )
    .await;
    write(&scene, MONTH).await;
    die_held(&mut scene, "ledger_entries").await;
    let golden = [
        ("platform", "12.00"),
        ("speech", "129.68"),
        ("vision", "259.20"),
    ];
    october(&scene, golden).await;

    // While a price that is dated back is rated anew.
    write(
        &scene,
        &hold(
            "ledger_entries",
            "NEW.kind = 'usage' AND NEW.started_at = '2025-10-16T03:00:00Z'",
        ),
    )
    .await;
    let finance = scene.cluster.sign_in("finance").await.unwrap();
    let currency = finance.get("/organisation").await.unwrap()["currency"].clone();
    let price = |amount: &str, from: &str| {
        json!({"pool": "golden", "mode": "exclusive", "effective_from": from,
               "per_gpu_hour": {"amount": amount, "currency": currency}})
    };
    finance
        .post("/prices", &price("2.00", "2025-10-16T00:00:00.000001Z"))
        .await
        .unwrap();
    die_held(&mut scene, "ledger_entries").await;
    let cheaper = [
        ("platform", "12.00"),
        ("speech", "120.07"),
        ("vision", "240.00"),
    ];
    october(&scene, cheaper).await;

    // While the month is closed: some statements are written.
    let finance = scene.cluster.sign_in("finance").await.unwrap();
    close(&finance, "2025-09").await;
    write(&scene, &hold("statements", "NEW.total > 200")).await;
    finance
        .post("/billing-periods/2025-10/close", &json!({}))
        .await
        .unwrap();
    die_held(&mut scene, "statements").await;
    let finance = scene.cluster.sign_in("finance").await.unwrap();
    in_state(&finance, "2025-10", "closed").await;
    for (team, total) in cheaper {
        let path = format!("/teams/{team}/statements/2025-10");
        let statement = finance.get(&path).await.unwrap();
        assert_eq!(statement["total"]["amount"], total, "{statement}");
        assert_eq!(statement["verified"], true, "{statement}");
    }
    // The laws at an end are of what ran; these rows are made up, and stand for no device's past.
    scene.cluster.stop().await.unwrap();
}

async fn write(scene: &Scene, sql: &str) {
    let postgres = &scene.cluster.postgres;
    postgres.query_text(DATABASE, sql).await.unwrap();
}

/// Waits until the server is held, kills it there, and starts it again.
async fn die_held(scene: &mut Scene, table: &str) {
    rig::wait::until("the server writes", START_BOUND, || async {
        let held = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        Ok((!scene.cluster.postgres.query(held).await?.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    scene.cluster.servers[0].kill().await.unwrap();
    write(scene, &release(table)).await;
    scene.cluster.servers[0].begin().await.unwrap();
    scene.cluster.servers[0].ready().await.unwrap();
}

/// Waits until the ledger has these sums of October, and checks that it has each piece of time once.
async fn october(scene: &Scene, expected: [(&str, &str); 3]) {
    let sums = "SELECT t.name AS team, round(sum(e.amount), 2)::text AS sum
                FROM ledger_entries AS e JOIN teams AS t ON t.id = e.team_id JOIN pools AS p ON p.id = e.pool_id
                WHERE p.name = 'golden' AND e.started_at >= '2025-10-01T00:00:00Z' GROUP BY t.name ORDER BY t.name";
    let expected: Vec<Value> = expected
        .iter()
        .map(|(team, sum)| json!({"team": team, "sum": sum}))
        .collect();
    let found = rig::wait::until("the ledger has the sums", END_BOUND, || async {
        let found = scene.cluster.postgres.query(sums).await?;
        Ok((found == expected).then_some(()))
    })
    .await;
    if found.is_err() {
        let found = scene.cluster.postgres.query(sums).await.unwrap();
        panic!("{found:?} instead of {expected:?}");
    }
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
}

async fn close(finance: &Api, period: &str) {
    let path = format!("/billing-periods/{period}/close");
    finance.post(&path, &json!({})).await.unwrap();
    in_state(finance, period, "closed").await;
}

async fn in_state(finance: &Api, period: &str, state: &str) {
    rig::wait::until("the period is there", END_BOUND, || async {
        let list = finance.get("/billing-periods").await?;
        let found = list["items"].as_array().into_iter().flatten();
        let there = found.filter(|item| item["name"] == period && item["state"] == state);
        Ok((there.count() == 1).then_some(()))
    })
    .await
    .unwrap();
}
