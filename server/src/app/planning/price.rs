//! What work that is asked about would cost per hour.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use domain::MilliGpu;
use domain::money::{self, Money, SHOWN_DECIMALS};
use domain::name::Name;
use domain::sharing::SharingMode;
use domain::spec::JobSpec;
use engine::world::World;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::dry_run::DryRunWorker;
use crate::app::{AppError, usage};
use crate::store::prices::PriceInForce;
use crate::store::{self, Tx};

/// What decides the price of work that has no place yet.
pub(super) struct Wanted {
    /// The pools that it names; empty is any.
    pools: Vec<Name>,
    modes: Vec<SharingMode>,
    gpus: MilliGpu,
    /// Whether it asks for instances, whose part of a device its place decides.
    instances: bool,
}

impl Wanted {
    pub(super) fn of(spec: &JobSpec) -> Self {
        let each = spec.per_worker.gpus().milli();
        Self {
            pools: spec.pools.clone(),
            modes: spec.per_worker.sharing.clone(),
            gpus: MilliGpu::from_milli(each * i64::from(spec.workers)),
            instances: spec.per_worker.mig_profile.is_some(),
        }
    }

    /// Whether it holds no GPU, so that it costs nothing.
    pub(super) fn no_gpus(&self) -> bool {
        self.gpus == MilliGpu::ZERO
    }

    fn accepts(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|name| name.as_str() == pool)
    }
}

/// What work would cost per hour in a pool and mode in which it may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CostThere {
    /// The pool.
    pub pool: String,
    /// The mode.
    pub mode: SharingMode,
    /// What it costs per hour there; null where no price covers it.
    pub cost_per_hour: Option<Money>,
}

/// What work costs per hour in each pool and mode in which it may start. Of instances that is not
/// known before they have a place, and work without GPUs costs nothing anywhere.
pub(super) async fn by_pool(
    tx: &mut Tx,
    world: &World,
    wanted: &Wanted,
) -> Result<Vec<CostThere>, AppError> {
    let mut costs = Vec::new();
    if wanted.instances || wanted.gpus == MilliGpu::ZERO {
        return Ok(costs);
    }
    for pool in world.pools.iter().filter(|pool| wanted.accepts(&pool.name)) {
        let offered = |mode: &&SharingMode| pool.sharing.contains(mode);
        for mode in wanted.modes.iter().filter(offered) {
            let price = store::prices::in_force(tx, &pool.name, *mode).await?;
            costs.push(CostThere {
                pool: pool.name.clone(),
                mode: *mode,
                cost_per_hour: price.map(|price| for_gpus(price, wanted.gpus)),
            });
        }
    }
    Ok(costs)
}

/// The cost that all places have; nothing where they differ, one is without a price, or there is none.
pub(super) fn common<'c>(costs: impl IntoIterator<Item = &'c CostThere>) -> Option<Money> {
    let mut costs = costs.into_iter().map(|there| there.cost_per_hour.as_ref());
    let first = costs.next()??;
    costs.all(|cost| cost == Some(first)).then(|| first.clone())
}

fn for_gpus(price: PriceInForce, gpus: MilliGpu) -> Money {
    let amount = price.amount * Decimal::new(gpus.milli(), 3);
    Money {
        amount: money::round(amount, SHOWN_DECIMALS),
        currency: price.currency,
    }
}

/// What a placement costs per hour by the prices in force; nothing where one is missing.
pub(super) async fn there(
    tx: &mut Tx,
    world: &World,
    placement: &[DryRunWorker],
) -> Result<Option<Money>, AppError> {
    let without_gpus = |worker: &DryRunWorker| worker.devices.is_empty();
    if !placement.is_empty() && placement.iter().all(without_gpus) {
        return usage::nothing(tx).await;
    }
    let mut sum: Option<Money> = None;
    let mut known: BTreeMap<(&str, SharingMode), Option<PriceInForce>> = BTreeMap::new();
    for worker in placement {
        let Some(node) = world.nodes.iter().find(|n| n.name == worker.node) else {
            return Ok(None);
        };
        for device in &worker.devices {
            let key = (node.pool.as_str(), device.mode);
            if let Entry::Vacant(unknown) = known.entry(key) {
                unknown.insert(store::prices::in_force(tx, &node.pool, device.mode).await?);
            }
            let Some(price) = &known[&key] else {
                return Ok(None);
            };
            let part = price.amount * Decimal::new(device.gpus.milli(), 3);
            match &mut sum {
                None => {
                    sum = Some(Money {
                        amount: part,
                        currency: price.currency.clone(),
                    })
                }
                Some(sum) if sum.currency == price.currency => sum.amount += part,
                Some(_) => return Ok(None),
            }
        }
    }
    Ok(sum.map(|sum| Money {
        amount: money::round(sum.amount, SHOWN_DECIMALS),
        currency: sum.currency,
    }))
}
