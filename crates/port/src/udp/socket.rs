//! One socket: how it is opened, its options, and the options that the kernel refused.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use evenfall_core::TrafficClass;

use crate::Options;
use crate::sys::{RawAddress, checked, in_addr, option, set_option, set_struct};
use evenfall_host::Error;

/// Stamps of all arrivals, and of the departures that ask for a stamp. A departure comes back as a
/// number and a stamp, without the bytes of the datagram.
const STAMPS_BOTH_WAYS: libc::c_uint = libc::SOF_TIMESTAMPING_SOFTWARE
    | libc::SOF_TIMESTAMPING_RX_SOFTWARE
    | libc::SOF_TIMESTAMPING_OPT_ID
    | libc::SOF_TIMESTAMPING_OPT_TSONLY;

/// `SO_RCVMARK` of `asm-generic/socket.h`: an arrival comes with the mark of its packet.
#[cfg(feature = "ebpf")]
const SO_RCVMARK: libc::c_int = 75;

/// Index of the memory of the receive queue in `SO_MEMINFO` (`SK_MEMINFO_RMEM_ALLOC`).
const MEMORY_ARRIVED: usize = 0;
/// Index of the memory of the send queue in `SO_MEMINFO` (`SK_MEMINFO_WMEM_ALLOC`).
const MEMORY_DEPARTING: usize = 2;

/// A bound, non-blocking UDP socket.
pub(super) struct Socket {
    fd: OwnedFd,
    pub(super) local: SocketAddr,
    /// Options that were asked for and not granted, for people to read.
    pub(super) notes: Vec<String>,
    pub(super) segmentation: bool,
    pub(super) coalescing: bool,
    /// Whether the kernel stamps departures that ask for a stamp.
    pub(super) stamps_departures: bool,
    v6: bool,
    /// The class whose marks the socket carries, when marks differ by class.
    marked: Option<TrafficClass>,
}

impl Socket {
    pub(super) fn bind(address: SocketAddr, options: &Options) -> Result<Self, Error> {
        Self::bind_new(address, options, false)
    }

    /// Binds another socket to the address of this one, after [`share_port`](Self::share_port).
    pub(super) fn bind_sibling(&self, options: &Options) -> Result<Self, Error> {
        Self::bind_new(self.local, options, true)
    }

    /// Lets other sockets of this user bind to the address of this socket, or no longer.
    ///
    /// The option is set after the socket was bound. A socket that binds to the same address
    /// without the option is refused, as ever, so that two processes cannot share by mistake.
    pub(super) fn share_port(&self, shared: bool) -> Result<(), Error> {
        set_option(self.fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, shared.into())
            .map_err(|source| os(format!("share the port of {}", self.local), source, ""))
    }

    /// Lets this program choose the socket for each datagram, among those that share the port.
    pub(super) fn choose_socket_by(&self, program: &mut [libc::sock_filter]) -> Result<(), Error> {
        let len = u16::try_from(program.len()).expect("a program of a few instructions");
        let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
        let name = libc::SO_ATTACH_REUSEPORT_CBPF;
        set_struct(self.fd(), libc::SOL_SOCKET, name, &program).map_err(|source| {
            let what = format!("choose among the sockets of {}", self.local);
            os(what, source, "Linux 4.5 or newer can")
        })
    }

    fn bind_new(address: SocketAddr, options: &Options, is_shared: bool) -> Result<Self, Error> {
        let family = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = checked(unsafe { libc::socket(family, kind, 0) })
            .map_err(|source| os(format!("open a UDP socket for {address}"), source, ""))?;
        // SAFETY: `socket` returned this descriptor, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let raw = fd.as_raw_fd();
        if address.ip().is_multicast() {
            // Every socket that binds to a group gets a copy of the group's datagrams.
            set_option(raw, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
                .map_err(|source| os(format!("share the group {address}"), source, ""))?;
        }
        if is_shared {
            set_option(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
                .map_err(|source| os(format!("share the port of {address}"), source, ""))?;
        }
        let name = RawAddress::from(address);
        // SAFETY: `name` outlives the call, and its length is that of its family.
        checked(unsafe { libc::bind(raw, (&raw const name).cast(), name.len()) }).map_err(
            |source| {
                let advice = match source.raw_os_error() {
                    Some(libc::EADDRINUSE) => "another process has the port: choose another",
                    Some(libc::EADDRNOTAVAIL) => "no interface of this host has that address",
                    Some(libc::EACCES) => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
                    _ => "",
                };
                os(format!("bind {address}"), source, advice)
            },
        )?;
        let mut socket = Self {
            local: local_address(raw)?,
            fd,
            notes: Vec::new(),
            segmentation: false,
            coalescing: false,
            stamps_departures: false,
            v6: address.is_ipv6(),
            marked: None,
        };
        if address.ip().is_multicast() {
            socket.join(address, options)?;
        }
        socket.configure(options);
        Ok(socket)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Makes the kernel tell the mark of each arrival.
    #[cfg(feature = "ebpf")]
    pub(super) fn tell_marks(&self) -> Result<(), Error> {
        set_option(self.fd(), libc::SOL_SOCKET, SO_RCVMARK, 1).map_err(|source| {
            let what = "see the marks of arrivals (SO_RCVMARK)".into();
            os(what, source, "grant CAP_NET_ADMIN")
        })
    }

    /// Memory of the datagrams that wait in the socket; 0 where the kernel does not tell.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.memory_words()[MEMORY_ARRIVED].into()
    }

    /// Memory of the datagrams that have not left the host; 0 where the kernel does not tell. The
    /// number is that of `SIOCOUTQ`.
    pub(super) fn departing_bytes(&self) -> u64 {
        self.memory_words()[MEMORY_DEPARTING].into()
    }

    /// What the kernel tells of the socket's memory (`SO_MEMINFO`); zeros where it tells nothing.
    fn memory_words(&self) -> [u32; 9] {
        let mut words = [0_u32; 9];
        let mut len = size_of_val(&words) as libc::socklen_t;
        // SAFETY: both pointers are to live locals, and `len` says how large `words` is.
        let result = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                words.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result < 0 { [0; 9] } else { words }
    }

    /// Another handle to the same socket.
    pub(super) fn handle(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Joins the group to which the socket is bound, and takes no datagrams of groups that other
    /// sockets joined.
    fn join(&self, group: SocketAddr, options: &Options) -> Result<(), Error> {
        let advice = "is feed.mold_interface an address of this host?";
        let failed = |source| os(format!("join the group {group}"), source, advice);
        match group {
            SocketAddr::V4(v4) => {
                let interface = options.multicast_interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
                let membership = libc::ip_mreq {
                    imr_multiaddr: in_addr(*v4.ip()),
                    imr_interface: in_addr(interface),
                };
                set_struct(self.fd(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &membership)
                    .map_err(failed)?;
                set_option(self.fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0).map_err(failed)
            }
            SocketAddr::V6(v6) => {
                let membership = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    ipv6mr_interface: v6.scope_id(),
                };
                set_struct(self.fd(), libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &membership)
                    .map_err(failed)
            }
        }
    }

    fn configure(&mut self, options: &Options) {
        let receive = (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        self.size_buffer("receive", "rmem_max", receive, options.receive_buffer_bytes);
        let send = (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        self.size_buffer("send", "wmem_max", send, options.send_buffer_bytes);
        // Setting a segment size of zero changes nothing, and fails where the kernel does not know
        // the option.
        self.segmentation = options.segmentation
            && self.attempt("segmentation offload", libc::SOL_UDP, libc::UDP_SEGMENT, 0);
        self.coalescing = options.coalescing
            && self.attempt("receive coalescing", libc::SOL_UDP, libc::UDP_GRO, 1);
        if options.kernel_timestamps {
            let (name, both) = (libc::SO_TIMESTAMPING, STAMPS_BOTH_WAYS);
            self.stamps_departures =
                self.attempt("stamping of departures", libc::SOL_SOCKET, name, both as i32);
            if !self.stamps_departures {
                self.attempt("kernel time stamps", libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
            }
        }
        if let Some(interface) = options.multicast_interface {
            let interface = in_addr(interface);
            let set = set_struct(self.fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &interface);
            if let Err(error) = set {
                self.notes.push(format!("sending to groups over that interface is off: {error}"));
            }
        }
        if let Some(budget) = options.busy_poll {
            let us = i32::try_from(budget.as_micros()).unwrap_or(i32::MAX);
            self.attempt("busy polling", libc::SOL_SOCKET, libc::SO_BUSY_POLL, us);
        }
        self.mark(TrafficClass::Live, options);
    }

    /// Makes the kernel number the departures that ask for a stamp from zero again.
    pub(super) fn renumber_departures(&self) {
        let set = |flags: libc::c_uint| {
            set_option(self.fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags as i32)
        };
        // The kernel accepted these flags when the socket was bound, so it accepts them again.
        drop(set(STAMPS_BOTH_WAYS & !libc::SOF_TIMESTAMPING_OPT_ID));
        drop(set(STAMPS_BOTH_WAYS));
    }

    /// Asks for a buffer with the privileged option, then with the ordinary one, and notes the size
    /// granted.
    fn size_buffer(&mut self, what: &str, limit: &str, names: (i32, i32), bytes: usize) {
        let wanted = i32::try_from(bytes).unwrap_or(i32::MAX);
        let (forced, polite) = names;
        if set_option(self.fd(), libc::SOL_SOCKET, forced, wanted).is_err() {
            self.attempt(&format!("{what} buffer"), libc::SOL_SOCKET, polite, wanted);
        }
        // The kernel reports twice the requested size, because it counts its own overhead.
        let got = option(self.fd(), libc::SOL_SOCKET, polite).unwrap_or(0) / 2;
        if got < wanted {
            self.notes.push(format!(
                "{what} buffer is {got} bytes instead of {wanted}: raise net.core.{limit} or grant \
                 CAP_NET_ADMIN"
            ));
        }
    }

    fn attempt(&mut self, what: &str, level: i32, name: i32, value: i32) -> bool {
        match set_option(self.fd(), level, name, value) {
            Ok(()) => true,
            Err(error) => {
                self.notes.push(format!("{what} is off: {error}"));
                false
            }
        }
    }

    /// Marks the socket for a class. A system call is made only when marks differ by class and the
    /// class changed.
    pub(super) fn mark(&mut self, class: TrafficClass, options: &Options) {
        if self.marked == Some(class) || (self.marked.is_some() && !options.marks_differ()) {
            return;
        }
        self.marked = Some(class);
        // The service field of IPv4 also sets the priority in this host's own queues.
        if let Some(dscp) = options.dscp {
            let value = i32::from(dscp[class as usize]) << 2;
            let (level, name) = if self.v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            } else {
                (libc::IPPROTO_IP, libc::IP_TOS)
            };
            self.attempt("code point", level, name, value);
        }
        self.notes.truncate(16);
    }
}

fn os(what: String, source: io::Error, advice: &'static str) -> Error {
    Error::Os { what, source, advice }
}

pub(super) fn link_mtu(from: IpAddr, to: SocketAddr) -> io::Result<u32> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    let (level, name) = if to.is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    option(socket.as_raw_fd(), level, name).map(|mtu| mtu.unsigned_abs())
}

fn local_address(fd: RawFd) -> Result<SocketAddr, Error> {
    let mut raw = RawAddress::zeroed();
    let mut len = size_of::<RawAddress>() as libc::socklen_t;
    // SAFETY: `raw` is as large as `len` says and outlives the call.
    let result = unsafe { libc::getsockname(fd, (&raw mut raw).cast(), &raw mut len) };
    if result < 0 {
        return Err(Error::last_os("read the bound address", ""));
    }
    raw.to_std().ok_or_else(|| Error::last_os("read the bound address", "unknown family"))
}
