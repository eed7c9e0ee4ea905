//! Four local processes of which each sends a message to each other process. The first process
//! starts the other three.

use evenfall::{Bytes, collectives};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut member = collectives::local(4)?;
    let me = member.rank();
    let message = |to| Bytes::from(format!("from {me} to {to}"));
    println!("{me} got {:?}", member.shuffle((0..4).map(message).collect())?);
    member.leave();
    Ok(())
}
