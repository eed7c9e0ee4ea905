//! A port whose sockets share an address, each for the datagrams of one stream.
//!
//! Several threads that read one socket would wait for its lock. A thread for each stream therefore
//! needs a socket for each stream. All sockets have the same address and port number
//! (`SO_REUSEPORT`), so senders and firewalls see one receiver. A filter of five instructions of
//! classic BPF reads the number of the stream in a datagram, and the kernel queues the datagram at
//! the socket of that number. A process may attach the filter without privileges.
//!
//! The kernel chooses once for a buffer of several datagrams of one sender (`UDP_SEGMENT` on
//! loopback, or gathered by the network card). Where a sender mixes streams in a buffer, some
//! datagrams come to the wrong socket. The port there hands them to the right port, over a queue of
//! at most [`HANDED_MAX`] datagrams, where others may overtake them, as in any network.
//! Correctness therefore never rests on the kernel's choice.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use evenfall_core::Arrival;
use evenfall_host::{Error, Waker};

use super::UdpDriver;
use crate::{Counters, lock};

/// Limit of the datagrams that wait to be taken over by the port of their stream: four times a
/// batch of 16 buffers with 64 datagrams each. Datagrams beyond the limit are dropped.
const HANDED_MAX: usize = 4_096;

/// Where a datagram names its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamField {
    /// First bytes of the datagrams that name a stream.
    pub magic: [u8; 2],
    /// Place of the number of the stream: four bytes, the lowest first.
    pub offset: usize,
}

impl StreamField {
    /// The stream of a datagram; zero for a datagram that names none.
    fn stream_of(self, datagram: &[u8]) -> usize {
        let bytes = datagram.get(self.offset..self.offset + 4);
        let named = bytes.filter(|_| datagram.starts_with(&self.magic));
        named.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes) as usize
    }

    /// The program that returns the number of the socket. A read beyond the datagram ends the
    /// program with zero, and the kernel spreads numbers without a socket over all sockets.
    fn program(self) -> [libc::sock_filter; 5] {
        let load_half = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
        let load_byte = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
        let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let return_loaded = libc::BPF_RET | libc::BPF_A;
        let instruction =
            |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        [
            instruction(load_half, 0, 0),
            instruction(equals, 2, u16::from_be_bytes(self.magic).into()),
            instruction(load_byte, 0, self.offset as u32),
            instruction(return_loaded, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        ]
    }
}

/// Datagrams of one stream that came to the sockets of others.
struct StrayQueue {
    arrivals: Mutex<Vec<Arrival>>,
    /// Whether there may be any, which a port can see without the lock.
    is_filled: AtomicBool,
    /// Ends the wait of the stream's port.
    waker: Waker,
}

impl StrayQueue {
    /// Queues a datagram. Returns whether there was room.
    fn push(&self, arrival: Arrival) -> bool {
        let mut arrivals = lock(&self.arrivals);
        let has_room = arrivals.len() < HANDED_MAX;
        if has_room {
            arrivals.push(arrival);
        }
        let was_filled = self.is_filled.swap(true, Ordering::AcqRel);
        // The thread that wakes up takes the lock.
        drop(arrivals);
        if !was_filled {
            self.waker.wake();
        }
        has_room
    }

    fn take(&self, out: &mut Vec<Arrival>) {
        if self.is_filled.load(Ordering::Acquire) {
            let mut arrivals = lock(&self.arrivals);
            // Under the lock, so that a datagram that is pushed next wakes again.
            self.is_filled.store(false, Ordering::Release);
            out.append(&mut arrivals);
        }
    }
}

/// The part of one socket in a shared port.
pub(super) struct StreamShare {
    number: usize,
    field: StreamField,
    queues: Arc<[StrayQueue]>,
    /// Memory of the last sorting.
    sorted: Vec<Arrival>,
}

impl StreamShare {
    /// Hands the arrivals from this place on to the ports of their streams, and takes those that
    /// other ports handed to this one.
    pub(super) fn sort_arrivals(
        &mut self,
        from: usize,
        out: &mut Vec<Arrival>,
        counters: &mut Counters,
    ) {
        let is_ours = |arrival: &Arrival| self.port_of(arrival) == self.number;
        if !out[from..].iter().all(is_ours) {
            let mut sorted = mem::take(&mut self.sorted);
            sorted.extend(out.drain(from..));
            for arrival in sorted.drain(..) {
                let to = self.port_of(&arrival);
                if to == self.number {
                    out.push(arrival);
                } else if self.queues[to].push(arrival) {
                    counters.strayed += 1;
                } else {
                    counters.overrun += 1;
                }
            }
            self.sorted = sorted;
        }
        self.queues[self.number].take(out);
    }

    /// The port for an arrival: the first for a stream that has none, as it is refused there.
    fn port_of(&self, arrival: &Arrival) -> usize {
        let stream = self.field.stream_of(&arrival.datagram);
        if stream < self.queues.len() { stream } else { 0 }
    }
}

/// The ports of `count` streams at the address of the first, which is among them. Where the kernel
/// refuses, the first port alone, with a note.
pub(crate) fn share_port(mut first: UdpDriver, field: StreamField, count: usize) -> Vec<UdpDriver> {
    match open_siblings(&first, field, count) {
        Ok(siblings) => {
            let mut ports = vec![first];
            ports.extend(siblings);
            let queue = |port: &UdpDriver| StrayQueue {
                arrivals: Mutex::default(),
                is_filled: AtomicBool::new(false),
                waker: port.waiting.waker.clone(),
            };
            let queues: Arc<[StrayQueue]> = ports.iter().map(queue).collect();
            for (number, port) in ports.iter_mut().enumerate() {
                let queues = Arc::clone(&queues);
                port.share = Some(StreamShare { number, field, queues, sorted: Vec::new() });
            }
            ports
        }
        Err(error) => {
            // The port stays usable by itself, and no other socket may join it.
            drop(first.socket.share_port(false));
            first.socket.notes.push(format!("one socket takes all streams: {error}"));
            vec![first]
        }
    }
}

/// Opens sockets for the streams behind the first, all at the address of the first.
pub(super) fn open_siblings(
    first: &UdpDriver,
    field: StreamField,
    count: usize,
) -> Result<Vec<UdpDriver>, Error> {
    first.socket.share_port(true)?;
    let open =
        |_| UdpDriver::over(first.socket.bind_sibling(&first.options)?, first.options.clone());
    let siblings = (1..count).map(open).collect::<Result<Vec<_>, _>>()?;
    // The group of sockets, which the program belongs to, exists from the second socket on. The
    // kernel numbers the sockets in the order in which they were bound.
    if !siblings.is_empty() {
        first.socket.choose_socket_by(&mut field.program())?;
    }
    Ok(siblings)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::time::Duration;

    use evenfall_host::clock::MonotonicClock;

    use super::*;
    use crate::{Options, Port};

    const FIELD: StreamField = StreamField { magic: *b"EF", offset: 8 };

    fn datagram(magic: &[u8; 2], stream: u32, tail: u8) -> Vec<u8> {
        [&magic[..], &[0; 6], &stream.to_le_bytes(), &[tail]].concat()
    }

    fn open(count: usize) -> (Vec<UdpDriver>, SocketAddr) {
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let first = UdpDriver::bind(any, Options::default()).unwrap();
        let at = first.local_addr();
        let ports = share_port(first, FIELD, count);
        assert_eq!(ports.len(), count, "{:?}", ports[0].notes());
        assert!(ports.iter().all(|port| port.local_addr() == at));
        (ports, at)
    }

    /// Receives until `count` datagrams have come, or half a second passes without one.
    fn receive(port: &mut UdpDriver, count: usize) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < count {
            let quiet = MonotonicClock::now() + Duration::from_millis(500);
            if port.receive(&mut out) == 0 && port.wait(None, Some(quiet)) == crate::Wake::Deadline
            {
                break;
            }
        }
        out.into_iter().map(|arrival| arrival.datagram.to_vec()).collect()
    }

    #[test]
    fn the_kernel_hands_each_datagram_to_the_socket_of_its_stream() {
        let (mut ports, at) = open(3);
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for stream in [2, 1, 0, 2, 1, 2] {
            sender.send_to(&datagram(b"EF", stream, 7), at).unwrap();
        }
        for (stream, count) in [(1, 2), (2, 3)] {
            let got = receive(&mut ports[stream], count);
            assert_eq!(got, vec![datagram(b"EF", stream as u32, 7); count]);
            assert_eq!(ports[stream].counters().strayed, 0);
        }
        // Another protocol, a datagram without the field, and a stream without a socket.
        let others = [datagram(b"EK", 1, 0), b"EF".to_vec(), datagram(b"EF", 9, 0)];
        others.iter().for_each(|other| assert!(sender.send_to(other, at).is_ok()));
        // The socket of the stream 9 is any, and hands the datagram to the first.
        receive(&mut ports[1], 1);
        receive(&mut ports[2], 1);
        let first = receive(&mut ports[0], 4);
        assert_eq!(first.len(), 4);
        assert!(others.iter().all(|other| first.contains(other)), "{first:?}");
    }

    #[test]
    fn datagrams_in_one_buffer_of_mixed_streams_come_to_the_ports_of_their_streams() {
        use bytes::Bytes;
        use evenfall_core::{Destination, Head, TrafficClass, Transmit};
        let (mut ports, at) = open(2);
        let mut sender =
            UdpDriver::bind((Ipv4Addr::LOCALHOST, 0).into(), Options::default()).unwrap();
        for number in 0..64_u8 {
            let bytes = Bytes::from(datagram(b"EF", u32::from(number % 2), number));
            let to = Destination::One(at);
            sender.send(0, Transmit::new(TrafficClass::Live, to, Head::new(&[]), bytes)).unwrap();
        }
        assert!(sender.flush());
        // The first port reads the buffer, and hands half of it to the other, whose wait ends.
        let even = receive(&mut ports[0], 32);
        let odd = receive(&mut ports[1], 32);
        assert_eq!((even.len(), odd.len()), (32, 32));
        assert!(even.iter().all(|datagram| datagram[8] == 0));
        assert!(odd.iter().all(|datagram| datagram[8] == 1));
        let strayed: u64 = ports.iter().map(|port| port.counters().strayed).sum();
        assert!(strayed <= 32, "{strayed}");
    }

    #[test]
    fn a_port_that_does_not_take_its_datagrams_makes_others_drop_them_beyond_a_limit() {
        let queue = StrayQueue {
            arrivals: Mutex::default(),
            is_filled: AtomicBool::new(false),
            waker: Waker::new().unwrap(),
        };
        let arrival = || Arrival {
            from: (Ipv4Addr::LOCALHOST, 1).into(),
            datagram: datagram(b"EF", 1, 0).into(),
            received: MonotonicClock::now(),
            stamped_by: evenfall_core::StampedBy::User,
            is_forwarded: false,
        };
        assert!((0..HANDED_MAX).all(|_| queue.push(arrival())));
        assert!(!queue.push(arrival()));
        let mut out = Vec::new();
        queue.take(&mut out);
        assert_eq!(out.len(), HANDED_MAX);
        assert!(queue.push(arrival()));
    }

    #[test]
    fn a_second_process_cannot_bind_to_an_address_that_sockets_share() {
        let (_ports, at) = open(2);
        assert!(UdpDriver::bind(at, Options::default()).is_err());
    }
}
