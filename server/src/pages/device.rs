//! One device of a node: what it did in a window of time, and who is on it.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use chrono::TimeDelta;
use serde::Deserialize;
use web::shell::Section;
use web::views::{DeviceSums, DeviceView, DeviceWindow};

use super::jobs::Teams;
use super::visit::Visit;
use super::{PageError, node, page, utilisation};
use crate::app::telemetry::{self, DeviceTelemetry, TelemetryAsk};
use crate::app::{App, AppError, clock, nodes};
use crate::front::fields::read_query;

/// What is asked of the page.
#[derive(Debug, Default, Deserialize)]
pub struct DeviceQuery {
    /// How far to look back: hour, day, week or month; absent: an hour.
    window: Option<String>,
}

/// Shows one device.
pub async fn show_device(
    State(app): State<App>,
    visit: Visit,
    Path((name, index)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, PageError> {
    let name = node::read_node(&name)?;
    let query: DeviceQuery = read_query(&uri)?;
    let shown = read_window(query.window.as_deref())?;
    let asker = &visit.asker;
    let mut of = nodes::get(&app, asker, &name).await?;
    of.devices
        .retain(|device| device.index.to_string() == index);
    let Some(device) = of.devices.first() else {
        return Err(AppError::not_found("device", &index).into());
    };
    let uuid = device.uuid.clone();
    let ask = TelemetryAsk {
        from: Some(clock::now(&app).await? - TimeDelta::hours(shown.hours())),
        ..TelemetryAsk::default()
    };
    let mut told = telemetry::of_node(&app, asker, &name, ask).await?;
    told.devices.retain(|device| device.uuid == uuid);
    let teams = Teams::load(&app, asker).await?;
    let shell = visit.shell(&app, Section::Fleet).await?;
    let devices = node::devices(asker, &of, &teams);
    let Some(device) = devices.into_iter().next() else {
        return Err(AppError::not_found("device", &index).into());
    };
    page(&DeviceView {
        node: of.name.clone(),
        pool: of.pool.clone(),
        work: node::work(&of, &teams),
        utilisation: utilisation::of_device(&told),
        sums: told.devices.first().map(sums).unwrap_or_default(),
        device,
        shown,
        shell,
    })
}

fn read_window(asked: Option<&str>) -> Result<DeviceWindow, AppError> {
    let Some(asked) = asked else {
        return Ok(DeviceWindow::default());
    };
    let mut all = DeviceWindow::ALL.iter();
    all.find(|window| window.code() == asked)
        .copied()
        .ok_or_else(|| AppError::invalid("window", asked, "one of hour, day, week and month"))
}

fn sums(told: &DeviceTelemetry) -> DeviceSums {
    let points = || told.points.iter();
    let known = points().filter_map(|point| Some((point.power_mw?, point.samples)));
    let (energy, samples) = known.fold((0, 0), |(sum, all), (power, samples)| {
        (sum + power * samples, all + samples)
    });
    DeviceSums {
        memory_most_mib: points().filter_map(|point| point.memory_most_mib).max(),
        hottest_c: points().filter_map(|point| point.temperature_c).max(),
        power_mw: i64::checked_div(energy, samples),
        energy_mj: points()
            .filter_map(|point| point.energy_mj)
            .reduce(i64::saturating_add),
    }
}
