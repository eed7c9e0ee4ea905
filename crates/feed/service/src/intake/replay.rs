//! Replays a file or the generator, each message at its due time.

use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_feed_formats::{FeedError, FeedMessage};
use evenfall_port::Port;

use super::{Intake, News, Next};
use crate::IntakeError;
use crate::input::{InputError, Schedule};
use crate::settings::Feed;

/// A schedule that runs.
pub(super) struct Replay {
    schedule: Schedule,
    start: Timestamp,
    title: String,
    /// `Some` once the end was reached, with whether the end was reported.
    ended: Option<bool>,
}

impl Replay {
    pub(super) fn open(feed: &Feed) -> Result<Self, InputError> {
        let title = match &feed.file {
            Some(file) => file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            None => format!("generated, seed {}", feed.synthetic.seed),
        };
        Ok(Self { schedule: Schedule::open(feed)?, start: Timestamp::ZERO, title, ended: None })
    }
}

impl Intake for Replay {
    fn begin(&mut self, start: Timestamp, _: &mut dyn Port) -> Result<(), IntakeError> {
        self.start = start;
        Ok(())
    }

    fn next(&mut self, now: Timestamp) -> Result<Next, FeedError> {
        let Some((due, message)) = self.schedule.peek()? else {
            self.ended.get_or_insert(false);
            return Ok(Next::End);
        };
        let at = self.start + *due;
        Ok(if at > now { Next::NotBefore(at) } else { Next::Message(message.clone(), at) })
    }

    fn take(&mut self) {
        self.schedule.take();
    }

    fn skip(&mut self) -> Result<Option<(FeedMessage, Duration)>, FeedError> {
        self.schedule.peek()?;
        Ok(self.schedule.take().map(|(due, message)| (message, due)))
    }

    fn news(&mut self) -> Vec<News> {
        if self.ended != Some(false) {
            return Vec::new();
        }
        self.ended = Some(true);
        self.schedule.remarks().into_iter().map(|text| ("feed", text)).collect()
    }

    fn title(&self) -> String {
        self.title.clone()
    }
}
