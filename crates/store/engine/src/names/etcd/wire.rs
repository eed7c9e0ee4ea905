//! The messages of etcd's API v3 that are used here, with the numbers of its `rpc.proto`.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
}

/// Asks for a key, or for those up to `range_end`.
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// The first.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// One behind the last; empty of one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// So many at most.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As of this revision; zero of now.
    #[prost(int64, tag = "4")]
    pub revision: i64,
}

/// What every response begins with.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    /// Revision of the whole store.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// The keys that were asked for.
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// As of when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// In order of keys.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether there are more than the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Puts a key.
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Its value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The lease with which it goes; zero of none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Deletes a key.
#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
}

/// A step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    /// Which.
    #[prost(oneof = "Step", tags = "1, 2, 3")]
    pub step: Option<Step>,
}

/// The kinds of steps.
#[derive(Clone, PartialEq, Oneof)]
pub enum Step {
    /// Read.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Write.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Delete.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// What must hold for a transaction to be carried out; always an equality.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// 0 version, 2 last change, 4 lease.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// What it is compared with.
    #[prost(oneof = "Target", tags = "4, 6, 8")]
    pub with: Option<Target>,
}

/// What is compared.
#[derive(Clone, PartialEq, Oneof)]
pub enum Target {
    /// Changes since it was created; zero when it is not there.
    #[prost(int64, tag = "4")]
    Version(i64),
    /// Revision of its last change; zero when it is not there.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// Its lease.
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// All steps, or none.
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    /// If all of this holds.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// Then this.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

/// What a step gave; only reads are looked at.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    /// Of a read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    /// Whether what was compared held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// By step.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Asks for a lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

/// The lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    /// Its number.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Seconds.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// A lease by its number: to revoke it or to renew it.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRequest {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// What became of a lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseResponse {
    /// Seconds that it lasts from now; zero when it is over.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}
