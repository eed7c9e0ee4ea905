//! Ports for servers that are told their port when they start, such as children of a demo or of a
//! test.
//!
//! A port that the kernel has chosen for a socket does not stay free once that socket is closed:
//! the kernel may give it to the next connection of any program. So these ports lie outside the
//! range from which the kernel chooses, and no port is given twice by one process until all others
//! have been given.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port that is tried. Servers of the system usually have lower ports.
const FIRST: u16 = 10_000;

/// Fewest ports from [`FIRST`] to the kernel's range with which the search is made.
const ENOUGH: u16 = 1_000;

/// The file of the range from which the kernel chooses ports. It has the first port and the last.
const KERNEL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// How many ports this process has tried.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// An address of this host whose port is free for TCP and for UDP.
///
/// # Errors
/// The errors of [`consecutive`].
pub fn free(host: IpAddr) -> io::Result<SocketAddr> {
    consecutive(host, 1)
}

/// The first of `count` addresses of this host that follow each other and whose ports are free for
/// TCP and for UDP.
///
/// # Errors
/// `host` is no address of this host, or its ports are used up.
pub fn consecutive(host: IpAddr, count: u16) -> io::Result<SocketAddr> {
    let Some(span) = below_kernel().filter(|span| *span >= ENOUGH.max(count)) else {
        return chosen_by_kernel(host, count);
    };
    // Two processes that start one after the other begin far from each other.
    let offset = process::id().wrapping_mul(ENOUGH.into());
    let mut error = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..span {
        let tried = TRIED.fetch_add(count.into(), Ordering::Relaxed);
        let at = offset.wrapping_add(tried) % u32::from(span - count + 1);
        let first = SocketAddr::new(host, FIRST + at as u16);
        match all_free(first, count) {
            Ok(()) => return Ok(first),
            Err(found) if found.kind() == io::ErrorKind::AddrInUse => error = found,
            Err(found) => return Err(found),
        }
    }
    Err(error)
}

/// The number of ports from [`FIRST`] up to the range of the kernel.
fn below_kernel() -> Option<u16> {
    let range = std::fs::read_to_string(KERNEL).ok()?;
    let first: u16 = range.split_whitespace().next()?.parse().ok()?;
    first.checked_sub(FIRST)
}

/// The kernel's own choice, for a host that leaves no other ports.
fn chosen_by_kernel(host: IpAddr, count: u16) -> io::Result<SocketAddr> {
    loop {
        let first = TcpListener::bind((host, 0))?.local_addr()?;
        match all_free(first, count) {
            Ok(()) => return Ok(first),
            Err(found) if found.kind() == io::ErrorKind::AddrInUse => {}
            Err(found) => return Err(found),
        }
    }
}

fn all_free(first: SocketAddr, count: u16) -> io::Result<()> {
    for n in 0..count {
        let port = first.port().checked_add(n).ok_or(io::ErrorKind::AddrInUse)?;
        let address = SocketAddr::new(first.ip(), port);
        TcpListener::bind(address)?;
        UdpSocket::bind(address)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn free_ports_differ_and_the_kernel_does_not_choose_from_them() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free(LOOPBACK).unwrap().port()).collect();
        assert!(ports.len() == 50);
        if let Some(span) = below_kernel().filter(|span| *span >= ENOUGH) {
            assert!(ports.iter().all(|port| (FIRST..FIRST + span).contains(port)));
        }
    }

    #[test]
    fn ports_in_a_row_are_all_free() {
        let first = consecutive(LOOPBACK, 5).unwrap();
        let bound: Vec<_> =
            (0..5).map(|n| TcpListener::bind((LOOPBACK, first.port() + n)).unwrap()).collect();
        assert!(all_free(first, 1).is_err() && bound.len() == 5);
    }

    #[test]
    fn an_address_of_another_host_is_an_error() {
        assert!(free("192.0.2.1".parse().unwrap()).is_err());
    }

    #[test]
    fn the_kernels_choice_is_free_as_well() {
        let first = chosen_by_kernel(LOOPBACK, 2).unwrap();
        all_free(first, 2).unwrap();
    }
}
