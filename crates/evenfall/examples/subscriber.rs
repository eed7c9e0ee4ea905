//! A trading desk: subscribes by plain values and takes some symbols only.
//!
//! `subscriber ROOT OWN ID [SYMBOL...]`, such as `subscriber 127.0.0.1:9000 127.0.0.1:9007 7 AAPL`,
//! prints a line per message: its number, when it was released, and its bytes in hexadecimal.
//! ROOT is the address of the root. OWN and ID are the address and the id of this receiver in the
//! root's settings.

use evenfall::NodeId;
use evenfall::subscriber::{FeedUpdate, Subscriber, Subscription};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [root, own, id, symbols @ ..] = &args[..] else {
        return Err("usage: subscriber ROOT OWN ID [SYMBOL...]".into());
    };
    let subscription = Subscription::new(root.parse()?, own.parse()?, NodeId(id.parse()?));
    let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
    for update in Subscriber::of(&subscription)?.only(&symbols) {
        match update? {
            FeedUpdate::Message(m) => {
                println!("{} {} {:02x}", m.number, m.released.nanos(), m.bytes)
            }
            FeedUpdate::Lost { messages, .. } => eprintln!("lost {messages:?}"),
            _ => {}
        }
    }
    Ok(())
}
