//! Reads a file from two copies at once.
//!
//! The bytes are divided into parts. Two lanes read parts, each from another dataserver and over a
//! new connection for each part, so that each part takes another source port and so, in a network
//! that spreads flows by their ports, another path. A lane that is done takes the next part. When
//! all parts have begun, a lane that is done takes the end of what the other lane has still to
//! read, in proportion to the measured rates of both ([`Parts`]).
//!
//! A lane from which nothing comes is given up, and another copy reads what the lane has not: the
//! part is hedged. A lane that is much slower than the other goes on with a copy of which no rate
//! is known, or with the fastest known copy.
//!
//! In a cluster with a flowserver, the flowserver chooses the first copies, and decides whether one
//! lane reads or two. In a cluster without a flowserver, the first copies are those that the
//! nameserver names first.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use evenfall_files_flow::{PART_BYTES, Parts};

use super::client::{Client, Tell, accepted, authority, is_passing, location};
use crate::ServiceError;

/// Reads of one file at once: two, because more flows than two take bandwidth from others and gain
/// little.
const LANES: usize = 2;
/// Copies that a reader knows.
const COPIES_MAX: usize = 3;
/// A lane from which nothing has come for this long is given up. A disk that is busy with the
/// writes of others may take a second.
const HANG: Duration = Duration::from_secs(2);
/// A lane whose rate is below this share of the other lane's rate tries another copy.
const SLOW: f64 = 0.5;
/// Time between two looks at lanes from which nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that a lane hands over at once.
const PIECE_BYTES: usize = 128 << 10;
/// Limit of the pieces that wait to be written. A lane with a further piece waits until there is
/// room.
const PIECES_MAX: usize = 16;
/// Redirects that a lane follows until a server gives bytes.
const REDIRECTS_MAX: usize = 5;

/// What was read, and from where.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// Bytes of the file.
    pub length: u64,
    /// Bytes that each dataserver gave.
    pub from: BTreeMap<String, u64>,
    /// Parts that were given up because nothing came, and read from another copy.
    pub hedged: u64,
    /// Whether a flowserver has chosen the copies.
    pub is_steered: bool,
}

/// A copy of the file.
struct Copy {
    /// Where the copy is read, without the range.
    url: String,
    host: String,
    /// Bytes a second of the last part.
    rate: Option<f64>,
    has_failed: bool,
    /// The flow that the flowserver has given to reads of the copy.
    flow: Option<u64>,
}

/// A message of a lane.
enum Said {
    Bytes(Vec<u8>),
    Ended(Result<(), ServiceError>),
}

/// A part that is being read.
struct Lane {
    /// The number of this reading. After a lane is given up, messages with its old number are
    /// ignored.
    turn: u64,
    copy: usize,
    /// Where the reading stops. Another lane may take the last bytes and set an earlier end.
    end: Arc<AtomicU64>,
    begun: Instant,
    moved: u64,
    moved_at: Instant,
}

impl Lane {
    fn rate(&self) -> f64 {
        self.moved as f64 / self.begun.elapsed().as_secs_f64().max(1e-3)
    }
}

struct Fetch<'a> {
    client: &'a Client,
    out: &'a File,
    parts: Parts,
    copies: Vec<Copy>,
    lanes: [Option<Lane>; LANES],
    /// Number of lanes that read at once: one if the flowserver finds no gain in a second lane, and
    /// else two.
    lanes_max: usize,
    turns: u64,
    say: SyncSender<(u64, Said)>,
    said: Receiver<(u64, Said)>,
    done: u64,
    fetched: Fetched,
    error: Option<ServiceError>,
}

impl Client {
    /// Copies a file to the beginning of a local file, out of two copies at once.
    ///
    /// # Errors
    /// The exception of a server, that no server answers, or that the local file takes no bytes.
    pub fn fetch(
        &self,
        path: &str,
        out: &File,
        begin: &mut dyn FnMut(u64),
        tell: Tell<'_>,
    ) -> Result<Fetched, ServiceError> {
        let (length, id) = self.file(path)?;
        begin(length);
        let (say, said) = sync_channel(PIECES_MAX);
        let mut fetch = Fetch {
            client: self,
            out,
            parts: Parts::new(length, PART_BYTES, LANES),
            copies: Vec::new(),
            lanes: [const { None }; LANES],
            lanes_max: LANES,
            turns: 0,
            say,
            said,
            done: 0,
            fetched: Fetched { length, ..Fetched::default() },
            error: None,
        };
        let mut attempts = self.attempts();
        while fetch.done < length {
            let before = fetch.done;
            let found = find(self, path, (id, length));
            let read = found.and_then(|copies| {
                fetch.steer(copies, length);
                let read = fetch.run(length, tell);
                fetch.end_flows();
                read
            });
            let error = match read {
                Ok(()) => break,
                Err(error) => error,
            };
            if fetch.done > before {
                attempts = self.attempts();
            }
            if !attempts.again(is_passing(&error)) {
                return Err(error);
            }
            if self.file(path)?.1 != id {
                return Err(ServiceError::Answer(format!("{path} was replaced meanwhile")));
            }
        }
        Ok(fetch.fetched)
    }
}

/// The copies of a file, in the order in which the nameserver gives them to readers.
fn find(client: &Client, path: &str, (id, length): (u64, u64)) -> Result<Vec<Copy>, ServiceError> {
    let mut copies: Vec<Copy> = Vec::new();
    while copies.len() < COPIES_MAX {
        let known: Vec<&str> = copies.iter().map(|copy| copy.host.as_str()).collect();
        let known = known.join(",");
        let arguments = [("noredirect", "true"), ("excludedatanodes", known.as_str())];
        let value = match client.get_once(path, "OPEN", &arguments) {
            Ok(value) => value,
            // No further copy lives.
            Err(ServiceError::Refused(..)) if !copies.is_empty() => break,
            Err(error) => return Err(error),
        };
        let url = value["Location"].as_str().unwrap_or_default();
        let host = authority(url).to_owned();
        if !url.contains(&format!("file={id}&")) {
            return Err(ServiceError::Answer(format!("{path} was replaced meanwhile")));
        }
        if copies.iter().any(|copy| copy.host == host) {
            break;
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let is_kept = |argument: &&str| {
            !["offset=", "length=", "end="].iter().any(|name| argument.starts_with(name))
        };
        let query: Vec<&str> = query.split('&').filter(is_kept).collect();
        let url = format!("{place}?{}&end={length}", query.join("&"));
        copies.push(Copy { url, host, rate: None, has_failed: false, flow: None });
    }
    Ok(copies)
}

impl Fetch<'_> {
    /// Takes these copies, in the order in which the flowserver gives them if there is one.
    fn steer(&mut self, mut copies: Vec<Copy>, length: u64) {
        let hosts: Vec<&str> = copies.iter().map(|copy| copy.host.as_str()).collect();
        let steering = self.client.steering.as_ref();
        let legs = steering.map_or_else(Vec::new, |steering| steering.read(&hosts, length));
        self.lanes_max = if legs.is_empty() { LANES } else { legs.len().min(LANES) };
        self.fetched.is_steered = !legs.is_empty();
        for (flow, copy) in &legs {
            if let Some(copy) = copies.get_mut(*copy) {
                copy.flow = Some(*flow);
            }
        }
        let place = |at: usize| legs.iter().position(|(_, copy)| *copy == at);
        let mut order: Vec<usize> = (0..copies.len()).collect();
        order.sort_by_key(|at| place(*at).unwrap_or(usize::MAX));
        let mut copies: Vec<Option<Copy>> = copies.into_iter().map(Some).collect();
        self.copies = order.into_iter().filter_map(|at| copies[at].take()).collect();
    }

    /// Tells the flowserver that the flows of this reading have ended.
    fn end_flows(&self) {
        if let Some(steering) = &self.client.steering {
            let flows: Vec<u64> = self.copies.iter().filter_map(|copy| copy.flow).collect();
            steering.end(&flows);
        }
    }

    /// Reads until all bytes are there, or until every copy has failed.
    fn run(&mut self, length: u64, tell: Tell<'_>) -> Result<(), ServiceError> {
        while self.done < length {
            self.begin_parts();
            if self.lanes.iter().all(Option::is_none) {
                let nobody = || ServiceError::Answer("no copy of the file can be read".into());
                return Err(self.error.take().unwrap_or_else(nobody));
            }
            match self.said.recv_timeout(LOOK) {
                Ok((turn, said)) => self.hear(turn, said, tell)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            for lane in 0..LANES {
                let hangs = self.lanes[lane].as_ref().is_some_and(|l| l.moved_at.elapsed() >= HANG);
                if hangs {
                    self.fetched.hedged += 1;
                    self.give_up(lane);
                }
            }
        }
        // The lanes have nothing left to read.
        self.lanes.iter().flatten().for_each(|lane| lane.end.store(0, Relaxed));
        Ok(())
    }

    fn lane_of(&self, turn: u64) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.as_ref().is_some_and(|lane| lane.turn == turn))
    }

    fn hear(&mut self, turn: u64, said: Said, tell: Tell<'_>) -> Result<(), ServiceError> {
        let Some(at) = self.lane_of(turn) else { return Ok(()) };
        match said {
            Said::Bytes(bytes) => {
                let reading = self.parts.reading(at);
                let len = (bytes.len() as u64).min(reading.end - reading.start);
                let unwritten = |error| ServiceError::Io("write what was read".into(), error);
                self.out.write_all_at(&bytes[..len as usize], reading.start).map_err(unwritten)?;
                self.parts.read(at, len);
                self.done += len;
                if let Some(lane) = &mut self.lanes[at] {
                    (lane.moved, lane.moved_at) = (lane.moved + len, Instant::now());
                    let host = &self.copies[lane.copy].host;
                    *self.fetched.from.entry(host.clone()).or_default() += len;
                }
                tell(self.done);
            }
            Said::Ended(Ok(())) => {
                if let Some(lane) = self.lanes[at].take() {
                    self.copies[lane.copy].rate = Some(lane.rate());
                }
            }
            Said::Ended(Err(error)) => {
                self.error = Some(error);
                self.give_up(at);
            }
        }
        Ok(())
    }

    /// Leaves the bytes that a lane has not read to others.
    fn give_up(&mut self, at: usize) {
        self.parts.give_up(at);
        if let Some(lane) = self.lanes[at].take() {
            lane.end.store(0, Relaxed);
            self.copies[lane.copy].has_failed = true;
            self.copies[lane.copy].rate = None;
        }
    }

    /// Gives its next part to each lane that has none.
    fn begin_parts(&mut self) {
        for at in 0..self.lanes_max {
            if self.lanes[at].is_some() {
                continue;
            }
            let Some(copy) = self.choose() else { continue };
            let of = |lane: &Option<Lane>| lane.as_ref().map_or(0.0, Lane::rate);
            let mut speeds: Vec<f64> = self.lanes.iter().map(of).collect();
            // A copy of which no rate is known counts as fast as the other lane.
            let fastest = speeds.iter().copied().fold(0.0, f64::max);
            speeds[at] = self.copies[copy].rate.unwrap_or(fastest);
            let Some(range) = self.parts.next(at, &speeds) else { continue };
            for other in 0..LANES {
                if let Some(lane) = &self.lanes[other] {
                    lane.end.store(self.parts.reading(other).end, Relaxed);
                }
            }
            self.begin(at, copy, range);
        }
    }

    /// The copy from which a lane reads its next part: one that no other lane reads and that has
    /// not failed. The fastest known copy goes first, unless it is slow beside the other lane and
    /// the rate of another copy is not known.
    fn choose(&self) -> Option<usize> {
        let other = self.lanes.iter().flatten().next();
        let is_free = |copy: &usize| {
            !self.copies[*copy].has_failed && other.is_none_or(|lane| lane.copy != *copy)
        };
        let free: Vec<usize> = (0..self.copies.len()).filter(is_free).collect();
        let rate = |copy: &usize| self.copies[*copy].rate;
        let known = free.iter().copied().filter(|copy| rate(copy).is_some());
        let best = known.max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)));
        let unknown = free.iter().copied().find(|copy| rate(copy).is_none());
        let is_slow = |copy: &usize| {
            let beside = other.map_or(0.0, Lane::rate);
            rate(copy).unwrap_or(0.0) < SLOW * beside
        };
        best.filter(|copy| unknown.is_none() || !is_slow(copy)).or(unknown)
    }

    fn begin(&mut self, at: usize, copy: usize, range: Range<u64>) {
        self.turns += 1;
        let (turn, now) = (self.turns, Instant::now());
        let end = Arc::new(AtomicU64::new(range.end));
        let lane = Lane { turn, copy, end: Arc::clone(&end), begun: now, moved: 0, moved_at: now };
        self.lanes[at] = Some(lane);
        let (client, say) = (self.client.clone(), self.say.clone());
        let bytes = range.end - range.start;
        let mut url = format!("{}&offset={}&length={bytes}", self.copies[copy].url, range.start);
        if let Some(flow) = self.copies[copy].flow {
            url += &format!("&flow={flow}");
        }
        let work = move || {
            let ended = read_part(&client, &url, range.start, &end, &mut |piece| {
                say.send((turn, Said::Bytes(piece))).is_ok()
            });
            // The message of a lane that was given up has no receiver.
            let _ = say.send((turn, Said::Ended(ended)));
        };
        // The thread of a lane that is given up ends when its server falls silent.
        let started = std::thread::Builder::new().name("fetch".into()).spawn(work);
        if let Err(error) = started {
            self.error = Some(ServiceError::Io("start a thread that reads".into(), error));
            self.give_up(at);
        }
    }
}

/// Reads from one dataserver until `end`, which may come nearer meanwhile.
fn read_part(
    client: &Client,
    url: &str,
    mut at: u64,
    end: &AtomicU64,
    give: &mut dyn FnMut(Vec<u8>) -> bool,
) -> Result<(), ServiceError> {
    let mut url = url.to_owned();
    let mut answer = accepted(client.once(&url)?)?;
    for _ in 0..REDIRECTS_MAX {
        if !answer.status.is_redirection() {
            break;
        }
        url = location(&answer)?;
        answer = accepted(client.once(&url)?)?;
    }
    let cut = |error: io::Error| ServiceError::cut(authority(&url), error);
    while at < end.load(Relaxed) {
        let mut piece = vec![0; PIECE_BYTES];
        let len = answer.read(&mut piece).map_err(cut)?;
        if len == 0 {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        piece.truncate(len);
        at += len as u64;
        if !give(piece) {
            return Ok(());
        }
    }
    Ok(())
}
