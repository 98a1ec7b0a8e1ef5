//! B11: samples of devices as agents send them, decoded, written and read, beside PostgreSQL's own COPY.
//!
//! `DATABASE_URL` names a durable database's server as its owner; a database of this run's own is made there and
//! dropped. What a connection costs beside its messages (TLS, HTTP/2) is not in these figures.

mod fleet;
mod plain;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use metrics_exporter_prometheus::PrometheusHandle;
use prost::Message as _;
use server::agents::samples;
use server::app::telemetry::{self, Step, TelemetryAsk};
use tokio_util::sync::CancellationToken;

use fleet::Fleet;

/// Nodes of eight devices, each with one job: a message has 16 rows.
const NODES: usize = 500;
const ROWS_OF_A_MESSAGE: usize = 2 * fleet::DEVICES;
/// What is asked: so many rows a second, and bursts of so many.
const RATE: usize = 40_000;
const BURST: usize = 200_000;
/// How long the steady part is.
const STEADY: Duration = Duration::from_secs(20);
/// Messages that are due are sent so often.
const TICK: Duration = Duration::from_millis(20);
/// Rows that are written no later than this are lost.
const PATIENCE: Duration = Duration::from_secs(60);
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shown = server::front::metrics::install()?;
    let fleet = Fleet::make(NODES).await?;
    let measured = measure(&fleet, &shown).await;
    fleet.drop().await?;
    measured
}

async fn measure(fleet: &Fleet, shown: &PrometheusHandle) -> anyhow::Result<()> {
    let over = CancellationToken::new();
    let writer = Writer {
        fleet,
        sender: samples::start(fleet.app.clone(), over.clone()),
        shown,
    };
    // The first has partitions made, and learns what devices and jobs are.
    writer.send(0..NODES)?;
    writer.written(NODES * ROWS_OF_A_MESSAGE).await?;

    let lags = writer.steady().await?;
    println!(
        "{RATE} samples/s for {} s: written after {:.0} ms median, {:.0} ms at most",
        STEADY.as_secs(),
        milliseconds(lags[lags.len() / 2]),
        milliseconds(lags[lags.len() - 1]),
    );
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let plain = plain::copy(&fleet.owner, BURST).await?;
        let ours = writer.burst().await?;
        let per_second = |time: Duration| BURST as f64 / time.as_secs_f64();
        println!(
            "burst of {BURST}: written after {:.0} ms, {:.0} rows/s; plain COPY of such rows {:.0} rows/s",
            milliseconds(ours),
            per_second(ours),
            per_second(plain)
        );
        ratios.push(plain.as_secs_f64() / ours.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "ratio to plain COPY: {:.2} median of {ROUNDS}",
        ratios[ROUNDS / 2]
    );
    over.cancel();
    read(fleet).await
}

/// A day of one node, whose page shows all of its devices.
async fn read(fleet: &Fleet) -> anyhow::Result<()> {
    let to = fleet.fill_day().await?;
    for (what, hours, step) in [
        ("24 h by minutes", 24, Step::Minute),
        ("6 h by samples", 6, Step::Sample),
    ] {
        let mut times = Vec::new();
        for _ in 0..ROUNDS * 4 {
            let begun = Instant::now();
            let told = telemetry::of_node(
                &fleet.app,
                &fleet.asker,
                &fleet.nodes[0].name,
                TelemetryAsk {
                    from: Some(to - chrono::TimeDelta::hours(hours)),
                    to: Some(to),
                    step: Some(step),
                },
            )
            .await?;
            times.push(begun.elapsed());
            let points: usize = told.devices.iter().map(|device| device.points.len()).sum();
            if points < fleet::DEVICES * 1_000 {
                bail!("{what}: only {points} points were told");
            }
        }
        times.sort();
        println!(
            "{what} of a node's {} devices: read in {:.1} ms median, {:.1} ms at most",
            fleet::DEVICES,
            milliseconds(times[times.len() / 2]),
            milliseconds(times[times.len() - 1]),
        );
    }
    Ok(())
}

/// The product's writer of samples, and what it says that it wrote.
struct Writer<'a> {
    fleet: &'a Fleet,
    sender: tokio::sync::mpsc::Sender<samples::Told>,
    shown: &'a PrometheusHandle,
}

impl Writer<'_> {
    /// Takes the messages of these nodes as they come off the wire.
    fn send(&self, messages: std::ops::Range<usize>) -> anyhow::Result<()> {
        for message in messages {
            let node = &self.fleet.nodes[message % NODES];
            let wire = protocol::wire::Samples::decode(node.message.as_slice())?;
            let samples = protocol::samples::check(wire).context("a message of ours")?;
            samples::put(&self.sender, node.id, samples);
        }
        Ok(())
    }

    /// Sends as many a second as are asked for, and tells how long each second's rows took to be written, in order.
    async fn steady(&self) -> anyhow::Result<Vec<Duration>> {
        let (begun, first) = (Instant::now(), self.count("allotment_samples_written")?);
        let (mut sent, mut lags) = (0, Vec::new());
        // What was sent when, until it is written.
        let mut open = std::collections::VecDeque::new();
        while begun.elapsed() < STEADY || !open.is_empty() {
            let elapsed = begun.elapsed();
            let due =
                (RATE as f64 * elapsed.min(STEADY).as_secs_f64()) as usize / ROWS_OF_A_MESSAGE;
            if due > sent {
                self.send(sent..due)?;
                sent = due;
                open.push_back((Instant::now(), sent * ROWS_OF_A_MESSAGE));
            }
            let written = self.count("allotment_samples_written")? - first;
            while let Some((at, rows)) = open.front()
                && *rows <= written
            {
                lags.push(at.elapsed());
                open.pop_front();
            }
            if elapsed > STEADY + PATIENCE {
                bail!(
                    "{written} of {} rows were written",
                    sent * ROWS_OF_A_MESSAGE
                );
            }
            tokio::time::sleep(TICK).await;
        }
        lags.sort();
        Ok(lags)
    }

    /// Sends a burst at once, and tells how long it took until all of it was written.
    async fn burst(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let before = self.count("allotment_samples_written")?;
        self.send(0..BURST / ROWS_OF_A_MESSAGE)?;
        self.written(before + BURST).await?;
        Ok(begun.elapsed())
    }

    /// Waits until so many rows in all have been written.
    async fn written(&self, rows: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.count("allotment_samples_written")? < rows {
            let lost = self.count("allotment_samples_lost")?;
            if lost > 0 || begun.elapsed() > PATIENCE {
                bail!("not all of {rows} rows were written, {lost} were let fall");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn count(&self, name: &str) -> anyhow::Result<usize> {
        let text = self.shown.render();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.with_context(|| format!("no metric {name}"))?;
        Ok(value.trim().parse()?)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
