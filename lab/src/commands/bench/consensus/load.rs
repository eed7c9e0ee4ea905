//! The load generator: connections to servers, and a thread or two for each connection.
//!
//! With a number of requests under way, a thread sends a request for each answer. With a rate, a
//! thread sends the requests that are due, another reads the answers, and the time of a request
//! counts from the moment at which the request was due. A server answers the requests of a
//! connection in their order, and a thread that reads another order fails.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use evenfall_core::Histogram;

use super::super::Failure;

/// Time between two looks for writes that are due.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Bytes of answers that one read takes.
const ANSWERS_BYTES: usize = 64 << 10;

/// Adds this many requests to the bytes that are sent next.
pub type Encode = Box<dyn FnMut(usize, &mut Vec<u8>) + Send>;
/// Reads the whole answers at the beginning of the bytes that have come. Returns the number of
/// bytes that they take, and the number of answers.
pub type Decode = Box<dyn FnMut(&[u8]) -> Result<(usize, usize), String> + Send>;
/// Opens a session on a new connection with this number, and returns the protocol of the
/// connection.
pub type Open<'a> = dyn Fn(u64, &mut TcpStream) -> Result<(Encode, Decode), String> + Sync + 'a;
/// The function that is called at the beginning and at the end of a measurement.
pub type Edge<'a> = dyn FnMut() -> Result<(), Failure> + 'a;

/// The load: its connections and its requests.
pub struct Load<'a> {
    /// The server of each connection.
    pub addresses: Vec<SocketAddr>,
    pub open: &'a Open<'a>,
    /// Time before a measurement, in which pages, sockets and compilers become warm.
    pub warm_up: Duration,
    pub duration: Duration,
}

/// The result of a measurement.
pub struct Measured {
    /// Requests that were answered.
    pub done: u64,
    pub seconds: f64,
    pub times: Histogram,
}

impl Measured {
    pub fn per_s(&self) -> f64 {
        self.done as f64 / self.seconds
    }
}

/// The state that the threads of a measurement share.
#[derive(Default)]
struct Phase {
    counts: AtomicBool,
    ends: AtomicBool,
    done: AtomicU64,
}

impl Load<'_> {
    /// Keeps this many requests under way on each connection.
    pub fn closed(&self, outstanding: usize, edge: &mut Edge<'_>) -> Result<Measured, Failure> {
        let phase = Phase::default();
        std::thread::scope(|scope| {
            let one = |(seed, address): (u64, &SocketAddr)| {
                let (address, phase) = (*address, &phase);
                scope.spawn(move || self.keep_under_way(address, seed, outstanding, phase))
            };
            let threads: Vec<_> = (0..).zip(&self.addresses).map(one).collect();
            self.watch(&phase, threads, edge)
        })
    }

    /// Sends this many requests in a second, in equal shares over all connections.
    pub fn paced(&self, rate: f64, edge: &mut Edge<'_>) -> Result<Measured, Failure> {
        let phase = Phase::default();
        let every = Duration::from_secs_f64(self.addresses.len() as f64 / rate);
        std::thread::scope(|scope| {
            let one = |(seed, address): (u64, &SocketAddr)| {
                let (address, phase) = (*address, &phase);
                scope.spawn(move || self.keep_pace(address, seed, every, phase))
            };
            let threads: Vec<_> = (0..).zip(&self.addresses).map(one).collect();
            self.watch(&phase, threads, edge)
        })
    }

    fn watch(
        &self,
        phase: &Phase,
        threads: Vec<ScopedJoinHandle<'_, Result<Histogram, String>>>,
        edge: &mut Edge<'_>,
    ) -> Result<Measured, Failure> {
        std::thread::sleep(self.warm_up);
        let begun = edge();
        phase.counts.store(true, Relaxed);
        let (before, begin) = (phase.done.load(Relaxed), Instant::now());
        std::thread::sleep(self.duration);
        let (after, seconds) = (phase.done.load(Relaxed), begin.elapsed().as_secs_f64());
        phase.counts.store(false, Relaxed);
        let ended = edge();
        phase.ends.store(true, Relaxed);
        let mut times = Histogram::default();
        for thread in threads {
            let own = thread.join().map_err(|_| "a thread of the generator panicked")?;
            times.merge(&own?);
        }
        begun.and(ended)?;
        Ok(Measured { done: after - before, seconds, times })
    }

    fn keep_under_way(
        &self,
        address: SocketAddr,
        seed: u64,
        outstanding: usize,
        phase: &Phase,
    ) -> Result<Histogram, String> {
        let mut stream = connect(address)?;
        let (mut encode, decode) = (self.open)(seed, &mut stream)?;
        let (mut bytes, mut answers) = (Vec::new(), Answers::new(decode));
        let (mut times, mut starts) = (Histogram::default(), VecDeque::new());
        let mut due = outstanding;
        loop {
            let now = Instant::now();
            if !phase.ends.load(Relaxed) {
                starts.extend(core::iter::repeat_n(now, due));
                bytes.clear();
                encode(due, &mut bytes);
                stream.write_all(&bytes).map_err(failed)?;
            }
            if starts.is_empty() {
                return Ok(times);
            }
            due = answers.read(&mut stream)?;
            phase.done.fetch_add(due as u64, Relaxed);
            let (now, counts) = (Instant::now(), phase.counts.load(Relaxed));
            for start in starts.drain(..due.min(starts.len())) {
                if counts {
                    times.record(now - start);
                }
            }
        }
    }

    fn keep_pace(
        &self,
        address: SocketAddr,
        seed: u64,
        every: Duration,
        phase: &Phase,
    ) -> Result<Histogram, String> {
        let mut stream = connect(address)?;
        let mut own = stream.try_clone().map_err(failed)?;
        let (mut encode, decode) = (self.open)(seed, &mut stream)?;
        let begin = Instant::now();
        let (sent, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut send = move |count: u64| {
            let mut bytes = Vec::new();
            encode(count as usize, &mut bytes);
            own.write_all(&bytes).map_err(failed)
        };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                while !phase.ends.load(Relaxed) {
                    let due = (begin.elapsed().as_secs_f64() / every.as_secs_f64()) as u64;
                    let count = due - sent.load(Relaxed);
                    send(count)?;
                    sent.fetch_add(count, Relaxed);
                    std::thread::sleep(LOOK_EVERY);
                }
                // The answer to one last request ends the wait of the reader.
                ended.store(true, Relaxed);
                sent.fetch_add(1, Relaxed);
                send(1)
            });
            let (mut answers, mut times) = (Answers::new(decode), Histogram::default());
            let mut done = 0_u64;
            while !ended.load(Relaxed) || done < sent.load(Relaxed) {
                let count = answers.read(&mut stream)? as u64;
                let counts = phase.counts.load(Relaxed);
                for number in done..done + count {
                    if counts {
                        let due = every.mul_f64((number + 1) as f64);
                        times.record(begin.elapsed().saturating_sub(due));
                    }
                }
                done += count;
                phase.done.fetch_add(count, Relaxed);
            }
            sender.join().map_err(|_| "a thread that sends panicked")??;
            Ok(times)
        })
    }
}

fn failed(error: std::io::Error) -> String {
    format!("a connection to a server failed: {error}")
}

fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

/// The answers of one connection.
struct Answers {
    decode: Decode,
    buffer: Vec<u8>,
    kept: usize,
}

impl Answers {
    fn new(decode: Decode) -> Self {
        Self { decode, buffer: vec![0; ANSWERS_BYTES], kept: 0 }
    }

    /// Waits for bytes, and returns how many answers they complete.
    fn read(&mut self, stream: &mut TcpStream) -> Result<usize, String> {
        let count = stream.read(&mut self.buffer[self.kept..]).map_err(failed)?;
        if count == 0 {
            return Err("a server closed a connection".into());
        }
        let length = self.kept + count;
        let (whole, answers) = (self.decode)(&self.buffer[..length])?;
        self.buffer.copy_within(whole..length, 0);
        self.kept = length - whole;
        Ok(answers)
    }
}
