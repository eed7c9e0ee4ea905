//! A client for the part of etcd's API v3 that a directory of names needs.
//!
//! The crate `etcd-client` is not used, because it needs `protoc` to build. The dozen messages of
//! this module travel over the same gRPC as our own control planes.
//!
//! Endpoints are asked in turn, beginning with the endpoint that answered last. One endpoint may
//! carry out a request whose answer is lost, and the next endpoint then gets it again.

pub mod wire;

use std::net::ToSocketAddrs as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use prost::Message;
use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use self::wire::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseGrantResponse, LeaseRequest,
    LeaseResponse, PutRequest, RangeRequest, RangeResponse, RequestOp, Target, TxnRequest,
    TxnResponse,
};
use super::NamesError;
use super::name_service::{Condition, Found, NameService, Step};
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
}

impl NameService for Etcd {
    fn get(&self, key: &str) -> Result<Option<Found>, NamesError> {
        let request = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", &request)?;
        answer.kvs.into_iter().next().map(found).transpose()
    }

    /// All pages are as of one moment.
    fn list(&self, prefix: &str) -> Result<Vec<Found>, NamesError> {
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
            let Some(last) = all.last().filter(|_| answer.more) else {
                return all.into_iter().map(found).collect();
            };
            request.key = [&last.key[..], &[0]].concat().into();
        }
    }

    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Found>>, NamesError> {
        let read = |key: &String| RequestOp {
            step: Some(wire::RequestStep::Range(RangeRequest {
                key: key.clone().into(),
                ..RangeRequest::default()
            })),
        };
        let request = TxnRequest { compare: vec![], success: keys.iter().map(read).collect() };
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", &request)?;
        let first = |op: wire::ResponseOp| op.range.and_then(|range| range.kvs.into_iter().next());
        answer.responses.into_iter().map(|op| first(op).map(found).transpose()).collect()
    }

    fn commit(&self, conditions: Vec<Condition>, steps: Vec<Step>) -> Result<bool, NamesError> {
        let compare: Vec<Compare> = conditions.into_iter().map(compare).collect();
        let mut success: Vec<_> =
            steps.into_iter().map(|one| RequestOp { step: Some(step(one)) }).collect();
        if let (true, Some(first)) = (success.is_empty(), compare.first()) {
            // A member answers conditions alone from its last known state. A read makes it ask the
            // others.
            let key = first.key.clone();
            let read = RangeRequest { key, ..RangeRequest::default() };
            success.push(RequestOp { step: Some(wire::RequestStep::Range(read)) });
        }
        let request = TxnRequest { compare, success };
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", &request)?;
        Ok(answer.succeeded)
    }

    fn lease_grant(&self, seconds: u64) -> Result<(i64, Duration), NamesError> {
        let request = LeaseGrantRequest { ttl: seconds as i64 };
        let answer: LeaseGrantResponse = self.call("/etcdserverpb.Lease/LeaseGrant", &request)?;
        Ok((answer.id, Duration::from_secs(answer.ttl.max(0) as u64)))
    }

    fn lease_revoke(&self, id: i64) -> Result<(), NamesError> {
        let _: LeaseResponse =
            self.call("/etcdserverpb.Lease/LeaseRevoke", &LeaseRequest { id })?;
        Ok(())
    }

    fn lease_keep_alive(&self, id: i64) -> Result<bool, NamesError> {
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

fn found(pair: KeyValue) -> Result<Found, NamesError> {
    let key = String::from_utf8(pair.key.to_vec());
    let key = key.map_err(|error| NamesError::Failed(format!("etcd: a key: {error}")))?;
    Ok(Found { key, value: pair.value, revision: pair.mod_revision })
}

fn compare(condition: Condition) -> Compare {
    let (key, target, with) = match condition {
        Condition::Unchanged(key, 0) => (key, 0, Target::Version(0)),
        Condition::Unchanged(key, revision) => (key, 2, Target::ModRevision(revision)),
        Condition::Leased(key, lease) => (key, 4, Target::Lease(lease)),
    };
    Compare { target, key: key.into(), with: Some(with) }
}

fn step(step: Step) -> wire::RequestStep {
    match step {
        Step::Put(key, value, lease) => {
            wire::RequestStep::Put(PutRequest { key: key.into(), value, lease })
        }
        Step::Delete(key) => wire::RequestStep::Delete(DeleteRangeRequest { key: key.into() }),
    }
}
