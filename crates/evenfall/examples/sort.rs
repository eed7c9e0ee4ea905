//! Four local processes sort four thousand records. The first process starts the other three.

use evenfall::sort::{KeyDraw, SortConfig, SortMember, local, make_records};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let member = local(4)?;
    let me = member.rank();
    let mut sorter = SortMember::new(member, SortConfig::weighted(1));
    let records = make_records(KeyDraw::Uniform, 1, me, 1_000);
    let sorted = sorter.sort_records(records)?.output.records;
    println!("{me} has {} records, from key {:02x?} on", sorted.len(), &sorted.keys[..10]);
    sorter.into_member().leave();
    Ok(())
}
