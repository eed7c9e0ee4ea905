//! Four local processes, each with something for each other one. Run it: the first starts the rest.

use bytes::Bytes;
use evenfall_exchange_member as group;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut member = group::local(4)?;
    let me = member.rank();
    let message = |to| Bytes::from(format!("from {me} to {to}"));
    println!("{me} got {:?}", member.shuffle((0..4).map(message).collect())?);
    member.leave();
    Ok(())
}
