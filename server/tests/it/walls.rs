//! The second wall: row-level security, tried table by table as another team and as nobody.

use domain::ids::{JobId, TeamId, UserId};
use serde_json::json;
use server::store::{Scope, Tx};
use sqlx::PgPool;

use crate::fixture::Server;

/// The tables that hold teams' rows.
async fn tables_of_teams(owner: &PgPool) -> Vec<String> {
    sqlx::query_scalar!(
        r#"SELECT c.table_name::text AS "name!"
           FROM information_schema.columns AS c
           JOIN pg_class AS t ON t.oid = format('%I.%I', c.table_schema, c.table_name)::regclass
           -- Parts of a table are nobody's to read but through the whole.
           WHERE c.table_schema = 'public' AND c.column_name = 'team_id' AND t.relkind IN ('r', 'p') AND NOT t.relispartition
           ORDER BY 1"#
    )
    .fetch_all(owner)
    .await
    .expect("the catalogue answers")
}

async fn run(owner: &PgPool, statement: &str) {
    let mut conn = owner.acquire().await.expect("a connection");
    let all = format!("SET ROLE allotment_system; {statement}; RESET ROLE");
    sqlx::raw_sql(sqlx::AssertSqlSafe(all))
        .execute(&mut *conn)
        .await
        .expect("the statement is good");
}

/// Gives team vision a row in every table that holds teams' rows.
async fn fill(owner: &PgPool, server: &Server) {
    let team = server.teams["vision"];
    let user = server.users["vision-member"];
    let job = JobId::new();
    let spec = json!({"name": "a", "command": ["true"]});
    run(
        owner,
        &format!(
            "INSERT INTO jobs (id, team_id, user_id, name, kind, class, spec)
             VALUES ('{job}', '{team}', '{user}', 'a', 'batch', 'normal', '{spec}');
             INSERT INTO arrays (id, team_id, user_id, name, kind, class, spec, count)
             VALUES (gen_random_uuid(), '{team}', '{user}', 'a', 'batch', 'normal', '{spec}', 2);
             INSERT INTO nodes (id, name, pool_id) SELECT gen_random_uuid(), 'n1', id FROM pools;
             INSERT INTO devices (id, node_id, uuid, index, product_name, model, memory_mib)
             SELECT gen_random_uuid(), id, 'GPU-1', 0, 'H100', 'H100', 80000 FROM nodes;
             INSERT INTO attempts (id, team_id, job_id, number) VALUES (gen_random_uuid(), '{team}', '{job}', 1);
             INSERT INTO assignments (id, team_id, job_id, attempt_id, node_id, worker, node_rank, cpus_milli, memory_mib)
             SELECT gen_random_uuid(), '{team}', '{job}', a.id, n.id, 0, 0, 0, 0 FROM attempts AS a, nodes AS n;
             INSERT INTO assignment_devices (assignment_id, team_id, device_id, mode, gpus_milli, memory_mib, slots)
             SELECT a.id, '{team}', d.id, 'exclusive', 1000, 80000, '[0,2000)' FROM assignments AS a, devices AS d;
             INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id, device_id, slot, mode, kind, gpus_milli, billed_milli, started_at)
             SELECT gen_random_uuid(), '{team}', '{user}', '{job}', a.attempt_id, a.id, n.pool_id, n.id, d.id, 0, 'exclusive', 'charged', 1000, 1000, allotment.clock()
             FROM assignments AS a, nodes AS n, devices AS d;
             INSERT INTO billing_periods (id, name, started_at, ended_at, time_zone)
             VALUES (gen_random_uuid(), '2026-01', '2026-01-01', '2026-02-01', 'UTC');
             INSERT INTO ledger_entries (period_id, team_id, user_id, job_id, segment_id, pool_id, mode, started_at, ended_at, gpu_milli_micros)
             SELECT (SELECT id FROM billing_periods), '{team}', '{user}', '{job}', s.id, s.pool_id, s.mode, s.started_at, s.started_at + interval '1 s', 1000000000 FROM usage_segments AS s;
             INSERT INTO commitments (id, team_id, pool_id, gpus_milli, per_gpu_hour, currency, started_at, ended_at, created_by)
             SELECT gen_random_uuid(), '{team}', id, 1000, 1, 'CNY', '2026-01-01', '2026-02-01', '{user}' FROM pools;
             INSERT INTO statements (id, period_id, team_id, entries, sha256, currency, total)
             SELECT gen_random_uuid(), id, '{team}', 1, repeat('0', 64), 'CNY', 1 FROM billing_periods;
             INSERT INTO statement_lines (statement_id, team_id, place, kind, pool_id, resource, gpu_milli_micros,
                                          unused_milli_micros, exact, amount)
             SELECT s.id, '{team}', 1, 'usage', p.id, 'gpu', 1, 0, 1, 1 FROM statements AS s, pools AS p;
             INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name)
             VALUES ('{team}', 'job', '{job}', '{job}', 'queued', 'user', 'x');
             INSERT INTO waits (team_id, job_id, code, scope, message, need_milli, have_milli, began_at, ended_at, held_seconds)
             VALUES ('{team}', '{job}', 'over_limit', 'team vision', 'x', 1, 0, '2026-01-01', '2026-01-02', 86400);
             INSERT INTO expected_starts (job_id, queued_at, team_id, told_at, first_at)
             VALUES ('{job}', '2026-01-01', '{team}', '2026-01-01', '2026-01-02');
             INSERT INTO bookings (id, pool_id, name, team_id, gpus_milli, starts_at, ends_at)
             SELECT gen_random_uuid(), id, 'demo', '{team}', 1000, '2026-01-01', '2026-01-02' FROM pools;
             INSERT INTO windows (id, pool_id, name, days, starts_minute, ends_minute, time_zone)
             SELECT gen_random_uuid(), id, 'night', '{{mon}}', 0, 0, 'UTC' FROM pools;
             INSERT INTO window_quotas (window_id, team_id, guaranteed_milli, weight_milli)
             SELECT id, '{team}', 1000, 1000 FROM windows;
             INSERT INTO evictions (team_id, job_id, attempt_id, pool_id, kind, rule, workers_before, workers_after,
                                    gpus_milli, devices, lost_gpu_milli_seconds)
             SELECT '{team}', '{job}', a.id, p.id, 'preemption', 'drain', 1, 0, 1000, 1, 0 FROM attempts AS a, pools AS p;
             INSERT INTO starved_teams (team_id, pool_id, since) SELECT '{team}', id, allotment.clock() FROM pools;
             SELECT allotment.tend_samples(allotment.clock(), allotment.clock());
             INSERT INTO samples (at, device_id, assignment_id, job_id, team_id, busy)
             SELECT allotment.clock(), d.id, a.id, '{job}', '{team}', 1 FROM assignments AS a, devices AS d;
             SELECT allotment.reckon_minutes(allotment.clock() - interval '1 hour', allotment.clock() + interval '1 hour', NULL);
             INSERT INTO sample_hours SELECT * FROM sample_minutes;
             INSERT INTO sample_days SELECT * FROM sample_minutes;
             INSERT INTO webhooks (id, team_id, name, url, created_by)
             VALUES (gen_random_uuid(), '{team}', 'hook', 'https://example.com/', '{user}');
             INSERT INTO subscriptions (id, team_id, kind, email, created_by)
             VALUES (gen_random_uuid(), '{team}', 'node_lost', 'a@example.com', '{user}');
             INSERT INTO schedules (id, team_id, name, kind, format, covers, cron, time_zone, emails, webhook_ids, next_at, created_by)
             VALUES (gen_random_uuid(), '{team}', 'a', 'usage_statement', 'csv', 'month', '0 6 1 * *', 'UTC', '{{}}', '{{}}', '2126-01-01', '{user}');
             INSERT INTO schedule_runs (id, schedule_id, team_id, due_at, starts_at, ends_at, file_name, media_type, content)
             SELECT gen_random_uuid(), id, team_id, '2026-01-01', '2025-12-01', '2026-01-01', 'a.csv', 'text/csv', '' FROM schedules;
             INSERT INTO deliveries (team_id, kind, key, about, email, payload)
             VALUES ('{team}', 'node_lost', 'k', 'a', 'a@example.com', '{{}}');
             INSERT INTO delivery_tries (delivery_id, team_id, number, delivered, detail, took_ms)
             SELECT id, team_id, 1, true, '', 1 FROM deliveries;
             INSERT INTO budgets (id, team_id, name, unit, amount, period, thresholds, hard, created_by)
             VALUES (gen_random_uuid(), '{team}', 'a', 'gpu_hours', 1, 'month', '[]', false, '{user}');
             INSERT INTO budget_firings (budget_id, team_id, period_start, measure, percent, action, fired_at, measured, amount)
             SELECT id, team_id, '2026-01-01', 'actual', 50, 'notify', '2026-01-02', 1, 1 FROM budgets;
             INSERT INTO audit (actor_kind, actor_id, actor_name, action, object, team_id, outcome)
             VALUES ('user', '{user}', 'x', 'submit_job', 'job/x', '{team}', 'done')"
        ),
    )
    .await;
}

async fn begin(server: &Server, scope: Option<&Scope>) -> Tx {
    let db = &server.app.db;
    match scope {
        Some(scope) => db.begin_person(scope).await,
        None => db.begin_nobody().await,
    }
    .expect("begin")
}

async fn count(server: &Server, scope: Option<&Scope>, table: &str, team: TeamId) -> i64 {
    let mut tx = begin(server, scope).await;
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "SELECT count(*) FROM {table} WHERE team_id = '{team}'"
    )))
    .fetch_one(&mut *tx)
    .await
    .unwrap_or_else(|error| panic!("{table}: {error}"))
}

/// What came of a statement that was undone again: how many rows it touched, or the code of the
/// error that refused it.
async fn outcome(
    server: &Server,
    scope: Option<&Scope>,
    statement: &str,
) -> Result<u64, Option<String>> {
    let mut tx = begin(server, scope).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
        .execute(&mut *tx)
        .await
        .map(|done| done.rows_affected())
        .map_err(|error| {
            let code = error.as_database_error().and_then(|e| e.code());
            code.map(std::borrow::Cow::into_owned)
        })
}

/// "Insufficient privilege": the code of a missing grant and of a policy alike. An error with
/// another code came from elsewhere, and says nothing of the wall.
const REFUSED: &str = "42501";

fn refused(outcome: &Result<u64, Option<String>>) -> bool {
    matches!(outcome, Err(Some(code)) if code == REFUSED)
}

/// A copy of the rows of `from` under the name of `to`. Of what other walls are made (keys of its
/// own, one holder of a device) the copy keeps clear, so that only this wall can stop it.
async fn copy(owner: &PgPool, table: &str, from: TeamId, to: TeamId, asker: UserId) -> String {
    let columns = columns_of(owner, table).await;
    let values: Vec<String> = columns
        .iter()
        .map(|column| match column.as_str() {
            "team_id" => format!("'{to}'"),
            "actor_id" => format!("'{asker}'"),
            "id" => "gen_random_uuid()".to_owned(),
            "live" => "false".to_owned(),
            other => other.to_owned(),
        })
        .collect();
    format!(
        "INSERT INTO {table} ({}) SELECT {} FROM {table} WHERE team_id = '{from}'",
        columns.join(", "),
        values.join(", ")
    )
}

/// Who tries the wall: the team that has rows, another one, and one that has no team.
struct Tried {
    vision: Scope,
    speech: Scope,
    lost: Scope,
}

impl Tried {
    fn of(server: &Server) -> Self {
        let speech = Scope {
            asker: server.users["speech-owner"],
            sees_all: false,
            teams: vec![server.teams["speech"]],
            ancestors: vec![server.teams["org"]],
        };
        Self {
            vision: Scope {
                asker: server.users["vision-owner"],
                teams: vec![server.teams["vision"]],
                ..speech.clone()
            },
            lost: Scope {
                asker: UserId::new(),
                sees_all: false,
                teams: Vec::new(),
                ancestors: Vec::new(),
            },
            speech,
        }
    }
}

/// Every way through the wall of one table that is open, as who and how.
async fn holes(owner: &PgPool, server: &Server, table: &str) -> Vec<String> {
    let Tried {
        vision,
        speech,
        lost,
    } = Tried::of(server);
    let (from, to) = (server.teams["vision"], server.teams["speech"]);
    let mut holes = Vec::new();
    for (who, scope) in [
        ("another team", Some(&speech)),
        ("no team", Some(&lost)),
        ("nobody", None),
    ] {
        let mut hole = |how: &str, what: String| holes.push(format!("{who}: {how}: {what}"));
        let seen = count(server, scope, table, from).await;
        if seen != 0 {
            hole("select", format!("{seen} rows"));
        }
        let own = count(server, scope, table, to).await;
        for (statement, bound) in [
            (
                format!("UPDATE {table} SET team_id = '{to}' WHERE team_id = '{from}'"),
                0,
            ),
            (format!("DELETE FROM {table} WHERE team_id = '{from}'"), 0),
            // Without a condition on what is read, no policy on reading takes part.
            (format!("UPDATE {table} SET team_id = '{to}'"), own),
            (format!("DELETE FROM {table}"), own),
        ] {
            let outcome = outcome(server, scope, &statement).await;
            let stopped =
                matches!(outcome, Ok(rows) if i64::try_from(rows).is_ok_and(|rows| rows <= bound));
            if !stopped && !refused(&outcome) {
                hole(&statement, format!("{outcome:?}, at most {bound}"));
            }
        }
        let outcome = outcome(server, scope, &format!("TRUNCATE {table} CASCADE")).await;
        if !refused(&outcome) {
            hole("truncate", format!("{outcome:?}"));
        }
    }
    // A row for another team cannot be slipped in: a copy of its own, under the other's name.
    let insert = copy(owner, table, from, to, vision.asker).await;
    let outcome = outcome(server, Some(&vision), &insert).await;
    if !refused(&outcome) {
        holes.push(format!("its own team: {insert}: {outcome:?}"));
    }
    holes
}

#[sqlx::test(migrations = "../migrations")]
async fn no_row_of_a_team_can_be_seen_or_touched_from_another_or_from_nowhere(owner: PgPool) {
    let server = Server::start(&owner).await;
    fill(&owner, &server).await;
    let vision = Tried::of(&server).vision;
    let tables = tables_of_teams(&owner).await;
    assert!(tables.len() >= 10, "{tables:?}");
    for table in tables {
        assert!(
            count(&server, Some(&vision), &table, server.teams["vision"]).await > 0,
            "{table}: the team sees its own row, so that the rest of this test means something"
        );
        let holes = holes(&owner, &server, &table).await;
        assert!(holes.is_empty(), "{table}: {holes:#?}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wall_that_is_taken_down_is_noticed(owner: PgPool) {
    let server = Server::start(&owner).await;
    fill(&owner, &server).await;
    let tables = tables_of_teams(&owner).await;
    let mut open = String::from("GRANT ALL ON ALL TABLES IN SCHEMA public TO allotment_app;");
    for table in &tables {
        open += &format!("ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;");
    }
    sqlx::raw_sql(sqlx::AssertSqlSafe(open))
        .execute(&owner)
        .await
        .expect("the owner takes its walls down");
    for table in tables {
        let holes = holes(&owner, &server, &table).await;
        for how in ["select", "UPDATE", "DELETE", "truncate", "INSERT"] {
            assert!(
                holes.iter().any(|hole| hole.contains(how)),
                "{table}: {how} is not noticed: {holes:#?}"
            );
        }
    }
}

async fn columns_of(owner: &PgPool, table: &str) -> Vec<String> {
    sqlx::query_scalar!(
        r#"SELECT column_name::text AS "name!" FROM information_schema.columns
           WHERE table_schema = 'public' AND table_name = $1 AND is_identity = 'NO' AND is_generated = 'NEVER' ORDER BY ordinal_position"#,
        table
    )
    .fetch_all(owner)
    .await
    .expect("the catalogue answers")
}

#[sqlx::test(migrations = "../migrations")]
async fn passwords_and_sessions_are_the_systems_alone(owner: PgPool) {
    let server = Server::start(&owner).await;
    let admin = Scope {
        asker: server.users["admin"],
        sees_all: true,
        teams: Vec::new(),
        ancestors: Vec::new(),
    };
    for table in ["credentials", "sessions", "authorities"] {
        let mut tx = server.app.db.begin_person(&admin).await.expect("begin");
        let read = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SELECT * FROM {table}")))
            .execute(&mut *tx)
            .await;
        assert!(read.is_err(), "{table}");
    }
}
