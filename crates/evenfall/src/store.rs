//! Files of records: a store in this process, or the client of a store on a port.

pub use evenfall_store_engine::{
    Archive, Client, Completion, Level, Listed, Opened, RecordSource, RemoteFile, RemoteSource,
    Store, StoreConfig, StoreError, StoreFile,
};
pub use evenfall_store_format::retention::Retention;
pub use evenfall_store_format::{Field, FieldType, Schema};
