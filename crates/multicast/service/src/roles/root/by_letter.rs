//! The intake of a root that reads no feed, because its messages come from authors.

use evenfall_core::Timestamp;
use evenfall_feed_formats::FeedError;
use evenfall_feed_service::IntakeError;
use evenfall_feed_service::intake::{Intake, Next};
use evenfall_port::Port;

use super::letters::authors;
use crate::settings::Settings;

/// The intake of a root whose messages come by letter.
pub(super) struct ByLetter {
    title: String,
}

impl ByLetter {
    /// The intake; `None` for a run without authors.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        let names: Vec<&str> = authors(settings).iter().map(|node| node.name.as_str()).collect();
        let title = format!("published by {}", names.join(", "));
        (!names.is_empty()).then_some(Self { title })
    }
}

impl Intake for ByLetter {
    fn begin(&mut self, _: Timestamp, _: &mut dyn Port) -> Result<(), IntakeError> {
        Ok(())
    }

    fn next(&mut self, _: Timestamp) -> Result<Next, FeedError> {
        Ok(Next::NotBefore(Timestamp::MAX))
    }

    fn take(&mut self) {}

    fn title(&self) -> String {
        self.title.clone()
    }
}
