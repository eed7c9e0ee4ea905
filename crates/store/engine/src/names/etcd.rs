//! A client for the part of etcd's API v3 that a directory of names needs.
//!
//! The crate `etcd-client` is not used, because it needs `protoc` to build. The dozen messages of
//! this module travel over the same gRPC as our own control planes.
//!
//! Endpoints are asked in turn, beginning with the endpoint that answered last. One endpoint may
//! carry out a request whose answer is lost, and the next endpoint then gets it again. Every write
//! is therefore a transaction that has no effect the second time.

pub mod wire;

use std::net::ToSocketAddrs as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

pub use self::wire::{Compare, KeyValue, Step};
use self::wire::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRequest, LeaseResponse,
    PutRequest, RangeRequest, RangeResponse, RequestOp, Target, TxnRequest, TxnResponse,
};
use super::NamesError;
use crate::expect_loopback;

/// An endpoint that does not take a connection within this time is skipped.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// A request without an answer within this time goes to the next endpoint.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Keys in one answer.
const PAGE_KEYS: i64 = 1_000;
/// Bytes of the largest answer: a page of entries, each with its schema.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Connections to the endpoints of one etcd.
pub struct Etcd {
    runtime: Runtime,
    channels: Vec<Channel>,
    /// The endpoint that answered last.
    preferred: AtomicUsize,
}

impl Etcd {
    /// Opens `etcd://127.0.0.1:2379/name`. Several endpoints are separated by commas. Returns also
    /// the prefix of the keys of that name.
    ///
    /// # Errors
    /// When the text is no such address. No connection is made yet.
    pub fn open(address: &str) -> Result<(Self, String), NamesError> {
        let parts = address.strip_prefix("etcd://").and_then(|rest| rest.split_once('/'));
        let is_name = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && name.chars().all(allowed)
        };
        let Some((endpoints, name)) = parts.filter(|(_, name)| is_name(name)) else {
            return Err(NamesError::Failed(format!(
                "{address} is no name in etcd: say etcd://127.0.0.1:2379/name, the name in \
                 letters, digits, dots and dashes"
            )));
        };
        Ok((Self::connect(endpoints)?, format!("/evenfall/{name}/")))
    }

    /// Prepares connections to `host:port`, several separated by commas. A connection is made when
    /// it is needed.
    ///
    /// # Errors
    /// When an endpoint is no address, or not on this machine. The connections have no key, and
    /// without a key nothing may leave loopback.
    pub fn connect(endpoints: &str) -> Result<Self, NamesError> {
        let failed = |what: String| NamesError::Failed(what);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("etcd")
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let inside = runtime.enter();
        let mut channels = Vec::new();
        for endpoint in endpoints.split(',') {
            let resolved = endpoint.to_socket_addrs();
            let addresses =
                resolved.map_err(|error| failed(format!("etcd endpoint {endpoint}: {error}")))?;
            for address in addresses {
                expect_loopback(&format!("etcd endpoint {endpoint}:"), address)
                    .map_err(|error| failed(error.to_string()))?;
            }
            let url = Endpoint::from_shared(format!("http://{endpoint}"));
            let url = url.map_err(|error| failed(format!("etcd endpoint {endpoint}: {error}")))?;
            let url = url.connect_timeout(CONNECT_TIMEOUT).timeout(REQUEST_TIMEOUT);
            channels.push(url.connect_lazy());
        }
        drop(inside);
        Ok(Self { runtime, channels, preferred: AtomicUsize::new(0) })
    }

    /// Asks one endpoint after the other until one answers.
    fn ask<T>(&self, ask: impl AsyncFn(Channel) -> Result<T, Status>) -> Result<T, NamesError> {
        let first = self.preferred.load(Relaxed);
        let mut said = String::new();
        for turn in 0..self.channels.len() {
            let at = (first + turn) % self.channels.len();
            let asked = async {
                let answer = ask(self.channels[at].clone());
                match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Status::deadline_exceeded("no answer in time")),
                }
            };
            match self.runtime.block_on(asked) {
                Ok(answer) => {
                    self.preferred.store(at, Relaxed);
                    return Ok(answer);
                }
                Err(status) if is_passing(status.code()) => said = status.message().to_owned(),
                Err(status) => return Err(NamesError::Failed(format!("etcd: {status}"))),
            }
        }
        Err(NamesError::Unavailable(format!("etcd: {said}")))
    }

    fn call<Q, R>(&self, path: &'static str, request: &Q) -> Result<R, NamesError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.ask(async |channel| {
            let mut grpc =
                tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::default());
            let answer = grpc.unary(Request::new(request.clone()), path, codec).await?;
            Ok(answer.into_inner())
        })
    }

    /// The value of a key; `None` when the key is missing.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`], [`NamesError::Failed`]. All methods have these errors.
    pub fn get(&self, key: &str) -> Result<Option<KeyValue>, NamesError> {
        let request = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", &request)?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Every key that begins with `prefix`, in order, as of one moment.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn list(&self, prefix: &str) -> Result<Vec<KeyValue>, NamesError> {
        let mut end = prefix.as_bytes().to_vec();
        // Prefixes are ASCII and end in a slash, so the next byte value ends the range.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let mut request = RangeRequest {
            key: prefix.to_owned().into(),
            range_end: end.into(),
            limit: PAGE_KEYS,
            revision: 0,
        };
        let mut all: Vec<KeyValue> = Vec::new();
        loop {
            let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", &request)?;
            request.revision = answer.header.map_or(0, |header| header.revision);
            all.extend(answer.kvs);
            let Some(last) = all.last().filter(|_| answer.more) else { return Ok(all) };
            request.key = [&last.key[..], &[0]].concat().into();
        }
    }

    /// These keys, in their order, as of one moment.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_all(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, NamesError> {
        let read = |key: &String| RequestOp {
            step: Some(Step::Range(RangeRequest {
                key: key.clone().into(),
                ..RangeRequest::default()
            })),
        };
        let request = TxnRequest { compare: vec![], success: keys.iter().map(read).collect() };
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", &request)?;
        let first = |op: wire::ResponseOp| op.range.and_then(|range| range.kvs.into_iter().next());
        Ok(answer.responses.into_iter().map(first).collect())
    }

    /// Carries out all steps if all conditions hold, or no step. Returns whether the conditions
    /// held.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn commit(&self, compare: Vec<Compare>, success: Vec<Step>) -> Result<bool, NamesError> {
        let mut success: Vec<_> =
            success.into_iter().map(|step| RequestOp { step: Some(step) }).collect();
        if let (true, Some(first)) = (success.is_empty(), compare.first()) {
            // A member answers conditions alone from its last known state. A read makes it ask the
            // others.
            let key = first.key.clone();
            let read = RangeRequest { key, ..RangeRequest::default() };
            success.push(RequestOp { step: Some(Step::Range(read)) });
        }
        let request = TxnRequest { compare, success };
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", &request)?;
        Ok(answer.succeeded)
    }

    /// Takes a lease of this many seconds. Returns its number and its granted time.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn lease_grant(&self, seconds: u64) -> Result<(i64, Duration), NamesError> {
        let request = LeaseGrantRequest { ttl: seconds as i64 };
        let answer: LeaseGrantResponse = self.call("/etcdserverpb.Lease/LeaseGrant", &request)?;
        Ok((answer.id, Duration::from_secs(answer.ttl.max(0) as u64)))
    }

    /// Ends a lease, and with it every key that was put under it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn lease_revoke(&self, id: i64) -> Result<(), NamesError> {
        let _: LeaseResponse =
            self.call("/etcdserverpb.Lease/LeaseRevoke", &LeaseRequest { id })?;
        Ok(())
    }

    /// Renews a lease. Returns whether the lease still existed.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn lease_keep_alive(&self, id: i64) -> Result<bool, NamesError> {
        let answer: LeaseResponse = self.ask(async |channel| {
            let mut grpc = tonic::client::Grpc::new(channel);
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let codec = ProstCodec::<LeaseRequest, LeaseResponse>::default();
            let one = Request::new(tokio_stream::once(LeaseRequest { id }));
            let mut answers = grpc.streaming(one, path, codec).await?.into_inner();
            let answer = answers.message().await?;
            answer.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
        })?;
        Ok(answer.ttl > 0)
    }
}

/// Whether another endpoint, or the same endpoint later, may succeed.
fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

/// The key is not there.
pub fn is_absent(key: &str) -> Compare {
    compare(key, 0, Target::Version(0))
}

/// The key's last change has this revision; zero for a missing key.
pub fn is_unchanged(key: &str, mod_revision: i64) -> Compare {
    compare(key, 2, Target::ModRevision(mod_revision))
}

/// The key belongs to this lease.
pub fn has_lease(key: &str, lease: i64) -> Compare {
    compare(key, 4, Target::Lease(lease))
}

fn compare(key: &str, target: i32, with: Target) -> Compare {
    Compare { target, key: key.to_owned().into(), with: Some(with) }
}

/// Puts a key, under a lease or, with zero, without one.
pub fn put(key: &str, value: impl Into<Bytes>, lease: i64) -> Step {
    Step::Put(PutRequest { key: key.to_owned().into(), value: value.into(), lease })
}

/// Deletes a key.
pub fn delete(key: &str) -> Step {
    Step::Delete(DeleteRangeRequest { key: key.to_owned().into() })
}
