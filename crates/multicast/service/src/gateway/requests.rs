//! The re-request server of a gateway: a socket and a thread of its own, so that no number of
//! requests delays a release.
//!
//! The thread takes a batch of datagrams at a time, and rests after a full batch. A flood therefore
//! fills the socket's buffer, whose overflow the kernel drops, and never takes a core.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenfall_core::{Arrival, Destination, Head, Timestamp, TrafficClass, Transmit};
use evenfall_feed_formats::mold::replay::{RequestCounts, RequestGate, RequestRefusal};
use evenfall_feed_formats::mold::{MoldRequest, PacketBuilder, SessionId};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Waker, pin};
use evenfall_port::{Options, Port};

use super::handoff::Rings;
use super::settings::{AddressRange, GatewayNode, GatewaySettings};
use crate::roles::{RoleError, file_error};

#[cfg(test)]
mod tests;

/// Datagrams that are taken at once.
const BATCH: usize = 64;
/// The rest after a full batch. With [`BATCH`] it limits the server to 64,000 datagrams a second,
/// which take a tenth of a core.
const REST: Duration = Duration::from_millis(1);
/// How long the thread sleeps without a request. A request wakes it at once.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes of kernel memory for waiting requests: some two hundred, at 1 KiB of overhead each.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;

/// Decides about requests.
pub struct RequestDesk {
    rings: Rings,
    requesters: Vec<AddressRange>,
    gate: RequestGate,
    packet_bytes: usize,
}

impl RequestDesk {
    /// A desk to which nobody has come.
    pub fn new(settings: &GatewaySettings, node: &GatewayNode, rings: Rings) -> Self {
        Self {
            rings,
            requesters: node.requesters.clone(),
            gate: RequestGate::new(settings.request_limits()),
            packet_bytes: settings.packet_bytes,
        }
    }

    /// The answer to a datagram of any bytes from this address.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn answer(
        &mut self,
        now: Timestamp,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<PacketBuilder, RequestRefusal> {
        if !self.requesters.iter().any(|range| range.contains(from.ip())) {
            return Err(RequestRefusal::Stranger);
        }
        let request = MoldRequest::decode(datagram).map_err(|_| RequestRefusal::Malformed)?;
        let tree = tree_of(request.session).ok_or(RequestRefusal::OtherSession)?;
        let ring = self.rings.get(tree).ok_or(RequestRefusal::OtherSession)?;
        // From here on a request costs its address a part of its rate, with an answer or without.
        self.gate.admit(now, from.ip())?;
        let kept = ring.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.as_ref().ok_or(RequestRefusal::OtherSession)?;
        kept.answer(&request, self.packet_bytes)
    }
}

/// The tree that a session's name says.
fn tree_of(session: SessionId) -> Option<usize> {
    let digits = str::from_utf8(&session.0[8..]).ok()?;
    usize::from_str_radix(digits, 16).ok()
}

/// A re-request server that runs until it is dropped.
pub struct RerequestServer {
    counts: Arc<Mutex<RequestCounts>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl RerequestServer {
    /// Binds the address and starts the thread.
    ///
    /// # Errors
    /// When the address cannot be bound, or lies beyond loopback without a key.
    pub fn start(address: SocketAddr, keyed: bool, desk: RequestDesk) -> Result<Self, RoleError> {
        let options = Options {
            keyed,
            segmentation: false,
            coalescing: false,
            receive_batch: BATCH,
            receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
            // A request has twenty bytes. Longer datagrams are counted as malformed up to this
            // length, and beyond it the port drops them.
            datagram_bytes_max: 2_048,
            ..Options::default()
        };
        let port = evenfall_port::open(address, options)?;
        let (waker, address) = (port.waker(), port.local_addr());
        let (counts, stop) = (Arc::default(), Arc::<AtomicBool>::default());
        let work = {
            let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
            move || serve(port, desk, &counts, &stop)
        };
        let thread = std::thread::Builder::new().name("evenfall-rerequest".into()).spawn(work);
        let thread = thread.map_err(|error| file_error("a thread of requests".as_ref(), error))?;
        Ok(Self { counts, stop, waker, address, thread: Some(thread) })
    }

    /// Where requests are taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counts so far.
    pub fn counts(&self) -> RequestCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for RerequestServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Answers requests until it is told to stop.
fn serve(
    mut port: Box<dyn Port>,
    mut desk: RequestDesk,
    counts: &Mutex<RequestCounts>,
    stop: &AtomicBool,
) {
    // The thread that releases may have a real-time priority, which requests shall not have.
    pin::schedule(pin::ThreadSchedule::Batch).ok();
    let mut arrivals: Vec<Arrival> = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let batch = port.receive(&mut arrivals);
        let mut outcomes = Vec::with_capacity(arrivals.len());
        for arrival in arrivals.drain(..) {
            let now = MonotonicClock::now();
            let answer = desk.answer(now, arrival.from, &arrival.datagram);
            outcomes.push(answer.as_ref().map(PacketBuilder::count).map_err(|refusal| *refusal));
            let Ok(packet) = answer else { continue };
            let to = Destination::One(arrival.from);
            let body = packet.finish().into();
            // An answer that finds no room is lost, as on a network, and is asked for again.
            port.send(0, Transmit::new(TrafficClass::Repair, to, Head::new(&[]), body)).ok();
        }
        if !outcomes.is_empty() {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.into_iter().for_each(|outcome| counts.count(outcome));
        }
        port.flush();
        match batch {
            0 => drop(port.wait(None, Some(MonotonicClock::now() + LOOK))),
            BATCH.. => std::thread::sleep(REST),
            _ => {}
        }
    }
}
