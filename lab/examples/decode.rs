//! How long a message takes to decode, beside the physical limit of touching its bytes.
//!
//! `cargo run --release -p evenfall-lab --example decode [file]`: the median of five passes, each
//! over at least a million messages; without a file, over a synthetic feed.

use evenfall_feed_formats::sharding::ContentHash;
use evenfall_feed_formats::synthetic::{Config, Generator};
use evenfall_feed_formats::{MessageSource, framed, itch, open};
use std::hint::black_box;
use std::io::Cursor;
use std::time::Instant;

const MESSAGES_MIN: usize = 1_000_000;

fn median_ns(messages: usize, mut pass: impl FnMut()) -> f64 {
    let rounds = MESSAGES_MIN.div_ceil(messages);
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| pass());
            start.elapsed().as_nanos() as f64 / (rounds * messages) as f64
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[2]
}

/// Reads every field of the types that a book is made of.
fn fields(view: &itch::View<'_>) -> u64 {
    let body = match view {
        itch::View::AddOrder(add) => {
            add.order_reference() ^ u64::from(add.shares()) ^ u64::from(add.price().0)
        }
        itch::View::OrderDelete(delete) => delete.order_reference(),
        itch::View::OrderExecuted(done) => done.order_reference() ^ done.match_number(),
        itch::View::OrderReplace(replace) => replace.original_reference() ^ replace.new_reference(),
        _ => 0,
    };
    body ^ view.timestamp_ns() ^ u64::from(view.stock_locate())
}

fn synthetic_file() -> Vec<u8> {
    let config = Config { messages: MESSAGES_MIN as u64, ..Config::default() };
    let mut generator = Generator::new(config).expect("the default is valid");
    let mut file = Vec::new();
    while let Ok(Some(message)) = generator.next_message() {
        framed::write_frame(&mut file, &message.bytes);
    }
    file
}

fn walk(file: &[u8], mut each: impl FnMut(&[u8])) {
    let mut rest = file;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let (message, tail) = tail.split_at(usize::from(u16::from_be_bytes(*length)));
        each(message);
        rest = tail;
    }
}

fn main() {
    let file = match std::env::args().nth(1) {
        Some(path) => std::fs::read(path).expect("a readable ITCH file"),
        None => synthetic_file(),
    };
    let mut messages = 0;
    walk(&file, |_| messages += 1);
    let mut copy = vec![0; file.len()];

    let limit = median_ns(messages, || copy.copy_from_slice(black_box(&file)));
    let frames = median_ns(messages, || {
        walk(black_box(&file), |message| {
            black_box(message[0]);
        })
    });
    let decode = median_ns(messages, || {
        let mut sum = 0;
        walk(black_box(&file), |message| {
            sum ^= fields(&itch::View::decode(message).expect("an ITCH message"));
        });
        black_box(sum);
    });
    let source = median_ns(messages, || {
        let reader = Box::new(Cursor::new(file.clone()));
        let mut source = open(reader, "bench").expect("an ITCH file");
        while let Some(message) = source.next_message().expect("an ITCH file") {
            black_box(message);
        }
    });
    let hash = median_ns(messages, || {
        let mut hash = ContentHash::new(4);
        walk(black_box(&file), |message| hash.update(usize::from(message[2] & 3), message));
        black_box(hash.finish());
    });
    let generate = median_ns(MESSAGES_MIN, || {
        black_box(synthetic_file());
    });
    println!("{messages} messages, {} bytes", file.len());
    println!("copy of the file (limit)   {limit:7.2} ns/message");
    for (name, ns) in [
        ("walk of the frames", frames),
        ("decode and read fields", decode),
        ("open + next_message", source),
        ("content hash", hash),
        ("synthetic generator", generate),
    ] {
        println!("{name:<26} {ns:7.2} ns/message, {:6.1} x the copy", ns / limit);
    }
}
