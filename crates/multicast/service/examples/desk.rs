//! A trading desk: subscribes as a receiver of a settings file, takes some symbols only.
//!
//! `desk evenfall.toml desk-1 AAPL MSFT` prints a line per message: its number, when it was
//! released, and its bytes in hexadecimal.

use evenfall_multicast_service::{Subscriber, Update};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [settings, name, symbols @ ..] = &args[..] else {
        return Err("usage: desk SETTINGS NAME [SYMBOL...]".into());
    };
    let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
    for update in Subscriber::join(settings, name)?.only(&symbols) {
        match update? {
            Update::Message(m) => println!("{} {} {:02x}", m.number, m.released.nanos(), m.bytes),
            Update::Lost { messages, .. } => eprintln!("lost {messages:?}"),
        }
    }
    Ok(())
}
