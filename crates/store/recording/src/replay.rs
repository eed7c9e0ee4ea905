//! The messages of a stream, merged from the files of its size classes.

use evenfall_store_engine::source::RecordSource;
use evenfall_store_engine::{Listed, StoreError};

use crate::files::parse_file_name;
use crate::records::{RecordedMessage, head_bytes, number_of, parse};

/// Records read at once.
const READ_RECORDS: u64 = 4_096;

/// One class of a stream while it is merged.
struct Cursor {
    name: String,
    size: usize,
    head_bytes: usize,
    next: u64,
    end: u64,
    records: Vec<u8>,
    at: usize,
}

impl Cursor {
    /// The record at the cursor.
    fn head(&mut self, source: &dyn RecordSource) -> Result<Option<&[u8]>, StoreError> {
        if self.at >= self.records.len() {
            if self.next >= self.end {
                return Ok(None);
            }
            let until = (self.next + READ_RECORDS).min(self.end);
            self.records = source.numbers(&self.name, self.next..until)?;
            (self.next, self.at) = (until, 0);
        }
        Ok(self.records.get(self.at..self.at + self.size))
    }
}

/// The first record for which `holds` is true, when `holds` is also true for all records after it.
/// Without such a record, the end of the records.
pub fn first_where(
    source: &dyn RecordSource,
    file: &str,
    numbers: std::ops::Range<u64>,
    holds: impl Fn(&[u8]) -> bool,
) -> Result<u64, StoreError> {
    let (mut low, mut high) = (numbers.start, numbers.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(&source.numbers(file, middle..middle + 1)?) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(low)
}

/// The messages of a stream, in order of their numbers.
pub struct StreamReplay<'a> {
    source: &'a dyn RecordSource,
    cursors: Vec<Cursor>,
    /// The number after the last message that was given out.
    next: Option<u64>,
}

impl<'a> StreamReplay<'a> {
    /// The messages between two times, both included.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn new(
        source: &'a dyn RecordSource,
        name: &str,
        stream: u32,
        times: std::ops::RangeInclusive<i64>,
    ) -> Result<Self, StoreError> {
        let is_part = |file: &Listed| {
            parse_file_name(&file.name).is_some_and(|(of, s, _)| (of, s) == (name, stream))
        };
        let mut cursors = Vec::new();
        for file in source.listed()?.into_iter().filter(is_part) {
            let numbers = source.between(&file.name, *times.start(), *times.end())?;
            let size = usize::from(file.schema.record_bytes);
            let (next, end) = (numbers.start, numbers.end);
            let (head_bytes, records) = (head_bytes(&file.schema), Vec::new());
            cursors.push(Cursor { name: file.name, size, head_bytes, next, end, records, at: 0 });
        }
        Ok(Self { source, cursors, next: None })
    }

    /// The messages from this number on.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn from_number(
        source: &'a dyn RecordSource,
        name: &str,
        stream: u32,
        number: u64,
    ) -> Result<Self, StoreError> {
        let mut replay = Self::new(source, name, stream, i64::MIN..=i64::MAX)?;
        for cursor in &mut replay.cursors {
            let numbers = cursor.next..cursor.end;
            let is_it = |record: &[u8]| number_of(record) >= number;
            cursor.next = first_where(source, &cursor.name, numbers, is_it)?;
        }
        Ok(replay)
    }

    /// The next message.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn next_message(&mut self) -> Result<Option<RecordedMessage>, StoreError> {
        loop {
            let mut first: Option<(u64, usize)> = None;
            for (at, cursor) in self.cursors.iter_mut().enumerate() {
                if let Some(record) = cursor.head(self.source)? {
                    let number = number_of(record);
                    first = Some(first.map_or((number, at), |best| best.min((number, at))));
                }
            }
            let Some((number, at)) = first else { return Ok(None) };
            let cursor = &mut self.cursors[at];
            let head_bytes = cursor.head_bytes;
            let Some(record) = cursor.head(self.source)? else { return Ok(None) };
            let recorded = parse(record, head_bytes);
            cursor.at += cursor.size;
            // A message that was pushed again after a crash may be in two size classes.
            if self.next.is_none_or(|next| number >= next) {
                self.next = Some(number + 1);
                return Ok(Some(recorded));
            }
        }
    }
}
