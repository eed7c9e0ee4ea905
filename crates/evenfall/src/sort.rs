//! A sort of the records of all processes of a group, each of which ends with its part.

pub use evenfall_query_member::check::{PartSummary, SortVerdict, judge_sort};
pub use evenfall_query_member::files::{RecordFileError, count_records, read_share, write_part};
pub use evenfall_query_member::{
    BurstRun, GroupError, GroupMember, KeyDraw, SortConfig, SortMember, SortPhases, SortRecords,
    SortedRecords, local, make_records,
};
