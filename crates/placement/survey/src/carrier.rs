//! gRPC as a carrier of control messages between machines.
//!
//! The machines of a survey have their own messages, with limits, authentication and retries. gRPC
//! only brings the messages from one process to another, so that the same machines run in the
//! simulator. One call, `evenfall.survey.v1.Carrier/Carry`, is a stream of [`Envelope`]s each way
//! (`docs/wire/survey.proto`). A process that has a message for another process dials that process.
//! Answers come back on the same stream, so only agents listen.
//!
//! The asynchronous runtime is one thread in here; the role's thread hands over bytes and takes
//! bytes. Queues are bounded: what does not fit is dropped and counted, and the machines ask again.
//! Without a key nothing is dialled, and nothing listens, beyond loopback.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::CarrierError;
use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Destination, ForwardCounters, ForwardId, Install, Machine, Malformed,
    Sent, StampedBy, Timestamp, TrafficClass, Transmit,
};
use evenfall_host::Waker;
use evenfall_placement_machine::wire::MESSAGE_BYTES_MAX;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

mod door;
#[cfg(test)]
mod tests;

/// The one call.
const CARRY: &str = "/evenfall.survey.v1.Carrier/Carry";
/// Messages that may wait for the role's thread.
const INBOX_MAX: usize = 8_192;
/// Messages that may wait for one peer. A report of a thousand parts travels in windows of eight,
/// so 256 are ample.
const LINK_MAX: usize = 256;
/// Peers at once. The number covers every host of a job and some surveyors.
const LINKS_MAX: usize = 4_200;
/// How long a connection may take to open. The machines give an agent a second to answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an unreachable peer is not dialled again.
const REDIAL: Duration = Duration::from_millis(100);
/// How often a silent connection is pinged, and how long it may take to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Streams of one connection. A peer opens one stream, and may open the next while the last is
/// ending.
const STREAMS_PER_CONNECTION_MAX: u32 = 4;
/// Bytes of the headers of a call. The headers of gRPC take a few hundred.
const HEADER_BYTES_MAX: u32 = 8 << 10;
/// An envelope is a message and a few bytes around it.
const ENVELOPE_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 64;

/// The unit on a stream: one message of the machines.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    /// The message, in the machines' own format.
    #[prost(bytes = "bytes", tag = "1")]
    pub message: Bytes,
}

/// Counts of a carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CarrierCounters {
    /// Messages taken in.
    pub received: u64,
    /// Messages handed to a connection.
    pub sent: u64,
    /// Messages dropped: a full queue, no connection, or no key.
    pub dropped: u64,
    /// Connections closed at once because there were too many.
    pub turned_away: u64,
}

#[derive(Default)]
struct Counts {
    received: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
    turned_away: AtomicU64,
}

struct Shared {
    inbox: Mutex<VecDeque<(SocketAddr, Bytes)>>,
    /// Open streams by the peer's address: the dialled address, or that of the peer that dialled.
    links: Mutex<BTreeMap<SocketAddr, mpsc::Sender<Bytes>>>,
    counts: Counts,
    waker: Waker,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn arrived(&self, from: SocketAddr, message: Bytes) {
        let mut inbox = lock(&self.inbox);
        let counter = if inbox.len() < INBOX_MAX {
            inbox.push_back((from, message));
            &self.counts.received
        } else {
            &self.counts.dropped
        };
        counter.fetch_add(1, Ordering::Relaxed);
        drop(inbox);
        self.waker.wake();
    }

    /// Reads a stream until it ends.
    async fn read(&self, from: SocketAddr, mut inbound: Streaming<Envelope>) {
        while let Ok(Some(envelope)) = inbound.message().await {
            self.arrived(from, envelope.message);
        }
    }

    /// Forgets a stream, unless another stream of the same peer has taken its place.
    fn forget(&self, address: SocketAddr, sender: &mpsc::Sender<Bytes>) {
        let mut links = lock(&self.links);
        if links.get(&address).is_some_and(|link| link.same_channel(sender)) {
            links.remove(&address);
        }
    }
}

fn envelopes(queue: mpsc::Receiver<Bytes>) -> impl StreamExt<Item = Envelope> + Send {
    ReceiverStream::new(queue).map(|message| Envelope { message })
}

/// The answering side. The service has a single method, so its code is written by hand and not
/// generated.
#[derive(Clone)]
struct CarrierService(Arc<Shared>);

type Answers = Pin<Box<dyn tokio_stream::Stream<Item = Result<Envelope, Status>> + Send>>;
type Boxed<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl tonic::server::StreamingService<Envelope> for CarrierService {
    type Response = Envelope;
    type ResponseStream = Answers;
    type Future = Boxed<Response<Answers>, Status>;

    fn call(&mut self, request: Request<Streaming<Envelope>>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let from = request.remote_addr().ok_or(Status::internal("who is it?"))?;
            let (sender, queue) = mpsc::channel(LINK_MAX);
            {
                let mut links = lock(&shared.links);
                if links.len() >= LINKS_MAX {
                    return Err(Status::resource_exhausted("too many connections"));
                }
                links.insert(from, sender.clone());
            }
            tokio::spawn(async move {
                shared.read(from, request.into_inner()).await;
                shared.forget(from, &sender);
            });
            let answers: Answers = Box::pin(envelopes(queue).map(Ok));
            Ok(Response::new(answers))
        })
    }
}

impl<B> tonic::codegen::Service<http::Request<B>> for CarrierService
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Boxed<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = self.clone();
        Box::pin(async move {
            if request.uri().path() != CARRY {
                return Ok(Status::unimplemented("evenfall has one call: Carry").into_http());
            }
            let limit = Some(ENVELOPE_BYTES_MAX);
            let grpc = tonic::server::Grpc::new(ProstCodec::default());
            let mut grpc = grpc.apply_max_message_size_config(limit, limit);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

/// Dials a peer and carries messages both ways until one side ends.
async fn dial(shared: Arc<Shared>, to: SocketAddr, queue: mpsc::Receiver<Bytes>) {
    let carry = async {
        let endpoint = Endpoint::from_shared(format!("http://{to}")).ok()?;
        let channel = endpoint
            .connect_timeout(DIAL_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .connect()
            .await
            .ok()?;
        let mut grpc = tonic::client::Grpc::new(channel)
            .max_decoding_message_size(ENVELOPE_BYTES_MAX)
            .max_encoding_message_size(ENVELOPE_BYTES_MAX);
        grpc.ready().await.ok()?;
        let path = http::uri::PathAndQuery::from_static(CARRY);
        let codec: ProstCodec<Envelope, Envelope> = ProstCodec::default();
        let answer = grpc.streaming(Request::new(envelopes(queue)), path, codec).await.ok()?;
        shared.read(to, answer.into_inner()).await;
        Some(())
    };
    if carry.await.is_none() {
        // The messages for the peer are lost, and the machines ask again.
        tokio::time::sleep(REDIAL).await;
    }
}

/// Carries messages to and from other processes until it is dropped.
pub struct Carrier {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
    keyed: bool,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Starts a carrier. Agents listen, and surveyors do not. `waker` wakes the role's thread.
    ///
    /// # Errors
    /// The address that cannot be bound, with the advice for the user.
    pub fn start(
        listen: Option<SocketAddr>,
        keyed: bool,
        waker: Waker,
    ) -> Result<Self, CarrierError> {
        if let Some(address) = listen.filter(|address| !keyed && !address.ip().is_loopback()) {
            return Err(CarrierError::Unkeyed { what: "listener", address });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CarrierError::Thread)?;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            links: Mutex::default(),
            counts: Counts::default(),
            waker,
        });
        let incoming = match listen {
            None => None,
            Some(address) => {
                let bound = runtime.block_on(TcpListener::bind(address));
                Some(bound.map_err(|error| CarrierError::Bind(address, error))?)
            }
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let service = CarrierService(Arc::clone(&shared));
        let work = move || runtime.block_on(serve(service, incoming, stopped));
        let thread = std::thread::Builder::new().name("carrier".into()).spawn(work);
        let thread = Some(thread.map_err(CarrierError::Thread)?);
        Ok(Self { shared, runtime: handle, keyed, stop: Some(stop), thread })
    }

    /// Queues a message for a peer. A message that cannot be queued is dropped and counted.
    pub fn send(&self, to: SocketAddr, message: Bytes) {
        let counts = &self.shared.counts;
        let sent = (self.keyed || to.ip().is_loopback()) && self.link(to, message);
        let counter = if sent { &counts.sent } else { &counts.dropped };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn link(&self, to: SocketAddr, message: Bytes) -> bool {
        let mut links = lock(&self.shared.links);
        // A link that has just failed stays for a while, so that not every message dials the peer
        // again.
        if let Some(link) = links.get(&to) {
            return link.try_send(message).is_ok();
        }
        if links.len() >= LINKS_MAX {
            return false;
        }
        let (sender, queue) = mpsc::channel(LINK_MAX);
        let queued = sender.try_send(message).is_ok();
        links.insert(to, sender.clone());
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            dial(Arc::clone(&shared), to, queue).await;
            shared.forget(to, &sender);
        });
        queued
    }

    /// The next message that came in.
    pub fn take(&self) -> Option<(SocketAddr, Bytes)> {
        lock(&self.shared.inbox).pop_front()
    }

    /// The counts so far.
    pub fn counters(&self) -> CarrierCounters {
        let counts = &self.shared.counts;
        CarrierCounters {
            received: counts.received.load(Ordering::Relaxed),
            sent: counts.sent.load(Ordering::Relaxed),
            dropped: counts.dropped.load(Ordering::Relaxed),
            turned_away: counts.turned_away.load(Ordering::Relaxed),
        }
    }
}

async fn serve(
    service: CarrierService,
    listener: Option<TcpListener>,
    stopped: oneshot::Receiver<()>,
) {
    let stop = async {
        // A sender that is gone stops it as well.
        let _: Result<(), _> = stopped.await;
    };
    match listener {
        None => stop.await,
        Some(listener) => {
            let turned_away = Arc::clone(&service.0);
            let count = move || {
                turned_away.counts.turned_away.fetch_add(1, Ordering::Relaxed);
            };
            let incoming = door::open(listener, door::Limits::default(), count);
            let server = Server::builder()
                .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
                .http2_max_header_list_size(HEADER_BYTES_MAX)
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(KEEP_ALIVE))
                .serve_with_incoming(service, incoming);
            // The server does not wait for open streams, so that the process can end at once.
            tokio::select! {
                _ = server => {}
                () = stop => {}
            }
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread ends by itself. Its panic, if any, has been printed.
            drop(thread.join());
        }
    }
}

/// A machine whose control messages go by a carrier and whose datagrams go by the driver.
pub struct Carried<M> {
    /// The machine.
    pub machine: M,
    /// Its carrier.
    pub carrier: Carrier,
}

impl<M: Machine> Carried<M> {
    /// A message that was carried here, as an arrival.
    pub fn arrival(now: Timestamp, from: SocketAddr, datagram: Bytes) -> Arrival {
        Arrival::new(from, datagram, now, StampedBy::User)
    }
}

impl<M: Machine> Machine for Carried<M> {
    type Event = M::Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.machine.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.machine.handle_clock(now, reading);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.machine.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.machine.handle_counters(now, of, counters);
    }

    fn poll_event(&mut self) -> Option<M::Event> {
        self.machine.poll_event()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.machine.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        loop {
            let transmit = self.machine.poll_transmit(now)?;
            match transmit.to {
                Destination::One(to) if transmit.class == TrafficClass::Control => {
                    self.carrier.send(to, transmit.body);
                }
                _ => return Some(transmit),
            }
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.machine.poll_timeout()
    }
}
