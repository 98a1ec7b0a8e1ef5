//! What does not keep a change of quotas from holding, and should be known.

use domain::MilliGpu;
use domain::name::Name;
use domain::words;
use engine::world::World;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tree::Promises;
use crate::app::promises::Overpromised;
use crate::app::{AppError, pools};
use crate::store::Tx;

/// Something to be known of a change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// A stable word for programs: `overpromised`.
    pub code: String,
    /// The same as a sentence.
    pub message: String,
    /// The pool that it is about.
    pub pool: Name,
    /// What is guaranteed of it in all.
    pub guaranteed: MilliGpu,
    /// What it has.
    pub capacity: MilliGpu,
}

impl Warning {
    fn overpromised(pool: &Name, over: Overpromised) -> Self {
        Self {
            code: "overpromised".to_owned(),
            message: format!(
                "the guarantees in pool {pool} are {} and it has {}: all of them shrink in proportion until it has more",
                words::gpus(over.guaranteed),
                over.capacity
            ),
            pool: pool.clone(),
            guaranteed: over.guaranteed,
            capacity: over.capacity,
        }
    }
}

/// What is to be known of these pools by the rows of this transaction: the world in memory may
/// not have them yet.
pub(super) async fn warnings(
    fleet: &World,
    tx: &mut Tx,
    pools: &[&Name],
) -> Result<Vec<Warning>, AppError> {
    let mut warnings = Vec::new();
    for pool in pools {
        let id = pools::find(tx, pool).await?.id;
        let promises = Promises::load(tx, (id, pool)).await?;
        warnings.extend(overpromised(fleet, &promises, &[]));
    }
    Ok(warnings)
}

/// Says so where these promises, while these windows are open, are more than the fleet has.
pub fn overpromised(fleet: &World, promises: &Promises, open: &[usize]) -> Option<Warning> {
    let guaranteed = MilliGpu::from_milli(promises.sum(open));
    let over = Overpromised::of(fleet, promises.pool.as_str(), guaranteed)?;
    Some(Warning::overpromised(&promises.pool, over))
}
