//! The messages of etcd's API v3 that this client uses, with the numbers of its `rpc.proto`.

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

/// Asks for a key, or for the keys up to `range_end`.
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The key after the last; empty for one key.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// Keys in the answer at most.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// Revision to read; zero for the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
}

/// The head of every response.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    /// Revision of the whole store.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// The keys that were asked for.
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// Revision of the answer.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys, in order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether more keys exist than the limit allowed.
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
    /// The lease of the key; zero for none.
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
    /// The kind of the step.
    #[prost(oneof = "RequestStep", tags = "1, 2, 3")]
    pub step: Option<RequestStep>,
}

/// The kinds of steps.
#[derive(Clone, PartialEq, Oneof)]
pub enum RequestStep {
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

/// A condition of a transaction. The condition is always an equality.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// What is compared: 0 the version, 2 the last change, 4 the lease.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// The value to compare with.
    #[prost(oneof = "Target", tags = "4, 6, 8")]
    pub with: Option<Target>,
}

/// The compared value.
#[derive(Clone, PartialEq, Oneof)]
pub enum Target {
    /// Changes since the key was created; zero for a missing key.
    #[prost(int64, tag = "4")]
    Version(i64),
    /// Revision of the last change; zero for a missing key.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// Lease of the key.
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// A transaction: all steps, or none.
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    /// The conditions, which must all hold.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// The steps.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
}

/// The result of a step. Only reads are looked at.
#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    /// The result of a read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// The result of a transaction.
#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    /// Whether all conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// The results by step.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Asks for a lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// Wanted time in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

/// The lease.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    /// Number of the lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Granted time in seconds.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// A lease by its number, to revoke or renew it.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRequest {
    /// Number of the lease.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The result of a renewal.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseResponse {
    /// Seconds that the lease still lasts; zero when it has ended.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}
