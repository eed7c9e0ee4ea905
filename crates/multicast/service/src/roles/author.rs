//! An author as a process: a publisher that takes the feed in and outlives the root.
//!
//! The root and its standbys take no feed of their own in a run with authors. The author sends each
//! message to the root that leads, and has the number of the message when the roots agree on it. A
//! process that is started again under its name learns how many messages of the name are in the
//! feed, and goes on behind them.

use std::collections::VecDeque;
use std::time::Duration;

use evenfall_core::{Summary, Timestamp};
use evenfall_feed_formats::FeedMessage;
use evenfall_feed_service::IntakeError;
use evenfall_feed_service::intake::{FeedStatus, Intake, Next};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{interrupt, procstat};
use evenfall_multicast_machine::PublishError;
use evenfall_multicast_sessions::producer::LINES_MAX;
use evenfall_multicast_sessions::producer::session::{MESSAGE_BYTES_MAX, ProduceRefusal};
use evenfall_multicast_sessions::{ProducerEvent, ProducerSession, letter_key};
use evenfall_runtime::telemetry::Metrics;
use serde::Serialize;

use super::{RoleError, RoleProcess, random};
use crate::settings::{MulticastNode, Settings};

/// Messages that are published before answers get their turn.
const PUBLISH_BATCH: usize = 256;
/// How often the author says that it waits for the roots.
const SAY_AWAITED_EVERY: Duration = Duration::from_secs(5);
/// How long a root has to confirm the end, when every message has its number. The last answer may
/// be lost, and the roots end when every receiver has everything.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long messages under way have to get their numbers after a signal.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks at the roots after which this process must have been paused. The looks
/// are 200 ms apart.
const PAUSED: Duration = Duration::from_secs(1);
/// Times to answers that are kept for the summary: the last ones.
const ANSWERS_MAX: usize = 65_536;

/// The summary of an author.
#[derive(Clone, Debug, Serialize)]
pub struct PublisherSummary {
    /// Name of the author.
    pub name: String,
    /// Messages in the feed that processes before this one published under the same name.
    pub before: u64,
    /// Messages that this process published and that have numbers.
    pub messages: u64,
    /// Messages that were sent to the roots and have no number.
    pub unanswered: u64,
    /// Microseconds from the publication of a message until its number was known, over the last
    /// 65,536 messages.
    pub answer_us: Summary,
    /// Largest resident memory seen, bytes.
    pub resident_bytes_max: u64,
    /// Figures of a live feed; `None` for a file.
    pub feed: Option<FeedStatus>,
    /// Why the author ended.
    pub ended: String,
}

/// What the owner of an author is pending_events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// A root takes messages. So many messages of the author's name are in the feed.
    Begun(u64),
    /// The message of this place has this number in the feed.
    Numbered {
        /// The place.
        place: u64,
        /// The number.
        number: u64,
    },
}

/// The author under way.
struct PublisherRun<'a> {
    settings: &'a Settings,
    process: RoleProcess,
    authors: [ProducerSession; 1],
    pending_events: VecDeque<ProducerEvent>,
    owner: &'a mut dyn FnMut(Told),
    before: Option<u64>,
    /// Messages of a live feed that are still to be passed over.
    passes: u64,
    numbered: u64,
    is_over: bool,
    /// When each message without a number was published.
    published_at: VecDeque<Timestamp>,
    answer_ns: VecDeque<i64>,
    /// When the roots were last looked at.
    checked: Timestamp,
    /// When something was last sent to the roots for an answer.
    asked: Timestamp,
    say_at: Timestamp,
}

impl<'a> PublisherRun<'a> {
    fn start(
        settings: &'a Settings,
        node: &MulticastNode,
        owner: &'a mut dyn FnMut(Told),
    ) -> Result<Self, RoleError> {
        let process = RoleProcess::unlogged(settings, node)?;
        let roots: Vec<_> = settings.publishing().iter().map(|root| root.address).collect();
        let now = MonotonicClock::now();
        let life = u64::from_le_bytes(random()?);
        // An author of a run with node keys writes under its own key.
        let own = process.node_key().map(|key| letter_key(&key));
        let key = own.or_else(|| process.base.key.clone());
        let author = ProducerSession::new(now, &roots, life, key);
        Ok(Self {
            settings,
            process,
            authors: [author.named(node.line())],
            pending_events: VecDeque::new(),
            owner,
            before: None,
            passes: 0,
            numbered: 0,
            is_over: false,
            published_at: VecDeque::new(),
            answer_ns: VecDeque::new(),
            checked: now,
            asked: now,
            say_at: now + SAY_AWAITED_EVERY,
        })
    }

    /// Does one turn and all housekeeping that is due. `false` when a signal came.
    fn turn(&mut self, until: Option<Timestamp>) -> Result<bool, RoleError> {
        let Self { process, authors, pending_events, .. } = self;
        let mut listen = |_: &ProducerSession, _, event| pending_events.push_back(event);
        let base = &mut process.base;
        base.driver.turn(authors, base.port.as_mut(), until, &mut listen)?;
        self.drain_events()?;
        if self.process.housekeeping_due() {
            self.check_roots()?;
        }
        Ok(!interrupt::raised())
    }

    /// Hands the author one input.
    fn input<T>(
        &mut self,
        input: impl FnOnce(&mut ProducerSession, Timestamp) -> T,
    ) -> Result<T, RoleError> {
        let Self { process, authors, pending_events, .. } = self;
        let mut listen = |_: &ProducerSession, _, event| pending_events.push_back(event);
        let base = &mut process.base;
        Ok(base.driver.input(0, &mut authors[0], base.port.as_mut(), input, &mut listen)?)
    }

    fn drain_events(&mut self) -> Result<(), RoleError> {
        let name = &self.process.base.name;
        while let Some(event) = self.pending_events.pop_front() {
            match event {
                ProducerEvent::Begun(before) => {
                    self.before = Some(before);
                    (self.owner)(Told::Begun(before));
                }
                ProducerEvent::Waiting => {
                    tracing::info!("{name}: the roots are there, and take no messages yet");
                }
                ProducerEvent::Leads(epoch) => {
                    tracing::info!("{name}: publishes to the root that leads epoch {epoch}");
                }
                ProducerEvent::Numbered { place, number } => {
                    self.numbered += 1;
                    let at = self.published_at.pop_front();
                    let waited = at.map_or(Duration::ZERO, |at| MonotonicClock::now().since(at));
                    if self.answer_ns.len() == ANSWERS_MAX {
                        self.answer_ns.pop_front();
                    }
                    self.answer_ns.push_back(waited.as_nanos() as i64);
                    (self.owner)(Told::Numbered { place, number });
                }
                ProducerEvent::Over => self.is_over = true,
                ProducerEvent::Replaced => return Err(RoleError::NameTaken),
                ProducerEvent::Refused => return Err(RoleError::TooManyAuthors(LINES_MAX)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Publishes the state of the author. Ends an author whose messages get no answer.
    fn check_roots(&mut self) -> Result<(), RoleError> {
        let now = MonotonicClock::now();
        let was_paused = now.since(self.checked) > PAUSED;
        self.checked = now;
        let author = &self.authors[0];
        let unanswered = author.unanswered();
        let mut page = Metrics::of(&self.process.base.name, "author");
        page.counter("numbered_messages_total", "Messages with a number.", 0, self.numbered);
        page.gauge("unanswered_messages", "Messages without a number.", 0, unanswered as f64);
        let ill = self.before.is_none().then(|| "the roots take no messages yet".to_owned());
        let status = [("messages", self.numbered), ("unanswered", unanswered as u64)];
        let heard = author.heard().max(self.asked);
        self.process.publish(status, ill, move |_| page);
        let silence = self.settings.multicast.membership.root_timeout;
        let is_silent = self.before.is_some() && unanswered > 0 && now.since(heard) > silence;
        if is_silent && !was_paused {
            return Err(RoleError::Unanswered { messages: unanswered, waited: silence });
        }
        if self.before.is_none() && now >= self.say_at {
            self.say_at = now + SAY_AWAITED_EVERY;
            tracing::info!("{}: waiting for a root that leads", self.process.base.name);
        }
        Ok(())
    }

    /// Waits until the roots take messages, then publishes the whole feed.
    fn play(&mut self, intake: &mut dyn Intake) -> Result<&'static str, RoleError> {
        intake.attach(self.process.base.port.as_ref());
        let before = loop {
            if let Some(before) = self.before {
                break before;
            }
            if !self.turn(None)? || intake.is_cancelled() {
                return Ok("asked to stop before the roots took messages: nothing was sent");
            }
        };
        let start = self.pass_over(intake, before)?;
        intake.begin(start, self.process.base.port.as_mut())?;
        let is_whole = self.send_feed(intake)?;
        self.process.base.port.watch(Vec::new());
        match is_whole {
            true => self.finish(),
            false => self.stop(),
        }
    }

    /// Passes over the messages that processes before this one have published. Returns when the
    /// feed would have begun for its next message to be due now.
    fn pass_over(&mut self, intake: &mut dyn Intake, before: u64) -> Result<Timestamp, RoleError> {
        let now = MonotonicClock::now();
        let mut due = Duration::ZERO;
        for index in 0..before {
            match intake.skip() {
                Ok(Some((_, at))) => due = at,
                Ok(None) if intake.repeats() => {
                    self.passes = before - index;
                    break;
                }
                Ok(None) => break,
                Err(error) => return Err(IntakeError::Broken { error, sent: index }.into()),
            }
        }
        if before > 0 {
            let name = &self.process.base.name;
            tracing::warn!("{name}: goes on behind {before} messages of a process before it");
        }
        let early = now.nanos().saturating_sub(due.as_nanos() as u64);
        Ok(Timestamp::from_nanos(early))
    }

    /// Publishes the feed. `false` when a signal came.
    fn send_feed(&mut self, intake: &mut dyn Intake) -> Result<bool, RoleError> {
        loop {
            let (mut until, mut published) = (None, 0);
            while until.is_none() {
                let next = intake.next(MonotonicClock::now()).map_err(|error| {
                    let sent = self.before.unwrap_or(0) + self.numbered;
                    IntakeError::Broken { error, sent }
                })?;
                match next {
                    Next::Message(..) if self.passes > 0 => {
                        intake.take();
                        self.passes -= 1;
                    }
                    Next::Message(_, due) if published == PUBLISH_BATCH => until = Some(due),
                    Next::Message(message, _) if self.publish(&message)? => {
                        intake.take();
                        published += 1;
                    }
                    // The next answer makes room.
                    Next::Message(..) => until = Some(Timestamp::MAX),
                    Next::NotBefore(at) => until = Some(at),
                    Next::End => break,
                }
            }
            for (_, text) in intake.news() {
                tracing::warn!("{}: {text}", self.process.base.name);
            }
            if until.is_none() {
                return Ok(true);
            }
            if !self.turn(until)? {
                return Ok(false);
            }
        }
    }

    /// Hands a message to the author. `false` when as many messages as may wait for their numbers.
    fn publish(&mut self, message: &FeedMessage) -> Result<bool, RoleError> {
        let FeedMessage { format, bytes, index, .. } = message;
        let is_first = self.authors[0].unanswered() == 0;
        let place = self.input(|author, now| author.publish(now, *format, bytes.clone()))?;
        let now = MonotonicClock::now();
        match place {
            Ok(_) => {
                self.published_at.push_back(now);
                if is_first {
                    self.asked = now;
                }
                Ok(true)
            }
            Err(ProduceRefusal::TooLong) => {
                let why = PublishError::TooLarge { bytes: bytes.len(), max: MESSAGE_BYTES_MAX };
                Err(RoleError::Message { index: *index, why })
            }
            Err(_) => Ok(false),
        }
    }

    /// Waits for all numbers, and tells the roots that no message follows.
    fn finish(&mut self) -> Result<&'static str, RoleError> {
        self.input(|author, now| author.finish(now))?;
        let mut settled: Option<Timestamp> = None;
        while !self.is_over {
            let now = MonotonicClock::now();
            if self.authors[0].unanswered() == 0
                && now.since(*settled.get_or_insert(now)) > END_PATIENCE
            {
                return Ok("every message has its number, and no root confirmed the end");
            }
            if !self.turn(Some(now + END_PATIENCE / 4))? && self.authors[0].unanswered() == 0 {
                break;
            }
        }
        Ok("the feed ended")
    }

    /// Waits after a signal until the messages under way have numbers. The line stays open, so that
    /// a process that is started again can go on.
    fn stop(&mut self) -> Result<&'static str, RoleError> {
        let give_up = MonotonicClock::now() + STOP_PATIENCE;
        while self.authors[0].unanswered() > 0 && MonotonicClock::now() < give_up {
            self.turn(Some(give_up))?;
        }
        Ok("asked to stop")
    }

    fn end(
        mut self,
        feed: Option<FeedStatus>,
        ended: Result<&str, RoleError>,
    ) -> Result<PublisherSummary, RoleError> {
        let summary = PublisherSummary {
            name: self.process.base.name.clone(),
            before: self.before.unwrap_or(0),
            messages: self.numbered,
            unanswered: self.authors[0].unanswered() as u64,
            answer_us: Summary::of_nanos(self.answer_ns.make_contiguous()),
            resident_bytes_max: procstat::resident_bytes_max(),
            feed,
            ended: ended.as_ref().map_or_else(ToString::to_string, ToString::to_string),
        };
        tracing::info!(
            "{}: {}: {} messages have numbers, {} have none",
            summary.name,
            summary.ended,
            summary.messages,
            summary.unanswered
        );
        self.process.write_summary(self.settings, &summary)?;
        ended.map(|_| summary)
    }
}

/// Runs an author on the feed of its settings until the feed has been published, or a signal comes.
///
/// # Errors
/// [`RoleError`].
#[cfg(feature = "roles")]
pub fn run(settings: &Settings, node: &MulticastNode) -> Result<PublisherSummary, RoleError> {
    // The feed is opened first, so that nobody waits for a feed that is missing.
    let mut intake =
        evenfall_feed_service::intake::open(&settings.feed, &settings.run, &settings.io)?;
    run_with(settings, node, &mut *intake, &mut |_| {})
}

/// Runs an author on this intake.
pub(crate) fn run_with(
    settings: &Settings,
    node: &MulticastNode,
    intake: &mut dyn Intake,
    owner: &mut dyn FnMut(Told),
) -> Result<PublisherSummary, RoleError> {
    let mut course = PublisherRun::start(settings, node, owner)?;
    let ended = course.play(intake);
    course.end(intake.status(), ended)
}
