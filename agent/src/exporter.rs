//! The agent's own metrics, in the names that dashboards of NVIDIA's exporter know, with whose the devices are.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections that are served at a time: scrapers come one by one.
const CONNECTIONS_MAX: usize = 8;
/// A connection that has not asked by then is closed.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// What was read longer ago is told no more.
const AGE_MAX: Duration = Duration::from_secs(150);
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric: its name, what it tells, and whether it only rises.
struct Metric {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
}

macro_rules! metrics {
    ($($constant:ident $name:literal $kind:literal $help:literal;)+) => {
        $(const $constant: Metric = Metric { name: $name, help: $help, kind: $kind };)+
    };
}

metrics! {
    GPU_UTIL "DCGM_FI_DEV_GPU_UTIL" "gauge" "Time in which any kernel ran, in percent.";
    FB_USED "DCGM_FI_DEV_FB_USED" "gauge" "Memory that is held, in MiB.";
    FB_FREE "DCGM_FI_DEV_FB_FREE" "gauge" "Memory that is free, in MiB.";
    TEMPERATURE "DCGM_FI_DEV_GPU_TEMP" "gauge" "Degrees Celsius.";
    POWER "DCGM_FI_DEV_POWER_USAGE" "gauge" "Power, in watts.";
    ENERGY "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" "counter" "Energy since the driver was loaded, in millijoules.";
    SM_CLOCK "DCGM_FI_DEV_SM_CLOCK" "gauge" "The clock of the multiprocessors, in MHz.";
    MEM_CLOCK "DCGM_FI_DEV_MEM_CLOCK" "gauge" "The clock of the memory, in MHz.";
    SM_ACTIVE "DCGM_FI_PROF_SM_ACTIVE" "gauge" "Multiprocessors at work, as a ratio.";
    TENSOR_ACTIVE "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" "gauge" "Tensor pipes at work, as a ratio.";
    DRAM_ACTIVE "DCGM_FI_PROF_DRAM_ACTIVE" "gauge" "Memory's bandwidth in use, as a ratio.";
    JOB_BUSY "allotment_job_gpu_busy_ratio" "gauge" "Time in which a kernel of the job ran on the device, as a ratio.";
    JOB_SM "allotment_job_gpu_sm_active_ratio" "gauge" "Multiprocessors of the job's part of the device at work, as a ratio.";
    JOB_MEMORY "allotment_job_gpu_memory_mib" "gauge" "The device's memory that the job holds, in MiB.";
    JOB_PROCESSES "allotment_job_gpu_processes" "gauge" "Processes of the job on the device.";
}

/// Values as they are written.
type Value = (&'static Metric, String);

/// What is told of one device.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its labels, and those of who has it whole.
    pub labels: Vec<(&'static str, String)>,
    /// What it showed.
    pub reading: crate::telemetry::Reading,
    /// Each job that has a part of it: its labels, and what it did.
    pub work: Vec<(Vec<(&'static str, String)>, protocol::wire::WorkSample)>,
}

/// What was read last, and when, by device.
#[derive(Debug, Default)]
pub struct Board {
    last: Mutex<Option<(Instant, BTreeMap<String, Told>)>>,
}

impl Board {
    /// Puts what was read in place of what was there: of a device that did not answer nothing is told.
    pub fn replace(&self, taken: Instant, devices: BTreeMap<String, Told>) {
        *self.last() = Some((taken, devices));
    }

    /// All of it in the text format of Prometheus; nothing where it is old.
    fn text(&self, now: Instant) -> String {
        let mut series: BTreeMap<&str, (&Metric, Vec<String>)> = BTreeMap::new();
        let last = self.last();
        let fresh = last
            .iter()
            .filter(|(taken, _)| now.saturating_duration_since(*taken) <= AGE_MAX);
        for told in fresh.flat_map(|(_, devices)| devices.values()) {
            for (metric, value) in of_device(&told.reading) {
                let line = line(metric, &told.labels, &value);
                series
                    .entry(metric.name)
                    .or_insert((metric, Vec::new()))
                    .1
                    .push(line);
            }
            for (labels, work) in &told.work {
                for (metric, value) in of_work(work) {
                    let line = line(metric, labels, &value);
                    series
                        .entry(metric.name)
                        .or_insert((metric, Vec::new()))
                        .1
                        .push(line);
                }
            }
        }
        let mut text = String::new();
        for (name, (metric, lines)) in series {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "# HELP {name} {}\n# TYPE {name} {}",
                metric.help, metric.kind
            );
            text.extend(lines);
        }
        text
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, BTreeMap<String, Told>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is not known has no line.
fn of_device(reading: &crate::telemetry::Reading) -> Vec<Value> {
    let (used, total) = reading.memory_mib.unzip();
    let free = total.zip(used).map(|(total, used)| total - used);
    let values = [
        (&GPU_UTIL, reading.busy.map(|busy| decimal(busy.into(), 1))),
        (&FB_USED, used.map(|mib| mib.to_string())),
        (&FB_FREE, free.map(|mib| mib.to_string())),
        (&TEMPERATURE, reading.temperature_c.map(|c| c.to_string())),
        (&POWER, reading.power_mw.map(|mw| decimal(mw.into(), 3))),
        (&ENERGY, reading.energy_total_mj.map(|mj| mj.to_string())),
        (&SM_CLOCK, reading.clocks_mhz.0.map(|mhz| mhz.to_string())),
        (&MEM_CLOCK, reading.clocks_mhz.1.map(|mhz| mhz.to_string())),
        (
            &SM_ACTIVE,
            reading.load.sm.map(|share| decimal(share.into(), 3)),
        ),
        (
            &TENSOR_ACTIVE,
            reading.load.tensor.map(|share| decimal(share.into(), 3)),
        ),
        (
            &DRAM_ACTIVE,
            reading.load.dram.map(|share| decimal(share.into(), 3)),
        ),
    ];
    known(values)
}

fn of_work(work: &protocol::wire::WorkSample) -> Vec<Value> {
    known([
        (
            &JOB_BUSY,
            work.busy_permille.map(|share| decimal(share.into(), 3)),
        ),
        (
            &JOB_SM,
            work.sm_permille.map(|share| decimal(share.into(), 3)),
        ),
        (&JOB_MEMORY, work.memory_mib.map(|mib| mib.to_string())),
        (
            &JOB_PROCESSES,
            work.processes.map(|count| count.to_string()),
        ),
    ])
}

fn known<const N: usize>(values: [(&'static Metric, Option<String>); N]) -> Vec<Value> {
    let all = values.into_iter();
    all.filter_map(|(metric, value)| Some((metric, value?)))
        .collect()
}

/// A whole number of the last of so many decimals.
fn decimal(number: u64, decimals: u32) -> String {
    let unit = 10_u64.pow(decimals);
    let width = usize::try_from(decimals).unwrap_or(1);
    format!("{}.{:0width$}", number / unit, number % unit)
}

fn line(metric: &Metric, labels: &[(&str, String)], value: &str) -> String {
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    format!("{}{{{}}} {value}\n", metric.name, labels.join(","))
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Opens the port.
pub async fn open(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("metrics_listen: {address} cannot be listened on"))
}

/// Serves `GET /metrics` until the agent ends.
pub async fn serve(listener: TcpListener, board: Arc<Board>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(seat) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a scraper could not be taken");
                // No descriptor is free: others give theirs back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let board = Arc::clone(&board);
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let answer = answer(&request, &board);
                async move { Ok::<_, Infallible>(answer) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(ASK_TIMEOUT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a scraper left");
            }
            drop(seat);
        });
    }
}

fn answer(request: &Request<Incoming>, board: &Board) -> Response<String> {
    let (status, body) = match (request.method().as_str(), request.uri().path()) {
        ("GET", "/metrics") => (StatusCode::OK, board.text(Instant::now())),
        _ => (
            StatusCode::NOT_FOUND,
            "metrics are at /metrics\n".to_owned(),
        ),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(TEXT);
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Reading;
    use crate::telemetry::reading::Load;

    #[test]
    fn what_is_known_is_told_in_the_units_of_its_name_and_what_is_not_has_no_line() {
        let (board, now) = (Board::default(), Instant::now());
        let reading = Reading {
            busy: Some(125),
            load: Load {
                sm: Some(7),
                ..Load::default()
            },
            memory_mib: Some((100, 80_000)),
            power_mw: Some(301_050),
            ..Reading::default()
        };
        let labels = vec![("gpu", "0".to_owned()), ("team", "a\"b".to_owned())];
        let work = protocol::wire::WorkSample {
            processes: Some(0),
            ..Default::default()
        };
        let told = Told {
            labels,
            reading,
            work: vec![(vec![("job", "j".to_owned())], work)],
        };
        board.replace(now, BTreeMap::from([("GPU-1".to_owned(), told)]));
        let text = board.text(now + AGE_MAX);
        for expected in [
            "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\",team=\"a\\\"b\"} 12.5\n",
            "DCGM_FI_PROF_SM_ACTIVE{gpu=\"0\",team=\"a\\\"b\"} 0.007\n",
            "DCGM_FI_DEV_FB_FREE{gpu=\"0\",team=\"a\\\"b\"} 79900\n",
            "DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",team=\"a\\\"b\"} 301.050\n",
            "allotment_job_gpu_processes{job=\"j\"} 0\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(
            !text.contains("TENSOR") && !text.contains("GPU_TEMP"),
            "{text}"
        );
        let later = now + AGE_MAX + Duration::from_secs(1);
        assert_eq!(board.text(later), "", "nothing is read any more");
        board.replace(later, BTreeMap::new());
        assert_eq!(board.text(later), "", "it does not answer any more");
    }
}
