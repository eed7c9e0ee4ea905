//! Both sides of ZeroMQ publish and subscribe. See `peers` for the protocol.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenfall_host::clock::process_cpu;

use crate::Result;

const WARM_UP: Duration = Duration::from_millis(500);
/// Messages queued per subscriber before the publisher blocks.
const HIGH_WATER: i32 = 100_000;
const ENDPOINT: &str = "tcp://127.0.0.1:24501";

/// `zeromq-sub FANOUT`
pub fn subscribe(arguments: &[String]) -> Result<()> {
    let fanout: usize = arguments.first().ok_or("no fan-out")?.parse()?;
    let context = zmq::Context::new();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let sockets: std::result::Result<Vec<_>, _> = (0..fanout)
        .map(|_| {
            let socket = context.socket(zmq::SUB)?;
            socket.set_rcvhwm(HIGH_WATER)?;
            socket.set_subscribe(b"")?;
            socket.connect(ENDPOINT)?;
            Ok::<_, zmq::Error>(socket)
        })
        .collect();
    let sockets = sockets?;
    std::thread::spawn(move || drain(&sockets, &counted));
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", count.load(Ordering::Acquire));
    }
    std::process::exit(0);
}

fn drain(sockets: &[zmq::Socket], count: &AtomicU64) {
    let mut message = zmq::Message::new();
    loop {
        let mut got = 0;
        for socket in sockets {
            for _ in 0..1000 {
                if socket.recv(&mut message, zmq::DONTWAIT).is_err() {
                    break;
                }
                got += 1;
            }
        }
        if got > 0 {
            count.fetch_add(got, Ordering::Release);
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// `zeromq-pub FANOUT SIZE RATE SECONDS`
pub fn publish(arguments: &[String]) -> Result<()> {
    let [fanout, size, rate, seconds] = arguments else { return Err("four arguments".into()) };
    let (fanout, size): (usize, usize) = (fanout.parse()?, size.parse()?);
    let (rate, seconds): (f64, f64) = (rate.parse()?, seconds.parse()?);
    let context = zmq::Context::new();
    let mut socket = context.socket(zmq::XPUB)?;
    socket.set_sndhwm(HIGH_WATER)?;
    // With this option the publisher waits for slow subscribers and drops nothing.
    set_nodrop(&mut socket)?;
    socket.set_xpub_verbose(true)?;
    socket.bind(ENDPOINT)?;
    for _ in 0..fanout {
        socket.recv_bytes(0)?;
    }
    send(&socket, size, rate, WARM_UP)?;
    std::thread::sleep(Duration::from_millis(700));
    println!("warm");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let cpu = process_cpu();
    let start = Instant::now();
    let messages = send(&socket, size, rate, Duration::from_secs_f64(seconds))?;
    let elapsed = start.elapsed();
    // The IO thread still sends the queued messages, and its time belongs to the measurement.
    let mut last = process_cpu();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = process_cpu();
        if now - last < Duration::from_micros(500) {
            break;
        }
        last = now;
    }
    println!("done {messages} {} {}", (last - cpu).as_nanos(), elapsed.as_nanos());
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}

fn send(socket: &zmq::Socket, size: usize, rate: f64, duration: Duration) -> Result<u64> {
    let body = vec![42_u8; size];
    let start = Instant::now();
    let mut messages = 0_u64;
    while start.elapsed() < duration {
        if rate > 0.0 {
            let due = Duration::from_secs_f64(messages as f64 / rate);
            let early = due.saturating_sub(start.elapsed());
            if !early.is_zero() {
                std::thread::sleep(early.max(Duration::from_micros(20)));
                continue;
            }
        }
        socket.send(&body[..], 0)?;
        messages += 1;
    }
    Ok(messages)
}

/// `ZMQ_XPUB_NODROP` of `zmq.h`.
const XPUB_NODROP: i32 = 69;

fn set_nodrop(socket: &mut zmq::Socket) -> Result<()> {
    let on: i32 = 1;
    let value = std::ptr::from_ref(&on).cast();
    // SAFETY: the socket is open, and the value is an integer of the stated length.
    let result = unsafe { zmq_sys::zmq_setsockopt(socket.as_mut_ptr(), XPUB_NODROP, value, 4) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}
