//! Small traces whose figures are known.

use std::path::PathBuf;

use super::{Report, Trace};

const CLUSTER: &str = "
now: 2026-01-05T00:00:00Z
pools: [{name: p, preemption: {grace_seconds: 0}}]
nodes:
  - {name: n1, pool: p, gpus: 2, gpu_memory_mib: 81559, cpus: 64, memory_mib: 524288}
classes: [{name: normal, priority: 0, preemptible: true}]
teams:
  - {name: a, quotas: {p: {guaranteed: 2}}}
  - {name: b, quotas: {p: {guaranteed: 0}}}
workloads: []
";

fn replayed(name: &str, jobs: &str, until: Option<i64>) -> Report {
    read(name, jobs).unwrap().replay(until)
}

fn read(name: &str, jobs: &str) -> anyhow::Result<Trace> {
    let folder: PathBuf =
        std::env::temp_dir().join(format!("allot-trace-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (scenario, trace) = (folder.join("cluster.yaml"), folder.join("jobs.csv"));
    std::fs::write(&scenario, CLUSTER).unwrap();
    std::fs::write(&trace, jobs).unwrap();
    let read = Trace::read(&scenario, &trace, None, 42);
    std::fs::remove_dir_all(&folder).unwrap();
    read
}

#[test]
fn a_column_that_is_none_is_refused_by_its_name() {
    let jobs = "name,team,submitted,run_seconds,gpsu\nj1,a,0,100,2\n";
    let error = read("column", jobs).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("gpsu") && error.contains("line 1"),
        "{error}"
    );
}

#[test]
fn jobs_wait_for_those_before_them_and_all_end() {
    let jobs = "name,team,submitted,run_seconds,gpus\n\
                j1,a,0,100,2\nj2,a,10,100,2\nj3,a,20,50,1\n";
    let report = replayed("queue", jobs, None);
    assert_eq!((report.ended, report.running, report.waiting), (3, 0, 0));
    // j2 waits for j1 until 100, j3 for j2 until 200.
    assert_eq!((report.waits.most, report.waits.p50), (180, 90));
    assert_eq!(report.seconds, 250);
    // 2 × 100 + 2 × 100 + 50 GPU-seconds of 2 × 250.
    assert!((report.allocation_percent - 90.0).abs() < 1e-9);
    assert!((report.utilisation_percent - 90.0).abs() < 1e-9);
    assert_eq!(report.evictions(), 0);
}

#[test]
fn a_borrower_that_gives_way_loses_its_work_and_runs_it_again() {
    let jobs = "name,team,submitted,run_seconds,gpus,restart_seconds\n\
                guest,b,0,1000,2,0\nowner,a,100,50,2,0\n";
    let report = replayed("reclaim", jobs, None);
    assert_eq!((report.ended, report.evictions()), (2, 1));
    assert_eq!(report.preemptions["reclaim"], (1, 200));
    // The owner starts a cycle after its coming; the guest runs all of it again after that.
    assert_eq!(report.seconds, 101 + 50 + 1000);
    let page = report.page("a <b>");
    assert!(page.contains("<h1>a &lt;b&gt;</h1>") && page.contains("<polyline"));
}

fn share(report: &Report, team: &str) -> Option<f64> {
    let mut teams = report.teams.iter();
    teams.find(|t| t.name == team)?.share_percent
}

#[test]
fn work_that_has_all_of_its_run_within_the_hour_was_in_no_need() {
    let jobs = "name,team,submitted,run_seconds,gpus,restart_seconds\n\
                guest,b,0,1000,2,0\nowner,a,100,50,2,0\n";
    let report = replayed("need", jobs, None);
    assert_eq!((share(&report, "a"), share(&report, "b")), (None, None));
    assert_eq!(report.jain, None);
}

#[test]
fn a_queue_that_knows_no_teams_is_told_to_deny_what_is_guaranteed() {
    let jobs = "name,team,submitted,run_seconds,gpus,restart_seconds\n\
                guest,b,0,7200,2,0\nowner,a,1,3600,2,0\nlast,b,2,3600,1,0\n";
    let mut blind = read("blind", jobs).unwrap();
    blind.one_queue = true;
    let report = blind.replay(None);
    assert_eq!((report.evictions(), report.seconds), (0, 14_400));
    // Two hours in which the owner had nothing of two GPUs.
    assert_eq!(share(&report, "a"), Some(0.0));
    // Nothing was left for the guest while the owner asked, and it had all after that.
    assert_eq!(share(&report, "b"), None);
    let report = replayed("sighted", jobs, None);
    assert!(share(&report, "a").unwrap() > 99.0);
    assert_eq!(report.evictions(), 1);
}

#[test]
fn work_wider_than_any_entitlement_of_its_team_is_no_need_of_it() {
    // One GPU is left to the guest: two at once are nothing that it is entitled to, one after another are.
    let owner = "name,team,submitted,run_seconds,gpus\nowner,a,0,7200,1\n";
    let wide = replayed("wide", &format!("{owner}wide,b,1,3600,2\n"), Some(3600));
    assert_eq!((wide.waiting, share(&wide, "b")), (1, None));
    let two = format!("{owner}one,b,1,3600,1\nanother,b,2,3600,1\n");
    let two = replayed("narrow", &two, Some(3600));
    assert_eq!(two.waiting, 1);
    assert!(share(&two, "b").unwrap() > 99.0);
}

#[test]
fn a_replay_can_be_cut_off() {
    let jobs = "name,team,submitted,run_seconds,gpus\nj1,a,0,1000,2\nj2,a,10,100,2\n";
    let report = replayed("cut", jobs, Some(500));
    assert_eq!((report.running, report.waiting, report.ended), (1, 1, 0));
    assert_eq!(report.waits.unstarted, 1);
    assert_eq!(report.json()["allocation_percent"], 100.0);
}
