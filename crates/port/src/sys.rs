//! Thin, checked wrappers of `libc`: socket options, and addresses in the kernel's form.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;
use std::ptr;

pub(crate) use evenfall_host::checked;

/// Sets an integer option of a socket.
pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    set_struct(fd, level, name, &value)
}

/// Sets an option of a socket that is a structure of the kernel's.
pub(crate) fn set_struct<T>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call. The kernel
    // reads as many bytes as it knows of, at most that many.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    checked(result).map(drop)
}

/// An IPv4 address in the kernel's form.
pub(crate) fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from(address).to_be() }
}

/// Reads an integer option of a socket.
pub(crate) fn option(fd: RawFd, level: i32, name: i32) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, and `len` says how large `value` is.
    let result = unsafe {
        libc::getsockopt(fd, level, name, (&raw mut value).cast(), (&raw mut len).cast())
    };
    checked(result).map(|_| value)
}

/// A socket address in the kernel's form. This type takes a quarter of `sockaddr_storage`, so that
/// ten addresses of a fan-out fill five cache lines.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// An address for the kernel to write into.
    pub(crate) const fn zeroed() -> Self {
        // SAFETY: both structures are plain integers, for which all zeroes is a value.
        unsafe { mem::zeroed() }
    }

    /// Bytes to give the kernel as the length of this address.
    pub(crate) fn len(&self) -> libc::socklen_t {
        // SAFETY: the family is the first field of both variants and always initialised.
        let family = i32::from(unsafe { self.v4.sin_family });
        if family == libc::AF_INET6 {
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        } else {
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
    }

    /// Back to the standard library's form; `None` for a family that is neither IPv4 nor IPv6.
    pub(crate) fn to_std(self) -> Option<SocketAddr> {
        // SAFETY: the family is the first field of both variants and always initialised.
        match i32::from(unsafe { self.v4.sin_family }) {
            libc::AF_INET => {
                // SAFETY: the family says that the IPv4 variant was written.
                let v4 = unsafe { self.v4 };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that the IPv6 variant was written.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut raw = Self::zeroed();
        match address {
            SocketAddr::V4(v4) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: in_addr(*v4.ip()),
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(v6) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
            }
        }
        raw
    }
}

/// Room for the control messages of one datagram. An arrival has a segment size, a mark and three
/// time stamps (112 bytes). A departure that comes back has three time stamps and, over IPv6, the
/// error that carries its number (128 bytes).
pub(crate) const CONTROL_BYTES: usize = 128;

/// A control buffer, aligned as `cmsghdr` wants it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control(pub(crate) [u8; CONTROL_BYTES]);

impl Control {
    pub(crate) const EMPTY: Self = Self([0; CONTROL_BYTES]);

    /// Appends a request for segments of `bytes` bytes. `at` is the used length. Returns the length
    /// of the request.
    pub(crate) fn ask_segments(&mut self, at: usize, bytes: u16) -> usize {
        self.append(at, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes())
    }

    /// Appends a request for a mark on the packet.
    pub(crate) fn ask_mark(&mut self, at: usize, mark: u32) -> usize {
        self.append(at, libc::SOL_SOCKET, libc::SO_MARK, &mark.to_ne_bytes())
    }

    /// Appends a request for a stamp of the departure by the kernel.
    pub(crate) fn ask_departure(&mut self, at: usize) -> usize {
        let flags = libc::SOF_TIMESTAMPING_TX_SOFTWARE;
        self.append(at, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags.to_ne_bytes())
    }

    fn append(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let bytes = data.len() as u32;
        // SAFETY: CMSG_LEN and CMSG_SPACE only compute.
        let (len, space) = unsafe { (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes) as usize) };
        let room = &mut self.0[at..at + space];
        let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
        let start = mem::size_of::<libc::cmsghdr>();
        room[start..start + data.len()].copy_from_slice(data);
        // SAFETY: the room is larger than a `cmsghdr`. It is aligned for one, as the buffer is, and
        // as lengths of whole control messages are.
        unsafe { room.as_mut_ptr().cast::<libc::cmsghdr>().write(header) };
        space
    }
}
