//! A desk: publishes messages to a root and its standbys, and prints their numbers in the feed.
//!
//! `publisher OWN ID ROOT...`, such as `publisher 127.0.0.1:0 40 127.0.0.1:9000`. OWN is the
//! address on which the author listens, and ID is the author's id in the settings of the roots. The
//! addresses of the root and its standbys follow, the root first.

use evenfall::NodeId;
use evenfall::publisher::{Publisher, PublisherSettings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [own, id, roots @ ..] = &args[..] else {
        return Err("usage: publisher OWN ID ROOT...".into());
    };
    let roots = roots.iter().map(|root| root.parse()).collect::<Result<Vec<_>, _>>()?;
    let author = Publisher::of(&PublisherSettings::new(&roots, own.parse()?, NodeId(id.parse()?)))?;
    println!("{} messages of this author are in the feed already", author.before()?);
    for order in 0..1_000 {
        let number = author.publish(format!("order {order}"))?;
        println!("order {order} is message {number}");
    }
    let summary = author.finish()?;
    println!("{} messages, answered after {} us (median)", summary.messages, summary.answer_us.p50);
    Ok(())
}
