//! The fleet and the rules without any work over the week: as they are now, and the quotas of every other time.

use domain::Timestamp;
use engine::world::{Team, World};

use super::translate;
use super::windows::combinations;
use super::world::Records;
use crate::store::windows::Window;
use crate::store::world::{QuotaRow, TeamRow};

/// The fleet and the rules without any work. What is so for good is so at every time of it.
#[derive(Debug)]
pub struct Week {
    /// As they are now.
    pub now: World,
    /// By what quotas are at other times; nothing where no window ever changes them.
    rows: Option<Rows>,
}

#[derive(Debug)]
struct Rows {
    teams: Vec<TeamRow>,
    quotas: Vec<QuotaRow>,
    windows: Vec<Window>,
}

impl Week {
    /// The week that these records have, seen from `now`.
    pub fn of(records: &Records, now: Timestamp) -> Self {
        let windows = !records.windows.is_empty();
        Self {
            now: translate::fleet(records, now),
            rows: windows.then(|| Rows {
                teams: records.teams.clone(),
                quotas: records.quotas.clone(),
                windows: records.windows.clone(),
            }),
        }
    }

    /// The teams with their quotas at times when those are other ones than now: while no window is
    /// open, and in each set of a pool's windows that are open together. A pool's quotas say nothing
    /// of another's, so that of the sets of several pools each is looked at by itself.
    pub fn otherwise(&self) -> Vec<Vec<Team>> {
        let Some(rows) = &self.rows else {
            return Vec::new();
        };
        let mut pools: Vec<_> = rows.windows.iter().map(|window| &window.pool).collect();
        pools.sort_unstable();
        pools.dedup();
        let mut times = vec![rows.while_open(&[])];
        for pool in pools {
            let own = rows.windows.iter().filter(|window| window.pool == *pool);
            let own: Vec<Window> = own.cloned().collect();
            for open in combinations(&own, self.now.now) {
                let open: Vec<&Window> = open.into_iter().map(|at| &own[at]).collect();
                times.push(rows.while_open(&open));
            }
        }
        let mut known = vec![&self.now.teams];
        let mut others = Vec::new();
        for teams in &times {
            if !known.contains(&teams) {
                known.push(teams);
                others.push(teams.clone());
            }
        }
        others
    }
}

impl Rows {
    fn while_open(&self, open: &[&Window]) -> Vec<Team> {
        translate::teams((&self.teams, &self.quotas), open)
    }
}
