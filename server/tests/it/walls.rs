//! The second wall: row-level security, tried table by table as another team and as nobody.

use domain::ids::{JobId, UserId};
use serde_json::json;
use server::store::Scope;
use sqlx::PgPool;

use crate::fixture::Server;

/// Tables that hold teams' rows, with a change that would be harmless if it were allowed.
async fn tables_of_teams(owner: &PgPool) -> Vec<String> {
    sqlx::query_scalar!(
        r#"SELECT c.table_name::text AS "name!"
           FROM information_schema.columns AS c
           JOIN pg_tables AS t ON t.schemaname = c.table_schema AND t.tablename = c.table_name
           WHERE c.table_schema = 'public' AND c.column_name = 'team_id'
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
             INSERT INTO nodes (id, name, pool_id) SELECT gen_random_uuid(), 'n1', id FROM pools;
             INSERT INTO devices (id, node_id, uuid, index, product_name, model, memory_mib)
             SELECT gen_random_uuid(), id, 'GPU-1', 0, 'H100', 'H100', 80000 FROM nodes;
             INSERT INTO attempts (id, team_id, job_id, number) VALUES (gen_random_uuid(), '{team}', '{job}', 1);
             INSERT INTO assignments (id, team_id, job_id, attempt_id, node_id, worker, node_rank, cpus_milli, memory_mib)
             SELECT gen_random_uuid(), '{team}', '{job}', a.id, n.id, 0, 0, 0, 0 FROM attempts AS a, nodes AS n;
             INSERT INTO assignment_devices (assignment_id, team_id, device_id, mode, gpus_milli, memory_mib, slots)
             SELECT a.id, '{team}', d.id, 'exclusive', 1000, 80000, '[0,2000)' FROM assignments AS a, devices AS d;
             INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id, device_id, slot, mode, kind, gpus_milli, started_at)
             SELECT gen_random_uuid(), '{team}', '{user}', '{job}', a.attempt_id, a.id, n.pool_id, n.id, d.id, 0, 'exclusive', 'charged', 1000, allotment.clock()
             FROM assignments AS a, nodes AS n, devices AS d;
             INSERT INTO ledger_entries (team_id, user_id, job_id, segment_id, pool_id, mode, started_at, ended_at, gpu_milli_micros)
             SELECT '{team}', '{user}', '{job}', s.id, s.pool_id, s.mode, s.started_at, s.started_at + interval '1 s', 1000000000 FROM usage_segments AS s;
             INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name)
             VALUES ('{team}', 'job', '{job}', '{job}', 'queued', 'user', 'x');
             INSERT INTO audit (actor_kind, actor_name, action, object, team_id, outcome)
             VALUES ('user', 'x', 'submit_job', 'job/x', '{team}', 'done')"
        ),
    )
    .await;
}

async fn count(server: &Server, scope: Option<&Scope>, table: &str) -> i64 {
    let mut tx = match scope {
        Some(scope) => server.app.db.begin_person(scope).await.expect("begin"),
        None => server.app.db.begin_nobody().await.expect("begin"),
    };
    let team = server.teams["vision"];
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "SELECT count(*) FROM {table} WHERE team_id = '{team}'"
    )))
    .fetch_one(&mut *tx)
    .await
    .unwrap_or(0)
}

/// Rows that a statement touches; an error touches none.
async fn touched(server: &Server, scope: Option<&Scope>, statement: &str) -> u64 {
    let mut tx = match scope {
        Some(scope) => server.app.db.begin_person(scope).await.expect("begin"),
        None => server.app.db.begin_nobody().await.expect("begin"),
    };
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
        .execute(&mut *tx)
        .await
        .map_or(0, |done| done.rows_affected())
}

#[sqlx::test(migrations = "../migrations")]
async fn no_row_of_a_team_can_be_seen_or_touched_from_another_or_from_nowhere(owner: PgPool) {
    let server = Server::start(&owner).await;
    fill(&owner, &server).await;
    let speech = Scope {
        asker: server.users["speech-owner"],
        sees_all: false,
        teams: vec![server.teams["speech"]],
        ancestors: vec![server.teams["org"]],
    };
    let vision = Scope {
        asker: server.users["vision-owner"],
        teams: vec![server.teams["vision"]],
        ..speech.clone()
    };
    let lost = Scope {
        asker: UserId::new(),
        sees_all: false,
        teams: Vec::new(),
        ancestors: Vec::new(),
    };
    let tables = tables_of_teams(&owner).await;
    assert!(tables.len() >= 10, "{tables:?}");
    let (from, to) = (server.teams["vision"], server.teams["speech"]);
    for table in tables {
        assert!(
            count(&server, Some(&vision), &table).await > 0,
            "{table}: the team sees its own row, so that the rest of this test means something"
        );
        for scope in [Some(&speech), Some(&lost), None] {
            assert_eq!(count(&server, scope, &table).await, 0, "{table}: select");
            for statement in [
                format!("UPDATE {table} SET team_id = '{to}' WHERE team_id = '{from}'"),
                format!("UPDATE {table} SET team_id = '{to}'"),
                format!("DELETE FROM {table} WHERE team_id = '{from}'"),
                format!("TRUNCATE {table} CASCADE"),
            ] {
                let mine = format!("team_id = '{from}'");
                touched(&server, scope, &statement).await;
                assert!(
                    owner_count(&owner, &table, &mine).await > 0,
                    "{table}: {statement}"
                );
            }
        }
        // A row for another team cannot be slipped in: a copy of its own, under the other's name.
        let before = owner_count(&owner, &table, "true").await;
        let columns = columns_of(&owner, &table).await;
        let list = columns.join(", ");
        let values = columns
            .iter()
            .map(|c| {
                if c == "team_id" {
                    format!("'{to}'")
                } else {
                    c.clone()
                }
            })
            .collect::<Vec<_>>()
            .join(", ");
        let insert = format!(
            "INSERT INTO {table} ({list}) SELECT {values} FROM {table} WHERE team_id = '{from}'"
        );
        assert_eq!(
            touched(&server, Some(&vision), &insert).await,
            0,
            "{table}: insert"
        );
        assert_eq!(owner_count(&owner, &table, "true").await, before, "{table}");
    }
}

async fn columns_of(owner: &PgPool, table: &str) -> Vec<String> {
    sqlx::query_scalar!(
        r#"SELECT column_name::text AS "name!" FROM information_schema.columns
           WHERE table_schema = 'public' AND table_name = $1 AND is_identity = 'NO' ORDER BY ordinal_position"#,
        table
    )
    .fetch_all(owner)
    .await
    .expect("the catalogue answers")
}

async fn owner_count(owner: &PgPool, table: &str, condition: &str) -> i64 {
    let mut conn = owner.begin().await.expect("a connection");
    sqlx::raw_sql("SET LOCAL ROLE allotment_system")
        .execute(&mut *conn)
        .await
        .expect("the owner may");
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "SELECT count(*) FROM {table} WHERE {condition}"
    )))
    .fetch_one(&mut *conn)
    .await
    .expect("the system counts")
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
