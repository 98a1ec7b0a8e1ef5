//! Who held which device when, as the agents' own journals tell it: a second witness, which has never seen the database.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use rig::Cluster;
use serde::Deserialize;

/// All of a device.
const WHOLE_MILLI: i64 = 1000;

/// One assignment's time on a node.
#[derive(Debug, Clone, Deserialize)]
pub struct Holding {
    /// The assignment.
    pub assignment_id: String,
    /// What it held.
    pub devices: Vec<Share>,
    /// The highest epoch that the agent had seen when it took it.
    pub epoch: Option<Epoch>,
    /// From when, by the node's clock.
    pub from_micros: i64,
    /// Until when; none while it holds.
    pub until_micros: Option<i64>,
    /// How many times its process was started.
    pub starts: u32,
    /// How many times its process has ended.
    pub ends: u32,
}

/// An epoch: later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Epoch {
    /// The database's timeline.
    pub timeline: i64,
    /// The leader's number.
    pub number: i64,
}

/// A share of a device.
#[derive(Debug, Clone, Deserialize)]
pub struct Share {
    /// The device.
    pub uuid: String,
    /// How it is shared.
    pub mode: String,
    /// How much of it.
    pub gpus_milli: i64,
}

/// The holdings of every node, by its name.
pub async fn read(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Vec<Holding>>> {
    let mut journals = BTreeMap::new();
    for (name, agent) in &cluster.agents {
        let told = agent.journal().await?;
        let holdings = serde_json::from_value(told)
            .with_context(|| format!("what the journal of {name} tells"))?;
        journals.insert(name.clone(), holdings);
    }
    Ok(journals)
}

/// Fails when a journal tells of an assignment that was started or ended twice, of a device that was
/// promised beyond what it is (I1), or of an epoch that fell (I9).
pub async fn check(cluster: &Cluster) -> anyhow::Result<()> {
    for (node, holdings) in read(cluster).await? {
        check_node(&holdings).with_context(|| format!("by the journal of {node}"))?;
    }
    Ok(())
}

fn check_node(holdings: &[Holding]) -> anyhow::Result<()> {
    if let Some(twice) = holdings
        .iter()
        .find(|held| held.starts > 1 || held.ends > 1)
    {
        bail!("an assignment was started or ended twice: {twice:?}");
    }
    let fell = |pair: &&[Holding]| pair[1].epoch < pair[0].epoch;
    if let Some(pair) = holdings.windows(2).find(fell) {
        bail!("an epoch fell: {pair:?}");
    }
    let mut devices: BTreeMap<&str, Vec<(&Holding, &Share)>> = BTreeMap::new();
    for held in holdings {
        for share in &held.devices {
            devices.entry(&share.uuid).or_default().push((held, share));
        }
    }
    for (device, holders) in devices {
        // What is held grows only where a holding begins, so that no other moment matters.
        for (newest, _) in &holders {
            let at = newest.from_micros;
            let together: Vec<_> = holders
                .iter()
                .filter(|(held, _)| {
                    held.from_micros <= at && held.until_micros.is_none_or(|until| until > at)
                })
                .collect();
            let milli: i64 = together.iter().map(|(_, share)| share.gpus_milli).sum();
            let alone = together.iter().any(|(_, share)| share.mode == "exclusive");
            if milli > WHOLE_MILLI || (alone && together.len() > 1) {
                bail!("device {device} had more holders than it can: {together:?}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(mode: &str, gpus_milli: i64, from_micros: i64, until_micros: Option<i64>) -> Holding {
        Holding {
            assignment_id: format!("from-{from_micros}"),
            devices: vec![Share {
                uuid: "GPU-1".to_owned(),
                mode: mode.to_owned(),
                gpus_milli,
            }],
            epoch: None,
            from_micros,
            until_micros,
            starts: 1,
            ends: 1,
        }
    }

    #[test]
    fn holdings_that_overlap_are_found_and_those_that_touch_are_not() {
        let first = held("exclusive", 1000, 10, Some(20));
        for (second, good) in [
            (held("exclusive", 1000, 20, None), true),
            (held("exclusive", 1000, 19, Some(30)), false),
            (held("exclusive", 1000, 5, Some(10)), true),
            (held("exclusive", 1000, 5, None), false),
            (held("time_slice", 250, 12, Some(13)), false),
        ] {
            let found = check_node(&[first.clone(), second.clone()]);
            assert_eq!(found.is_ok(), good, "{second:?}: {found:?}");
        }
    }

    #[test]
    fn shares_of_a_device_fit_as_long_as_they_add_up_to_it() {
        let mut holdings = vec![
            held("time_slice", 500, 1, None),
            held("time_slice", 500, 2, None),
        ];
        check_node(&holdings).unwrap();
        holdings.push(held("time_slice", 1, 3, Some(4)));
        assert!(check_node(&holdings).is_err());
    }

    #[test]
    fn an_epoch_that_falls_is_found() {
        let under = |number: i64, from_micros: i64| {
            let mut one = held("exclusive", 1000, from_micros, Some(from_micros + 1));
            one.epoch = Some(Epoch {
                timeline: 1,
                number,
            });
            one
        };
        check_node(&[under(3, 1), under(3, 2), under(4, 3)]).unwrap();
        assert!(check_node(&[under(3, 1), under(2, 2)]).is_err());
    }

    #[test]
    fn a_second_start_of_one_assignment_is_found() {
        let mut twice = held("exclusive", 1000, 1, None);
        twice.starts = 2;
        assert!(check_node(&[twice]).is_err());
    }
}
