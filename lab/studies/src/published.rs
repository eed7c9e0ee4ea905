//! Published measurements: rows to which models are fitted, and rows that judge the fitted models.
//!
//! All rows are measurements of Jasper (Haseeb et al., arXiv 2402.09527), on machines of type
//! c5.2xlarge in AWS with a stack that bypasses the kernel. Rows of 10 and 100 receivers are part
//! of the fit. Rows of 1,000 receivers and more never are, so that they can judge the fit.

use evenfall_multicast_machine::Mode;

/// A published row: the measurement and its set-up.
#[derive(Clone, Copy, Debug)]
pub struct PublishedRow {
    /// The way of sending.
    pub mode: Mode,
    /// Receivers.
    pub receivers: u32,
    /// Receivers that shared a machine.
    pub per_host: u32,
    /// Depth of the tree.
    pub depth: u8,
    /// Children of the root and of each proxy.
    pub fanout: u16,
    /// Extra copies that hedging sends to each receiver (H).
    pub hedging: u8,
    /// Overall multicast latency in microseconds: p50, p90 and p99, as far as published.
    pub oml: [Option<f64>; 3],
    /// Median delivery window without holding, microseconds.
    pub window: Option<f64>,
    /// Whether the models are fitted to the row.
    pub in_fit: bool,
}

const fn median(n: u32, d: u8, f: u16, p50: f64) -> PublishedRow {
    row(Mode::Tree, n, d, f, 0, [Some(p50), None, None])
}

const fn row(mode: Mode, n: u32, d: u8, f: u16, h: u8, oml: [Option<f64>; 3]) -> PublishedRow {
    PublishedRow {
        mode,
        receivers: n,
        per_host: 1,
        depth: d,
        fanout: f,
        hedging: h,
        oml,
        window: None,
        in_fit: n <= 100,
    }
}

const fn all(p50: f64, p90: f64, p99: f64) -> [Option<f64>; 3] {
    [Some(p50), Some(p90), Some(p99)]
}

/// The published rows without holding.
pub const ROWS: [PublishedRow; 13] = [
    median(10, 1, 10, 66.0),
    median(10, 2, 4, 88.0),
    median(100, 1, 100, 351.0),
    median(100, 3, 5, 141.0),
    row(Mode::Unicast, 100, 1, 100, 0, all(254.0, 331.0, 466.0)),
    PublishedRow {
        window: Some(103.0),
        ..row(Mode::Tree, 100, 2, 10, 0, all(147.0, 213.0, 401.0))
    },
    PublishedRow { window: Some(91.0), ..row(Mode::Hedge, 100, 2, 10, 1, [None; 3]) },
    PublishedRow {
        window: Some(72.0),
        ..row(Mode::Hedge, 100, 2, 10, 2, all(129.0, 146.0, 199.0))
    },
    PublishedRow { per_host: 10, ..median(1_000, 2, 32, 282.0) },
    PublishedRow { per_host: 10, ..median(1_000, 3, 10, 217.0) },
    PublishedRow { per_host: 10, ..median(1_000, 4, 6, 226.0) },
    PublishedRow { per_host: 10, ..row(Mode::Hedge, 1_000, 3, 10, 2, all(214.0, 244.0, 377.0)) },
    PublishedRow { per_host: 20, ..row(Mode::Hedge, 5_832, 3, 18, 1, all(315.0, 355.0, 541.0)) },
];
