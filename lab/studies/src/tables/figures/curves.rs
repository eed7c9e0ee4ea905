//! Which published curve is compared with which run.
//!
//! The publication is Jasper (Haseeb et al., arXiv 2402.09527). Its successors by the same authors
//! are called "later". Curves marked as fitted are of rows that the fit of the model has seen
//! ([`crate::published`]); all others judge the model.

use evenfall_campaigns::multicast::OverlayParams;
use evenfall_core::Hedging;
use evenfall_multicast_machine::Mode;
use evenfall_multicast_machine::config::{Rule, Scheme};

use super::measured::FigureQuantity;
use crate::tables::overlay::Effort;

/// A run that curves are taken from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FigureScene {
    /// What the run is, in the table.
    pub name: &'static str,
    /// The built-in model; `None` for the model of the effort.
    pub model: Option<&'static str>,
    pub mode: Mode,
    pub receivers: u32,
    /// Receivers that share a machine.
    pub per_host: u32,
    /// Depth and fan-out, where they are not the usual ones.
    pub shape: Option<(u8, u16)>,
    /// Extra copies.
    pub hedging: u8,
    /// Whether proxies beside the tree send the extra copies (F+H), and not siblings.
    pub beside: bool,
    /// Messages per second.
    pub rate: f64,
}

const fn scene(name: &'static str, mode: Mode, hedging: u8) -> FigureScene {
    FigureScene {
        name,
        model: None,
        mode,
        receivers: 100,
        per_host: 1,
        shape: None,
        hedging,
        beside: false,
        rate: 5_000.0,
    }
}

pub const UNICAST: FigureScene = scene("unicast", Mode::Unicast, 0);
pub const TREE: FigureScene = scene("tree", Mode::Tree, 0);
const HEDGE_1: FigureScene = scene("tree, H=1", Mode::Hedge, 1);
pub const HEDGE_2: FigureScene = scene("tree, H=2", Mode::Hedge, 2);
const BESIDE: FigureScene = FigureScene { beside: true, ..scene("F+H, H=2", Mode::Hedge, 2) };
pub const RELEASE: FigureScene = scene("release, H=2", Mode::Release, 2);
pub const RELEASE_1: FigureScene = scene("release, H=1", Mode::Release, 1);
const RELEASE_0: FigureScene = scene("release, H=0", Mode::Release, 0);
const CLOUDEX: FigureScene = scene("cloudex", Mode::Cloudex, 0);
pub const FAST: FigureScene =
    FigureScene { rate: 35_000.0, ..scene("release, H=2, 35,000/s", Mode::Release, 2) };
const THOUSAND: FigureScene = FigureScene {
    receivers: 1_000,
    per_host: 10,
    shape: Some((3, 10)),
    ..scene("1,000 receivers, 10 a host, H=2", Mode::Hedge, 2)
};
const THOUSAND_HELD: FigureScene = FigureScene {
    mode: Mode::Release,
    name: "1,000 receivers, 10 a host, release, H=2",
    ..THOUSAND
};
const DEEP: FigureScene = FigureScene {
    receivers: 5_832,
    per_host: 20,
    shape: Some((3, 18)),
    ..scene("5,832 receivers, 20 a host, H=1", Mode::Hedge, 1)
};
pub const MANY_1: FigureScene = FigureScene {
    receivers: 5_000,
    per_host: 20,
    ..scene("5,000 receivers, 20 a host, release, H=1", Mode::Release, 1)
};
pub const MANY_2: FigureScene =
    FigureScene { hedging: 2, name: "5,000 receivers, 20 a host, release, H=2", ..MANY_1 };
const GCP_0: FigureScene = FigureScene { model: Some("gcp"), ..scene("gcp, tree", Mode::Tree, 0) };
const GCP_2: FigureScene =
    FigureScene { model: Some("gcp"), ..scene("gcp, tree, H=2", Mode::Hedge, 2) };
const GCP_HELD_0: FigureScene = FigureScene {
    model: Some("gcp"),
    rate: 10_000.0,
    ..scene("gcp, release, H=0, 10,000/s", Mode::Release, 0)
};
const GCP_HELD_2: FigureScene =
    FigureScene { hedging: 2, name: "gcp, release, H=2, 10,000/s", ..GCP_HELD_0 };

impl FigureScene {
    /// A tree of one of the published shapes.
    pub const fn shape(receivers: u32, depth: u8, fanout: u16, per_host: u32) -> Self {
        let tree = scene("tree", Mode::Tree, 0);
        Self { receivers, per_host, shape: Some((depth, fanout)), ..tree }
    }

    /// Parameters of the run.
    pub fn params(&self, effort: &Effort) -> OverlayParams {
        // Half of the messages are enough to learn for Jasper's rule, which follows the last
        // reports.
        let messages = effort.messages.min(COPIES_MAX / self.receivers).max(100);
        let warm_up = messages / 2;
        let effort = Effort { rate: self.rate, messages, warm_up, ..effort.clone() };
        let mut params = effort.params(self.receivers, self.mode, Hedging(self.hedging));
        params.receivers_per_host = self.per_host;
        params.config.deadline.rule = Rule::MaxP95;
        if let Some((depth, fanout)) = self.shape {
            (params.config.shape.depth, params.config.shape.fanout) = (Some(depth), Some(fanout));
        }
        if self.beside {
            params.config.shape.scheme = Scheme::Extra;
        }
        params
    }
}

/// Messages times receivers of a run at most: half a minute of a core.
const COPIES_MAX: u32 = 6_000_000;

/// A published curve.
#[derive(Clone, Copy, Debug)]
pub struct PublishedCurve {
    pub figure: &'static str,
    pub name: &'static str,
    /// End of the name of the figure's file, and the series in it.
    pub source: (&'static str, &'static str),
    /// Our run; `None` where there is none, and `why` says why.
    pub scene: Option<FigureScene>,
    pub of: FigureQuantity,
    /// Whether the model is fitted to the curve.
    pub fit: bool,
    /// Why there is no run, or what is different about it.
    pub why: &'static str,
}

const fn curve(
    figure: &'static str,
    name: &'static str,
    file: &'static str,
    series: &'static str,
    scene: FigureScene,
    of: FigureQuantity,
) -> PublishedCurve {
    PublishedCurve {
        figure,
        name,
        source: (file, series),
        scene: Some(scene),
        of,
        fit: false,
        why: "",
    }
}

impl PublishedCurve {
    const fn as_fitted(self) -> Self {
        Self { fit: true, ..self }
    }

    const fn with_note(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    const fn not_run(self, why: &'static str) -> Self {
        Self { scene: None, why, ..self }
    }
}

const SPRAY: &str = "/spray/spray.pdf";
const BY_P50: &str = "/ablation/ablation_50p.pdf";
const BY_P90: &str = "/ablation/ablation_90p.pdf";
const MODES: &str = "/latency_comp/latency_comparison_3tech.pdf";
const OML_H: &str = "/hedging/increasing_h_owd_cdf.pdf";
const WINDOW_H: &str = "/hedging/increasing_h_spatial_consistency.pdf";
const OVER_TIME: &str = "/hedging/2temporal_consistency.pdf";
const TREE_50: &str = "/ablation/tree_50p.pdf";
const TREE_99: &str = "/ablation/tree_99p.pdf";
const SCALE: &str = "-Graph.CDF1MaxOWD.pdf";
const HELD_WINDOW: &str = "/holdnrelease/holdrelease_h.pdf";
const HELD_OML: &str = "/holdnrelease/owd_holdrelease.pdf";
const HOLD: &str = "/holdnrelease/holding_duration.pdf";
const STEPS: &str = "/ablation/ablation_cdfs.pdf";
const GCP: &str = "/hedging/proxy_hedging_gcp copy.pdf";
const GCP_HELD: &str = "/hedging/proxy_hedging_cdf_gcp_w_holdrelease.pdf";
const LATER_OML: &str =
    "1000r_5k_hr_h2_dec13_413-Graph.CDF1Overall Multicast Latency (microseconds).pdf";
const LATER_WINDOW: &str =
    "1000r_5k_hr_h2_dec13_413-Graph.CDF1Delivery Window Size (microseconds).pdf";
const LATER_50K: &str =
    "1000r_50k_hr_h2_dec13_430-Graph.CDF1Overall Multicast Latency (microseconds).pdf";
const LATER_H1: &str = "100r_h1_25aug_1055-Graph.CDF1MaxOWD.pdf";
const LATER_H1_WINDOW: &str = "100r_h1_25aug_1055-Graph.CDF1Max Min OWD Diff.pdf";
const BOUNDARY: &str = "the published receivers set the release to the deadline; here each release \
                        is measured";
const OTHER_CLOUD: &str = "machines that the model does not describe";

/// Every published curve that is compared, by figure.
pub const CURVES: &[PublishedCurve] = &[
    curve(
        "4",
        "unicast, p95 by receiver",
        SPRAY,
        "Direct Unicasts",
        UNICAST,
        FigureQuantity::ByReceiver(95),
    ),
    curve("4", "tree, p95 by receiver", SPRAY, "Tree", TREE, FigureQuantity::ByReceiver(95)),
    curve("4", "unicast, p50 by receiver", BY_P50, "DU", UNICAST, FigureQuantity::ByReceiver(50)),
    curve("4", "tree, p50 by receiver", BY_P50, "Tree", TREE, FigureQuantity::ByReceiver(50)),
    curve(
        "4",
        "H=2, p50 by receiver",
        BY_P50,
        "Tree + Hedging",
        HEDGE_2,
        FigureQuantity::ByReceiver(50),
    ),
    curve(
        "4",
        "H=2, p90 by receiver",
        BY_P90,
        "Tree + Hedging",
        HEDGE_2,
        FigureQuantity::ByReceiver(90),
    ),
    curve("6", "unicast, OML", MODES, "DU", UNICAST, FigureQuantity::Oml).as_fitted(),
    curve("6", "Transit Gateway, OML", MODES, "AWS TG", UNICAST, FigureQuantity::Oml)
        .not_run("the simulator has no gateway of a cloud"),
    curve("6", "Jasper, OML", MODES, "Jasper", RELEASE, FigureQuantity::HeldOml)
        .with_note("the series is that of figure 10b, so the run holds"),
    curve("7a", "H=0, OML", OML_H, "Jasper, H = 0", TREE, FigureQuantity::Oml).as_fitted(),
    curve("7a", "H=1, OML", OML_H, "Jasper, H = 1", HEDGE_1, FigureQuantity::Oml),
    curve("7a", "H=2, OML", OML_H, "Jasper, H = 2", HEDGE_2, FigureQuantity::Oml).as_fitted(),
    curve("7b", "OML over 150 s", OVER_TIME, "Jasper, H = 0", TREE, FigureQuantity::Oml)
        .not_run("the series holds standard deviations by second, and the figure medians"),
    curve("7c", "H=0, window", WINDOW_H, "Jasper, H = 0", TREE, FigureQuantity::Window).as_fitted(),
    curve("7c", "H=1, window", WINDOW_H, "Jasper, H = 1", HEDGE_1, FigureQuantity::Window)
        .as_fitted(),
    curve("7c", "H=2, window", WINDOW_H, "Jasper, H = 2", HEDGE_2, FigureQuantity::Window)
        .as_fitted(),
    curve(
        "8a",
        "tree, p50 by receiver",
        TREE_50,
        "No Hedging, Tree",
        TREE,
        FigureQuantity::ByReceiver(50),
    ),
    curve(
        "8a",
        "H=1, p50 by receiver",
        TREE_50,
        "Hedging, Tree",
        HEDGE_1,
        FigureQuantity::ByReceiver(50),
    ),
    curve(
        "8b",
        "tree, p99 by receiver",
        TREE_99,
        "No Hedging, Tree",
        TREE,
        FigureQuantity::ByReceiver(99),
    ),
    curve(
        "8b",
        "H=1, p99 by receiver",
        TREE_99,
        "Hedging, Tree",
        HEDGE_1,
        FigureQuantity::ByReceiver(99),
    ),
    curve("9", "100 receivers, OML", SCALE, "100 Receivers", HEDGE_2, FigureQuantity::Oml)
        .as_fitted(),
    curve("9", "1,000 receivers, OML", SCALE, "1K Receivers", THOUSAND, FigureQuantity::Oml),
    curve("9", "5,832 receivers, OML", SCALE, "5.8K Receivers", DEEP, FigureQuantity::Oml),
    curve("10a", "H=2, window", HELD_WINDOW, "Jasper, H=2", RELEASE, FigureQuantity::HeldWindow),
    curve(
        "10a",
        "H=0, window",
        HELD_WINDOW,
        "Jasper w/o hedging",
        RELEASE_0,
        FigureQuantity::HeldWindow,
    ),
    curve("10a", "CloudEx, window", HELD_WINDOW, "CloudEx", CLOUDEX, FigureQuantity::HeldWindow),
    curve(
        "10a",
        "H=2, window, as released",
        HELD_WINDOW,
        "Jasper, H=2",
        RELEASE,
        FigureQuantity::TrueHeldWindow,
    )
    .with_note(BOUNDARY),
    curve(
        "10a",
        "CloudEx, window, as released",
        HELD_WINDOW,
        "CloudEx",
        CLOUDEX,
        FigureQuantity::TrueHeldWindow,
    )
    .with_note(BOUNDARY),
    curve("10b", "H=2, OML", HELD_OML, "Jasper, H=2", RELEASE, FigureQuantity::HeldOml),
    curve("10b", "H=0, OML", HELD_OML, "Jasper w/o hedging", RELEASE_0, FigureQuantity::HeldOml),
    curve("10b", "CloudEx, OML", HELD_OML, "CloudEx", CLOUDEX, FigureQuantity::HeldOml),
    curve(
        "10b",
        "H=2, OML, as released",
        HELD_OML,
        "Jasper, H=2",
        RELEASE,
        FigureQuantity::TrueHeldOml,
    )
    .with_note(BOUNDARY),
    curve("10c", "H=2, mean hold", HOLD, "Jasper, H=2", RELEASE, FigureQuantity::Hold),
    curve("10c", "H=0, mean hold", HOLD, "Jasper w/o hedging", RELEASE_0, FigureQuantity::Hold),
    curve("10c", "CloudEx, mean hold", HOLD, "CloudEx", CLOUDEX, FigureQuantity::Hold),
    curve("11", "unicast, OML", STEPS, "DU", UNICAST, FigureQuantity::Oml).as_fitted(),
    curve("11", "tree, OML", STEPS, "Tree", TREE, FigureQuantity::Oml).as_fitted(),
    curve("11", "tree and hedging, OML", STEPS, "Tree + Hedging", HEDGE_2, FigureQuantity::Oml)
        .as_fitted(),
    curve("11", "with release, OML", STEPS, "+ Fairness", RELEASE, FigureQuantity::HeldOml),
    curve("later", "F+H, OML", "", "", BESIDE, FigureQuantity::Oml)
        .with_note("5.1: no curve is published"),
    curve(
        "later",
        "1,000 receivers held, OML",
        LATER_OML,
        "1000r_5k_hr_h2_dec13_413",
        THOUSAND_HELD,
        FigureQuantity::HeldOml,
    ),
    curve(
        "later",
        "1,000 receivers held, window",
        LATER_WINDOW,
        "1000r_5k_hr_h2_dec13_413",
        THOUSAND_HELD,
        FigureQuantity::HeldWindow,
    ),
    curve(
        "later",
        "1,000 receivers held, 50,000/s, OML",
        LATER_50K,
        "1000r_50k_hr_h2_dec13_430",
        THOUSAND_HELD,
        FigureQuantity::HeldOml,
    )
    .not_run("1.5 million packets a second of each proxy are all that the card of the model takes"),
    curve(
        "later",
        "August run, H=1, OML",
        LATER_H1,
        "100r_h1_25aug_1055",
        HEDGE_1,
        FigureQuantity::Oml,
    )
    .with_note(OTHER_CLOUD),
    curve(
        "later",
        "August run, H=1, window",
        LATER_H1_WINDOW,
        "100r_h1_25aug_1055",
        HEDGE_1,
        FigureQuantity::Window,
    )
    .with_note(OTHER_CLOUD),
    curve("later", "GCP, H=0, OML", GCP, "h = 0, 100 R", GCP_0, FigureQuantity::Oml),
    curve("later", "GCP, H=2, OML", GCP, "h = 2, 100 R", GCP_2, FigureQuantity::Oml),
    curve(
        "later",
        "GCP held, H=0, OML",
        GCP_HELD,
        "h0_100r_10k_120s_dec11_1233",
        GCP_HELD_0,
        FigureQuantity::HeldOml,
    ),
    curve(
        "later",
        "GCP held, H=2, OML",
        GCP_HELD,
        "100r_10k_120s",
        GCP_HELD_2,
        FigureQuantity::HeldOml,
    ),
];
