//! Admits TCP connections up to a bound: who comes after that is closed at once, and comes again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

/// TCP connections of one port at a time: some for each of 10,000 nodes, below what a process may
/// open by default where that was raised for it.
const CONNECTIONS_MAX: usize = 16_384;

/// The TCP connections of a port.
pub fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Admitted>> {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .filter_map(move |accepted| match accepted {
            Ok(stream) => {
                let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                    metrics::counter!("allotment_agent_connections_refused").increment(1);
                    return None;
                };
                Some(Ok(Admitted {
                    stream,
                    _permit: permit,
                }))
            }
            Err(error) => Some(Err(error)),
        })
}

/// A TCP connection that counts as long as it is open.
pub struct Admitted {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Admitted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Admitted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
