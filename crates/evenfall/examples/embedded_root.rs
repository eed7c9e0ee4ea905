//! A venue: publishes a thousand messages to one receiver.
//!
//! `embedded_root OWN RECEIVER ID`, such as `embedded_root 127.0.0.1:9000 127.0.0.1:9007 7`. OWN is
//! the address on which this root listens. RECEIVER and ID are the address and the id of the
//! receiver, for example of the example `subscriber`. The root waits for the receiver before it
//! sends.

use evenfall::NodeId;
use evenfall::embedded_root::{EmbeddedRoot, EmbeddedRootSettings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [own, receiver, id] = &args[..] else {
        return Err("usage: embedded_root OWN RECEIVER ID".into());
    };
    let mut settings = EmbeddedRootSettings::new(own.parse()?, NodeId(0));
    settings.receivers = vec![(NodeId(id.parse()?), receiver.parse()?)];
    let root = EmbeddedRoot::of(&settings)?;
    for trade in 0_u64..1_000 {
        let symbol = (trade % 7) as u32;
        root.publish(trade.to_le_bytes().to_vec(), symbol)?;
    }
    let summary = root.finish()?;
    println!("{} messages, content {}", summary.messages, summary.content_hash);
    Ok(())
}
