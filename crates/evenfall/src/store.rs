//! Files of records: a store in this process, or the client of a store on a port.

pub use evenfall_store_engine::{
    AppendCompletion, Archive, Client, ConnectOptions, FileListing, FileSubscription, Freshness,
    KnownEnd, OpenedStore, PushedRecords, RecordSource, RemoteFile, RemoteSource, Store,
    StoreAckLevel, StoreConfig, StoreError, StoreFile, SubscriptionEnd, read_user_key,
    user_key_from_environment,
};
pub use evenfall_store_format::retention::Retention;
pub use evenfall_store_format::{Field, FieldType, Schema};

/// The earlier name of [`StoreAckLevel`].
#[deprecated(since = "0.2.0", note = "use `StoreAckLevel`")]
pub type Level = StoreAckLevel;
