//! The root as a process. It replays or relays the feed into its trees, and records what it sent.

mod awaited;
mod book;
mod page;

use std::time::Duration;

use evenfall_clock_service::Standing;
use evenfall_core::{SyncTime, Timestamp};
use evenfall_feed_formats::Message;
use evenfall_feed_formats::sharding::{ContentHash, trees_of};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_multicast_machine::{Config, Mode, PublishError, Root, RootStatus, Run as RunId};
use serde::Serialize;

use self::book::Book;
use super::{Process, RoleError, file_error};
use crate::settings::{Node, Settings};
use evenfall_feed_service::IntakeError;
use evenfall_feed_service::intake::{FeedStatus, Intake, Next};

/// The bursts of the rehearsal before the first message, as numbers of empty frames and the time
/// between two frames. The rehearsal measures the hold of a burst before the market's open brings
/// one. Receivers take a burst without gaps in few wake-ups. A burst whose frames each wake all
/// receivers is the hard case on crowded cores.
const REHEARSED: [(usize, Duration); 8] = [
    (1, Duration::ZERO),
    (32, Duration::from_micros(400)),
    (4, Duration::ZERO),
    (32, Duration::from_micros(200)),
    (16, Duration::ZERO),
    (32, Duration::from_micros(100)),
    (64, Duration::ZERO),
    (32, Duration::from_micros(50)),
];
/// Single frames after each burst. Most of a feed is quiet, so the hold of a quiet frame must be
/// known best. Eight bursts with their single frames take half a second. Four seconds therefore
/// bring more than the thousand frames after which the hold no longer adds a guard for a small
/// sample.
const REHEARSED_ALONE: usize = 20;
/// How long the tree rests after a burst, at least. The rest grows with the frames of the burst.
const REST_MIN: Duration = Duration::from_millis(2);
const REST_PER_FRAME: Duration = Duration::from_micros(400);
/// Frames of a burst that leave in one turn: as many as `PUBLISH_BATCH` messages fill.
const REHEARSED_BATCH: usize = 8;
/// Messages that are published before arrivals and departures get their turn.
const PUBLISH_BATCH: usize = 256;
/// How long the root stays after the last receiver finished, for repairs under way.
const LINGER: Duration = Duration::from_millis(200);
/// How long receivers have to finish after a signal.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often the root prints the nodes that it waits for.
const SAY_AWAITED_EVERY: Duration = Duration::from_secs(5);
/// Time from the tree's standing until the first message is due.
const LEAD: Duration = Duration::from_millis(20);

/// The summary of a root.
#[derive(Clone, Debug, Serialize)]
pub struct RootSummary {
    /// Name of the root.
    pub name: String,
    /// Messages read from the feed and sent.
    pub messages: u64,
    /// Hash of the sent messages, in order, over all trees.
    pub content_hash: String,
    /// Counters of the root, one entry per tree.
    pub trees: Vec<RootStatus>,
    /// Times that a message had to wait because the send queue was full.
    pub held_back: u64,
    /// Datagrams that were no messages of the protocol.
    pub malformed: u64,
    /// Largest resident memory seen, bytes.
    pub resident_bytes_max: u64,
    /// Figures of a live feed; `None` for a file.
    pub feed: Option<FeedStatus>,
    /// The last state of the mesh of clocks; `None` when each node used its host's clock.
    pub clock: Option<Standing>,
    /// Why the root ended.
    pub ended: String,
}

/// The run under way.
struct Run<'a> {
    settings: &'a Settings,
    intake: &'a mut dyn Intake,
    process: Process,
    roots: Vec<Root>,
    book: Book,
    hash: ContentHash,
    held_back: u64,
    /// Trees that have taken the present message, when the message goes to all trees.
    published: u32,
    /// Rehearsed frames so far.
    rehearsed: usize,
    started_unix_s: u64,
}

/// Seconds since 1970 by the clock of this host. The result is 1 when the clock is before 1970.
fn unix_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs())
}

/// A run of the root. The second of the start orders it after earlier runs. Its random number tells
/// it from a run that began in the same second, or under a clock that was set back.
fn new_run() -> Result<RunId, RoleError> {
    let epoch = unix_s() as u32;
    let mut random = [0; 24];
    evenfall_host::random::fill(&mut random)
        .map_err(|error| file_error("the random numbers of the system".as_ref(), error))?;
    Ok(RunId::new(epoch, random))
}

impl<'a> Run<'a> {
    fn start(
        settings: &'a Settings,
        node: &'a Node,
        intake: &'a mut dyn Intake,
    ) -> Result<Self, RoleError> {
        let process = Process::start(settings, node)?;
        intake.attach(process.base.port.as_ref());
        let trees = settings.course.trees;
        let key = process.base.key.clone();
        let run = new_run()?;
        let roots = (0..trees)
            .map(|stream| {
                let membership = awaited::expected(settings, stream);
                let config = Config { membership, ..settings.multicast };
                let now = MonotonicClock::now();
                let root = Root::new(config, node.id, stream, run, key.as_ref(), now);
                root.admitting(awaited::guests(settings, stream, key.is_some()))
            })
            .collect();
        let book = Book::new(settings, node.id, process.base.clock());
        let hash = ContentHash::new(trees as usize);
        let (held_back, rehearsed, started_unix_s) = (0, 0, unix_s());
        let mut run = Self {
            settings,
            intake,
            process,
            roots,
            book,
            hash,
            held_back,
            published: 0,
            rehearsed,
            started_unix_s,
        };
        let Self { process, roots, book, .. } = &mut run;
        process.keep_time(roots, true, &mut |m, now, event| book.on(m, now, event))?;
        Ok(run)
    }

    /// Does one turn and all housekeeping that is due. `false` when a signal came.
    fn turn(&mut self, until: Option<Timestamp>) -> Result<bool, RoleError> {
        let Self { process, roots, book, .. } = self;
        process.keep_time(roots, false, &mut |m, now, event| book.on(m, now, event))?;
        book.clock = process.base.clock();
        process.base.turn.turn(
            roots,
            process.base.port.as_mut(),
            until,
            &mut |m, now, event| {
                book.on(m, now, event);
            },
        )?;
        for record in book.records.drain(..) {
            process.note(record);
        }
        if self.process.housekeeping_due() {
            self.look_around()?;
        }
        Ok(!interrupt::raised())
    }

    fn each_root(&mut self, input: impl Fn(&mut Root, Timestamp)) -> Result<(), RoleError> {
        (0..self.roots.len()).try_for_each(|tree| self.on_root(tree, &input))
    }

    fn on_root<T>(
        &mut self,
        tree: usize,
        input: impl FnOnce(&mut Root, Timestamp) -> T,
    ) -> Result<T, RoleError> {
        let Self { process, roots, book, .. } = self;
        let (root, port) = (&mut roots[tree], process.base.port.as_mut());
        let mut events = |m: &Root, now, event| book.on(m, now, event);
        Ok(process.base.turn.input(tree, root, port, input, &mut events)?)
    }

    fn look_around(&mut self) -> Result<(), RoleError> {
        while let Some(order) = self.process.base.telemetry.order() {
            // The word was checked when the order was taken.
            if let Ok(mode) = super::mode(&order) {
                self.change_mode(mode)?;
            }
        }
        let all: Vec<RootStatus> = self.roots.iter().map(Root::status).collect();
        let ill = !self.book.formed();
        let malformed = self.process.base.refused();
        let feed = self.intake.status();
        let page = page::metrics(&self.process.base.name, &all, malformed, feed.as_ref());
        let ill = ill.then(|| "waiting for receivers".into());
        let ill = ill.or_else(|| self.intake.ill(MonotonicClock::now()));
        self.process.publish(page, &all, ill);
        if let Some(standing) = self.process.standing() {
            self.book.clocks(MonotonicClock::now(), &standing);
        }
        Ok(())
    }

    fn change_mode(&mut self, mode: Mode) -> Result<(), RoleError> {
        self.book.event(MonotonicClock::now(), "mode", None, format!("{mode} was ordered"));
        self.each_root(|root, now| root.set_mode(now, mode))
    }

    /// Waits for the first tree, then rehearses. `false` when a signal came.
    fn form(&mut self) -> Result<bool, RoleError> {
        let mut say_at = MonotonicClock::now() + SAY_AWAITED_EVERY;
        while !self.book.formed() {
            if !self.turn(Some(say_at))? || self.intake.is_cancelled() {
                return Ok(false);
            }
            let now = MonotonicClock::now();
            if now >= say_at {
                say_at = now + SAY_AWAITED_EVERY;
                if let Some(words) = awaited::missing(self.settings, &self.roots) {
                    tracing::info!("{}: {words}", self.process.base.name);
                }
            }
        }
        self.say_tree();
        self.write_info()?;
        let warm_up = self.settings.course.rehearsal();
        let settled = warm_up / 5;
        if !self.rehearse_for(settled)? {
            return Ok(false);
        }
        self.each_root(Root::forget_warm_up)?;
        self.rehearse_for(warm_up - settled)
    }

    fn say_tree(&self) {
        let all: Vec<RootStatus> = self.roots.iter().map(Root::status).collect();
        let proxies: usize = all.iter().map(|tree| tree.proxies).sum();
        tracing::info!(
            "{}: the tree stands: {} receivers and recorders, {proxies} proxies, {} trees, mode {}",
            self.process.base.name,
            all.iter().map(|tree| tree.receivers).max().unwrap_or(0),
            all.len(),
            self.settings.multicast.mode
        );
    }

    /// Rehearses the feed. `false` when a signal came.
    fn rehearse_for(&mut self, span: Duration) -> Result<bool, RoleError> {
        let end = MonotonicClock::now() + span;
        for burst in REHEARSED.into_iter().cycle() {
            if MonotonicClock::now() >= end {
                break;
            }
            let alone = [(1, Duration::ZERO); REHEARSED_ALONE];
            for (frames, apart) in core::iter::once(burst).chain(alone) {
                if !self.rehearse(frames, apart)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Sends a burst of empty frames and lets it drain. `false` when a signal came.
    fn rehearse(&mut self, frames: usize, apart: Duration) -> Result<bool, RoleError> {
        let start = MonotonicClock::now();
        let apart = apart.max(self.settings.multicast.framing.coalesce);
        for sent in 1..=frames {
            // As with messages, each frame goes to one tree.
            let tree = self.rehearsed % self.roots.len();
            self.rehearsed += 1;
            self.on_root(tree, Root::warm_up)?;
            let next = start + apart * sent as u32;
            let is_turn = sent % REHEARSED_BATCH == 0 || MonotonicClock::now() < next;
            if is_turn && !self.turn_until(next)? {
                return Ok(false);
            }
        }
        self.turn_until(MonotonicClock::now() + REST_MIN + REST_PER_FRAME * frames as u32)
    }

    /// Takes turns until this moment, and at least one. `false` when a signal came.
    fn turn_until(&mut self, until: Timestamp) -> Result<bool, RoleError> {
        loop {
            if !self.turn(Some(until))? {
                return Ok(false);
            }
            if MonotonicClock::now() >= until {
                return Ok(true);
            }
        }
    }

    /// Sends the whole feed, each message at its time. `false` when a signal came.
    fn send_feed(&mut self) -> Result<bool, RoleError> {
        self.intake.begin(MonotonicClock::now() + LEAD, self.process.base.port.as_mut())?;
        loop {
            let mut until = None;
            let mut published = 0;
            while until.is_none() {
                let next = self.intake.next(MonotonicClock::now());
                match next.map_err(|error| self.broken(error))? {
                    Next::Message(_, due) if published == PUBLISH_BATCH => until = Some(due),
                    Next::Message(message, due) => {
                        let scheduled = self.process.base.clock().sync(due);
                        if publish(self, &message, scheduled)? {
                            self.intake.take();
                            published += 1;
                        } else {
                            // The message is openly late: its latency counts from the time at which
                            // it was due.
                            self.held_back += 1;
                            until = Some(MonotonicClock::now());
                        }
                    }
                    Next::NotBefore(at) => until = Some(at),
                    Next::End => break,
                }
            }
            self.each_root(Root::flush)?;
            self.spread_news();
            if until.is_none() {
                return Ok(true);
            }
            if !self.turn(until)? {
                return Ok(false);
            }
        }
    }

    /// Records the feed's news, and prints it.
    fn spread_news(&mut self) {
        for (kind, text) in self.intake.news() {
            tracing::warn!("{}: {text}", self.process.base.name);
            self.book.event(MonotonicClock::now(), kind, None, text);
        }
    }

    fn broken(&self, error: evenfall_feed_formats::FeedError) -> RoleError {
        IntakeError::Broken { error, sent: self.hash.messages() }.into()
    }

    /// Tells all receivers where the stream ends, and waits until all have it. Sent messages shall
    /// arrive, so a first signal does not cut the wait short. A second signal does.
    fn finish(&mut self, waited: Duration) -> Result<(), RoleError> {
        self.process.base.port.watch(Vec::new());
        self.each_root(Root::finish)?;
        let give_up = MonotonicClock::now() + waited;
        while !self.book.finished() {
            self.turn(Some(give_up))?;
            if MonotonicClock::now() >= give_up {
                let tallies = self.roots.iter().map(|r| r.status().tally.finished);
                let receivers = self.roots[0].status().receivers;
                let finished = tallies.min().unwrap_or(0);
                return Err(RoleError::Unfinished { finished, receivers, waited });
            }
        }
        let end = MonotonicClock::now() + LINGER;
        while MonotonicClock::now() < end {
            self.turn(Some(end))?;
        }
        Ok(())
    }

    /// Writes the description of the run when the tree stands, and again at the end. A root that is
    /// killed therefore leaves a description by which the run can be judged.
    fn write_info(&self) -> Result<(), RoleError> {
        if !self.settings.run.log {
            return Ok(());
        }
        let dir = &self.settings.run.dir;
        let (memberships, events) = (self.book.memberships.clone(), self.book.events.clone());
        let (feed, started) = (self.intake.title(), self.started_unix_s);
        let info = page::run_info(self.settings, feed, started, memberships, events);
        Ok(info.write(dir)?)
    }

    fn end(mut self, ended: Result<&str, RoleError>) -> Result<RootSummary, RoleError> {
        self.look_around()?;
        let summary = RootSummary {
            name: self.process.base.name.clone(),
            messages: self.hash.messages(),
            content_hash: self.hash.finish_hex(),
            trees: self.roots.iter().map(Root::status).collect(),
            held_back: self.held_back,
            malformed: self.process.base.refused(),
            resident_bytes_max: self.process.base.resident_bytes_max,
            feed: self.intake.status(),
            clock: self.process.standing(),
            ended: ended.as_ref().map_or_else(ToString::to_string, ToString::to_string),
        };
        let sum = |count: fn(&RootStatus) -> u64| summary.trees.iter().map(count).sum::<u64>();
        tracing::info!(
            "{}: {}: {} messages sent; receivers report {} released, {} late, {} lost",
            summary.name,
            summary.ended,
            summary.messages,
            sum(|tree| tree.tally.released),
            sum(|tree| tree.tally.late),
            sum(|tree| tree.tally.lost)
        );
        self.write_info()?;
        self.process.end(self.settings, &summary)?;
        ended.map(|_| summary)
    }
}

/// Hands a message to its tree, or to every tree when the message concerns all keys. `false` when a
/// tree has no room. The next call continues with that tree.
fn publish(run: &mut Run<'_>, message: &Message, scheduled: SyncTime) -> Result<bool, RoleError> {
    let trees = trees_of(message.shard_key, run.settings.course.trees);
    for tree in trees.skip(run.published as usize) {
        if !publish_by(run, tree as usize, message, scheduled)? {
            return Ok(false);
        }
        run.published += 1;
    }
    run.published = 0;
    Ok(true)
}

fn publish_by(
    run: &mut Run<'_>,
    tree: usize,
    message: &Message,
    scheduled: SyncTime,
) -> Result<bool, RoleError> {
    // The time of a message must be in the queue before the message can be in a frame.
    run.book.due(tree, scheduled.nanos());
    match run.on_root(tree, |root, now| root.publish(now, message.format, &message.bytes))? {
        Ok(_) => {
            run.hash.update(tree, &message.bytes);
            Ok(true)
        }
        Err(PublishError::Full) => {
            run.book.refused(tree);
            Ok(false)
        }
        Err(why) => Err(RoleError::Message { index: message.index, why }),
    }
}

/// Runs the root on the feed of its settings until the feed has been sent and all receivers have
/// it, or a signal comes.
///
/// # Errors
/// [`RoleError`]. A damaged feed is reported as an error after all readable messages were sent and
/// received.
#[cfg(feature = "roles")]
pub fn run(settings: &Settings, node: &Node) -> Result<RootSummary, RoleError> {
    // The feed is opened first, so that no node waits for a feed that is missing.
    let mut intake =
        evenfall_feed_service::intake::open(&settings.feed, &settings.run, &settings.io)?;
    run_with(settings, node, &mut *intake)
}

/// Runs the root on this intake.
pub(crate) fn run_with(
    settings: &Settings,
    node: &Node,
    intake: &mut dyn Intake,
) -> Result<RootSummary, RoleError> {
    let mut run = Run::start(settings, node, intake)?;
    let sent = match run.form() {
        Ok(true) => run.send_feed(),
        // No receiver has joined that could finish.
        Ok(false) => return run.end(Ok("asked to stop before the tree stood: nothing was sent")),
        Err(error) => Err(error),
    };
    let patience = settings.course.finish_timeout;
    let ended = match sent {
        Ok(true) => run.finish(patience).map(|()| "the stream ended"),
        // A signal asked for the end, so the root waits less for receivers that are gone.
        Ok(false) => run.finish(patience.min(STOP_PATIENCE)).map(|()| "asked to stop"),
        Err(error) => {
            // The messages that were sent shall arrive first.
            run.finish(patience).ok();
            Err(error)
        }
    };
    run.end(ended)
}
