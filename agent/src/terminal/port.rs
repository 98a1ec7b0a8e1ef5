//! Carries bytes between its standard streams and a port on which a job listens.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::proc;
use crate::runs::Orders;

/// A port of this machine's own loopback answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes carried at once.
const PIECE_BYTES: usize = 32 * 1024;

/// Connects to a port on the loopback, if a process of the job listens there: other jobs and the machine
/// itself have ports there too.
pub fn connect(orders: &Orders, supervisor: i32, port: u16) -> Result<TcpStream, String> {
    let listening = [
        ("/proc/net/tcp", IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ("/proc/net/tcp6", IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ];
    let own = sockets_of(orders, supervisor);
    for (table, loopback) in listening {
        let table = fs::read_to_string(table).unwrap_or_default();
        if listeners(&table, port).is_disjoint(&own) {
            continue;
        }
        return TcpStream::connect_timeout(&SocketAddr::new(loopback, port), CONNECT_TIMEOUT)
            .map_err(|error| format!("port {port} of the job does not answer: {error}"));
    }
    Err(format!(
        "no process of the job listens on port {port}: choose one that it listens on"
    ))
}

/// The sockets on which something listens at a port, by the kernel's table of TCP sockets.
fn listeners(table: &str, port: u16) -> BTreeSet<u64> {
    const LISTENS: &str = "0A";
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let here = u16::from_str_radix(local, 16).ok()? == port;
        let listens = *fields.get(3)? == LISTENS;
        (here && listens).then_some(fields.get(9)?.parse().ok()?)
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// The sockets that processes of the job have open.
fn sockets_of(orders: &Orders, supervisor: i32) -> BTreeSet<u64> {
    let mut processes: BTreeSet<i32> = proc::descendants(supervisor)
        .into_iter()
        .map(|seen| seen.pid)
        .collect();
    if let Some(mark) = orders.mark {
        processes.extend(proc::bearers(mark).into_iter().map(|seen| seen.pid));
    }
    let open = |pid: i32| {
        fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
    };
    processes
        .into_iter()
        .flat_map(open)
        .filter_map(|entry| {
            let link = fs::read_link(entry.ok()?.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect()
}

/// Carries bytes both ways until the port's side has ended.
pub fn carry(port: TcpStream) -> io::Result<()> {
    let mut to = port.try_clone()?;
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || {
            // A port that takes no more ends the other way by itself.
            let _ = copy(&mut io::stdin().lock(), &mut to);
            let _ = to.shutdown(Shutdown::Write);
        })?;
    let mut from = port;
    copy(&mut from, &mut io::stdout().lock())
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..read])?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_listens_at_the_port_is_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1\n   \
             1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4712 1\n   \
             2: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1\n";
        assert_eq!(listeners(table, 8080), BTreeSet::from([4711]));
        assert!(listeners(table, 80).is_empty());
    }
}
