//! The planner as people ask it: the world as a replica last read it, one question at a time.

use std::sync::Arc;

use chrono::TimeDelta;
use engine::plan::Plan;
use engine::world::World;
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

use super::{App, AppError};
use crate::scheduler::translate;
use crate::scheduler::week::Week;
use crate::scheduler::world::{Mirror, Refresh};

/// People who may wait for an answer of one replica's planner. A plan of a large fleet takes
/// parts of a second: who comes behind so many would have given up before it is their turn.
const ASKERS_MAX: usize = 32;
/// How long a plan is told of a world in which nothing changes: ageing and back-offs move, and
/// the scheduler itself looks again no later than this.
const FRESH_FOR: TimeDelta = TimeDelta::seconds(10);
/// When somebody who was turned away may try again.
const RETRY_AFTER_SECONDS: u64 = 1;

/// What a replica keeps for questions to the planner.
#[derive(Debug)]
pub struct Questions {
    sight: Mutex<Sight>,
    /// The fleet and the rules by themselves; absent before the first question.
    fleet: Mutex<Option<Mirror>>,
    /// Held by whoever plans; with what was thought last.
    desk: Mutex<Option<Arc<Thought>>>,
    line: Semaphore,
}

/// The world in memory; absent before the first question.
#[derive(Debug, Default)]
struct Sight {
    mirror: Option<Mirror>,
    /// Rises when anything in it changes.
    revision: u64,
}

/// A plan, and the world that it was made for.
#[derive(Debug)]
pub(super) struct Thought {
    pub(super) world: World,
    pub(super) plan: Plan,
    revision: u64,
}

/// The right to plan: one is given out at a time.
struct Seat<'p> {
    desk: MutexGuard<'p, Option<Arc<Thought>>>,
    _place: SemaphorePermit<'p>,
}

impl Default for Questions {
    fn default() -> Self {
        Self {
            sight: Mutex::default(),
            fleet: Mutex::default(),
            desk: Mutex::default(),
            line: Semaphore::new(ASKERS_MAX),
        }
    }
}

impl Questions {
    /// Waits until nobody else plans on this replica; refused where the line is too long.
    async fn sit_down(&self) -> Result<Seat<'_>, AppError> {
        let place = self.line.try_acquire().map_err(|_| AppError::TooBusy {
            retry_after_seconds: RETRY_AFTER_SECONDS,
        })?;
        Ok(Seat {
            desk: self.desk.lock().await,
            _place: place,
        })
    }

    /// Puts a question to the engine in turn, off the threads that answer requests. `what` names
    /// it in the log, should it panic.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AppError> {
        let _seat = self.sit_down().await?;
        answer(what, question).await
    }
}

async fn answer<T: Send + 'static>(
    what: &'static str,
    question: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AppError> {
    let answered = tokio::task::spawn_blocking(question).await;
    answered.map_err(|error| AppError::Internal(anyhow::Error::new(error).context(what)))
}

/// The fleet and the rules without any work, as this replica knows them now.
pub(super) async fn fleet(app: &App) -> Result<World, AppError> {
    let mut kept = app.questions.fleet.lock().await;
    let mirror = look_at_fleet(app, &mut kept).await?;
    Ok(translate::fleet(&mirror.records, mirror.now))
}

/// The same over the week.
pub(super) async fn week(app: &App) -> Result<Week, AppError> {
    let mut kept = app.questions.fleet.lock().await;
    let mirror = look_at_fleet(app, &mut kept).await?;
    Ok(Week::of(&mirror.records, mirror.now))
}

/// The fleet's mirror, brought up to date. One that could not be is loaded anew next time.
async fn look_at_fleet<'m>(
    app: &App,
    kept: &'m mut Option<Mirror>,
) -> Result<&'m mut Mirror, AppError> {
    let mirror = match kept.take() {
        Some(mut mirror) => {
            mirror.refresh(&app.db).await?;
            mirror
        }
        None => Mirror::load_fleet(&app.db).await?,
    };
    Ok(kept.insert(mirror))
}

/// Everything, as this replica knows it now.
pub(crate) async fn live(app: &App) -> Result<World, AppError> {
    let mut sight = app.questions.sight.lock().await;
    sight.world(app).await
}

/// What the scheduler would decide now: planned anew only where the world has changed, or time
/// may have changed it.
pub(super) async fn think(app: &App) -> Result<Arc<Thought>, AppError> {
    let mut seat = app.questions.sit_down().await?;
    let (world, revision) = {
        let mut sight = app.questions.sight.lock().await;
        let now = sight.refresh(app).await?.now;
        if let Some(known) = seat.desk.as_ref()
            && known.revision == sight.revision
            && now < known.world.now + FRESH_FOR
        {
            return Ok(Arc::clone(known));
        }
        (sight.world(app).await?, sight.revision)
    };
    let thought = answer("plan for people", move || {
        let plan = engine::plan(&world);
        Arc::new(Thought {
            world,
            plan,
            revision,
        })
    })
    .await?;
    *seat.desk = Some(Arc::clone(&thought));
    Ok(thought)
}

impl Sight {
    /// The mirror, brought up to date. One that could not be is loaded anew next time.
    async fn refresh(&mut self, app: &App) -> Result<&mut Mirror, AppError> {
        let mirror = match self.mirror.take() {
            Some(mut mirror) => {
                if mirror.refresh(&app.db).await? == Refresh::Changed {
                    self.revision += 1;
                }
                mirror
            }
            None => {
                let mirror = Mirror::load(&app.db).await?;
                self.revision += 1;
                mirror
            }
        };
        Ok(self.mirror.insert(mirror))
    }

    async fn world(&mut self, app: &App) -> Result<World, AppError> {
        let mirror = self.refresh(app).await?;
        let memory = mirror.recall(&app.db).await?;
        Ok(translate::world(&mirror.records, mirror.now, &memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_comes_when_the_line_is_full_is_told_that_many_ask_and_not_that_it_asked_too_often()
    {
        let questions = Questions::default();
        let all = u32::try_from(ASKERS_MAX).expect("a small number");
        let line = questions.line.acquire_many(all).await.expect("open");
        assert!(matches!(
            questions.ask("count", || 1).await,
            Err(AppError::TooBusy { .. })
        ));
        drop(line);
        assert_eq!(questions.ask("count", || 1).await.ok(), Some(1));
    }
}
