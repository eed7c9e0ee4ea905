//! The feed of a run: a file, the generator or a live MoldUDP64 session, with the time at which
//! each message is due.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use evenfall_feed_formats::capture::CopyChoice;
use evenfall_feed_formats::file::FeedFile;
use evenfall_feed_formats::pace::{Pace, PaceMode};
use evenfall_feed_formats::source::{FeedMessage, MessageSource};
use evenfall_feed_formats::{Date, FeedError, Format, UnknownFormat, codec, dates, synthetic};
use evenfall_host::interrupt;

use crate::settings::{Feed, Synthetic};

/// The reason why a feed cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be opened.
    #[error("{}: {error}", .0.display(), error = .1)]
    Open(std::path::PathBuf, std::io::Error),
    /// The file is damaged, or is not of the stated format.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// `feed.format` names no format.
    #[error("feed.format: {0}")]
    Format(UnknownFormat),
    /// A setting describes no feed.
    #[error("{0}")]
    Setting(String),
}

/// The name of standard input on the command line.
const STANDARD_INPUT: &str = "-";

/// A file whose read ends with an error when a signal comes while it waits, as at a pipe that gives
/// no bytes. Readers of feeds begin an interrupted read again, so that the first Ctrl-C would do
/// nothing.
struct StoppableInput<F>(F);

impl<F: Read> Read for StoppableInput<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.0.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && interrupt::raised() => {
                Err(io::Error::other("stopped by a signal"))
            }
            other => other,
        }
    }
}

impl<F: Seek> Seek for StoppableInput<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Opens a market-data file of this format; `-` is standard input. With `None`, the content of the
/// file decides the format. The file is opened and read once, so that it may be a pipe.
///
/// # Errors
/// [`InputError`] names the file.
pub fn open_file(path: &Path, format: Option<Format>) -> Result<FeedFile, InputError> {
    let (file, name) = if path == Path::new(STANDARD_INPUT) {
        // A file of its own on the same input, because a buffer of the program is not to share it.
        let input = std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
        (input, "standard input".to_owned())
    } else {
        (File::open(path), path.display().to_string())
    };
    let is_directory = |file: &File| file.metadata().is_ok_and(|about| about.is_dir());
    let file = match file {
        // A directory opens as a file does, and fails at its first byte.
        Ok(file) if is_directory(&file) => {
            let why = "this is a directory: give a file";
            Err(std::io::Error::new(std::io::ErrorKind::IsADirectory, why))
        }
        file => file,
    };
    let file = file.map_err(|error| InputError::Open(path.to_owned(), error))?;
    let reader = Box::new(BufReader::new(StoppableInput(file)));
    Ok(evenfall_feed_formats::file::open_as(format, reader, &name)?)
}

/// The tag of a format's word in the settings. `opaque` keeps every datagram of a capture as bytes.
///
/// # Errors
/// [`InputError::Format`] says which words there are.
pub fn format_named(word: Option<&str>) -> Result<Option<Format>, InputError> {
    let named = |word| match word {
        "opaque" => Ok(Format::OPAQUE),
        word => codec::named(word).map(|codec| codec.format()),
    };
    word.map(named).transpose().map_err(InputError::Format)
}

/// The day of a file whose messages have only times of day: the day that the user gives, else the
/// file's own (the days of a zip), else the date in the file's name.
pub fn date_of(path: &Path, source: &dyn MessageSource, said: Option<Date>) -> Option<Date> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    said.or_else(|| source.date()).or_else(|| dates::date_in_name(&name))
}

fn generator(config: &Synthetic) -> Result<Box<dyn MessageSource + Send>, InputError> {
    let Synthetic { seed, symbols, messages, mean_rate, bursts } = *config;
    let standard = synthetic::Config::default();
    let config = synthetic::Config { seed, symbols, messages, mean_rate, bursts, ..standard };
    let generator = synthetic::Generator::new(config)
        .map_err(|error| InputError::Setting(format!("feed.synthetic: {error}")))?;
    Ok(Box::new(generator))
}

/// Opens the feed of the settings: the file, or else the generator. A capture with sides A and B
/// gives the first copy of each packet, unless `feed.arbitrate` is false.
///
/// # Errors
/// [`InputError`].
pub fn open(feed: &Feed) -> Result<Box<dyn MessageSource + Send>, InputError> {
    match &feed.file {
        Some(path) => {
            let file = open_file(path, format_named(feed.format.as_deref())?)?;
            let mut source = file.source;
            source.choose_copies(CopyChoice::of_setting(feed.arbitrate))?;
            Ok(source)
        }
        None => generator(&feed.synthetic),
    }
}

/// Messages and the time at which each is due, counted from the start.
pub struct Schedule {
    source: Box<dyn MessageSource + Send>,
    pace: Pace,
    next: Option<(Duration, FeedMessage)>,
}

impl Schedule {
    /// The schedule that the settings describe.
    ///
    /// # Errors
    /// [`InputError`] when the feed cannot be opened.
    pub fn open(feed: &Feed) -> Result<Self, InputError> {
        let silence = feed.silence.unwrap_or(Duration::MAX);
        let mode = match (feed.rate, feed.fit) {
            (Some(messages_per_s), _) => PaceMode::Rate { messages_per_s },
            (None, Some(fit)) => PaceMode::OwnTimes { speed: fitting(feed, fit)?, silence },
            (None, None) => PaceMode::OwnTimes { speed: feed.speed, silence },
        };
        let pace = Pace::new(mode).map_err(|error| InputError::Setting(error.to_string()))?;
        Ok(Self { source: open(feed)?, pace, next: None })
    }

    /// The next message and its due time. The message stays in the schedule.
    ///
    /// # Errors
    /// When the feed is damaged at this place. All earlier messages were given.
    pub fn peek(&mut self) -> Result<Option<&(Duration, FeedMessage)>, FeedError> {
        if self.next.is_none() {
            self.next = self.source.next_message()?.map(|m| (self.pace.due(&m), m));
        }
        Ok(self.next.as_ref())
    }

    /// Remarks on a feed that has ended: skipped data, and dropped copies of two sides.
    pub fn remarks(&self) -> Vec<String> {
        self.source.remarks()
    }

    /// Takes the message that [`peek`](Self::peek) showed.
    pub fn take(&mut self) -> Option<(Duration, FeedMessage)> {
        self.next.take()
    }
}

/// The speed at which the whole feed takes `fit`.
fn fitting(feed: &Feed, fit: Duration) -> Result<f64, InputError> {
    let mut source = open(feed)?;
    let (mut first, mut last) = (None, 0);
    // A damaged file is not an error here. The error is reported when the damaged place is sent.
    while let Ok(Some(message)) = source.next_message() {
        first.get_or_insert(message.time_ns);
        last = last.max(message.time_ns);
    }
    let span = last.saturating_sub(first.unwrap_or(last)) as f64 / 1e9;
    // A file whose messages all have one time is sent at once.
    Ok(if span > 0.0 { (span / fit.as_secs_f64()).max(1e-6) } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe whose reads a signal interrupts a few times, and that then ends.
    struct InterruptedPipe(u32);

    impl Read for InterruptedPipe {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| io::Error::other("read too often"))?;
            match self.0 {
                0 => Ok(0),
                _ => Err(io::ErrorKind::Interrupted.into()),
            }
        }
    }

    /// Another signal, such as that of a resized terminal, must not end a feed.
    #[test]
    fn a_read_that_another_signal_interrupts_begins_again() {
        let mut bytes = Vec::new();
        let read = StoppableInput(InterruptedPipe(3)).read_to_end(&mut bytes);
        assert_eq!(read.expect("the end of the pipe"), 0);
    }
}
