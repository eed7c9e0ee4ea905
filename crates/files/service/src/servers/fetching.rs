//! Reads a file from two copies at once.
//!
//! The bytes are divided into parts. Two lanes read parts, each from another dataserver and over a
//! new connection for each part, so that each part takes another source port and so, in a network
//! that spreads flows by their ports, another path. A lane that is done takes the next part. When
//! all parts have begun, a lane that is done takes the end of what the other lane has still to
//! read, in proportion to the measured rates of both ([`Parts`]).
//!
//! A lane from which nothing comes is hedged: the rest of its part is read a second time, from
//! another copy and over another connection. The reading that speaks first goes on, and the other
//! one is dropped, so that bytes of a lane never come over two connections. The wait before a hedge
//! follows the measured delays ([`Patience`]). A lane that is much slower than the other goes on
//! with a copy of which no rate is known, or with the fastest known copy.
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
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use evenfall_files_flow::{PART_BYTES, Patience, ReadDivision};

use super::client::{FilesClient, Tell, accepted, authority, is_passing, location};
use crate::ServiceError;

/// Reads of one file at once: two, because more flows than two take bandwidth from others and gain
/// little.
const LANES: usize = 2;
/// Copies that a reader knows.
const COPIES_MAX: usize = 3;
/// A lane from which nothing has come for this long is given up, and its copy counts as failed. A
/// copy whose hedge spoke first rests for the same time. A disk that is busy with the writes of
/// others may take a second.
const HANG: Duration = Duration::from_secs(2);
/// A lane whose rate is below this share of the other lane's rate tries another copy.
const SLOW: f64 = 0.5;
/// Time between two looks at lanes from which nothing comes: a fifth of the shortest wait before a
/// hedge.
const LOOK: Duration = Duration::from_millis(50);
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
    /// Parts of which the rest was read a second time, because nothing came for a while.
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
    /// The copy fell silent and is not read before this time, unless there is no other copy.
    rests_until: Option<Instant>,
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
    /// Whether this reading has or had a hedge. A reading has one at most.
    is_hedged: bool,
}

impl Lane {
    fn rate(&self) -> f64 {
        self.moved as f64 / self.begun.elapsed().as_secs_f64().max(1e-3)
    }
}

struct Fetch<'a> {
    client: &'a FilesClient,
    out: &'a File,
    parts: ReadDivision,
    copies: Vec<Copy>,
    lanes: [Option<Lane>; LANES],
    /// For each lane, the second reading of the rest of its part. Nothing has come from it yet.
    hedges: [Option<Lane>; LANES],
    /// The waits for the first bytes of a part, and for the bytes behind them.
    patience: [Patience; 2],
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

impl FilesClient {
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
            parts: ReadDivision::new(length, PART_BYTES, LANES),
            copies: Vec::new(),
            lanes: [const { None }; LANES],
            hedges: [const { None }; LANES],
            patience: [Patience::default(); 2],
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
            let found = find(&self.within(attempts.left()), path, (id, length));
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
            if !attempts.again(is_passing(&error), &error) {
                return Err(error);
            }
            if self.within(attempts.left()).file(path)?.1 != id {
                return Err(ServiceError::Answer(format!("{path} was replaced meanwhile")));
            }
        }
        Ok(fetch.fetched)
    }
}

/// The copies of a file, in the order in which the nameserver gives them to readers.
fn find(
    client: &FilesClient,
    path: &str,
    (id, length): (u64, u64),
) -> Result<Vec<Copy>, ServiceError> {
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
        copies.push(Copy {
            url,
            host,
            rate: None,
            has_failed: false,
            rests_until: None,
            flow: None,
        });
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
            let mut heard = self.said.recv_timeout(LOOK).ok();
            // While a piece was written to a slow disk, others came. Their lanes are not silent.
            for _ in 0..PIECES_MAX {
                let Some((turn, said)) = heard.take() else { break };
                self.hear(turn, said, tell)?;
                heard = self.said.try_recv().ok();
            }
            if let Some((turn, said)) = heard {
                self.hear(turn, said, tell)?;
            }
            (0..LANES).for_each(|at| self.look(at));
        }
        // The lanes have nothing left to read.
        self.lanes.iter().chain(&self.hedges).flatten().for_each(|lane| lane.end.store(0, Relaxed));
        Ok(())
    }

    /// Hedges a lane from which nothing has come for a while, or gives the lane up.
    fn look(&mut self, at: usize) {
        let Some(lane) = &self.lanes[at] else { return };
        let silence = lane.moved_at.elapsed();
        let wait = self.patience[usize::from(lane.moved > 0)].wait();
        if silence >= HANG {
            self.give_up(at);
        } else if silence >= wait && !lane.is_hedged {
            self.hedge(at);
        }
    }

    /// Reads the rest of a lane's part a second time: from a copy that nobody reads, or else from
    /// the copy of the other lane, or else from the same copy. A new connection has another source
    /// port and may take another path.
    fn hedge(&mut self, at: usize) {
        let Some(lane) = &mut self.lanes[at] else { return };
        lane.is_hedged = true;
        let own = lane.copy;
        let free = self.choose().filter(|copy| *copy != own);
        let beside = self.lanes.iter().flatten().map(|lane| lane.copy).find(|copy| *copy != own);
        let range = self.parts.reading(at);
        self.fetched.hedged += 1;
        self.hedges[at] = self.begin(free.or(beside).unwrap_or(own), range);
    }

    /// Of a lane and its hedge, the one with this turn goes on, and the other one is dropped.
    /// Returns `None` when the turn belongs to no reading.
    fn settle(&mut self, turn: u64) -> Option<usize> {
        let is_it = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.turn == turn);
        if let Some(at) = self.lanes.iter().position(is_it) {
            self.drop_hedge(at);
            return Some(at);
        }
        let at = self.hedges.iter().position(is_it)?;
        let silent = core::mem::replace(&mut self.lanes[at], self.hedges[at].take());
        if let Some(silent) = silent {
            silent.end.store(0, Relaxed);
            self.copies[silent.copy].rests_until = Some(Instant::now() + HANG);
        }
        Some(at)
    }

    fn drop_hedge(&mut self, at: usize) {
        if let Some(hedge) = self.hedges[at].take() {
            hedge.end.store(0, Relaxed);
        }
    }

    fn hear(&mut self, turn: u64, said: Said, tell: Tell<'_>) -> Result<(), ServiceError> {
        if let Said::Ended(Err(error)) = said {
            self.error = Some(error);
            self.fail(turn);
            return Ok(());
        }
        let Some(at) = self.settle(turn) else { return Ok(()) };
        match said {
            Said::Bytes(bytes) => {
                let reading = self.parts.reading(at);
                let len = (bytes.len() as u64).min(reading.end - reading.start);
                let unwritten = |error| ServiceError::Io("write what was read".into(), error);
                self.out.write_all_at(&bytes[..len as usize], reading.start).map_err(unwritten)?;
                self.parts.read(at, len);
                self.done += len;
                if let Some(lane) = &mut self.lanes[at] {
                    let silence = lane.moved_at.elapsed();
                    self.patience[usize::from(lane.moved > 0)].heard(silence);
                    (lane.moved, lane.moved_at) = (lane.moved + len, Instant::now());
                    let host = &self.copies[lane.copy].host;
                    *self.fetched.from.entry(host.clone()).or_default() += len;
                }
                tell(self.done);
            }
            Said::Ended(_) => {
                if let Some(lane) = self.lanes[at].take() {
                    self.copies[lane.copy].rate = Some(lane.rate());
                }
            }
        }
        Ok(())
    }

    /// A reading has failed. Its lane goes on with the hedge, or a hedge's lane without it.
    fn fail(&mut self, turn: u64) {
        let is_it = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.turn == turn);
        if let Some(at) = self.hedges.iter().position(is_it) {
            if let Some(hedge) = self.hedges[at].take() {
                self.copies[hedge.copy].has_failed = true;
            }
        } else if let Some(at) = self.lanes.iter().position(is_it) {
            match self.hedges[at].take() {
                Some(hedge) => {
                    if let Some(failed) = self.lanes[at].replace(hedge) {
                        self.copies[failed.copy].has_failed = true;
                    }
                }
                None => self.give_up(at),
            }
        }
    }

    /// Leaves the bytes that a lane has not read to others.
    fn give_up(&mut self, at: usize) {
        self.parts.give_up(at);
        self.drop_hedge(at);
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
                for lane in [&self.lanes[other], &self.hedges[other]].into_iter().flatten() {
                    lane.end.store(self.parts.reading(other).end, Relaxed);
                }
            }
            self.lanes[at] = self.begin(copy, range);
            if self.lanes[at].is_none() {
                self.give_up(at);
            }
        }
    }

    /// The copy from which a lane reads its next part: one that no other lane reads and that has
    /// not failed. The fastest known copy goes first, unless it is slow beside the other lane and
    /// the rate of another copy is not known.
    fn choose(&self) -> Option<usize> {
        let other = self.lanes.iter().flatten().next();
        let (now, readings) = (Instant::now(), self.lanes.iter().chain(&self.hedges).flatten());
        let is_read = |copy: usize| readings.clone().any(|lane| lane.copy == copy);
        let is_free = |copy: &usize| !self.copies[*copy].has_failed && !is_read(*copy);
        let rests = |copy: &usize| self.copies[*copy].rests_until.is_some_and(|until| now < until);
        let mut free: Vec<usize> = (0..self.copies.len()).filter(is_free).collect();
        if !free.iter().all(rests) || other.is_some() {
            free.retain(|copy| !rests(copy));
        }
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

    /// Begins to read a range of a copy. `None` when no thread can be started.
    fn begin(&mut self, copy: usize, range: Range<u64>) -> Option<Lane> {
        self.turns += 1;
        let (turn, now) = (self.turns, Instant::now());
        let end = Arc::new(AtomicU64::new(range.end));
        let (moved, is_hedged) = (0, false);
        let lane =
            Lane { turn, copy, end: Arc::clone(&end), begun: now, moved, moved_at: now, is_hedged };
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
        match started {
            Ok(_) => Some(lane),
            Err(error) => {
                self.error = Some(ServiceError::Io("start a thread that reads".into(), error));
                None
            }
        }
    }
}

/// Reads from one dataserver until `end`, which may come nearer meanwhile.
fn read_part(
    client: &FilesClient,
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
