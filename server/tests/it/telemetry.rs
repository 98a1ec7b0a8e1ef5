//! What devices and jobs did: from a node's samples to what people are told, what minutes and hours of them come
//! to, and how long they are kept.

use axum::http::StatusCode;
use chrono::TimeDelta;
use domain::Timestamp;
use domain::ids::{AssignmentId, DeviceId};
use protocol::samples::Readings;
use protocol::wire;
use server::app::telemetry::{self, DeviceSampled, JobTelemetry, Step, TelemetryAsk};
use server::background::reckoning;
use server::store::samples::{self, Sample, Work};
use sqlx::PgPool;

use super::agents::{ids_of, ready};
use super::fleet::Fleet;
use super::machine::{self, Connection, Machine, accepted, fact, started};
use super::pages::{Browser, add_person};
use super::simulated::Clock;

/// What a device says that works with this share of its time.
fn device(index: u32, busy: Option<u32>, work: Vec<wire::WorkSample>) -> wire::DeviceSample {
    wire::DeviceSample {
        uuid: format!("GPU-n1-{index}"),
        busy_permille: busy,
        memory_mib: Some(4000),
        energy_mj: Some(1500),
        work,
        ..wire::DeviceSample::default()
    }
}

async fn tell(connection: &mut Connection, devices: Vec<wire::DeviceSample>) {
    let samples = wire::Samples { devices };
    connection
        .send(wire::from_agent::Message::Samples(samples))
        .await;
}

fn by(step: Step) -> TelemetryAsk {
    TelemetryAsk {
        step: Some(step),
        ..TelemetryAsk::default()
    }
}

async fn of_device(fleet: &Fleet, index: usize, step: Step) -> Vec<DeviceSampled> {
    let name = "n1".parse().expect("a name");
    let told = telemetry::of_node(&fleet.app, &fleet.bob(), &name, by(step)).await;
    told.expect("told").devices.swap_remove(index).points
}

#[sqlx::test(migrations = "../migrations")]
async fn what_a_node_samples_is_told_of_its_devices_and_of_its_own_work_alone(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(2).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(1).await;
    fleet.turn().await;
    let wanted = connection.wanted(wire::Want::Hold).await;
    let ids = ids_of(&wanted);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    let held = wanted.devices[0].index;
    let work = |id: String, busy| wire::WorkSample {
        assignment_id: id,
        busy_permille: busy,
        processes: Some(1),
        ..wire::WorkSample::default()
    };
    // Of an assignment that is not there the node says nothing; of the other device nothing is known.
    let strange = work(AssignmentId::new().to_string(), Some(1000));
    let own = work(wanted.id.clone(), Some(250));
    let told = vec![
        device(held, Some(250), vec![own, strange]),
        device(1 - held, None, Vec::new()),
    ];
    tell(&mut connection, told).await;
    let at = usize::try_from(held).expect("an index");
    machine::eventually("the samples are told", async || {
        !of_device(&fleet, at, Step::Sample).await.is_empty()
    })
    .await;

    let busy = &of_device(&fleet, at, Step::Sample).await[0];
    assert_eq!((busy.busy_permille, busy.sm_permille), (Some(250), None));
    assert_eq!((busy.memory_mib, busy.energy_mj), (Some(4000), Some(1500)));
    let unknown = &of_device(&fleet, 1 - at, Step::Sample).await[0];
    assert_eq!(
        (unknown.busy_permille, unknown.memory_mib),
        (None, Some(4000))
    );
    let told = of_job(&fleet, job.id).await;
    let [point] = &told.points[..] else {
        panic!("one step: {told:?}");
    };
    assert_eq!(
        (point.devices, point.unknown, point.busy_permille),
        (1, 0, Some(250))
    );
    assert_eq!(point.processes_least, Some(1));
}

async fn of_job(fleet: &Fleet, job: domain::ids::JobId) -> JobTelemetry {
    telemetry::of_job(&fleet.app, &fleet.ada(), job, TelemetryAsk::default())
        .await
        .expect("told")
}

/// A sample of a device with this share of its time.
fn sample(at: Timestamp, device: DeviceId, busy: Option<i16>) -> Sample {
    Sample {
        at,
        device,
        work: None,
        readings: Readings {
            busy,
            memory_mib: Some(1000),
            energy_mj: Some(10),
            ..Readings::default()
        },
    }
}

async fn write(fleet: &Fleet, rows: &[Sample]) {
    let mut tx = fleet.app.db.begin_system().await.expect("begun");
    samples::write(&mut tx, rows).await.expect("written");
    tx.commit().await.expect("committed");
}

async fn tend(fleet: &Fleet, clock: &Clock) {
    let now = clock.now().await;
    let mut tx = fleet.app.db.begin_system().await.expect("begun");
    telemetry::tend(&mut tx, &fleet.app, now)
        .await
        .expect("tended");
    tx.commit().await.expect("committed");
}

/// A fleet with one device, at a time of its own, with room for samples.
async fn at_noon(owner: &PgPool) -> (Fleet, Clock, DeviceId) {
    let clock = Clock::at(owner, "2026-10-01T12:00:00Z").await;
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 1).await;
    let id = sqlx::query_scalar!(r#"SELECT id AS "id: DeviceId" FROM devices"#)
        .fetch_one(owner)
        .await
        .expect("a device");
    sqlx::query!("UPDATE samples_reckoned SET until = '2026-10-01T12:00:00Z'")
        .execute(owner)
        .await
        .expect("put back");
    tend(&fleet, &clock).await;
    (fleet, clock, id)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_devices_page_tells_its_window_and_no_other_and_what_is_not_there(owner: PgPool) {
    let (fleet, clock, device) = at_noon(&owner).await;
    let now = clock.now().await;
    let before = |minutes| now - TimeDelta::minutes(minutes);
    let rows = [(10, Some(250)), (9, None), (90, Some(990))];
    let rows = rows.map(|(minutes, busy)| sample(before(minutes), device, busy));
    write(&fleet, &rows).await;
    add_person(&owner, "boss", Some("admin")).await;
    let mut browser = Browser::new(&fleet.app);
    browser.sign_in("boss").await;
    let hour = browser.get("/nodes/n1/devices/0").await;
    assert_eq!(hour.status, StatusCode::OK);
    assert!(
        hour.html.contains("25%") && !hour.html.contains("99%"),
        "{}",
        hour.html
    );
    let points = format!(
        "[[{},{}],[250,null],[12,12]]",
        before(10).timestamp(),
        before(9).timestamp()
    );
    assert!(hour.html.contains(&points), "{points}: {}", hour.html);
    let day = browser.get("/nodes/n1/devices/0?window=day").await.html;
    assert!(day.contains("25%") && day.contains("99%"), "{day}");
    let refused = browser.get("/nodes/n1/devices/0?window=year").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        refused.html.contains("Choose one of those offered"),
        "{}",
        refused.html
    );
    for none in [
        "/nodes/n1/devices/7",
        "/nodes/n1/devices/x",
        "/nodes/n2/devices/0",
    ] {
        assert_eq!(
            browser.get(none).await.status,
            StatusCode::NOT_FOUND,
            "{none}"
        );
    }
}

/// Step, samples, mean and most of the load, memory and energy of a point.
type Told = (
    String,
    i64,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

async fn told(fleet: &Fleet, step: Step, hours: i64, clock: &Clock) -> Vec<Told> {
    let now = clock.now().await;
    let ask = TelemetryAsk {
        from: Some(now - TimeDelta::hours(hours)),
        to: Some(now),
        step: Some(step),
    };
    let name = "n1".parse().expect("a name");
    let told = telemetry::of_node(&fleet.app, &fleet.bob(), &name, ask).await;
    let points = told.expect("told").devices.swap_remove(0).points;
    let of = |point: DeviceSampled| {
        let at = point.at.format("%d %H:%M").to_string();
        (
            at,
            point.samples,
            point.busy_permille,
            point.most_permille,
            point.memory_mib,
            point.energy_mj,
        )
    };
    points.into_iter().map(of).collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn minutes_are_the_same_before_and_after_they_are_reckoned_up_and_late_samples_count(
    owner: PgPool,
) {
    let (fleet, clock, device) = at_noon(&owner).await;
    let noon = clock.now().await;
    let at = |seconds| noon + TimeDelta::seconds(seconds);
    let rows = [
        sample(at(0), device, Some(100)),
        sample(at(30), device, Some(300)),
        sample(at(59), device, None),
        sample(at(60), device, Some(1000)),
    ];
    write(&fleet, &rows).await;
    clock.pass_ms(100_000).await;
    let minute = |minute: &str, samples, mean, most, energy| {
        let at = format!("01 12:{minute}");
        (
            at,
            samples,
            Some(mean),
            Some(most),
            Some(1000),
            Some(energy),
        )
    };
    let expected = [
        minute("00", 3, 200, 300, 30),
        minute("01", 1, 1000, 1000, 10),
    ];
    assert_eq!(told(&fleet, Step::Minute, 1, &clock).await, expected);
    reckoning::reckon(&fleet.app).await.expect("reckoned");
    let reckoned = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM sample_minutes"#);
    assert_eq!(
        reckoned.fetch_one(&owner).await.expect("counted"),
        1,
        "the second may not be whole yet"
    );
    assert_eq!(told(&fleet, Step::Minute, 1, &clock).await, expected);

    write(&fleet, &[sample(at(45), device, Some(800))]).await;
    let expected = [
        minute("00", 4, 400, 800, 40),
        minute("01", 1, 1000, 1000, 10),
    ];
    assert_eq!(told(&fleet, Step::Minute, 1, &clock).await, expected);
}

#[sqlx::test(migrations = "../migrations")]
async fn hours_and_days_add_up_what_minutes_come_to(owner: PgPool) {
    let (fleet, clock, device) = at_noon(&owner).await;
    let noon = clock.now().await;
    let hour = |hour: i64, minute: i64| noon + TimeDelta::hours(hour) + TimeDelta::minutes(minute);
    // Means of unlike numbers of samples: the mean of minutes would be another.
    let rows = [
        sample(hour(0, 5), device, Some(1000)),
        sample(hour(0, 6), device, Some(0)),
        sample(hour(0, 6), device, Some(500)),
        sample(hour(11, 59), device, Some(1)),
    ];
    write(&fleet, &rows).await;
    clock.set("2026-10-02T01:00:00Z").await;
    reckoning::reckon(&fleet.app).await.expect("reckoned");
    let expected = [
        (
            "01 12:00".to_owned(),
            3,
            Some(500),
            Some(1000),
            Some(1000),
            Some(30),
        ),
        (
            "01 23:00".to_owned(),
            1,
            Some(1),
            Some(1),
            Some(1000),
            Some(10),
        ),
    ];
    assert_eq!(told(&fleet, Step::Hour, 24, &clock).await, expected);
    let whole = (
        "01 00:00".to_owned(),
        4,
        Some(375),
        Some(1000),
        Some(1000),
        Some(40),
    );
    assert_eq!(told(&fleet, Step::Day, 48, &clock).await, [whole]);

    tend(&fleet, &clock).await;
    write(&fleet, &[sample(hour(0, 6), device, Some(500))]).await;
    assert_eq!(told(&fleet, Step::Hour, 24, &clock).await[0].1, 4);
    assert_eq!(told(&fleet, Step::Day, 48, &clock).await[0].1, 5);
}

#[sqlx::test(migrations = "../migrations")]
async fn samples_go_after_their_days_and_what_they_come_to_stays(owner: PgPool) {
    let (fleet, clock, device) = at_noon(&owner).await;
    let noon = clock.now().await;
    write(&fleet, &[sample(noon, device, Some(100))]).await;
    clock.set("2026-10-01T13:00:30Z").await;
    reckoning::reckon(&fleet.app).await.expect("reckoned");
    let parts = async || {
        sqlx::query_scalar!(
            r#"SELECT i.inhparent::regclass::text AS "whole!" FROM pg_inherits AS i
               WHERE i.inhrelid::regclass::text IN ('samples_20261001', 'sample_minutes_20261001') ORDER BY 1"#
        )
        .fetch_all(&owner)
        .await
        .expect("the catalogue answers")
    };
    clock.set("2026-10-08T23:59:00Z").await;
    tend(&fleet, &clock).await;
    assert_eq!(parts().await, ["sample_minutes", "samples"]);
    clock.set("2026-10-09T00:01:00Z").await;
    tend(&fleet, &clock).await;
    assert_eq!(parts().await, ["sample_minutes"], "after seven days");
    clock.set("2026-11-02T00:01:00Z").await;
    tend(&fleet, &clock).await;
    assert_eq!(parts().await, Vec::<String>::new(), "after a month");
    assert_eq!(told(&fleet, Step::Hour, 24 * 33, &clock).await.len(), 1);
    clock.set("2027-11-06T00:00:00Z").await;
    tend(&fleet, &clock).await;
    assert_eq!(told(&fleet, Step::Hour, 24 * 60, &clock).await.len(), 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_window_has_steps_that_can_be_drawn(owner: PgPool) {
    let (fleet, clock, _) = at_noon(&owner).await;
    let now = clock.now().await;
    let name = "n1".parse().expect("a name");
    let ask = |from, to, step| TelemetryAsk {
        from: Some(from),
        to: Some(to),
        step,
    };
    let window = async |ask| telemetry::of_node(&fleet.app, &fleet.bob(), &name, ask).await;
    let back = |hours| now - TimeDelta::hours(hours);
    for (hours, step) in [
        (1, Step::Minute),
        (12, Step::Minute),
        (13, Step::Hour),
        (24 * 40, Step::Day),
    ] {
        let chosen = window(ask(back(hours), now, None))
            .await
            .expect("told")
            .step;
        assert_eq!(chosen, step, "{hours} h");
    }
    for (wrong, field) in [
        (ask(now, back(1), None), "from"),
        (ask(now, now, None), "from"),
        (ask(back(26), now, Some(Step::Minute)), "step"),
    ] {
        let refused = window(wrong).await.expect_err("refused").to_string();
        assert!(refused.contains(field), "{refused}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_rank_that_does_nothing_is_seen_beside_those_that_work(owner: PgPool) {
    let fleet = Fleet::new(owner.clone()).await;
    fleet.node("n1", 2).await;
    let now = Clock::at(&owner, "2026-10-01T12:00:00Z").await;
    tend(&fleet, &now).await;
    let job = fleet.running(2).await;
    let [(assignment, ..)] = fleet.workers(job).await[..] else {
        panic!("one worker");
    };
    let rows = sqlx::query!(
        r#"SELECT d.id AS "id: DeviceId", a.team_id AS "team: domain::ids::TeamId"
           FROM devices AS d, assignments AS a WHERE a.id = $1 ORDER BY d.index"#,
        assignment as AssignmentId,
    )
    .fetch_all(&owner)
    .await
    .expect("devices");
    let loads = [Some(900), Some(0)];
    let rows: Vec<Sample> = rows
        .iter()
        .zip(loads)
        .map(|(row, busy)| Sample {
            work: Some(Work {
                assignment,
                job,
                team: row.team,
            }),
            ..sample(
                "2026-10-01T12:00:01Z".parse().expect("a time"),
                row.id,
                busy,
            )
        })
        .collect();
    write(&fleet, &rows).await;
    now.pass_ms(5_000).await;
    let told = of_job(&fleet, job).await;
    let point = told.points.last().expect("a step");
    assert_eq!((point.devices, point.busy_permille), (2, Some(450)));
    assert_eq!(
        (point.lowest_permille, point.highest_permille),
        (Some(0), Some(900))
    );
    assert_eq!((point.memory_mib, point.energy_mj), (Some(2000), Some(20)));

    // Windows that follow one another tell each step once.
    let window = async |from: &str, to: &str| {
        let at = |time: &str| Some(format!("2026-10-01T{time}Z").parse().expect("a time"));
        let ask = TelemetryAsk {
            from: at(from),
            to: at(to),
            step: Some(Step::Minute),
        };
        let told = telemetry::of_job(&fleet.app, &fleet.ada(), job, ask).await;
        told.expect("told").points.len()
    };
    assert_eq!(window("12:00:00", "12:01:00").await, 1);
    assert_eq!(
        window("12:00:30", "12:01:00").await,
        1,
        "it begins within the step"
    );
    assert_eq!(window("12:01:00", "12:02:00").await, 0);
}
