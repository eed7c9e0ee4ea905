//! Messages out of their columns, as the records that they were.

use evenfall_store_format::Result;
use evenfall_store_format::messages::parts::{
    MESSAGE_BYTES_MAX, PARTED_RECORD_BYTES, PartedMessage, split_own_time,
};
use evenfall_store_format::messages::{
    FORMAT_AT, LENGTH_AT, MESSAGE_AT, MessageField, MessageShredder, NUMBER_AT, ShreddedMessage,
};

use super::cells::{CellCursor, CellsReader};
use super::{ChunkField, columns_of, day_ns_of, has_parts, read_cells, shredder_of};
use crate::damaged;
use crate::decode::{Segments, StoredChunk};

/// What the columns say of a row besides the bytes of its message.
#[derive(Default)]
struct RowHead {
    number: u64,
    recorded_ns: i64,
    tag: u8,
    /// The stated length; `None` for a message that was shredded.
    length: Option<u16>,
    missed: u32,
    records: u32,
}

/// Goes over the rows of a group.
struct RowReader<'a> {
    cells: Vec<(ChunkField, CellCursor<'a>)>,
    shredder: &'a MessageShredder,
    values: ShreddedMessage<'a>,
    /// The message of the row that was read last.
    message: Vec<u8>,
}

impl<'a> RowReader<'a> {
    fn new(columns: &'a [(ChunkField, CellsReader)], shredder: &'a MessageShredder) -> Self {
        let cells = columns.iter().map(|(column, cells)| (*column, cells.first_row())).collect();
        Self { cells, shredder, values: ShreddedMessage::default(), message: Vec::new() }
    }

    /// Reads the next row. `None` when its values are no message.
    fn next_row(&mut self) -> Option<RowHead> {
        let (mut head, mut time, mut offset) = (RowHead::default(), 0i64, 0);
        self.values.rest.clear();
        for (column, cells) in &mut self.cells {
            match *column {
                ChunkField::Value(field) if MessageField::TEXTS.contains(&field) => {
                    self.values.set_text(field, cells.next_text());
                }
                ChunkField::Value(field) => self.values.set_number(field, cells.next_number()),
                ChunkField::Rest => {
                    let rest = cells.next_text().unwrap_or_default();
                    self.values.rest.extend_from_slice(rest);
                }
                ChunkField::Length => head.length = cells.next_number().map(|len| len as u16),
                ChunkField::Seq => {
                    let seq = cells.next_number().unwrap_or_default() as u64;
                    head.number = seq.wrapping_sub(1);
                }
                ChunkField::Time => time = cells.next_number().unwrap_or_default(),
                ChunkField::RecordedOffset => offset = cells.next_number().unwrap_or_default(),
                ChunkField::Format => head.tag = cells.next_number().unwrap_or_default() as u8,
                ChunkField::Missed => head.missed = cells.next_number().unwrap_or_default() as u32,
                ChunkField::Records => {
                    head.records = cells.next_number().unwrap_or_default() as u32;
                }
            }
        }
        head.recorded_ns = time.wrapping_add(offset);
        self.message.clear();
        if head.length.is_some() {
            self.message.extend_from_slice(&self.values.rest);
            return Some(head);
        }
        self.values.day_ns = Some(day_ns_of(time));
        let is_whole = self.shredder.assemble_message(head.tag, &self.values, &mut self.message);
        is_whole.then_some(head)
    }

    /// The message of this row, in front of its records. `None` when its length is another.
    fn parted_message(&self, head: &RowHead) -> Option<PartedMessage<'_>> {
        let len = head.length.map_or(self.message.len(), usize::from);
        let (bytes, own_ns) = split_own_time(&self.message, len < self.message.len());
        let RowHead { number, recorded_ns, tag, missed, .. } = *head;
        let message = PartedMessage { recorded_ns, number, tag, missed, own_ns, bytes };
        (bytes.len() == len && len <= MESSAGE_BYTES_MAX).then_some(message)
    }
}

/// Puts the rows of a group together.
pub(crate) fn read_rows(
    chunk: &StoredChunk<'_>,
    group: u32,
    segments: &mut Segments,
) -> Result<()> {
    let shredder = shredder_of(chunk)?;
    let wanted = columns_of(has_parts(chunk));
    let of = chunk.group(group, wanted.len())?;
    let mut columns = Vec::with_capacity(wanted.len());
    for column in wanted {
        columns.push((*column, read_cells(&of, *column)?));
    }
    let mut reader = RowReader::new(&columns, &shredder);
    if has_parts(chunk) {
        return put_parted(chunk, of.rows(), &mut reader, segments);
    }
    for (at, row) in segments.rows().enumerate() {
        let Some(head) = reader.next_row() else { return Err(no_message(chunk, at)) };
        let length = head.length.unwrap_or(reader.message.len() as u16);
        row[..NUMBER_AT].copy_from_slice(&head.recorded_ns.to_le_bytes());
        row[NUMBER_AT..LENGTH_AT].copy_from_slice(&head.number.to_le_bytes());
        row[LENGTH_AT..FORMAT_AT].copy_from_slice(&length.to_le_bytes());
        row[FORMAT_AT] = head.tag;
        let room = row[MESSAGE_AT..].get_mut(..reader.message.len());
        room.ok_or_else(|| no_message(chunk, at))?.copy_from_slice(&reader.message);
    }
    Ok(())
}

fn no_message(chunk: &StoredChunk<'_>, row: usize) -> evenfall_store_format::Error {
    damaged(chunk.place, format!("row {row}: its values are no message"))
}

/// Puts the records of messages in parts into the segments.
fn put_parted(
    chunk: &StoredChunk<'_>,
    rows: usize,
    reader: &mut RowReader<'_>,
    segments: &mut Segments,
) -> Result<()> {
    let size = usize::from(PARTED_RECORD_BYTES);
    let mut records = Vec::with_capacity(chunk.rows() * size);
    for at in 0..rows {
        let head = reader.next_row().ok_or_else(|| no_message(chunk, at))?;
        let message = reader.parted_message(&head).ok_or_else(|| no_message(chunk, at))?;
        let filler = (head.records as usize).checked_sub(message.records());
        let left = chunk.rows() - records.len() / size;
        let filler = filler.filter(|_| head.records as usize <= left);
        let filler = filler.ok_or_else(|| no_message(chunk, at))?;
        message.put(&mut records);
        message.put_filler(filler, &mut records);
    }
    if records.len() != chunk.rows() * size {
        return Err(damaged(chunk.place, "its messages have another number of records"));
    }
    let put = |(row, record): (&mut [u8], &[u8])| row.copy_from_slice(record);
    segments.rows().zip(records.chunks_exact(size)).for_each(put);
    Ok(())
}
