//! Measured numbers of a real feed: the mix of types and the bursts.

use crate::itch::ItchKind;

/// Frequency of each type over a whole day: NASDAQ TotalView-ITCH 5.0 of 2019-01-30, 368,366,634
/// messages, counted from `01302019.NASDAQ_ITCH50.gz` (the project's real inputs,
/// `full_day_message_counts_20190130.csv`).
///
/// The table leaves out system events, directory, trading actions, short sale tests and decline
/// levels (S R H Y V, 26,256 messages). The generator sends these types at the beginning and the
/// end of the day.
pub(super) const MIX: [(ItchKind, u64); 14] = [
    (ItchKind::AddOrder, 162_970_455),
    (ItchKind::AddOrderMpid, 1_725_898),
    (ItchKind::OrderDelete, 158_273_361),
    (ItchKind::OrderReplace, 27_222_746),
    (ItchKind::OrderExecuted, 8_096_995),
    (ItchKind::OrderExecutedWithPrice, 158_886),
    (ItchKind::OrderCancel, 4_669_874),
    (ItchKind::Noii, 3_684_511),
    (ItchKind::Trade, 1_326_184),
    (ItchKind::MarketParticipantPosition, 193_769),
    (ItchKind::CrossTrade, 17_430),
    (ItchKind::BrokenTrade, 116),
    (ItchKind::LuldAuctionCollar, 62),
    // The day had no operational halt. A single halt stands for the rare days with a halt.
    (ItchKind::OperationalHalt, 1),
];

/// Share of executions that take the whole order. Of that day's 164.70 million orders 158.27
/// million were deleted; most of the other 6.43 million were executed by 8.26 million
/// executions, and a few were left at the end.
pub(super) const WHOLE_EXECUTION: f64 = 0.7;

/// Messages of the whole feed per 10 ms over the first 27.9 s of trading of 2019-01-30, as
/// quantiles: (standard normal quantile, messages). From `feed_rate_20190130_open.csv` of the
/// real inputs; its counts are taken at AAPL's messages, so a count that follows bins without one
/// is spread evenly over them. Mean 680.7.
///
/// The rows are the quantiles .0005 .01 .05 .1 .2 .3 .4 .5 .6 .7 .8 .9 .95 .98 .99 .995 .999
/// and the maximum.
pub(super) const RATE_QUANTILES: [(f64, f64); 18] = [
    (-3.291, 30.0),
    (-2.326, 140.0),
    (-1.645, 263.0),
    (-1.282, 296.0),
    (-0.842, 332.0),
    (-0.524, 359.0),
    (-0.253, 389.0),
    (0.0, 423.0),
    (0.253, 454.0),
    (0.524, 494.0),
    (0.842, 574.0),
    (1.282, 864.0),
    (1.645, 2_363.0),
    (2.054, 4_705.0),
    (2.326, 6_111.0),
    (2.576, 7_424.0),
    (3.090, 8_878.0),
    (3.450, 10_807.0),
];

/// Autocorrelation of the logarithm of the same counts, by lag in 10-ms bins.
#[cfg(test)]
pub(super) const LOG_RATE_AUTOCORRELATION: [(usize, f64); 5] =
    [(1, 0.742), (10, 0.687), (50, 0.544), (100, 0.418), (200, 0.189)];

/// Share of the rate's variation that lasts, and for how many 10-ms bins (to 1/e): fitted to the
/// autocorrelation above. The rest changes from bin to bin.
pub(super) const LASTING_SHARE: f64 = 0.75;
/// See [`LASTING_SHARE`].
pub(super) const LASTING_BINS: f64 = 160.0;

/// Share of messages that carry the same nanosecond as the one before them, at the open of
/// 2019-12-30 (`nasdaq_20191230_open_multi_symbol.itch50`: 1,000 messages in 2.36 ms, the other
/// gaps close to exponential).
pub(super) const SAME_TIME: f64 = 0.15;
