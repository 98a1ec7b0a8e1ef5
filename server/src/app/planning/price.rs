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

use super::dry_run::DryRunWorker;
use crate::app::AppError;
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

    fn accepts(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|name| name.as_str() == pool)
    }
}

/// What work costs per hour wherever it may start; nothing where that differs or a price is missing.
pub(super) async fn anywhere(
    tx: &mut Tx,
    world: &World,
    wanted: &Wanted,
) -> Result<Option<Money>, AppError> {
    let mut common: Option<PriceInForce> = None;
    if wanted.instances {
        return Ok(None);
    }
    for pool in world.pools.iter().filter(|pool| wanted.accepts(&pool.name)) {
        let offered = |mode: &&SharingMode| pool.sharing.contains(mode);
        for mode in wanted.modes.iter().filter(offered) {
            let price = store::prices::in_force(tx, &pool.name, *mode).await?;
            match (price, &common) {
                (Some(price), None) => common = Some(price),
                (Some(price), Some(known))
                    if (price.amount, &price.currency) == (known.amount, &known.currency) => {}
                _ => return Ok(None),
            }
        }
    }
    Ok(common.map(|price| Money {
        amount: money::round(
            price.amount * Decimal::new(wanted.gpus.milli(), 3),
            SHOWN_DECIMALS,
        ),
        currency: price.currency,
    }))
}

/// What a placement costs per hour by the prices in force; nothing where one is missing.
pub(super) async fn there(
    tx: &mut Tx,
    world: &World,
    placement: &[DryRunWorker],
) -> Result<Option<Money>, AppError> {
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
