//! What the schema promises by itself.

use std::collections::BTreeSet;

use domain::state::{
    AssignmentPhase, AttemptState, DeviceHealth, JobState, NodeIntent, PeriodState, PriceBookState,
    Reachability,
};
use sqlx::PgPool;

/// The steps of one machine, as the code has them.
macro_rules! steps_of {
    ($steps:ident, $machine:literal, $state:ident) => {
        for from in $state::ALL {
            for to in from.next() {
                $steps.insert(($machine.to_owned(), from.to_string(), to.to_string()));
            }
        }
    };
}

#[sqlx::test(migrations = "../migrations")]
async fn the_database_knows_the_same_steps_as_the_code(owner: PgPool) {
    let mut code = BTreeSet::new();
    steps_of!(code, "job", JobState);
    steps_of!(code, "attempt", AttemptState);
    steps_of!(code, "assignment", AssignmentPhase);
    steps_of!(code, "node", NodeIntent);
    steps_of!(code, "reachability", Reachability);
    steps_of!(code, "device", DeviceHealth);
    steps_of!(code, "billing_period", PeriodState);
    steps_of!(code, "price_book", PriceBookState);
    let rows = sqlx::query!("SELECT machine, from_state, to_state FROM transitions")
        .fetch_all(&owner)
        .await
        .expect("the table is there");
    let database: BTreeSet<_> = rows
        .into_iter()
        .map(|r| (r.machine, r.from_state, r.to_state))
        .collect();
    assert_eq!(database, code);
}

#[sqlx::test(migrations = "../migrations")]
async fn every_table_is_walled_and_no_role_may_climb_over(owner: PgPool) {
    let open = sqlx::query_scalar!(
        r#"SELECT c.relname::text AS "name!" FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
           WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')
             AND c.relname NOT IN ('transitions', '_sqlx_migrations')
             AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
             -- A part of a table is walled by being granted to no person.
             AND NOT (c.relispartition AND NOT has_table_privilege('allotment_app', c.oid, 'SELECT, INSERT, UPDATE, DELETE'))"#
    )
    .fetch_all(&owner)
    .await
    .expect("the catalogue answers");
    assert_eq!(open, Vec::<String>::new());
    let climbers = sqlx::query_scalar!(
        r#"SELECT rolname::text AS "name!" FROM pg_roles
           WHERE rolname IN ('allotment_app', 'allotment_system') AND (rolsuper OR rolbypassrls OR rolcreaterole)"#
    )
    .fetch_all(&owner)
    .await
    .expect("the catalogue answers");
    assert_eq!(climbers, Vec::<String>::new());
}
