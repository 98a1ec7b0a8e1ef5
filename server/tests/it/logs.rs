//! Logs through the node's stream: whole, followed, slow readers, another replica, and a node that is away.

use std::time::Duration;

use domain::ids::{JobId, RequestId};
use protocol::wire::{self, from_agent};
use server::app::links::Part;
use server::app::logs::{self, LogAsk, LogBroken, LogReader};
use server::app::sessions::{self, SessionKind};
use server::app::streams::Kind;
use server::app::{AppError, feed};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::agents::{ids_of, ready};
use super::feed::begun;
use super::fleet::Fleet;
use super::machine::{self, Connection, Machine, Ports, accepted, fact, started};

struct Logged {
    fleet: Fleet,
    ports: Ports,
    connection: Connection,
    job: JobId,
}

/// A job runs on a node.
async fn logged(owner: PgPool) -> Logged {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(1).await.id;
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    Logged {
        fleet,
        ports,
        connection,
        job,
    }
}

fn ask(offset: i64, follow: bool) -> LogAsk {
    LogAsk {
        worker: 0,
        attempt: None,
        filling: None,
        offset,
        follow,
        part: Part::Log,
    }
}

fn chunk(request: u64, offset: i64, data: &[u8], end: bool) -> from_agent::Message {
    from_agent::Message::LogChunk(wire::LogChunk {
        request,
        offset,
        data: data.to_vec(),
        end,
        error: String::new(),
    })
}

async fn read_all(mut reader: LogReader) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = reader.next().await {
        all.extend_from_slice(&bytes.expect("the log goes on"));
    }
    all
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_is_read_from_an_offset_as_it_was_written(owner: PgPool) {
    let mut on = logged(owner).await;
    let (app, asker, job) = (on.fleet.app.clone(), on.fleet.ada(), on.job);
    let read = tokio::spawn(async move {
        read_all(
            logs::open(&app, &asker, job, ask(3, false))
                .await
                .expect("opened"),
        )
        .await
    });
    let request = on.connection.log_request().await;
    assert_eq!((request.offset, request.follow), (3, false));
    on.connection
        .send(chunk(request.request, 3, b"lo\xff\n", false))
        .await;
    on.connection
        .send(chunk(request.request, 7, b"<b>", true))
        .await;
    assert_eq!(read.await.expect("read"), b"lo\xff\n<b>");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reader_that_falls_behind_asks_again_where_it_stopped(owner: PgPool) {
    let mut on = logged(owner).await;
    let opened = {
        let (app, asker, job) = (on.fleet.app.clone(), on.fleet.ada(), on.job);
        tokio::spawn(async move { logs::open(&app, &asker, job, ask(0, true)).await })
    };
    let first = on.connection.log_request().await;
    let line = vec![b'x'; 1_024];
    for at in 0..200 {
        on.connection
            .send(chunk(first.request, at * 1_024, &line, false))
            .await;
    }
    // The node's stream does not wait for the reader: it is told to stop, and beats go on.
    assert_eq!(on.connection.log_cancel().await, first.request);
    on.connection.beat().await;
    let reader = opened.await.expect("opened").expect("opened");
    let read = tokio::spawn(read_all(reader));
    let second = on.connection.log_request().await;
    assert!(second.offset > 0 && second.offset % 1_024 == 0);
    assert!(second.offset < 200 * 1_024);
    on.connection
        .send(chunk(second.request, second.offset, b"rest", true))
        .await;
    let all = read.await.expect("read");
    assert_eq!(all.len() as i64, second.offset + 4);
}

/// What a node says that reads as many logs as it may.
fn busy(request: u64) -> from_agent::Message {
    from_agent::Message::LogChunk(wire::LogChunk {
        request,
        offset: 0,
        data: Vec::new(),
        end: true,
        error: "busy".into(),
    })
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_reads_no_more_logs_is_told_by_a_status(owner: PgPool) {
    let mut on = logged(owner).await;
    let (app, asker, job) = (on.fleet.app.clone(), on.fleet.ada(), on.job);
    let opened = tokio::spawn(async move { logs::open(&app, &asker, job, ask(0, true)).await });
    let request = on.connection.log_request().await;
    on.connection.send(busy(request.request)).await;
    let refused = opened.await.expect("opened").err();
    assert!(
        matches!(&refused, Some(AppError::LogBusy { node, .. }) if node == "n1"),
        "{refused:?}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn one_person_reads_so_many_logs_at_once(owner: PgPool) {
    let mut on = logged(owner).await;
    let app = on.fleet.app.clone();
    let mut readers = Vec::new();
    for _ in 0..app.config.limits.logs_per_person {
        let (app, asker, job) = (app.clone(), on.fleet.ada(), on.job);
        let opened = tokio::spawn(async move { logs::open(&app, &asker, job, ask(0, true)).await });
        let request = on.connection.log_request().await;
        on.connection
            .send(chunk(request.request, 0, b"a", false))
            .await;
        readers.push(opened.await.expect("opened").expect("a reader"));
    }
    let refused = logs::open(&app, &on.fleet.ada(), on.job, ask(0, false))
        .await
        .err();
    assert!(
        matches!(
            refused,
            Some(AppError::TooManyStreams {
                kind: Kind::Logs,
                ..
            })
        ),
        "{refused:?}"
    );
    readers.pop();
    let (asker, job) = (on.fleet.ada(), on.job);
    let opened = tokio::spawn(async move { logs::open(&app, &asker, job, ask(0, true)).await });
    let request = on.connection.log_request().await;
    on.connection
        .send(chunk(request.request, 0, b"b", true))
        .await;
    assert!(opened.await.expect("opened").is_ok());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reader_that_goes_away_is_told_to_the_node(owner: PgPool) {
    let mut on = logged(owner).await;
    let (app, asker, job) = (on.fleet.app.clone(), on.fleet.ada(), on.job);
    let opened = tokio::spawn(async move { logs::open(&app, &asker, job, ask(0, true)).await });
    let request = on.connection.log_request().await;
    on.connection
        .send(chunk(request.request, 0, b"a", false))
        .await;
    drop(opened.await.expect("opened").expect("opened"));
    assert_eq!(on.connection.log_cancel().await, request.request);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_is_read_through_the_replica_that_holds_the_nodes_stream(owner: PgPool) {
    let mut on = logged(owner.clone()).await;
    let other = super::fixture::app(&owner).await;
    let other_ports = machine::open(&other).await;
    machine::eventually("the replica is announced", async || {
        sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM replicas"#)
            .fetch_one(&owner)
            .await
            .expect("a number")
            == 2
    })
    .await;
    let (app, asker, job) = (other_ports.app.clone(), on.fleet.ada(), on.job);
    let read = tokio::spawn(async move {
        read_all(
            logs::open(&app, &asker, job, ask(0, false))
                .await
                .expect("opened"),
        )
        .await
    });
    let request = on.connection.log_request().await;
    on.connection
        .send(chunk(request.request, 0, b"from afar", true))
        .await;
    assert_eq!(read.await.expect("read"), b"from afar");
    drop(on.ports);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_is_away_is_named(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    let none = logs::open(&fleet.app, &fleet.ada(), job, ask(0, false))
        .await
        .err();
    assert!(
        matches!(none, Some(AppError::NoLog { .. })),
        "no attempt yet: {none:?}"
    );
    fleet.turn().await;
    fleet.run(job).await;
    let away = logs::open(&fleet.app, &fleet.ada(), job, ask(0, false))
        .await
        .err();
    assert!(
        matches!(&away, Some(AppError::NodeAway { node }) if node == "n1"),
        "{away:?}"
    );
    let hidden = logs::open(&fleet.app, &fleet.bob(), job, ask(0, false))
        .await
        .err();
    assert!(
        matches!(hidden, Some(AppError::NotFound { what: "job", .. })),
        "{hidden:?}"
    );
    let worker = LogAsk {
        worker: 7,
        ..ask(0, false)
    };
    let missing = logs::open(&fleet.app, &fleet.ada(), job, worker)
        .await
        .err();
    assert!(
        matches!(missing, Some(AppError::NoLog { .. })),
        "{missing:?}"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_that_is_followed_before_the_first_attempt_begins_with_it(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    let ports = machine::open(&fleet.app).await;
    let machine = Machine::join(&fleet, &ports, "n1").await;
    let mut connection = machine.connect(1).await;
    connection.beat().await;
    ready(&fleet, "n1").await;
    let job = fleet.submit(1).await.id;
    let reader = logs::open(&fleet.app, &fleet.ada(), job, ask(0, true)).await;
    let read = tokio::spawn(read_all(reader.expect("it is waited for")));
    fleet.turn().await;
    let ids = ids_of(&connection.wanted(wire::Want::Hold).await);
    connection
        .report_known(vec![fact(1, ids, accepted()), fact(2, ids, started())], 2)
        .await;
    let request = connection.log_request().await;
    assert_eq!((request.offset, request.follow), (0, true));
    connection
        .send(chunk(request.request, 0, b"at last", true))
        .await;
    assert_eq!(read.await.expect("read"), b"at last");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_that_is_followed_ends_with_a_job_that_never_began(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    let reader = logs::open(&fleet.app, &fleet.ada(), job, ask(0, true)).await;
    let read = tokio::spawn(read_all(reader.expect("it is waited for")));
    fleet.cancel(job).await;
    assert_eq!(read.await.expect("read"), b"");
    let over = logs::open(&fleet.app, &fleet.ada(), job, ask(0, true)).await;
    assert!(matches!(over.err(), Some(AppError::NoLog { .. })));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_log_that_is_not_there_is_told_by_the_parameter_that_names_it(owner: PgPool) {
    let fleet = Fleet::new(owner).await;
    fleet.node("n1", 1).await;
    let job = fleet.submit(1).await.id;
    let refused = async |job: JobId, ask: LogAsk| {
        let opened = logs::open(&fleet.app, &fleet.ada(), job, ask).await;
        match opened.err() {
            Some(AppError::NoLog { field, .. } | AppError::Invalid(field)) => {
                (field.field, field.value, field.remedy)
            }
            other => panic!("{other:?}"),
        }
    };
    let none = refused(job, ask(0, false)).await;
    assert_eq!((none.0.as_str(), none.1.as_str()), ("attempt", "0"));
    fleet.turn().await;
    fleet.run(job).await;
    let of = |worker: i32, attempt: Option<i32>, filling: Option<i32>| LogAsk {
        worker,
        attempt,
        filling,
        ..ask(0, false)
    };
    for (ask, field, value) in [
        (of(7, None, None), "worker", "7"),
        (of(0, Some(9), None), "attempt", "9"),
        (of(0, Some(1), Some(3)), "filling", "3"),
    ] {
        let told = refused(job, ask).await;
        assert_eq!((told.0.as_str(), told.1.as_str()), (field, value));
    }
    let array = serde_json::json!({"name": "a", "command": ["true"], "array": {"count": 3}});
    let array = fleet.submit_spec(array).await.expect("accepted").id;
    let told = refused(array, ask(0, true)).await;
    assert_eq!((told.0, told.1), ("id".to_owned(), array.to_string()));
    assert!(told.2.contains(&format!("{array}.0")), "{}", told.2);
}

/// Longest life of a followed log after its reader's right is gone; far below the age at which
/// rights are read again without a change.
const PROMPTLY: Duration = Duration::from_secs(20);

#[sqlx::test(migrations = "../migrations")]
async fn a_followed_log_breaks_off_as_soon_as_its_reader_leaves_the_team(owner: PgPool) {
    let mut on = logged(owner.clone()).await;
    let app = on.fleet.app.clone();
    let stop = CancellationToken::new();
    let feed = tokio::spawn(feed::run(app.clone(), stop.clone()));
    let (user, team) = (on.fleet.ada().user_id, on.fleet.vision);
    let change = async |statement: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&owner)
            .await
            .expect("changed");
    };
    let joins = format!(
        "INSERT INTO memberships (team_id, user_id, role) VALUES ('{team}', '{user}', 'viewer')"
    );
    change(joins).await;
    let opened = sessions::open(&app, user, SessionKind::Token, 3600)
        .await
        .expect("a session");
    let session =
        sessions::authenticate(&app, &opened.secret, SessionKind::Token, RequestId::new())
            .await
            .expect("a live session");
    let job = on.job;
    let opened = {
        let app = app.clone();
        tokio::spawn(async move { logs::open(&app, &session.asker, job, ask(0, true)).await })
    };
    let request = on.connection.log_request().await;
    on.connection
        .send(chunk(request.request, 0, b"a", false))
        .await;
    let mut reader = opened.await.expect("opened").expect("opened");
    let first = reader.next().await.expect("more").expect("bytes");
    assert_eq!(&first[..], b"a");
    let mut everything = feed::subscribe(&app, on.fleet.root(), None)
        .await
        .expect("a stream");
    begun(&mut everything, async || {
        change("UPDATE classes SET priority = priority + 1 WHERE name = 'normal'".into()).await;
    })
    .await;
    change(format!("DELETE FROM memberships WHERE user_id = '{user}'")).await;
    let broken = tokio::time::timeout(PROMPTLY, reader.next())
        .await
        .expect("it breaks off");
    assert!(
        matches!(broken, Some(Err(LogBroken::Rights(_)))),
        "{broken:?}"
    );
    stop.cancel();
    feed.await.expect("it stops");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reader_is_told_where_a_log_goes_on_that_was_shortened(owner: PgPool) {
    let mut on = logged(owner).await;
    let (app, asker, job) = (on.fleet.app.clone(), on.fleet.ada(), on.job);
    let opened = tokio::spawn(async move { logs::open(&app, &asker, job, ask(0, false)).await });
    let number = on.connection.log_request().await.request;
    for (offset, data) in [(0, b"ab"), (500, b"cd")] {
        on.connection.send(chunk(number, offset, data, false)).await;
    }
    on.connection.send(chunk(number, 502, b"", true)).await;
    let mut reader = opened.await.expect("opened").expect("opened");
    let first = reader.next().await.expect("bytes").expect("bytes");
    assert_eq!((first.as_ref(), reader.offset()), (&b"ab"[..], 2));
    let skipped = reader.next().await.expect("it is told");
    assert!(
        matches!(skipped, Err(LogBroken::Skipped(500))),
        "{skipped:?}"
    );
    let next = reader.next().await.expect("bytes").expect("bytes");
    assert_eq!((next.as_ref(), reader.offset()), (&b"cd"[..], 502));
    assert!(reader.next().await.is_none());
}

/// Followers of one node's logs at once.
const FOLLOWERS: usize = 500;

#[sqlx::test(migrations = "../migrations")]
async fn five_hundred_follow_the_logs_of_one_node_at_once(owner: PgPool) {
    let mut on = logged(owner).await;
    let mut config = (*on.fleet.app.config).clone();
    config.limits.logs_per_person = FOLLOWERS;
    on.fleet.app.config = config.into();
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..FOLLOWERS {
        let (app, asker, job) = (on.fleet.app.clone(), on.fleet.ada(), on.job);
        readers.spawn(async move {
            let opened = logs::open(&app, &asker, job, ask(0, true)).await;
            read_all(opened.expect("opened")).await
        });
    }
    let mut requests = Vec::new();
    for _ in 0..FOLLOWERS {
        requests.push(on.connection.log_request().await.request);
    }
    // All of them are open now; each gets both lines, once.
    for (offset, line, end) in [(0, b"one\n", false), (4, b"two\n", true)] {
        for request in &requests {
            on.connection.send(chunk(*request, offset, line, end)).await;
        }
    }
    let mut read = 0;
    while let Some(all) = readers.join_next().await {
        assert_eq!(all.expect("it reads to the end"), b"one\ntwo\n");
        read += 1;
    }
    assert_eq!(read, FOLLOWERS);
}
