//! A program that keeps up with a fast feed: takes all messages that wait at once.
//!
//! `batches ROOT OWN ID`, such as `batches 127.0.0.1:9000 127.0.0.1:9007 7`, prints the number of
//! messages and of batches. The arguments are those of the example `subscriber`.

use evenfall::NodeId;
use evenfall::subscriber::{FeedUpdate, Subscriber, Subscription};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [root, own, id] = &args[..] else { return Err("usage: batches ROOT OWN ID".into()) };
    let subscription = Subscription::new(root.parse()?, own.parse()?, NodeId(id.parse()?));
    let mut subscriber = Subscriber::of(&subscription)?;
    let (mut messages, mut batches) = (0, 0);
    for batch in subscriber.batches(65_536) {
        let is_message = |update: &&FeedUpdate| matches!(update, FeedUpdate::Message(_));
        messages += batch?.updates.iter().filter(is_message).count();
        batches += 1;
    }
    println!("{messages} messages in {batches} batches");
    Ok(())
}
