//! `allot forward`: a port of a job that runs, on the loopback of this machine.

use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::terminal::{PIECE_BYTES, Socket, ToServer, Told};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::plain;
use crate::table;

/// Connections at a time: the server lets one person have 16 terminals of all kinds, and some are to be
/// left for shells. The next one waits to be accepted.
const CONNECTIONS_MAX: usize = 8;

/// Reach a port on which a job listens, through one on this machine's loopback.
#[derive(Debug, Args)]
#[command(
    after_help = "Only a port on which a process of the job listens is reached. It goes on until it is interrupted.\n\nExample:\n  allot forward 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f 8888:8888"
)]
pub struct Forward {
    /// The job's id
    id: String,
    /// The port on this machine, 0 for a free one, and the job's, as LOCAL:REMOTE
    ports: Ports,
    /// The worker's rank
    #[arg(long, short, default_value_t = 0)]
    worker: u32,
    /// Print the address on this machine as JSON
    #[arg(long)]
    json: bool,
}

/// The two ports.
#[derive(Debug, Clone, Copy)]
struct Ports {
    local: u16,
    remote: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, remote) = text.split_once(':').unwrap_or((text, text));
        match (local.parse(), remote.parse()) {
            (Ok(local), Ok(remote)) if remote > 0 => Ok(Self { local, remote }),
            _ => Err("write LOCAL:REMOTE, such as 8888:8888".to_owned()),
        }
    }
}

impl Forward {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Arc::new(Client::found()?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.ports.local))
            .await
            .with_context(|| format!("listen on port {}: is it taken?", self.ports.local))?;
        let address = listener.local_addr()?;
        if self.json {
            table::print_json(&json!({"address": address.to_string(), "port": self.ports.remote}))?;
        } else {
            println!("{address} leads to port {} of the job", self.ports.remote);
        }
        let path = format!("/jobs/{}/forward", part(&self.id));
        let query = [
            ("worker", self.worker.to_string()),
            ("port", self.ports.remote.to_string()),
        ];
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .context("places")?;
            let (stream, _) = listener.accept().await?;
            let (client, path, query) = (Arc::clone(&client), path.clone(), query.clone());
            tokio::spawn(async move {
                if let Err(failure) = carry(&client, &path, &query, stream).await {
                    eprintln!("allot: {}", plain(&failure.to_string()));
                }
                drop(place);
            });
        }
    }
}

/// Carries one connection.
async fn carry(
    client: &Client,
    path: &str,
    query: &[(&str, String)],
    stream: TcpStream,
) -> Result<(), Failure> {
    let Socket { mut to, mut from } = Socket::open(client, path, query).await?;
    let (mut read, mut write) = stream.into_split();
    let up = async {
        // What takes no more says next how it ended.
        let _ = send(&mut to, &mut read).await;
        std::future::pending::<Result<(), Failure>>().await
    };
    let down = async {
        loop {
            match from.next().await? {
                Told::Output(bytes) => write.write_all(&bytes).await?,
                Told::Begun | Told::Errors(_) => {}
                Told::End(end) => return end.as_own(),
            }
        }
    };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// Sends all that is read.
async fn send(to: &mut ToServer, read: &mut OwnedReadHalf) -> Result<(), Failure> {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let length = read.read(&mut bytes).await?;
        if length == 0 {
            return to.input_over().await;
        }
        to.input(&bytes[..length]).await?;
    }
}
