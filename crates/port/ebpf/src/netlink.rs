//! The ways to other hosts: interfaces, routes and neighbours, asked from the kernel by netlink.
//!
//! Both sockets stay in the network namespace in which they were opened, whatever thread uses them
//! later.

use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use evenfall_host::checked;

const HEADER_BYTES: usize = 16;
/// An answer takes a few hundred bytes. A part of a dump takes at most 32 KiB.
const ANSWER_BYTES_MAX: usize = 32_768;
/// How long the kernel may take to answer. It answers within the call.
const PATIENCE: Duration = Duration::from_secs(1);
/// States of a neighbour whose hardware address is in use: everything but INCOMPLETE, FAILED, NONE.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// Groups of news: links, neighbours, addresses and routes of IPv4.
const NEWS: u32 = 0x1 | 0x4 | 0x10 | 0x40;

/// An interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub index: u32,
    pub name: String,
    pub mac: [u8; 6],
    pub mtu: u32,
    pub is_up: bool,
    pub is_loopback: bool,
    /// Whether packets have a header of Ethernet.
    pub is_ethernet: bool,
}

/// The way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub interface: u32,
    /// The next host on the way.
    pub next: Ipv4Addr,
    /// Whether the address is one of this host.
    pub is_local: bool,
}

/// A socket for questions, and a socket on which the kernel says that answers may have changed.
pub(crate) struct Netlink {
    questions: OwnedFd,
    news: OwnedFd,
    serial: u32,
}

fn open_socket(groups: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the result is checked before it is owned.
    let fd = checked(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: `socket` returned this descriptor, and no other value owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the structure is plain integers, for which zero is a value.
    let mut name: libc::sockaddr_nl = unsafe { mem::zeroed() };
    name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    name.nl_groups = groups;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: `name` outlives the call, and `len` is its length.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) })?;
    let wait = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
    // SAFETY: the pointer and the length describe `wait`, which outlives the call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const wait).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    })?;
    Ok(fd)
}

/// The attributes behind a fixed part: their numbers and bytes.
fn split_attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = bytes.get(4..len)?;
        // The two high bits of a number are flags.
        let number = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((number, value))
    })
}

fn find_attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    split_attributes(bytes).find(|(number, _)| *number == wanted).map(|(_, value)| value)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
}

fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from)
}

/// Appends an attribute to a question.
fn put(question: &mut Vec<u8>, number: u16, value: &[u8]) {
    question.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    question.extend_from_slice(&number.to_ne_bytes());
    question.extend_from_slice(value);
    question.resize(question.len().next_multiple_of(4), 0);
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { questions: open_socket(0)?, news: open_socket(NEWS)?, serial: 0 })
    }

    /// Whether an answer may have changed since the last call.
    pub(crate) fn take_news(&self) -> bool {
        let mut bytes = [0_u8; 4_096];
        let mut any = false;
        // News that do not fit into the socket are lost (ENOBUFS), which is news too.
        for _ in 0..1_000 {
            let (fd, flags) = (self.news.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_TRUNC);
            // SAFETY: the pointer and the length describe `bytes`, which outlives the call.
            let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
            let error = io::Error::last_os_error();
            if got < 0 && error.raw_os_error() != Some(libc::ENOBUFS) {
                break;
            }
            any = true;
        }
        any
    }

    /// Asks, and hands each message of the answer to `take` until it returns a value.
    fn ask<T>(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut take: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.serial = self.serial.wrapping_add(1);
        let len = (HEADER_BYTES + body.len()) as u32;
        let mut question = Vec::with_capacity(len as usize);
        question.extend_from_slice(&len.to_ne_bytes());
        question.extend_from_slice(&kind.to_ne_bytes());
        question.extend_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
        question.extend_from_slice(&self.serial.to_ne_bytes());
        question.extend_from_slice(&[0; 4]);
        question.extend_from_slice(body);
        let fd = self.questions.as_raw_fd();
        // SAFETY: the pointer and the length describe `question`, which outlives the call.
        let sent = unsafe { libc::send(fd, question.as_ptr().cast(), question.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let is_dump = flags & libc::NLM_F_DUMP as u16 != 0;
        let mut found = None;
        let mut bytes = vec![0_u8; ANSWER_BYTES_MAX];
        loop {
            // SAFETY: the pointer and the length describe `bytes`, which outlives the call.
            let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
            let mut rest = &bytes[..got];
            while let Some(len) = word(rest, 0).map(|len| len as usize)
                && len >= HEADER_BYTES
                && let Some(message) = rest.get(..len)
            {
                let kind = u16::from_ne_bytes([message[4], message[5]]);
                let is_ours = word(message, 8) == Some(self.serial);
                match i32::from(kind) {
                    // An answer to an earlier question, whose time had run out.
                    _ if !is_ours => {}
                    libc::NLMSG_DONE => return Ok(found),
                    libc::NLMSG_ERROR => {
                        let error = word(message, HEADER_BYTES).unwrap_or(0) as i32;
                        return Err(io::Error::from_raw_os_error(-error));
                    }
                    _ => found = found.or_else(|| take(kind, &message[HEADER_BYTES..])),
                }
                if is_ours && !is_dump {
                    return Ok(found);
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
    }

    /// The interface with this index.
    pub(crate) fn link(&mut self, index: u32) -> io::Result<Link> {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let link = self.ask(libc::RTM_GETLINK, 0, &body, |_, message| {
            let attributes = message.get(16..)?;
            let kind = u16::from_ne_bytes([message[2], message[3]]);
            let flags = word(message, 8)?;
            let name = find_attribute(attributes, libc::IFLA_IFNAME)?;
            let mac = find_attribute(attributes, libc::IFLA_ADDRESS).unwrap_or_default();
            Some(Link {
                index: word(message, 4)?,
                name: String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(),
                mac: mac.try_into().unwrap_or_default(),
                mtu: word(find_attribute(attributes, libc::IFLA_MTU)?, 0)?,
                is_up: flags & libc::IFF_UP as u32 != 0,
                is_loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
                is_ethernet: matches!(kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK),
            })
        })?;
        link.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The index of the interface that has this address.
    pub(crate) fn interface_of(&mut self, wanted: Ipv4Addr) -> io::Result<Option<u32>> {
        let mut body = vec![0; 8];
        body[0] = libc::AF_INET as u8;
        let flags = libc::NLM_F_DUMP as u16;
        self.ask(libc::RTM_GETADDR, flags, &body, |_, message| {
            let attributes = message.get(8..)?;
            let local = find_attribute(attributes, libc::IFA_LOCAL).and_then(address)?;
            let length = u32::from(message[1]).min(32);
            // All of 127.0.0.0/8 belongs to loopback.
            let differ = u32::from(local) ^ u32::from(wanted);
            let is_network = differ.checked_shr(32 - length).unwrap_or(0) == 0;
            let is_here = local == wanted || (local.is_loopback() && is_network);
            is_here.then(|| word(message, 4)).flatten()
        })
    }

    /// The way to an address, as a datagram of this source takes it.
    pub(crate) fn find_way(&mut self, from: Ipv4Addr, to: Ipv4Addr) -> io::Result<Option<Way>> {
        let mut body = vec![0; 12];
        (body[0], body[1], body[2]) = (libc::AF_INET as u8, 32, 32);
        put(&mut body, libc::RTA_DST, &to.octets());
        put(&mut body, libc::RTA_SRC, &from.octets());
        self.ask(libc::RTM_GETROUTE, 0, &body, |_, message| {
            let attributes = message.get(12..)?;
            let interface = word(find_attribute(attributes, libc::RTA_OIF)?, 0)?;
            let gateway = find_attribute(attributes, libc::RTA_GATEWAY).and_then(address);
            let is_local = message[7] == libc::RTN_LOCAL;
            let is_usable = is_local || message[7] == libc::RTN_UNICAST;
            let way = Way { interface, next: gateway.unwrap_or(to), is_local };
            is_usable.then_some(way)
        })
    }

    /// The hardware address of a neighbour that the kernel knows.
    pub(crate) fn neighbour(
        &mut self,
        interface: u32,
        at: Ipv4Addr,
    ) -> io::Result<Option<[u8; 6]>> {
        let mut body = vec![0; 12];
        body[0] = libc::AF_INET as u8;
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        put(&mut body, libc::NDA_DST, &at.octets());
        let mac = self.ask(libc::RTM_GETNEIGH, 0, &body, |_, message| {
            let state = u16::from_ne_bytes([message[8], message[9]]);
            let mac = find_attribute(message.get(12..)?, libc::NDA_LLADDR)?;
            <[u8; 6]>::try_from(mac).ok().filter(|_| state & USABLE != 0)
        });
        match mac {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            mac => mac,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_with_all_its_addresses() {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.interface_of(Ipv4Addr::LOCALHOST).unwrap().unwrap();
        assert_eq!(netlink.interface_of(Ipv4Addr::new(127, 7, 7, 7)).unwrap(), Some(index));
        let link = netlink.link(index).unwrap();
        assert!(link.is_loopback && link.is_ethernet && link.is_up, "{link:?}");
        let way = netlink.find_way(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).unwrap().unwrap();
        assert_eq!((way.interface, way.is_local), (index, true));
        assert_eq!(netlink.interface_of(Ipv4Addr::new(192, 0, 2, 7)).unwrap(), None);
        assert_eq!(netlink.neighbour(index, Ipv4Addr::new(192, 0, 2, 7)).unwrap(), None);
        assert!(netlink.link(1 << 20).is_err());
        netlink.take_news();
    }

    #[test]
    fn attributes_of_any_bytes_end() {
        for bytes in [&[][..], &[0; 3], &[0; 8], &[3, 0, 1, 0], &[255, 255, 1, 0], &[4, 0, 1, 0]] {
            assert!(split_attributes(bytes).count() <= 2);
        }
    }
}
