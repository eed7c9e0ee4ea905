//! Reads a file over several connections at once, and leaves those that are slow.
//!
//! ```text
//!  |   part     |   part     | ...      lane 0 --port 40001--> copy 0   slow: reads on beside
//!  |-- lane 0 --|-- lane 1 --|           trial --port 40007--> copy 0   the second half
//!  |     |-trial|            |          lane 1 --port 40002--> copy 1
//! ```
//!
//! The bytes are divided into parts. Lanes read parts, each from another copy as long as there are
//! copies, and over a new connection for each part. A new connection has another source port, and
//! so another path in a network that spreads connections by their ports. A lane that is done takes
//! the next part. When all parts have begun, a lane that is done takes the end of what another lane
//! has still to read, in proportion to the measured rates of both ([`ReadDivision`]).
//!
//! **A slow lane changes its path.** The reader measures each connection four times a second, and
//! compares the rate with what the connection could have ([`evenfall_files_flow::agentless`]). The
//! card of the reader is taken to carry the greatest sum of rates that was measured. A lane that is
//! much slower than its share gives the second half of its part to a trial: a connection from
//! another port, every second time of another copy. When the trial is faster, the trial goes on as
//! the lane, and the old connection is left. Otherwise the trial is left. No byte that has come is
//! lost either way, and the old connection stays open until its place is taken.
//!
//! **A silent lane is hedged**: the rest of its part is read a second time, from another copy. The
//! connection that speaks first goes on, and the other one is left. The wait before a hedge follows
//! the measured delays ([`Patience`]).
//!
//! **A late end is hedged too.** When a lane has nothing left to take, and the last bytes of
//! another lane would come much earlier over a new connection, both connections read these bytes,
//! and the one that is ahead goes on.
//!
//! In a cluster with a flowserver, the flowserver chooses the first copies, and decides whether one
//! lane reads or two. Where paths were set up beforehand, the flowserver also chooses the path, and
//! the lane reads from a port of that path. In a cluster without a flowserver, the first copies are
//! those that the nameserver names first.

mod connection;
mod copies;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use evenfall_files_flow::agentless::REST;
use evenfall_files_flow::{
    PART_BYTES, PathChange, PathTrials, Patience, ReadDivision, STOLEN_BYTES_MIN, fair_share,
    is_end_late,
};

use self::connection::{CopyRange, PIECE_BYTES, ReadConnection, ReadEvent, read_range};
use self::copies::{SourceCopy, WantedFile, choose_copy, find_copies};
use super::client::{FilesClient, Tell, is_passing};
use crate::ServiceError;
use crate::settings::{CONNECTIONS_MAX, ReadLimits};

/// A lane from which nothing has come for this long is given up, and its copy counts as failed.
const HANG: Duration = REST;
/// Time between two looks at lanes from which nothing comes: a fifth of the shortest wait before a
/// hedge.
const LOOK: Duration = Duration::from_millis(50);
/// A lane whose rest takes less than this many seconds tries no other path: a trial takes a quarter
/// of a second to be measured.
const TRIAL_WORTH_S: f64 = 1.0;

/// What was read, and from where.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// Bytes of the file.
    pub length: u64,
    /// Bytes that each dataserver gave.
    pub from: BTreeMap<String, u64>,
    /// Connections to dataservers, each from another source port.
    pub connections: u64,
    /// Parts of which the rest was read a second time, because nothing came for a while or the end
    /// was late.
    pub hedged: u64,
    /// Bytes that came twice, because they were hedged.
    pub repeated_bytes: u64,
    /// Trials of another port or another copy, because a connection was slow.
    pub tried: u64,
    /// Trials that were faster, so that the rest of the part came that way.
    pub repathed: u64,
    /// Whether a flowserver has chosen the copies.
    pub is_steered: bool,
    /// The names of the paths that the flowserver chose, by dataserver, where paths were set up
    /// beforehand.
    pub paths: BTreeMap<String, String>,
}

/// A lane: up to two connections that read one part. The hedge and the trial are there beside the
/// first connection only, and never together.
struct Lane {
    main: Option<ReadConnection>,
    /// The second reading of the rest of the part.
    hedge: Option<ReadConnection>,
    /// Whether the hedge races with a connection that is slow and not silent.
    is_race: bool,
    /// The connection on trial, which reads the end of the part.
    trial: Option<ReadConnection>,
    paths: PathTrials,
}

/// What a connection is to its lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneRole {
    Main,
    Hedge,
    Trial,
}

impl Lane {
    fn connection_mut(&mut self, role: LaneRole) -> &mut Option<ReadConnection> {
        match role {
            LaneRole::Main => &mut self.main,
            LaneRole::Hedge => &mut self.hedge,
            LaneRole::Trial => &mut self.trial,
        }
    }

    fn all_connections(&self) -> impl Iterator<Item = &ReadConnection> {
        [&self.main, &self.hedge, &self.trial].into_iter().flatten()
    }

    fn drop_hedge(&mut self) {
        if let Some(hedge) = self.hedge.take() {
            hedge.stop_reading();
        }
    }
}

struct Fetch<'a> {
    client: &'a FilesClient,
    out: &'a File,
    /// The parts of the lanes, and behind them the parts of the lanes' trials.
    parts: ReadDivision,
    copies: Vec<SourceCopy>,
    lanes: Vec<Lane>,
    /// The waits for the first bytes of a part, and for the bytes behind them.
    patience: [Patience; 2],
    /// Number of lanes that read at once: one if the flowserver finds no gain in a second lane.
    lanes_max: usize,
    /// The greatest rate of a connection, in bytes a second.
    fastest: f64,
    /// The greatest sum of the rates of all connections, in bytes a second.
    fastest_sum: f64,
    turns: u64,
    /// Limit of the pieces that wait to be written. A connection with a further piece waits until
    /// there is room.
    pieces_max: usize,
    say: SyncSender<(u64, ReadEvent)>,
    said: Receiver<(u64, ReadEvent)>,
    done: u64,
    fetched: Fetched,
    error: Option<ServiceError>,
}

impl FilesClient {
    /// Copies a file to the beginning of a local file, over several connections at once.
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
        let wanted = WantedFile { path, id, length };
        let mut fetch = Fetch::new(self, out, length);
        let mut attempts = self.attempts();
        while fetch.done < length {
            let before = fetch.done;
            let found = find_copies(&self.within(attempts.left()), wanted);
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
                return Err(wanted.was_replaced());
            }
        }
        Ok(fetch.fetched)
    }
}

impl<'a> Fetch<'a> {
    fn new(client: &'a FilesClient, out: &'a File, length: u64) -> Self {
        let ReadLimits { connections, ports, bytes_in_flight } = client.limits;
        let connections = connections.clamp(1, CONNECTIONS_MAX);
        // One piece may be on its way however small the limit is.
        let pieces_max = (bytes_in_flight / PIECE_BYTES).max(1);
        let (say, said) = sync_channel(pieces_max);
        let lane = || Lane {
            main: None,
            hedge: None,
            is_race: false,
            trial: None,
            paths: PathTrials::new(ports),
        };
        Self {
            client,
            out,
            parts: ReadDivision::new(length, PART_BYTES, 2 * connections),
            copies: Vec::new(),
            lanes: (0..connections).map(|_| lane()).collect(),
            patience: [Patience::default(); 2],
            lanes_max: connections,
            fastest: 0.0,
            fastest_sum: 0.0,
            turns: 0,
            pieces_max,
            say,
            said,
            done: 0,
            fetched: Fetched { length, ..Fetched::default() },
            error: None,
        }
    }

    /// Takes these copies, in the order in which the flowserver gives them if there is one.
    fn steer(&mut self, mut copies: Vec<SourceCopy>, length: u64) {
        let hosts: Vec<&str> = copies.iter().map(|copy| copy.host.as_str()).collect();
        let steering = self.client.steering.as_ref();
        let legs = steering.map_or_else(Vec::new, |steering| steering.read(&hosts, length));
        let lanes = self.lanes.len();
        self.lanes_max = if legs.is_empty() { lanes } else { legs.len().min(lanes) };
        self.fetched.is_steered = !legs.is_empty();
        for leg in &legs {
            let Some(copy) = copies.get_mut(leg.copy) else { continue };
            copy.flow = Some(leg.flow);
            if let Some((name, ports)) = &leg.path {
                copy.ports = Some(*ports);
                self.fetched.paths.insert(copy.host.clone(), name.clone());
            }
        }
        let place = |at: usize| legs.iter().position(|leg| leg.copy == at);
        let mut order: Vec<usize> = (0..copies.len()).collect();
        order.sort_by_key(|at| place(*at).unwrap_or(usize::MAX));
        let mut copies: Vec<Option<SourceCopy>> = copies.into_iter().map(Some).collect();
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
            if self.lanes.iter().all(|lane| lane.main.is_none()) {
                let nobody = || ServiceError::Answer("no copy of the file can be read".into());
                return Err(self.error.take().unwrap_or_else(nobody));
            }
            let mut heard = self.said.recv_timeout(LOOK).ok();
            // While a piece was written to a slow disk, others came. Their lanes are not silent.
            for _ in 0..self.pieces_max {
                let Some((turn, said)) = heard.take() else { break };
                self.hear(turn, said, tell)?;
                heard = self.said.try_recv().ok();
            }
            if let Some((turn, said)) = heard {
                self.hear(turn, said, tell)?;
            }
            (0..self.lanes.len()).for_each(|at| self.look_at(at));
        }
        // The connections have nothing left to read.
        self.lanes.iter().flat_map(Lane::all_connections).for_each(ReadConnection::stop_reading);
        Ok(())
    }

    /// The slot of a trial's part.
    fn trial_slot(&self, at: usize) -> usize {
        self.lanes.len() + at
    }

    /// Hedges a lane from which nothing has come for a while or whose end is late, gives a silent
    /// lane up, and lets a slow one try another path.
    fn look_at(&mut self, at: usize) {
        let lane = &self.lanes[at];
        let Some(main) = &lane.main else { return };
        let silence = main.silence();
        let is_silent = silence >= self.patience[usize::from(main.moved > 0)].wait();
        if silence >= HANG {
            self.give_up(at);
        } else if is_silent && let Some(trial) = &lane.trial {
            if trial.moved > 0 {
                self.keep_trial(at);
                self.lanes[at].paths.end_trial();
            } else {
                self.leave_trial(at);
            }
        } else if !main.is_hedged && (is_silent || self.is_late(at)) {
            self.hedge_lane(at, !is_silent);
        } else {
            self.measure_lane(at);
        }
    }

    /// Whether the last bytes of a lane would come much earlier over the connection of a lane that
    /// has nothing left to read.
    fn is_late(&self, at: usize) -> bool {
        let Lane { main: Some(main), hedge: None, trial: None, .. } = &self.lanes[at] else {
            return false;
        };
        let is_idle = |lane: &Lane| lane.main.is_none();
        if !self.parts.is_all_begun() || !self.lanes[..self.lanes_max].iter().any(is_idle) {
            return false;
        }
        let now = Instant::now();
        let usable = self.copies.iter().filter(|copy| !copy.has_failed && !copy.is_resting(now));
        let elsewhere = usable.filter_map(|copy| copy.rate).fold(0.0, f64::max);
        let range = self.parts.reading(at);
        let Some(rate) = main.measured else { return false };
        is_end_late(range.end - range.start, rate, elsewhere, self.patience[0].wait())
    }

    /// Reads the rest of a lane's part a second time: from a copy that nobody reads, or else from
    /// the copy of another lane, or else from the same copy. A new connection has another source
    /// port and may take another path.
    fn hedge_lane(&mut self, at: usize, is_race: bool) {
        let Some(main) = &mut self.lanes[at].main else { return };
        main.is_hedged = true;
        let own = main.copy;
        let other = self.choose().filter(|copy| *copy != own);
        let lanes = self.lanes.iter().filter_map(|lane| lane.main.as_ref());
        let beside = lanes.map(|main| main.copy).find(|copy| *copy != own);
        let range = self.parts.reading(at);
        self.fetched.hedged += 1;
        let hedge = self.begin(other.or(beside).unwrap_or(own), range);
        (self.lanes[at].hedge, self.lanes[at].is_race) = (hedge, is_race);
    }

    /// Measures a lane and its trial, and judges the path that carries the newest measurement.
    fn measure_lane(&mut self, at: usize) {
        let Lane { main, trial, .. } = &mut self.lanes[at];
        let measured = main.as_mut().and_then(ReadConnection::measure_rate);
        let on_trial = trial.as_mut().map(|trial| (trial.measure_rate(), trial.silence()));
        let has_moved = trial.as_ref().is_some_and(|trial| trial.moved > 0);
        let rates =
            self.lanes.iter().flat_map(Lane::all_connections).filter_map(|one| one.measured);
        let (sum, most) =
            rates.fold((0.0_f64, 0.0_f64), |(sum, most), rate| (sum + rate, most.max(rate)));
        self.fastest_sum = self.fastest_sum.max(sum);
        self.fastest = self.fastest.max(most);
        match (on_trial, measured) {
            (Some((Some(rate), _)), _) => self.judge_path(at, rate, true),
            (Some((None, silence)), _) => {
                if silence >= self.patience[usize::from(has_moved)].wait() {
                    self.leave_trial(at);
                }
            }
            (None, Some(rate)) => self.judge_path(at, rate, false),
            (None, None) => {}
        }
    }

    /// Judges the measured rate of a lane's connection, or that of its trial.
    fn judge_path(&mut self, at: usize, rate: f64, is_trial: bool) {
        let slot = if is_trial { self.trial_slot(at) } else { at };
        let range = self.parts.reading(slot);
        let left_s = (range.end - range.start) as f64 / rate.max(1.0);
        let is_long = left_s >= TRIAL_WORTH_S && range.end - range.start >= 2 * STOLEN_BYTES_MIN;
        // The flowserver knows more of the path that it chose than this connection can measure.
        let of_lane = self.lanes[at].main.as_ref();
        let is_chosen = of_lane.is_some_and(|main| self.copies[main.copy].ports.is_some());
        // The trial of a lane with a hedge would be a third connection.
        let is_worth = is_long && !is_chosen && self.lanes[at].hedge.is_none();
        let promised = is_worth.then(|| self.promise_rate(at));
        let change = self.lanes[at].paths.judge_rate(rate, promised);
        match (change, is_trial) {
            (PathChange::Back, _) => self.leave_trial(at),
            (PathChange::Keep, true) => self.keep_trial(at),
            (PathChange::Keep, false) => {}
            (PathChange::Try, _) => {
                self.keep_trial(at);
                self.begin_trial(at);
            }
        }
    }

    /// The rate that a lane could have beside the other lanes.
    fn promise_rate(&self, at: usize) -> f64 {
        let others = self.lanes.iter().enumerate().filter(|(other, _)| *other != at);
        let rates =
            others.flat_map(|(_, lane)| lane.all_connections()).filter_map(|one| one.measured);
        fair_share(self.fastest_sum, rates.collect()).min(self.fastest)
    }

    /// Reads the second half of a lane's part over another connection: from another port of the
    /// same copy, and every second time from a copy that nobody or the fewest connections read.
    fn begin_trial(&mut self, at: usize) {
        let Some(own) = self.lanes[at].main.as_ref().map(|main| main.copy) else { return };
        let slot = self.trial_slot(at);
        let other = self.choose().filter(|_| self.lanes[at].paths.tried().is_multiple_of(2));
        let trial = self.parts.split_off(at, slot).and_then(|range| {
            self.set_ends();
            self.fetched.tried += 1;
            self.begin(other.unwrap_or(own), range)
        });
        match trial {
            Some(_) => self.lanes[at].trial = trial,
            None => self.leave_trial(at),
        }
    }

    /// The connection on trial goes on as the lane. What the old connection has not read is left to
    /// others.
    fn keep_trial(&mut self, at: usize) {
        let Some(trial) = self.lanes[at].trial.take() else { return };
        self.parts.take_over(self.trial_slot(at), at);
        self.fetched.repathed += 1;
        if let Some(old) = self.lanes[at].main.replace(trial) {
            old.stop_reading();
        }
    }

    /// Ends the trial of a lane without keeping its connection. What the connection has not read is
    /// left to others.
    fn leave_trial(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        lane.paths.end_trial();
        if let Some(trial) = lane.trial.take() {
            trial.stop_reading();
        }
        self.parts.give_up(self.trial_slot(at));
    }

    /// The lane and the role of the connection with this turn. `None` when the reader has left the
    /// connection.
    fn place_of(&self, turn: u64) -> Option<(usize, LaneRole)> {
        let is_it = |one: &Option<ReadConnection>| one.as_ref().is_some_and(|one| one.turn == turn);
        self.lanes.iter().enumerate().find_map(|(at, lane)| {
            let all = [
                (&lane.main, LaneRole::Main),
                (&lane.hedge, LaneRole::Hedge),
                (&lane.trial, LaneRole::Trial),
            ];
            all.into_iter().find(|(one, _)| is_it(one)).map(|(_, role)| (at, role))
        })
    }

    fn hear(&mut self, turn: u64, said: ReadEvent, tell: Tell<'_>) -> Result<(), ServiceError> {
        let place = self.place_of(turn);
        match said {
            ReadEvent::Ended(Err(error)) => {
                self.error = Some(error);
                if let Some((at, role)) = place {
                    self.fail(at, role);
                }
            }
            ReadEvent::Ended(Ok(())) => {
                if let Some((at, role)) = place {
                    self.end_part(at, role);
                }
            }
            ReadEvent::Bytes(bytes) => {
                if let Some((at, role)) = place {
                    self.take_bytes(at, role, &bytes)?;
                    tell(self.done);
                }
            }
        }
        Ok(())
    }

    /// Writes bytes that have come. Of a connection and its hedge, the one that is ahead goes on.
    fn take_bytes(&mut self, at: usize, role: LaneRole, bytes: &[u8]) -> Result<(), ServiceError> {
        let slot = if role == LaneRole::Trial { self.trial_slot(at) } else { at };
        let range = self.parts.reading(slot);
        let lane = &mut self.lanes[at];
        let is_race = lane.is_race;
        let Some(connection) = lane.connection_mut(role) else { return Ok(()) };
        let place = connection.at;
        let len = (bytes.len() as u64).min(range.end.saturating_sub(place));
        // A hedge that is behind brings bytes that are there already. They are the same bytes.
        let fresh = (place + len).saturating_sub(range.start).min(len);
        let unwritten = |error| ServiceError::Io("write what was read".into(), error);
        self.out.write_all_at(&bytes[..len as usize], place).map_err(unwritten)?;
        self.patience[usize::from(connection.moved > 0)].heard(connection.silence());
        connection.add_bytes(len);
        let host = &self.copies[connection.copy].host;
        *self.fetched.from.entry(host.clone()).or_default() += fresh;
        self.fetched.repeated_bytes += len - fresh;
        self.parts.read(slot, fresh);
        self.done += fresh;
        match role {
            LaneRole::Main if !is_race => lane.drop_hedge(),
            LaneRole::Hedge if fresh > 0 => self.keep_hedge(at),
            _ => {}
        }
        Ok(())
    }

    /// The hedge of a lane goes on, and the connection that was silent or slow is left.
    fn keep_hedge(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        let Some(left) = core::mem::replace(&mut lane.main, lane.hedge.take()) else { return };
        left.stop_reading();
        if !lane.is_race {
            self.copies[left.copy].rests_until = Some(Instant::now() + REST);
        }
    }

    /// A connection has read its part.
    fn end_part(&mut self, at: usize, role: LaneRole) {
        let Some(ended) = self.lanes[at].connection_mut(role).take() else { return };
        self.copies[ended.copy].rate = Some(ended.mean_rate());
        let lane = &mut self.lanes[at];
        match role {
            LaneRole::Hedge => {}
            LaneRole::Main => {
                lane.drop_hedge();
                lane.paths.end_trial();
                // A trial that is under way reads the rest of the part, and needs no judgement.
                if let Some(trial) = lane.trial.take() {
                    lane.main = Some(trial);
                    self.parts.take_over(self.trial_slot(at), at);
                }
            }
            // The trial was done before it was measured. Where it was faster, what the first
            // connection has not read is read over further new ports.
            LaneRole::Trial => {
                if lane.paths.judge_rate(ended.mean_rate(), None) == PathChange::Keep {
                    self.fetched.repathed += 1;
                    self.parts.give_up(at);
                    if let Some(old) = lane.main.take() {
                        old.stop_reading();
                    }
                }
            }
        }
    }

    /// A connection has failed. Its lane goes on with the hedge or the trial, if there is one.
    fn fail(&mut self, at: usize, role: LaneRole) {
        let lane = &mut self.lanes[at];
        match role {
            LaneRole::Hedge => {
                if let Some(hedge) = lane.hedge.take() {
                    self.copies[hedge.copy].has_failed = true;
                }
            }
            LaneRole::Trial => {
                let own = lane.main.as_ref().map(|main| main.copy);
                let failed = lane.trial.as_ref().map(|trial| trial.copy);
                self.leave_trial(at);
                // The first connection to the same copy will tell whether the copy has failed.
                if let Some(failed) = failed.filter(|failed| Some(*failed) != own) {
                    self.copies[failed].has_failed = true;
                }
            }
            LaneRole::Main => match lane.hedge.take() {
                Some(hedge) => {
                    if let Some(failed) = lane.main.replace(hedge) {
                        self.copies[failed.copy].has_failed = true;
                    }
                }
                None => self.give_up(at),
            },
        }
    }

    /// Leaves the bytes that a lane has not read to others. Its trial goes on.
    fn give_up(&mut self, at: usize) {
        let slot = self.trial_slot(at);
        self.parts.give_up(at);
        let lane = &mut self.lanes[at];
        lane.drop_hedge();
        lane.paths.end_trial();
        let trial = lane.trial.take();
        if let Some(failed) = core::mem::replace(&mut lane.main, trial) {
            failed.stop_reading();
            self.copies[failed.copy].has_failed = true;
            self.copies[failed.copy].rate = None;
        }
        self.parts.take_over(slot, at);
    }

    /// Gives its next part to each lane that has none.
    fn begin_parts(&mut self) {
        for at in 0..self.lanes_max {
            if self.lanes[at].main.is_some() {
                continue;
            }
            let Some(copy) = self.choose() else { continue };
            // A connection that has just begun counts as fast as its copy was. Otherwise a lane
            // that is done would take all of its part but a byte.
            let of = |one: &Option<ReadConnection>| match one {
                Some(one) if one.moved > 0 => one.mean_rate(),
                Some(one) => self.copies[one.copy].rate.unwrap_or(0.0),
                None => 0.0,
            };
            let mains = self.lanes.iter().map(|lane| of(&lane.main));
            let trials = self.lanes.iter().map(|lane| of(&lane.trial));
            let mut speeds: Vec<f64> = mains.chain(trials).collect();
            // A copy of which no rate is known counts as fast as the fastest connection.
            let fastest = speeds.iter().copied().fold(0.0, f64::max);
            speeds[at] = self.copies[copy].rate.unwrap_or(fastest);
            let Some(range) = self.parts.next(at, &speeds) else { continue };
            self.set_ends();
            self.lanes[at].main = self.begin(copy, range);
            if self.lanes[at].main.is_none() {
                self.give_up(at);
            }
        }
    }

    /// Tells every connection where it ends now.
    fn set_ends(&self) {
        for (at, lane) in self.lanes.iter().enumerate() {
            let end = self.parts.reading(at).end;
            [&lane.main, &lane.hedge].into_iter().flatten().for_each(|one| one.set_end(end));
            if let Some(trial) = &lane.trial {
                trial.set_end(self.parts.reading(self.trial_slot(at)).end);
            }
        }
    }

    /// The copy that a new connection reads.
    fn choose(&self) -> Option<usize> {
        let mut readers = vec![0; self.copies.len()];
        let connections = self.lanes.iter().flat_map(Lane::all_connections);
        connections.for_each(|one| readers[one.copy] += 1);
        let mains = self.lanes.iter().filter_map(|lane| lane.main.as_ref());
        let beside = mains.map(ReadConnection::mean_rate).fold(0.0, f64::max);
        choose_copy(&self.copies, &readers, beside)
    }

    /// Begins to read a range of a copy. `None` when no thread can be started.
    fn begin(&mut self, copy: usize, range: Range<u64>) -> Option<ReadConnection> {
        self.turns += 1;
        let turn = self.turns;
        let (connection, end) = ReadConnection::new(turn, copy, &range);
        let (client, say) = (self.client.clone(), self.say.clone());
        let bytes = range.end - range.start;
        let mut url = format!("{}&offset={}&length={bytes}", self.copies[copy].url, range.start);
        if let Some(flow) = self.copies[copy].flow {
            url += &format!("&flow={flow}");
        }
        let request = CopyRange { url, at: range.start, ports: self.copies[copy].ports };
        let work = move || {
            let ended = read_range(&client, request, &end, &mut |piece| {
                say.send((turn, ReadEvent::Bytes(piece))).is_ok()
            });
            // The message of a connection that was left has no receiver.
            let _ = say.send((turn, ReadEvent::Ended(ended)));
        };
        // The thread of a lane that is given up ends when its server falls silent.
        let started = std::thread::Builder::new().name("fetch".into()).spawn(work);
        match started {
            Ok(_) => {
                self.fetched.connections += 1;
                Some(connection)
            }
            Err(error) => {
                self.error = Some(ServiceError::Io("start a thread that reads".into(), error));
                None
            }
        }
    }
}
