//! What jobs and nodes did, as charts of their pages.

use std::collections::BTreeMap;

use domain::Timestamp;
use web::views::{Utilisation, UtilisationStep};

use crate::app::telemetry::{DeviceSampled, JobSampled, JobTelemetry, NodeTelemetry, Step};

/// A measure: the code of its words, and what it is of a step.
type Measure<T> = (&'static str, fn(&T) -> Option<i64>);

/// A job's chart; nothing where it was never sampled.
pub fn of_job(told: &JobTelemetry) -> Option<Utilisation> {
    let several = told.points.iter().any(|point| point.devices > 1);
    let measures: [Measure<JobSampled>; 3] = [
        ("compute", |point| point.sm_permille),
        ("busy", |point| point.busy_permille),
        ("lowest", |point| point.lowest_permille),
    ];
    let measures = measures
        .into_iter()
        .filter(|(code, _)| several || *code != "lowest");
    let points = told.points.iter().map(|point| (point.at, point));
    chart(
        (told.from, told.to, told.step),
        measures.collect(),
        points.collect(),
    )
}

/// A node's chart: means over its devices; nothing where none was sampled.
pub fn of_node(told: &NodeTelemetry) -> Option<Utilisation> {
    let mut by_time: BTreeMap<Timestamp, Vec<&DeviceSampled>> = BTreeMap::new();
    for point in told.devices.iter().flat_map(|device| &device.points) {
        by_time.entry(point.at).or_default().push(point);
    }
    let measures: [Measure<Vec<&DeviceSampled>>; 3] = [
        ("compute", |points| mean(points, |point| point.sm_permille)),
        ("busy", |points| mean(points, |point| point.busy_permille)),
        ("bandwidth", |points| {
            mean(points, |point| point.dram_permille)
        }),
    ];
    let points = by_time.iter().map(|(at, points)| (*at, points));
    chart(
        (told.from, told.to, told.step),
        measures.to_vec(),
        points.collect(),
    )
}

/// The chart of the only device that is told of; nothing where it was not sampled.
pub fn of_device(told: &NodeTelemetry) -> Option<Utilisation> {
    let device = told.devices.first()?;
    // What a share of memory is of.
    let all = device.memory_mib.max(1);
    let points: Vec<(Timestamp, (&DeviceSampled, i64))> = device
        .points
        .iter()
        .map(|point| (point.at, (point, all)))
        .collect();
    let measures: [Measure<(&DeviceSampled, i64)>; 4] = [
        ("compute", |(point, _)| point.sm_permille),
        ("busy", |(point, _)| point.busy_permille),
        ("bandwidth", |(point, _)| point.dram_permille),
        ("memory", |(point, all)| {
            point.memory_mib.map(|held| held * 1000 / all)
        }),
    ];
    chart(
        (told.from, told.to, told.step),
        measures.to_vec(),
        points.iter().map(|(at, point)| (*at, point)).collect(),
    )
}

fn mean(points: &[&DeviceSampled], of: fn(&DeviceSampled) -> Option<i64>) -> Option<i64> {
    let known: Vec<i64> = points.iter().filter_map(|point| of(point)).collect();
    let count = i64::try_from(known.len()).ok().filter(|count| *count > 0)?;
    Some((known.iter().sum::<i64>() + count / 2) / count)
}

/// The measures of which anything is known.
fn chart<T>(
    (from, to, step): (Timestamp, Timestamp, Step),
    measures: Vec<Measure<T>>,
    points: Vec<(Timestamp, &T)>,
) -> Option<Utilisation> {
    let known: Vec<_> = measures
        .into_iter()
        .filter(|(_, of)| points.iter().any(|(_, point)| of(point).is_some()))
        .collect();
    if known.is_empty() {
        return None;
    }
    let steps = points.iter().map(|(at, point)| UtilisationStep {
        at: *at,
        values: known.iter().map(|(_, of)| of(point)).collect(),
    });
    Some(Utilisation {
        from,
        to,
        step_seconds: step.length().num_seconds(),
        steps: steps.collect(),
        measures: known.iter().map(|(code, _)| *code).collect(),
    })
}
