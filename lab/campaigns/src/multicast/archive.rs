//! A recorder whose archive is in memory and answers at once.

use std::collections::BTreeMap;

use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};
use evenfall_multicast_machine::{Archived, Begin, ReceiverEvent, Recorder, Wanted};

/// A recorder and its archive. Frames are kept with the time at which the root sent them.
pub struct CampaignArchive {
    recorder: Recorder,
    frames: BTreeMap<u64, Archived>,
}

impl CampaignArchive {
    /// An archive without frames.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, frames: BTreeMap::new() }
    }

    fn keep(&mut self, event: &ReceiverEvent) {
        let ReceiverEvent::Released(release) = event else { return };
        let archived = Archived {
            sequence: release.sequence,
            first_message: release.first_message,
            origin: release.origin,
            deadline: release.deadline,
            format: release.format,
            messages: release.messages.clone().collect(),
            signature: release.signature.clone(),
        };
        self.frames.insert(release.sequence, archived);
    }

    fn locate(&self, begin: Begin) -> Option<(u64, u64)> {
        let is_at = |frame: &&Archived| match begin {
            Begin::Start | Begin::Live => true,
            Begin::Message(number) => frame.first_message + frame.messages.len() as u64 > number,
            Begin::Time(ns) => frame.origin.nanos() as i64 >= ns,
        };
        let frame = self.frames.values().find(is_at)?;
        Some((frame.sequence, frame.first_message))
    }

    fn answer(&mut self) {
        while let Some(wanted) = self.recorder.poll_wanted() {
            match wanted {
                Wanted::Frames { asker, first, count } => {
                    let range = first..first + u64::from(count);
                    let found: Vec<Archived> =
                        self.frames.range(range).map(|(_, frame)| frame.clone()).collect();
                    self.recorder.supply(asker, count, found);
                }
                Wanted::Location { asker, begin } => {
                    let at = self.locate(begin);
                    self.recorder.locate(asker, begin, at);
                }
            }
        }
    }
}

impl Machine for CampaignArchive {
    type Event = ReceiverEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.recorder.handle(now, arrival)
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.recorder.handle_timeout(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.recorder.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<ReceiverEvent> {
        let event = self.recorder.poll_event()?;
        self.keep(&event);
        Some(event)
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.recorder.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.answer();
        self.recorder.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.recorder.poll_timeout()
    }
}
