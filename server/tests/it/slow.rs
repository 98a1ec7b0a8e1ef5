//! Requests that come slowly, over real sockets: the passing of time itself is what is tested.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use server::app::feed;
use server::app::sessions::{self, SessionKind};
use server::front::listener::{self, Limits};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::feed::change_class;
use crate::fixture::Server;
use crate::machine::eventually;

/// What a request may take here, for its head and for its body.
const LIMIT: Duration = Duration::from_millis(400);
/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

struct Listening {
    server: Server,
    address: SocketAddr,
    stop: CancellationToken,
    _stopped: DropGuard,
}

async fn listening(owner: &PgPool) -> Listening {
    let server = Server::start(owner).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let limits = Limits {
        head: LIMIT,
        body: LIMIT,
    };
    let stop = CancellationToken::new();
    let router = server::serve::router(server.app.clone());
    tokio::spawn(listener::serve(listener, router, limits, stop.clone()));
    Listening {
        server,
        address,
        _stopped: stop.clone().drop_guard(),
        stop,
    }
}

/// A client that says what it likes, when it likes.
struct Client {
    stream: TcpStream,
    heard: String,
}

impl Client {
    async fn connect(on: &Listening, words: &str) -> Self {
        let mut stream = TcpStream::connect(on.address).await.expect("connected");
        stream.write_all(words.as_bytes()).await.expect("sent");
        Self {
            stream,
            heard: String::new(),
        }
    }

    /// Sends a byte at a time until it is cut off; how long that took.
    async fn drip(&mut self) -> Duration {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let mut byte = [0];
            match tokio::time::timeout(LIMIT / 8, self.stream.read(&mut byte)).await {
                Err(_) => {}
                Ok(Ok(1)) => {
                    self.heard.push(char::from(byte[0]));
                    self.hear_rest().await;
                    return begun.elapsed();
                }
                Ok(_) => return begun.elapsed(),
            }
            if self.stream.write_all(b"a").await.is_err() {
                return begun.elapsed();
            }
        }
        panic!("still connected after {PATIENCE:?}");
    }

    /// Hears until `words`, or until the end.
    async fn hear(&mut self, words: &str) -> bool {
        let mut bytes = [0; 4_096];
        while !self.heard.contains(words) {
            let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut bytes)).await;
            match read.expect("something comes") {
                Ok(0) | Err(_) => return false,
                Ok(n) => self.heard.push_str(&String::from_utf8_lossy(&bytes[..n])),
            }
        }
        true
    }

    async fn hear_rest(&mut self) {
        assert!(!self.hear("\0never sent\0").await);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_head_that_drips_in_is_cut_off(owner: PgPool) {
    let on = listening(&owner).await;
    let mut slow = Client::connect(&on, "GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: ").await;
    let took = slow.drip().await;
    assert!(took >= LIMIT / 2 && took < PATIENCE, "{took:?}");
    assert!(!slow.heard.contains("200 OK"), "{}", slow.heard);
    let mut silent = Client::connect(&on, "").await;
    silent.hear_rest().await;
    // An answered connection that stays idle ends as well.
    let mut idle = Client::connect(&on, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
    idle.hear_rest().await;
    assert!(idle.heard.contains("200 OK"), "{}", idle.heard);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_body_that_drips_in_is_answered_in_words(owner: PgPool) {
    let on = listening(&owner).await;
    let head = "POST /api/v1/auth/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                Content-Length: 100000\r\n\r\n{";
    let mut slow = Client::connect(&on, head).await;
    let took = slow.drip().await;
    assert!(took >= LIMIT / 2 && took < PATIENCE, "{took:?}");
    assert!(slow.heard.starts_with("HTTP/1.1 408 "), "{}", slow.heard);
    assert!(slow.heard.contains("/problems/too-slow"), "{}", slow.heard);
    let head = head
        .replace("/api/v1/auth/login", "/signin")
        .replace("application/json", "application/x-www-form-urlencoded");
    let mut slow = Client::connect(&on, &head).await;
    slow.drip().await;
    assert!(slow.heard.starts_with("HTTP/1.1 408 "), "{}", slow.heard);
    assert!(slow.heard.contains("<h1>"), "{}", slow.heard);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stream_outlives_the_limits_and_a_server_that_stops_takes_nobody_more(owner: PgPool) {
    let on = listening(&owner).await;
    let app = on.server.app.clone();
    let reader = tokio::spawn(feed::run(app.clone(), on.stop.clone()));
    let user = on.server.users["vision-member"];
    let opened = sessions::open(&app, user, SessionKind::Token, 3600).await;
    let secret = opened.expect("a session").secret;
    let words =
        format!("GET /api/v1/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\n\r\n");
    let mut events = Client::connect(&on, &words).await;
    assert!(events.hear("text/event-stream").await);
    tokio::time::sleep(LIMIT * 3).await;
    // The feed's reader begins at the present: what it missed is done again.
    let begun = Instant::now();
    while !events.heard.contains("event: class") {
        assert!(begun.elapsed() < PATIENCE, "no event came");
        change_class(&on.server).await;
        let _ = tokio::time::timeout(LIMIT, events.hear("event: class")).await;
    }
    on.stop.cancel();
    reader.await.expect("it stops");
    eventually("the port is closed", async || {
        TcpStream::connect(on.address).await.is_err()
    })
    .await;
}
