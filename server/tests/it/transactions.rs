//! Transactions whose makers go away: none stays open on a connection that others are given.

use sqlx::PgPool;

use super::fixture;
use super::machine::eventually;

/// Times that a beginning is broken off: each after so many steps of the runtime, up to [`STEPS`].
const TIMES: usize = 300;
const STEPS: usize = 300;

#[sqlx::test(migrations = "../migrations")]
async fn a_beginning_that_nobody_waits_for_leaves_no_transaction_open(owner: PgPool) {
    let database = fixture::database(&owner).await;
    // A connection is there, so that it is the beginning itself that is broken off.
    database
        .begin_system()
        .await
        .expect("it begins")
        .rollback()
        .await
        .expect("it ends");
    let open = async || {
        sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"#
        )
        .fetch_one(&owner)
        .await
        .expect("the activity is told")
    };
    let mut broken_off = 0;
    for steps in (0..STEPS).cycle().take(TIMES) {
        let stepped = async {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            begun = database.begin_system() => drop(begun.expect("it begins")),
            () = stepped => broken_off += 1,
        }
        // Whoever is given the connection next would end it: hence asked each time.
        let what = format!("no transaction stays open after {steps} steps");
        eventually(&what, async || open().await == 0).await;
    }
    assert!(broken_off > 0, "some were broken off");
}
