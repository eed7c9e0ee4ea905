//! The messages of a stream: out of its file, or merged from its files of size classes.

use std::ops::{Range, RangeInclusive};

use evenfall_store_engine::{FileListing, RecordSource, StoreError};
use evenfall_store_format::messages::parts::PartStep;

use crate::catalog::Catalog;
use crate::records::{RecordLayout, RecordView, RecordedMessage, number_of};

/// Bytes read at once.
const READ_BYTES: u64 = 256 << 10;

/// One file of a stream's messages while it is read.
pub(crate) struct ClassCursor {
    name: String,
    size: usize,
    layout: RecordLayout,
    next: u64,
    end: u64,
    records: Vec<u8>,
    at: usize,
}

impl ClassCursor {
    pub(crate) fn new(file: &FileListing, numbers: Range<u64>) -> Self {
        Self {
            name: file.name.clone(),
            size: usize::from(file.schema.record_bytes),
            layout: RecordLayout::of(&file.schema),
            next: numbers.start,
            end: numbers.end,
            records: Vec::new(),
            at: 0,
        }
    }

    /// The records that the cursor has not read yet; `None` while it has records in memory.
    #[cfg(feature = "arrow")]
    pub(crate) fn unread_records(&self) -> Option<Range<u64>> {
        (self.at >= self.records.len()).then_some(self.next..self.end)
    }

    /// Passes over records that were read in another way.
    #[cfg(feature = "arrow")]
    pub(crate) fn pass_over(&mut self, records: u64) {
        self.next = self.end.min(self.next + records);
    }

    /// Name of the file.
    #[cfg(feature = "arrow")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The record at the cursor.
    pub(crate) fn head(&mut self, source: &dyn RecordSource) -> Result<Option<&[u8]>, StoreError> {
        if self.at >= self.records.len() {
            if self.next >= self.end {
                return Ok(None);
            }
            let until = (self.next + (READ_BYTES / self.size as u64).max(1)).min(self.end);
            self.records = source.numbers(&self.name, self.next..until)?;
            (self.next, self.at) = (until, 0);
        }
        Ok(self.records.get(self.at..self.at + self.size))
    }

    /// Takes the message at the cursor. `None` for parts of a message whose other parts are gone or
    /// not there yet.
    pub(crate) fn take(
        &mut self,
        source: &dyn RecordSource,
    ) -> Result<Option<RecordedMessage>, StoreError> {
        let (layout, size) = (self.layout, self.size);
        let mut before = Vec::new();
        let mut number = None;
        loop {
            let Some(record) = self.head(source)? else { return Ok(None) };
            let view = RecordView::of(record, layout);
            let taken = match view.kind.step_of(number_of(record), number) {
                PartStep::Cut => return Ok(None),
                PartStep::End => Some(Some(view.message(&before))),
                PartStep::Pass => Some(None),
                PartStep::Extend => {
                    view.extend(&mut before);
                    number = Some(number_of(record));
                    None
                }
            };
            self.at += size;
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
    }
}

/// The last record of a file, where there is any.
///
/// # Errors
/// The errors of the store.
pub fn last_record(source: &dyn RecordSource, file: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let numbers = source.between(file, i64::MIN, i64::MAX)?;
    match numbers.is_empty() {
        true => Ok(None),
        false => source.numbers(file, numbers.end - 1..numbers.end).map(Some),
    }
}

/// The first record for which `holds` is true, when `holds` is also true for all records after it.
/// Without such a record, the end of the records.
pub fn first_where(
    source: &dyn RecordSource,
    file: &str,
    numbers: Range<u64>,
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

/// The part of these records of a file whose times lie in a range.
///
/// # Errors
/// The errors of the source, and [`NoRecord`](evenfall_store_format::Error::NoRecord) when
/// retention has removed records since these were found, and may have removed some of these times.
/// An answer without them would look whole.
pub(crate) fn records_of_times(
    source: &dyn RecordSource,
    file: &str,
    records: Range<u64>,
    times: &RangeInclusive<i64>,
) -> Result<Range<u64>, StoreError> {
    let timed = source.between(file, *times.start(), *times.end())?;
    if timed.start > records.start {
        let kept = source.between(file, i64::MIN, i64::MAX)?;
        // Records are in order of time. Where a kept record lies in front of the times, so does
        // every record that was removed.
        if kept.start > records.start && timed.start <= kept.start {
            let record = format!("{}: retention deleted it while it was read", records.start);
            let (first, end) = (kept.start, kept.end);
            return Err(evenfall_store_format::Error::NoRecord { record, first, end }.into());
        }
    }
    let start = timed.start.clamp(records.start, records.end);
    Ok(start..timed.end.clamp(start, records.end))
}

/// The messages of a stream, in order of their numbers.
pub struct StreamReplay<'a> {
    source: &'a dyn RecordSource,
    pub(crate) cursors: Vec<ClassCursor>,
    /// The number after the last message that was given out.
    next: Option<u64>,
    /// The number before which the replay ends.
    pub(crate) end: u64,
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
        times: RangeInclusive<i64>,
    ) -> Result<Self, StoreError> {
        let mut files = Vec::new();
        let catalog = Catalog::read(source)?;
        let there = catalog.recording(name).map_or(&[][..], |files| files.of_stream(stream));
        for file in there {
            let numbers = source.between(&file.name, *times.start(), *times.end())?;
            files.push((file, numbers));
        }
        Ok(Self::of(source, files))
    }

    /// The messages whose records have these numbers in their files.
    pub(crate) fn of<'b>(
        source: &'a dyn RecordSource,
        files: impl IntoIterator<Item = (&'b FileListing, Range<u64>)>,
    ) -> Self {
        let cursors = files.into_iter().map(|(file, numbers)| ClassCursor::new(file, numbers));
        Self { source, cursors: cursors.collect(), next: None, end: u64::MAX }
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
        Self::new(source, name, stream, i64::MIN..=i64::MAX)?.within(number..u64::MAX)
    }

    /// The messages of these numbers alone.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn within(mut self, numbers: Range<u64>) -> Result<Self, StoreError> {
        for cursor in &mut self.cursors {
            let records = cursor.next..cursor.end;
            let is_it = |record: &[u8]| number_of(record) >= numbers.start;
            if numbers.start > 0 {
                cursor.next = first_where(self.source, &cursor.name, records, is_it)?;
            }
        }
        self.end = numbers.end;
        Ok(self)
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
            let Some((number, at)) = first.filter(|(number, _)| *number < self.end) else {
                return Ok(None);
            };
            let taken = self.cursors[at].take(self.source)?;
            // A message that was pushed again after a crash may be in two size classes.
            if self.next.is_none_or(|next| number >= next)
                && let Some(message) = taken
            {
                self.next = Some(number + 1);
                return Ok(Some(message));
            }
        }
    }
}
