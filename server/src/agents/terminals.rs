//! Terminals as nodes and other replicas carry them.

use std::pin::Pin;
use std::time::Duration;

use domain::ids::NodeId;
use protocol::{replicas as between, wire};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use between::TerminalInput;

use crate::app::App;
use crate::app::terminals::exchange::Refused;

/// Who calls says at once which terminal it means.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// What goes to a node.
pub type Down =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::TerminalDown, Status>> + Send>>;
/// What comes from a node, as another replica is told it.
pub type Up = Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::TerminalUp, Status>> + Send>>;

/// Serves the terminal that a node opens because it was asked to.
pub async fn open(
    app: &App,
    node: NodeId,
    mut inbound: Streaming<wire::TerminalUp>,
) -> Result<Response<Down>, Status> {
    let first = tokio::time::timeout(JOIN_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("say which terminal within 10 s"))??;
    let Some(wire::terminal_up::Message::Join(id)) = first.and_then(|first| first.message) else {
        return Err(Status::failed_precondition("say first which terminal"));
    };
    let ends = app.terminals.join(node, &id);
    let ends = ends.ok_or_else(|| Status::not_found("nobody waits for that terminal any more"))?;
    tokio::spawn(async move {
        while let Ok(Some(message)) = inbound.message().await {
            // The node waits: its connection carries this terminal alone.
            if ends.up.send(message).await.is_err() {
                return;
            }
        }
    });
    let down = ReceiverStream::new(ends.down).map(Ok);
    Ok(Response::new(Box::pin(down)))
}

/// Serves a terminal for another replica, on a node whose connection this one holds.
pub async fn open_for_replica(
    app: &App,
    mut inbound: Streaming<between::TerminalInput>,
) -> Result<Response<Up>, Status> {
    let first = tokio::time::timeout(JOIN_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("say which node within 10 s"))??
        .ok_or_else(|| Status::failed_precondition("say first which node"))?;
    let node: NodeId = first
        .node_id
        .parse()
        .map_err(|error: domain::FieldError| Status::invalid_argument(error.to_string()))?;
    let Some(wire::terminal_down::Message::Begin(begin)) = first.down.and_then(|down| down.message)
    else {
        return Err(Status::failed_precondition("say first what is to begin"));
    };
    let mut ends = app
        .terminals
        .ask(node, begin)
        .map_err(|error| match error {
            Refused::NotHere => Status::not_found("the node's connection is not here"),
            Refused::Full => Status::resource_exhausted("as many terminals are open as may be"),
        })?;
    let down = ends.down.clone();
    let (up, messages) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        // Both ways, until either end is gone; with `ends` goes the terminal.
        let downward = async {
            while let Ok(Some(TerminalInput {
                down: Some(message),
                ..
            })) = inbound.message().await
            {
                if down.send(message).await.is_err() {
                    return;
                }
            }
        };
        let upward = async {
            while let Some(message) = ends.up.recv().await {
                if up.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = downward => {}
            () = upward => {}
        }
    });
    Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
}
