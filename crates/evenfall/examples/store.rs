//! A tick store: appends prices and reads a span of time back.
//!
//! `store DIRECTORY` opens a store in this process. `store 127.0.0.1:7410` uses a store that
//! `evenfall store serve` serves on that port.

use std::net::SocketAddr;
use std::path::Path;

use evenfall::store::{
    Client, FieldType, RecordSource, RemoteSource, Schema, Store, StoreAckLevel, StoreConfig,
};

/// Prices and their times in nanoseconds since 1970.
const TICKS: [(i64, i64); 3] = [(1_000, 101), (2_000, 102), (3_000, 103)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::args().nth(1).ok_or("usage: store DIRECTORY|ADDRESS")?;
    let schema = Schema::of(&[("time", FieldType::Time), ("price", FieldType::I64)]);
    let records: Vec<u8> = TICKS
        .into_iter()
        .flat_map(|(time_ns, price)| [time_ns.to_le_bytes(), price.to_le_bytes()].concat())
        .collect();
    if let Ok(address) = place.parse::<SocketAddr>() {
        let mut client = Client::connect(address)?;
        let ticks = client.create("ticks", &schema)?;
        client.append(&ticks, &records, StoreAckLevel::Local)?;
        while let Some(completion) = client.completion()? {
            println!("records from {} on are on the disk", completion.first?);
        }
        return print(&RemoteSource::new(client));
    }
    let store = Store::open(StoreConfig::new(Path::new(&place)))?.store;
    let ticks = store.create("ticks", &schema)?;
    let first = store.append(&ticks, &records, StoreAckLevel::Local)?;
    println!("records from {first} on are on the disk");
    print(&store)?;
    Ok(store.close()?)
}

/// Prints the ticks of a span of time.
fn print(source: &impl RecordSource) -> Result<(), Box<dyn std::error::Error>> {
    let numbers = source.between("ticks", 2_000, 3_000)?;
    for record in source.numbers("ticks", numbers)?.chunks_exact(16) {
        let (time, price) = record.split_at(8);
        let number = |bytes: &[u8]| {
            Ok::<_, std::array::TryFromSliceError>(i64::from_le_bytes(bytes.try_into()?))
        };
        println!("{} {}", number(time)?, number(price)?);
    }
    Ok(())
}
