//! The numbers of a capture's channels: first copies where a channel has two sides, and holes where
//! it has one.
//!
//! A line is what one arbiter counts for each session: a channel alone, or the two sides of a
//! channel. The packets of a channel alone pass as they were captured, and the arbiter only watches
//! them. When the other side begins later, the arbiter knows what was given, and goes on with first
//! copies.

use super::channel::{Channel, NumberedRun};
use crate::arbiter::{Arbiter, ArbiterEvent, ArbiterLimits, CopyCounts, FeedSide};
use crate::mold::SessionId;
use bytes::Bytes;
use std::collections::VecDeque;

/// Messages that a channel alone holds behind a hole before the hole counts as missing. Packets of
/// one path swap places within a few.
const REORDERED_MAX: usize = 256;

#[derive(Debug)]
struct SessionLine {
    session: Option<SessionId>,
    arbiter: Arbiter,
    /// The channels that are in this session.
    channels: Vec<usize>,
}

#[derive(Debug)]
struct Line {
    is_arbitrated: bool,
    /// The number of the first message of the first session, where it is known.
    start: Option<u64>,
    sessions: Vec<SessionLine>,
    /// Sessions that have begun.
    begun: u64,
    /// Counts of sessions that have ended.
    past: CopyCounts,
    /// The first number that was given up.
    first_lost: Option<u64>,
    ready: VecDeque<(u64, Bytes)>,
}

impl Line {
    fn limits(&self) -> ArbiterLimits {
        let limits = ArbiterLimits::recorded();
        if self.is_arbitrated {
            return limits;
        }
        ArbiterLimits { messages_max: REORDERED_MAX, ..limits }
    }

    /// The place of a session, which begins when its first packet comes.
    fn session(&mut self, session: Option<SessionId>, channel: usize) -> usize {
        let known = self.sessions.iter().position(|line| line.session == session);
        let at = known.unwrap_or_else(|| {
            let arbiter = Arbiter::new(self.start.take(), self.limits());
            self.sessions.push(SessionLine { session, arbiter, channels: Vec::new() });
            self.begun += 1;
            self.sessions.len() - 1
        });
        if !self.sessions[at].channels.contains(&channel) {
            self.move_channel(channel, at);
        }
        // Ended sessions have moved the places.
        let is_there = |line: &SessionLine| line.session == session;
        self.sessions.iter().position(is_there).unwrap_or(at)
    }

    /// Moves a channel into a session. A session that no channel is in has ended.
    fn move_channel(&mut self, channel: usize, to: usize) {
        for line in &mut self.sessions {
            line.channels.retain(|other| *other != channel);
        }
        self.sessions[to].channels.push(channel);
        while let Some(at) = self.sessions.iter().position(|line| line.channels.is_empty()) {
            self.sessions[at].arbiter.finish();
            self.drain(at);
            let ended = self.sessions.remove(at);
            self.past = self.past + ended.arbiter.counts();
        }
    }

    fn drain(&mut self, at: usize) {
        while let Some(event) = self.sessions[at].arbiter.poll() {
            match event {
                ArbiterEvent::Message { sequence, bytes } => {
                    self.ready.push_back((sequence, bytes));
                }
                ArbiterEvent::Lost(hole) => {
                    self.first_lost.get_or_insert(hole.start);
                }
                ArbiterEvent::Gap(_) | ArbiterEvent::Restart(_) => {}
            }
        }
    }

    fn counts(&self) -> CopyCounts {
        let running = self.sessions.iter().map(|line| line.arbiter.counts());
        running.fold(self.past, |sum, counts| sum + counts)
    }
}

/// All lines of a capture.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<Line>);

impl Lines {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A new line. `start` is the first number, where it is known.
    pub fn open(&mut self, is_arbitrated: bool, start: Option<u64>) -> usize {
        self.0.push(Line {
            is_arbitrated,
            start,
            sessions: Vec::new(),
            begun: 0,
            past: CopyCounts::default(),
            first_lost: None,
            ready: VecDeque::new(),
        });
        self.0.len() - 1
    }

    /// Makes the line of a channel the line of two sides. What the channel alone held behind a hole
    /// was given.
    pub fn pair(&mut self, line: usize) {
        let line = &mut self.0[line];
        if line.is_arbitrated {
            return;
        }
        line.is_arbitrated = true;
        for at in 0..line.sessions.len() {
            line.sessions[at].arbiter.finish();
            line.drain(at);
        }
        line.ready.clear();
    }

    pub fn is_arbitrated(&self, line: usize) -> bool {
        self.0[line].is_arbitrated
    }

    /// Whether a line has taken one of these messages under its number.
    pub fn has_taken(&self, line: usize, run: &NumberedRun) -> bool {
        let of_session = |line: &&SessionLine| line.session == run.session;
        let (Some(sequence), Some(known)) =
            (run.sequence, self.0[line].sessions.iter().find(of_session))
        else {
            return false;
        };
        let mut numbered = run.messages.iter().zip(sequence..u64::MAX);
        numbered.any(|(bytes, sequence)| known.arbiter.has_taken(sequence, bytes))
    }

    /// Takes the messages of a packet of a channel.
    pub fn offer(
        &mut self,
        line: usize,
        channel: usize,
        side: FeedSide,
        sequence: u64,
        run: NumberedRun,
    ) {
        let line = &mut self.0[line];
        let at = line.session(run.session, channel);
        // A packet from another place waits in the arbiter, and is counted there.
        line.sessions[at].arbiter.offer_all(side, sequence, run.messages).ok();
        line.drain(at);
    }

    /// Notes that all messages of a session before this number exist.
    pub fn announce(&mut self, line: usize, session: SessionId, next: u64) {
        let line = &mut self.0[line];
        // Venues repeat the end of yesterday's session in the morning, so no session begins here.
        let known = line.sessions.iter().position(|known| known.session == Some(session));
        if let Some(at) = known {
            line.sessions[at].arbiter.announce(next).ok();
            line.drain(at);
        }
    }

    /// The next message of a line and its number.
    pub fn poll(&mut self, line: usize) -> Option<(u64, Bytes)> {
        self.0[line].ready.pop_front()
    }

    /// Ends a line: what is missing will not come.
    pub fn finish(&mut self, line: usize) {
        let line = &mut self.0[line];
        for at in 0..line.sessions.len() {
            line.sessions[at].arbiter.finish();
            line.drain(at);
        }
    }

    /// Counts of all channels with two sides; `None` when there are none.
    pub fn counts_of_pairs(&self) -> Option<CopyCounts> {
        let pairs = self.0.iter().filter(|line| line.is_arbitrated).map(Line::counts);
        pairs.reduce(|sum, counts| sum + counts)
    }

    /// Sentences about holes in the numbers of channels with one side, and about numbers that
    /// begin anew.
    pub fn remarks(&self, channels: &[Channel]) -> Vec<String> {
        let mut remarks = Vec::new();
        for (at, line) in self.0.iter().enumerate() {
            let counts = line.counts();
            let names: Vec<String> = channels
                .iter()
                .filter(|channel| channel.line == Some(at))
                .map(Channel::name)
                .collect();
            let name = names.join(" and ");
            if let Some(number) = line.first_lost {
                let (lost, gaps) = (counts.lost, counts.losses);
                let gaps = if gaps == 1 { "1 gap".to_owned() } else { format!("{gaps} gaps") };
                let are = if lost == 1 { "number is" } else { "numbers are" };
                remarks.push(format!("{name}: {lost} {are} missing in {gaps}, the first {number}"));
            }
            let anew = counts.restarts + line.begun.saturating_sub(1);
            if anew > 0 {
                let times = if anew == 1 { "once".to_owned() } else { format!("{anew} times") };
                remarks
                    .push(format!("{name}: the numbers begin anew {times}, and the feed goes on"));
            }
        }
        remarks
    }
}
