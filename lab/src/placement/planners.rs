//! Every planner under one name, so that a table is a loop.

use evenfall_core::Prng;
use evenfall_placement_planner::builder::{BuildPlan, Builder, Racing, RootRule};
use evenfall_placement_planner::delays::Delays;
use evenfall_placement_planner::lemondrop::{LEMON_SETTINGS, LemonDrop, Method};
use evenfall_placement_planner::minmax::{self, MinMax};
use evenfall_placement_planner::qap::faq::Settings;
use evenfall_placement_planner::strategy::{Pick, Strategy};
use evenfall_placement_planner::tree::{Shape, Tree};

/// A way to choose a tree.
#[derive(Clone, Debug, PartialEq)]
pub enum Planner {
    /// TreeBuilder with K candidates per parent, at this root or any.
    Grow(Strategy, Pick, usize, Option<usize>),
    /// LemonDrop as printed in the thesis, with one of its three settings.
    Printed(usize),
    /// LemonDrop with a correct step and a polish.
    LemonDrop,
    /// Min-max search, at this root or the best.
    MinMax(Option<usize>),
}

impl Planner {
    /// The tree that it chooses from these measurements.
    ///
    /// # Errors
    /// What the planner says.
    pub fn plan(&self, delays: &Delays, shape: Shape, seed: u64) -> Result<Tree, String> {
        let hosts = delays.hosts();
        let pool: Vec<usize> = (0..hosts).collect();
        match self {
            Self::Grow(strategy, pick, candidates, root) => {
                let plan = BuildPlan {
                    shape,
                    candidates: *candidates,
                    strategy: strategy.clone(),
                    pick: *pick,
                    root: root.map_or(RootRule::Random, RootRule::Host),
                    racing: Racing::OFF,
                };
                let builder = Builder::new(plan, &pool, seed);
                builder.and_then(|mut b| b.run_on(delays)).map_err(|error| error.to_string())
            }
            Self::MinMax(root) => {
                let what = MinMax { root: *root, seed, ..MinMax::new(shape) };
                let tree = minmax::plan(delays, &pool, &what, None).map(|plan| plan.tree);
                tree.map_err(|error| error.to_string())
            }
            Self::LemonDrop => lemondrop(delays, shape, Method::Faq(Settings::default()), seed),
            Self::Printed(setting) => {
                let (_, epsilon, iterations_max) = LEMON_SETTINGS[*setting];
                lemondrop(delays, shape, Method::Printed { epsilon, iterations_max }, seed)
            }
        }
    }
}

/// LemonDrop plans by the medians between all hosts, and chooses the root itself.
fn lemondrop(delays: &Delays, shape: Shape, method: Method, seed: u64) -> Result<Tree, String> {
    let pool = delays.hosts();
    let cell = |pair: usize| {
        let edge = delays.edge(pair / pool, pair % pool);
        edge.map_or(f64::INFINITY, |stats| f64::from(stats.p50_us))
    };
    let matrix: Vec<f64> = (0..pool * pool).map(cell).collect();
    let plan = LemonDrop { shape, pool, delays: &matrix, packets_per_s: 10_000.0, root: None };
    let (tree, _) = plan.plan(method, &mut Prng::new(seed)).map_err(|error| error.to_string())?;
    Ok(tree)
}
