//! Trades and quotes as files of the store, written beside the messages out of which they are made.
//!
//! Nobody wants to replay a day to see its last trade. The machine
//! [`Books`](evenfall_feed_formats::books::Books) makes trades and changes of best prices out of
//! messages, and each stream of a recording has a file for each of the two. The rows of a message
//! depend on the messages up to it alone, so that the files are made again where they are missing,
//! and go on where they end.
//!
//! A third file says how far both go: all messages in front of a number have their rows. Rows are
//! appended first, and the number after them with the records of each file by then. A reader takes
//! the last number whose records are there. A crash may take rows from one file only. Readers then
//! take an earlier edge, and the next writer makes the rows again.
//!
//! ```text
//!  messages   0  1  2  3  4  5  6  7  8
//!  trades           2     4        7          records: 3
//!  quotes     0  1     3  4     6             records: 5
//!  derived                      7             messages 7, trades 2, quotes 5
//! ```

mod edges;
mod records;
mod writer;

pub(crate) use edges::{DerivedRows, DerivedStream, DerivedStreams, last_edge};
pub(crate) use records::{DerivedEdge, RowOrigin, origin_of, tick_of, trade_of};
pub use writer::DerivedWriter;
