//! A TCP proxy that can be cut: a partition between an agent and its server, on one machine.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy to one address. While it is cut it accepts nothing and drops what it carried.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    open: Arc<watch::Sender<bool>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and forwards to `target`.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("listen for a proxy")?;
        let address = listener
            .local_addr()
            .context("ask the proxy's own address")?;
        let open = Arc::new(watch::Sender::new(true));
        let accepting = tokio::spawn(accept(listener, target, Arc::clone(&open)));
        Ok(Self {
            address,
            open,
            accepting,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections, and every new one.
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Lets new connections through again.
    pub fn heal(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, open: Arc<watch::Sender<bool>>) {
    loop {
        let Ok((incoming, _)) = listener.accept().await else {
            continue;
        };
        let mut state = open.subscribe();
        if *state.borrow_and_update() {
            tokio::spawn(async move {
                tokio::select! {
                    _ = carry(incoming, target) => {}
                    _ = state.wait_for(|open| !open) => {}
                }
            });
        }
    }
}

async fn carry(mut incoming: TcpStream, target: SocketAddr) {
    if let Ok(mut outgoing) = TcpStream::connect(target).await {
        // An end of either side is the end of both.
        let _ = copy_bidirectional(&mut incoming, &mut outgoing).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_cut_ends_connections_and_a_heal_lets_new_ones_through() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = echo.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        let proxy = Proxy::start(target).await.unwrap();
        let mut first = TcpStream::connect(proxy.address()).await.unwrap();
        first.write_all(b"hello").await.unwrap();
        let mut back = [0; 5];
        first.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"hello");

        proxy.cut();
        assert_eq!(
            first.read(&mut back).await.unwrap_or(0),
            0,
            "the first is cut"
        );
        let mut second = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(
            second.read(&mut back).await.unwrap_or(0),
            0,
            "a new one is cut too"
        );

        proxy.heal();
        let mut third = TcpStream::connect(proxy.address()).await.unwrap();
        third.write_all(b"again").await.unwrap();
        third.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"again");
    }
}
