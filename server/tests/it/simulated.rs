//! What tests put in place of the world: a clock that stands where it is put, and dice that fall alike each time.

use domain::Timestamp;
use sqlx::PgPool;

/// Replaces `allotment.clock()` by a row that only [`Clock::set`] moves.
pub struct Clock {
    owner: PgPool,
}

impl Clock {
    /// Puts the clock to a time.
    pub async fn at(owner: &PgPool, time: &str) -> Self {
        for statement in [
            "CREATE TABLE simulated_clock (at timestamptz NOT NULL)",
            "GRANT SELECT ON simulated_clock TO allotment_app, allotment_system",
            "INSERT INTO simulated_clock VALUES ('2000-01-01')",
            "CREATE OR REPLACE FUNCTION allotment.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
             AS $$ SELECT at FROM public.simulated_clock $$",
        ] {
            sqlx::raw_sql(statement)
                .execute(owner)
                .await
                .expect("the clock is replaced");
        }
        let clock = Self {
            owner: owner.clone(),
        };
        clock.set(time).await;
        clock
    }

    /// Puts the clock to another time.
    pub async fn set(&self, time: &str) {
        self.put(time.parse().expect("a time")).await;
    }

    /// Lets so many milliseconds pass.
    pub async fn pass_ms(&self, ms: i64) {
        let now = self.now().await;
        self.put(now + chrono::TimeDelta::milliseconds(ms)).await;
    }

    /// The time.
    pub async fn now(&self) -> Timestamp {
        sqlx::query_scalar!(r#"SELECT allotment.clock() AS "now!""#)
            .fetch_one(&self.owner)
            .await
            .expect("a time")
    }

    async fn put(&self, time: Timestamp) {
        // The table is this test's own and unknown where queries are checked.
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "UPDATE simulated_clock SET at = '{}'",
            time.to_rfc3339()
        )))
        .execute(&self.owner)
        .await
        .expect("the clock is set");
    }
}

/// A small generator, so that a failure can be repeated.
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }
}
