//! MilliSort and three queries beside the figures of the thesis, and the balance of partitions.
//!
//! | module | what it holds |
//! |---|---|
//! | [`study`] | Table 2.5 beside that of the thesis |
//! | [`figures`] | its other tables, and its figures |
//! | [`balance`] | Table 2.2: the largest partition |

pub mod balance;
pub mod figures;
pub mod study;
