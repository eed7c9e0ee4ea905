//! Measures how long `evenfall_core::Cipher` and the crate `chacha20poly1305` take, in turn, to
//! seal and to open a message beside the 57 bytes of a frame's header. Prints the medians of nine
//! rounds in nanoseconds, for messages of several lengths.
//!
//! ```text
//! cargo run --release --manifest-path bench-peers/seal/Cargo.toml
//! ```

use std::hint::black_box;
use std::time::Instant;

use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use evenfall_core::Cipher;

const ROUNDS: usize = 9;
const MESSAGES: u64 = 20_000;
const HEADER: [u8; 57] = [3; 57];

/// Nanoseconds of a call.
fn time(mut call: impl FnMut(u64)) -> f64 {
    let begun = Instant::now();
    (0..MESSAGES).for_each(&mut call);
    begun.elapsed().as_nanos() as f64 / MESSAGES as f64
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce
}

fn main() {
    let (own, other) = (Cipher::new(&[7; 32]), ChaCha20Poly1305::new(&[7; 32].into()));
    println!("bytes   seal: evenfall, chacha20poly1305   open: evenfall, chacha20poly1305 (ns)");
    for length in [16, 64, 200, 512, 1_400, 8_000] {
        let message = vec![1; length];
        let mut sealed = message.clone();
        let tag = own.seal(5, &HEADER, &mut sealed);
        let with_tag = [&sealed[..], &tag].concat();
        let mut rounds = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            rounds[0].push(time(|number| {
                let mut bytes = message.clone();
                black_box(own.seal(number, &HEADER, &mut bytes));
            }));
            rounds[1].push(time(|number| {
                let mut bytes = message.clone();
                let tag = other.encrypt_in_place_detached(&nonce(number), &HEADER, &mut bytes);
                black_box(tag.expect("a short message"));
            }));
            rounds[2].push(time(|_| {
                black_box(own.open(5, &HEADER, &with_tag).expect("it opens"));
            }));
            rounds[3].push(time(|_| {
                let mut bytes = sealed.clone();
                let tag = (&tag).into();
                let opened = other.decrypt_in_place_detached(&nonce(5), &HEADER, &mut bytes, tag);
                black_box(opened.expect("it opens"));
            }));
        }
        let [a, b, c, d] = rounds.map(|mut round| {
            round.sort_by(f64::total_cmp);
            round[ROUNDS / 2]
        });
        println!("{length:>5} {a:>15.0} {b:>17.0} {c:>16.0} {d:>17.0}");
    }
}
