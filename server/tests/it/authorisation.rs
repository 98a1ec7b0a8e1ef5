//! Walks every operation of the API with every role, in its own team and in another, and compares
//! what it may do with `authorisation.txt`.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{Method, StatusCode};
use domain::ids::{JobId, NodeId};
use serde_json::{Value, json};
use server::app::authorise::{Action, Rule};
use sqlx::PgPool;

use crate::fixture::{Ask, Client, Server};
use crate::openapi::operations;

/// What is read from a node, which never answers here.
const OF_NODES: [&str; 4] = [
    "get_job_logs",
    "search_job_logs",
    "list_job_results",
    "get_job_result",
];

/// The columns of the file.
pub const ROLES: [&str; 13] = [
    "vision-viewer",
    "vision-member",
    "vision-owner",
    "org-viewer",
    "org-member",
    "org-owner",
    "speech-viewer",
    "speech-member",
    "speech-owner",
    "admin",
    "operator",
    "finance",
    "auditor",
];

/// The rows of a file, each with a name of so many words.
pub fn table(text: &'static str, words_of_name: usize) -> BTreeMap<String, Vec<&'static str>> {
    let rows: BTreeMap<_, _> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let (name, cells) = words.split_at(words_of_name);
            (name.join(" "), cells.to_vec())
        })
        .collect();
    for (name, cells) in &rows {
        assert_eq!(cells.len(), ROLES.len(), "{name}");
    }
    rows
}

/// What is walked over: a node, and a job of vision-member.
/// The id of a subscription and of a delivery.
const SPARE_ID: &str = "0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f";

pub struct Ground {
    pub server: Server,
    owner: PgPool,
    pub job: JobId,
}

impl Ground {
    pub async fn prepare(owner: PgPool) -> Self {
        let server = Server::start(&owner).await;
        let ground = Self {
            job: JobId::new(),
            server,
            owner,
        };
        let spec = json!({"name": "a", "command": ["true"]});
        let (team, user) = (
            ground.server.teams["vision"],
            ground.server.users["vision-member"],
        );
        ground
            .run(&format!(
                "INSERT INTO jobs (id, team_id, user_id, name, kind, class, spec, attempt)
                 VALUES ('{}', '{team}', '{user}', 'a', 'batch', 'normal', '{spec}', 1)",
                ground.job
            ))
            .await;
        ground
            .run(&format!(
                "INSERT INTO attempts (id, team_id, job_id, number) VALUES (gen_random_uuid(), '{team}', '{}', 1)",
                ground.job
            ))
            .await;
        ground
            .run(&format!(
                "INSERT INTO nodes (id, name, pool_id) SELECT '{}', 'n1', id FROM pools WHERE name = 'h100'",
                NodeId::new()
            ))
            .await;
        ground
            .run(
                "INSERT INTO devices (id, node_id, uuid, index, product_name, model, memory_mib)
                 SELECT gen_random_uuid(), id, 'GPU-n1-0', 0, 'NVIDIA H100 80GB HBM3', 'H100-80GB', 81559 FROM nodes",
            )
            .await;
        ground
            .run(&format!(
                "INSERT INTO assignments (id, team_id, job_id, attempt_id, node_id, worker, node_rank, cpus_milli, memory_mib)
                 SELECT gen_random_uuid(), '{team}', a.job_id, a.id, n.id, 0, 0, 0, 0 FROM attempts AS a, nodes AS n"
            ))
            .await;
        let admin = ground.server.users["admin"];
        ground
            .run(&format!(
                "INSERT INTO price_books (id, reason, effective_from, created_by)
                 VALUES (gen_random_uuid(), 'a year', '2126-01-01', '{admin}');
                 INSERT INTO billing_periods (id, name, started_at, ended_at, time_zone)
                 VALUES (gen_random_uuid(), '2026-01', '2026-01-01', '2026-02-01', 'UTC');
                 INSERT INTO statements (id, period_id, team_id, entries, sha256, currency, total)
                 SELECT gen_random_uuid(), id, '{team}', 0, repeat('0', 64), 'CNY', 0 FROM billing_periods;
                 INSERT INTO reconciled_days (day, started_at, ended_at, devices, off)
                 VALUES ('2026-01-01', '2026-01-01', '2026-01-02', 0, 0)"
            ))
            .await;
        ground
    }

    async fn run(&self, statement: &str) {
        let mut conn = self.owner.acquire().await.expect("a connection");
        let all = format!("SET ROLE allotment_system; {statement}; RESET ROLE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(all))
            .execute(&mut *conn)
            .await
            .expect("the statement is good");
    }

    /// Makes anew what an earlier request may have taken away.
    pub async fn restore(&self) {
        let (team, viewer) = (
            self.server.teams["vision"],
            self.server.users["vision-viewer"],
        );
        self.run(&format!(
            "INSERT INTO memberships (team_id, user_id, role) VALUES ('{team}', '{viewer}', 'viewer')
             ON CONFLICT DO NOTHING;
             UPDATE users SET disabled_at = NULL WHERE disabled_at IS NOT NULL;
             UPDATE devices
             SET finding = 1, cleared = 0, findings = jsonb_build_array(
                 jsonb_build_object('number', 1, 'health', 'failed', 'reason', 'Xid 79'));
             INSERT INTO classes (name, priority, preemptible) VALUES ('spare', 1, true)
             ON CONFLICT DO NOTHING;
             INSERT INTO bookings (id, pool_id, name, team_id, gpus_milli, starts_at, ends_at)
             SELECT gen_random_uuid(), id, 'spare', '{team}', 1000, '2126-01-01', '2126-01-02' FROM pools
             WHERE name = 'h100' ON CONFLICT DO NOTHING;
             INSERT INTO windows (id, pool_id, name, days, starts_minute, ends_minute, time_zone)
             SELECT gen_random_uuid(), id, 'spare', '{{mon}}', 0, 0, 'UTC' FROM pools
             WHERE name = 'h100' ON CONFLICT DO NOTHING"
        ))
        .await;
        let admin = self.server.users["admin"];
        self.run(&format!(
            "INSERT INTO budgets (id, team_id, name, unit, amount, period, thresholds, hard, created_by)
             VALUES (gen_random_uuid(), '{team}', 'spare', 'gpu_hours', 1000, 'month', '[]', false, '{admin}')
             ON CONFLICT DO NOTHING;
             INSERT INTO webhooks (id, team_id, name, url, created_by)
             VALUES (gen_random_uuid(), '{team}', 'spare', 'https://example.com/', '{admin}') ON CONFLICT DO NOTHING;
             INSERT INTO webhook_keys (id, webhook_id, secret)
             SELECT gen_random_uuid(), id, repeat('0', 64) FROM webhooks ON CONFLICT DO NOTHING;
             INSERT INTO schedules (id, team_id, name, kind, format, covers, cron, time_zone, emails, webhook_ids, next_at, created_by)
             VALUES (gen_random_uuid(), '{team}', 'spare', 'usage_statement', 'csv', 'month', '0 6 1 * *', 'UTC',
                     '{{a@example.com}}', '{{}}', '2126-01-01', '{admin}') ON CONFLICT DO NOTHING;
             INSERT INTO subscriptions (id, team_id, kind, email, created_by)
             VALUES ('{SPARE_ID}', '{team}', 'node_lost', 'a@example.com', '{admin}') ON CONFLICT DO NOTHING;
             INSERT INTO deliveries (id, team_id, kind, key, about, email, payload)
             VALUES ('{SPARE_ID}', '{team}', 'node_lost', 'k', 'a', 'a@example.com', '{{}}') ON CONFLICT DO NOTHING"
        ))
        .await;
    }

    /// An operation's path with what is there.
    pub fn path(&self, id: &str, path: &str) -> String {
        path.replace("{team}", "vision")
            .replace("{pool}", "h100")
            .replace("{user}", "vision-viewer")
            .replace(
                "{class}",
                if id == "delete_class" {
                    "spare"
                } else {
                    "normal"
                },
            )
            .replace("{booking}", "spare")
            .replace("{window}", "spare")
            .replace("{budget}", "spare")
            .replace("{webhook}", "spare")
            .replace("{schedule}", "spare")
            .replace("{subscription}", SPARE_ID)
            .replace("{delivery}", SPARE_ID)
            .replace("{policy_version}", "1")
            .replace("{price_book}", "1")
            .replace("{period}", "2026-01")
            .replace("{day}", "2026-01-01")
            .replace("{node}", "n1")
            .replace("{device}", "0")
            .replace("{number}", "0")
            .replace("{job}", &self.job.to_string())
    }

    fn ask(&self, client: &Client, path: &str, method: &str, operation: &Value) -> Ask {
        let id = operation["operationId"].as_str().expect("an id");
        let path = self.path(id, path);
        let query = match id {
            "get_capacity_usage" => "?pool=h100",
            "search_job_logs" => "?query=x",
            _ => "",
        };
        let method: Method = method.to_uppercase().parse().expect("a method");
        let ask = client.ask(method.clone(), &format!("{path}{query}"));
        // A version that nothing has: who may change is told so, and nothing is changed.
        let ask = if matches!(method, Method::PATCH | Method::PUT | Method::DELETE)
            || id == "restore_policy_version"
        {
            ask.header("If-Match", "\"999\"")
        } else {
            ask
        };
        match body(id) {
            Some(body) => ask.json(body),
            None => {
                assert!(
                    operation.get("requestBody").is_none() || method == Method::POST,
                    "{id} needs an example of its body here"
                );
                ask
            }
        }
    }
}

/// A body that is good enough to reach the question of who asks.
fn body(operation: &str) -> Option<Value> {
    let job = json!({"name": "b", "command": ["true"], "per_worker": {"gpus": 1}});
    Some(match operation {
        "log_in" => json!({"username": "nobody", "password": "x"}),
        "change_password" => json!({"current": "wrong", "new": "a long new password"}),
        "create_team" => json!({"name": "vision"}),
        "update_team"
        | "update_user"
        | "update_organisation"
        | "update_class"
        | "update_pool"
        | "update_node"
        | "update_booking"
        | "update_window"
        | "update_budget"
        | "diff_policy"
        | "resend_delivery" => json!({}),
        "create_budget" => {
            json!({"name": "spare", "unit": "gpu_hours", "amount": "1", "period": "month"})
        }
        "create_webhook" => json!({"name": "spare", "url": "https://example.com/"}),
        "create_subscription" => {
            json!({"kind": "job_ended", "own_jobs": true, "email": "b@example.com"})
        }
        "create_schedule" => {
            json!({"name": "spare", "kind": "usage_statement", "format": "csv", "covers": "month", "cron": "0 6 1 * *", "emails": ["a@example.com"]})
        }
        "add_member" => json!({"user": "vision-viewer", "role": "viewer"}),
        "put_quota" => json!({"guaranteed": 1}),
        "put_quotas" => json!({"quotas": []}),
        "create_booking" => {
            json!({"name": "spare", "team": "vision", "gpus": 1, "from": "2126-01-01T00:00:00Z", "to": "2126-01-02T00:00:00Z"})
        }
        "create_window" => {
            json!({"name": "spare", "days": ["mon"], "from": "20:00", "to": "08:00", "quotas": []})
        }
        "create_user" => json!({"name": "admin"}),
        "create_pool" => json!({"name": "h100"}),
        "create_class" => json!({"name": "normal", "priority": 1, "preemptible": true}),
        "create_price" => {
            json!({"pool": "h100", "mode": "exclusive", "per_gpu_hour": {"amount": "-1", "currency": "CNY"}})
        }
        "create_price_book" => {
            json!({"reason": "", "effective_from": "2126-01-01T00:00:00Z"})
        }
        "create_commitment" => {
            json!({"team": "vision", "pool": "h100", "gpus": 0, "per_gpu_hour": {"amount": "1", "currency": "CNY"},
                   "from": "2126-01-01T00:00:00Z", "to": "2126-01-02T00:00:00Z"})
        }
        "create_join_token" => json!({"pool": "h100"}),
        "submit_job" | "dry_run_job" => job,
        "submit_jobs" => json!({"jobs": [job]}),
        "update_job" => json!({"time_limit_seconds": 60}),
        _ => return None,
    })
}

#[sqlx::test(migrations = "../migrations")]
async fn every_role_may_do_what_the_matrix_says_and_nothing_else(owner: PgPool) {
    let expected = table(include_str!("authorisation.txt"), 1);
    let operations = operations();
    let there: BTreeSet<&str> = operations
        .iter()
        .map(|(_, _, operation)| operation["operationId"].as_str().expect("an id"))
        .collect();
    assert_eq!(
        there,
        expected.keys().map(String::as_str).collect(),
        "authorisation.txt has a row for each operation"
    );
    let ground = Ground::prepare(owner).await;
    let mut faults = Vec::new();
    for (path, method, operation) in &operations {
        let id = operation["operationId"].as_str().expect("an id");
        for (role, expected) in ROLES.iter().zip(&expected[id]) {
            ground.restore().await;
            // A session of its own, since some operations end it.
            let client = ground.server.fresh(role).await;
            let status = ground.ask(&client, path, method, operation).status().await;
            let found = match status {
                StatusCode::FORBIDDEN => "-",
                StatusCode::NOT_FOUND => ".",
                // Wrong credentials: the door itself is open.
                StatusCode::UNAUTHORIZED if id == "log_in" => "+",
                // The node of this test never answers.
                StatusCode::SERVICE_UNAVAILABLE if OF_NODES.contains(&id) => "+",
                // Guessed too often, by the walk itself.
                StatusCode::TOO_MANY_REQUESTS => "+",
                status if status.is_server_error() || status == StatusCode::UNAUTHORIZED => "!",
                _ => "+",
            };
            if found != *expected {
                faults.push(format!(
                    "{id} by {role}: {found} ({status}), not {expected}"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[sqlx::test(migrations = "../migrations")]
async fn who_may_not_is_told_so_before_what_is_wrong_with_the_request(owner: PgPool) {
    let expected = table(include_str!("authorisation.txt"), 1);
    let ground = Ground::prepare(owner).await;
    ground.restore().await;
    let mut faults = Vec::new();
    for (path, method, operation) in &operations() {
        let id = operation["operationId"].as_str().expect("an id");
        let action = Action::ALL.iter().find(|action| action.as_str() == id);
        let rule = action.expect("it is in the table").rule();
        for (role, expected) in ROLES.iter().zip(&expected[id]) {
            let judged = match (*expected, rule) {
                ("-", _) => StatusCode::FORBIDDEN,
                (".", Rule::Team(..) | Rule::Work(_)) => StatusCode::NOT_FOUND,
                _ => continue,
            };
            let client = ground.server.client(role);
            let path = ground.path(id, path);
            let method: Method = method.to_uppercase().parse().expect("a method");
            let ask = |query: &str| client.ask(method.clone(), &format!("{path}{query}"));
            let mut wrong = vec![ask("?there_is_no_such_parameter=1")];
            if method != Method::GET {
                wrong.push(ask("").json(json!({"there_is_no_such_field": 1})));
                wrong.push(ask("").raw("application/json", "{"));
                wrong.push(ask("").raw("text/plain", "a"));
            }
            for (kind, wrong) in wrong.into_iter().enumerate() {
                let status = wrong.status().await;
                if status != judged {
                    faults.push(format!(
                        "{id} by {role}, fault {kind}: {status}, not {judged}"
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[sqlx::test(migrations = "../migrations")]
async fn nobody_does_anything_without_signing_in(owner: PgPool) {
    let ground = Ground::prepare(owner).await;
    let stranger = ground.server.stranger();
    for (path, method, operation) in &operations() {
        if operation["operationId"] == "log_in" {
            continue;
        }
        let status = ground
            .ask(&stranger, path, method, operation)
            .status()
            .await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}");
    }
}
