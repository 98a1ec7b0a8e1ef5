//! Who is short of its guarantee while its work waits, and since when: noted by the leader in rows, so
//! that it outlives the leader that saw it begin.

use std::time::{Duration, Instant};

use engine::cycles;
use engine::plan::Plan;
use engine::statement::{self, Starved};
use engine::world::World;

use crate::app::App;
use crate::store::epochs::{self, Epoch};
use crate::store::starved::{self, StarvedRow};

/// Looking takes at most one part in so many of the leader's time: a moment of shortage may be noted
/// late, no start may.
const PART_OF_TIME: u32 = 10;

/// When the leader last looked, and what that took.
#[derive(Debug, Default)]
pub struct Look {
    last: Option<(Instant, Duration)>,
    due: bool,
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// The rows are as it was found.
    Noted,
    /// Another leader has raised the epoch: nothing was noted.
    Fenced,
}

impl Look {
    /// Says that who is short may be another one now.
    pub fn ask(&mut self) {
        self.due = true;
    }

    /// Whether it is time to look.
    pub fn due(&self) -> bool {
        let rested = |(at, took): (Instant, Duration)| at.elapsed() >= took * PART_OF_TIME;
        self.due && self.last.is_none_or(rested)
    }

    /// Looks at the world as it is after `plan`, and notes who is short in it.
    pub async fn take(
        &mut self,
        app: &App,
        epoch: Epoch,
        mut world: World,
        plan: Option<Plan>,
    ) -> Result<Looked, sqlx::Error> {
        let begun = Instant::now();
        let mut tx = app.db.begin_system().await?;
        let known = known(starved::all(&mut tx).await?);
        tx.commit().await?;
        let before = known.clone();
        let looked = tokio::task::spawn_blocking(move || {
            if let Some(plan) = plan {
                cycles::apply(&mut world, &plan);
            }
            statement::starved(&statement::statements(&world, &known))
        });
        let now = match looked.await {
            Ok(now) => now,
            Err(error) => {
                // What is told of shortages stays as it was; planning goes on.
                tracing::error!(error = %error, "the statements of quota could not be made");
                before.clone()
            }
        };
        let looked = note(app, epoch, &before, &now).await?;
        self.due = false;
        self.last = Some((Instant::now(), begun.elapsed()));
        Ok(looked)
    }
}

/// Writes what has changed.
async fn note(
    app: &App,
    epoch: Epoch,
    before: &Starved,
    now: &Starved,
) -> Result<Looked, sqlx::Error> {
    let begun = rows(now, |key| !before.contains_key(key));
    let ended = rows(before, |key| !now.contains_key(key));
    if begun.is_empty() && ended.is_empty() {
        return Ok(Looked::Noted);
    }
    let mut tx = app.db.begin_system().await?;
    if epochs::share(&mut tx).await? != epoch {
        return Ok(Looked::Fenced);
    }
    starved::end(&mut tx, &ended).await?;
    starved::begin(&mut tx, &begun).await?;
    tx.commit().await?;
    Ok(Looked::Noted)
}

/// Rows as the engine knows them.
pub fn known(rows: Vec<StarvedRow>) -> Starved {
    let keyed = |row: StarvedRow| ((row.team, row.pool), row.since);
    rows.into_iter().map(keyed).collect()
}

fn rows(starved: &Starved, wanted: impl Fn(&(String, String)) -> bool) -> Vec<StarvedRow> {
    let row = |(key, since): (&(String, String), &domain::Timestamp)| StarvedRow {
        team: key.0.clone(),
        pool: key.1.clone(),
        since: *since,
    };
    starved
        .iter()
        .filter(|(key, _)| wanted(key))
        .map(row)
        .collect()
}
