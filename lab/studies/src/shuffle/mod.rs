//! Figures of the shuffle on a fat tree.
//!
//! | module | what it holds |
//! |---|---|
//! | [`study`] | the figures of chapter 6 of the thesis, run by run |
//! | [`course`] | the figures that show a shuffle over time |
//! | [`curves`], [`plot`] | figures as tables and as drawings |

pub mod course;
pub mod curves;
pub mod plot;
pub mod study;
