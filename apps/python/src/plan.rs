//! `plan`: the tree that `evenfall plan tree` chooses, from a matrix in memory.

use evenfall_core::Hedging;
use evenfall_placement_planner::assessed::AssessedPlan;
use evenfall_placement_planner::builder::RootRule;
use evenfall_placement_planner::delays::DelayMatrix;
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::tree::TreeShape;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::errors::wrong_argument;
use crate::waits::run_beside;

/// Random roots at most, as for `evenfall plan tree`.
const ROOTS_MAX: u32 = 1_000;

/// Chooses a multicast tree from measured one-way delays in microseconds.
#[pyfunction]
#[pyo3(
    name = "plan",
    signature = (delays, *, depth, fanout, names = None, **options),
    text_signature = "(delays, *, depth, fanout, names=None, root=None, roots=1, candidates=None, \
                      hedging=1, percentile=90.0, method='minmax', seed=1, correct_clocks=False)"
)]
pub(crate) fn plan_tree(
    py: Python<'_>,
    delays: &Bound<'_, PyAny>,
    depth: u8,
    fanout: u16,
    names: Option<Vec<String>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyPlan> {
    let is_named = names.is_some();
    let options = PlanOptions::of(options)?;
    let rows = rows_of(delays)?;
    let mut delays = DelayMatrix::of_matrix(names, &rows)
        .map_err(|error| wrong_argument(format!("delays: {}", error.what)))?;
    let shape = TreeShape { depth, fanout };
    let root = options.root.as_ref().map(|root| root.number_in(&delays)).transpose()?;
    let planner = Planner {
        root: match root {
            Some(root) => RootRule::Host(root),
            None if options.roots > 1 => RootRule::Reach(options.roots),
            None => RootRule::Random,
        },
        candidates: options.candidates,
        share: options.percentile / 100.0,
        hedging: options.hedging,
        seed: options.seed,
        ..Planner::new(options.method, shape)
    };
    let corrects = options.correct_clocks;
    let plan = run_beside(py, move || {
        if corrects {
            // A matrix does not say whether its hosts shared a clock.
            delays.forget_clock_errors();
            delays.correct_clocks();
        }
        planner.assess_tree(&delays, corrects).map_err(|error| error.to_string())
    })?;
    Ok(PyPlan { plan: plan.map_err(wrong_argument)?, is_named })
}

/// The host that is to be the root.
enum RootArg {
    Named(String),
    Numbered(usize),
}

impl RootArg {
    fn number_in(&self, delays: &DelayMatrix) -> PyResult<usize> {
        let hosts = delays.hosts();
        let (found, word) = match self {
            Self::Named(name) => (delays.host(name), format!("{name:?}")),
            Self::Numbered(host) => (Some(*host).filter(|host| *host < hosts), host.to_string()),
        };
        found.ok_or_else(|| {
            let known = delays.names()[..hosts.min(3)].join(", ");
            wrong_argument(format!(
                "root = {word}: the matrix has no such host; it has {hosts} hosts, numbered from \
                 0, the first of which are named {known}"
            ))
        })
    }
}

/// The arguments that have the defaults of the command.
struct PlanOptions {
    root: Option<RootArg>,
    roots: u32,
    candidates: Option<usize>,
    hedging: Hedging,
    percentile: f64,
    method: PlanMethod,
    seed: u64,
    correct_clocks: bool,
}

const KEYWORDS: [&str; 8] =
    ["root", "roots", "candidates", "hedging", "percentile", "method", "seed", "correct_clocks"];

impl PlanOptions {
    fn of(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let value = |name: &str| keyword_value(keywords, name);
        let unknown = keywords.iter().flat_map(|keywords| keywords.keys()).find(|key| {
            key.extract::<String>().map_or(true, |key| !KEYWORDS.contains(&key.as_str()))
        });
        if let Some(unknown) = unknown {
            let known = KEYWORDS.join(", ");
            let words = format!("plan has no argument {unknown}; it has names, {known}");
            return Err(pyo3::exceptions::PyTypeError::new_err(words));
        }
        let root = match value("root")? {
            None => None,
            Some(root) if root.is_instance_of::<PyString>() => {
                Some(RootArg::Named(root.extract()?))
            }
            Some(root) => {
                let number = root.extract().map_err(|_| {
                    wrong_argument(format!("root = {root}: give the name or the row of a host"))
                });
                Some(RootArg::Numbered(number?))
            }
        };
        let roots = whole_number("roots", value("roots")?.as_ref(), 1)?;
        if !(1..=u64::from(ROOTS_MAX)).contains(&roots) {
            return Err(wrong_argument(format!("roots = {roots}: must be 1 to {ROOTS_MAX}")));
        }
        let copies =
            whole_number("hedging", value("hedging")?.as_ref(), Hedging::DEFAULT.0.into())?;
        let hedging: Hedging = copies
            .to_string()
            .parse()
            .map_err(|error| wrong_argument(format!("hedging = {copies}: {error}")))?;
        let method = value("method")?.map(|method| method.extract::<String>()).transpose()?;
        let method = method.unwrap_or_else(|| "minmax".into());
        let method = PlanMethod::parse(&method).map_err(|error| {
            let words = PlanMethod::WORDS;
            wrong_argument(format!("method = {method:?}: {error}; allowed: {words}"))
        })?;
        Ok(Self {
            root,
            roots: roots as u32,
            candidates: value("candidates")?.map(|candidates| candidates.extract()).transpose()?,
            hedging,
            percentile: value("percentile")?.map_or(Ok(90.0), |value| value.extract())?,
            method,
            seed: whole_number("seed", value("seed")?.as_ref(), 1)?,
            correct_clocks: value("correct_clocks")?.map_or(Ok(false), |value| value.extract())?,
        })
    }
}

/// The value of a keyword; `None` when it is not given, or given as `None`.
fn keyword_value<'py>(
    keywords: Option<&Bound<'py, PyDict>>,
    name: &str,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let value = keywords.map(|keywords| keywords.get_item(name)).transpose()?.flatten();
    Ok(value.filter(|value| !value.is_none()))
}

/// A whole number of 64 bits without sign.
fn whole_number(name: &str, value: Option<&Bound<'_, PyAny>>, default: u64) -> PyResult<u64> {
    let Some(value) = value else { return Ok(default) };
    value.extract().map_err(|_| {
        wrong_argument(format!("{name} = {value}: must be a whole number of 64 bits without sign"))
    })
}

/// The rows of a matrix: of an object with a buffer of two dimensions (numpy and what gives its
/// arrays), or of a list of lists.
fn rows_of(matrix: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<f64>>> {
    let matrix = match matrix.hasattr("to_numpy")? {
        true => matrix.call_method0("to_numpy")?,
        false => matrix.clone(),
    };
    if let Some(rows) = buffer_rows::<f64>(&matrix, |us| us)? {
        return Ok(rows);
    }
    if let Some(rows) = buffer_rows::<f32>(&matrix, f64::from)? {
        return Ok(rows);
    }
    matrix.extract().map_err(|_| {
        wrong_argument(format!(
            "delays: {} is no matrix: give the one-way delays in microseconds as a numpy array of \
             two dimensions, or as a list of lists of numbers",
            matrix.get_type()
        ))
    })
}

/// The rows of a buffer of these numbers; `None` for another object.
fn buffer_rows<T: Element>(
    matrix: &Bound<'_, PyAny>,
    to_us: fn(T) -> f64,
) -> PyResult<Option<Vec<Vec<f64>>>> {
    let Ok(buffer) = PyBuffer::<T>::get(matrix) else { return Ok(None) };
    let [rows, columns] = *buffer.shape() else {
        return Err(wrong_argument(format!(
            "delays: an array of {} dimensions: give a square matrix, a row for each sender",
            buffer.dimensions()
        )));
    };
    // The copy is in the order of rows, whatever order the array has.
    let all = buffer.to_vec(matrix.py())?;
    let row =
        |row: usize| all[row * columns..(row + 1) * columns].iter().map(|us| to_us(*us)).collect();
    Ok(Some((0..rows).map(row).collect()))
}

/// A planned tree.
#[pyclass(frozen, name = "Plan", module = "evenfall")]
pub(crate) struct PyPlan {
    plan: AssessedPlan,
    /// Whether the caller named the hosts. Otherwise hosts are rows of the matrix, from 0.
    is_named: bool,
}

impl PyPlan {
    /// The host at a place: its name where the caller gave names, and otherwise its row.
    fn host_at<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self.is_named {
            true => self.plan.tree[place].as_str().into_pyobject(py)?.into_any(),
            false => self.plan.hosts[place].into_pyobject(py)?.into_any(),
        })
    }

    /// The place of the worst leaf.
    fn worst_place(&self) -> Option<usize> {
        let worst = self.plan.worst_leaf.as_ref()?;
        self.plan.tree.iter().position(|name| name == worst)
    }
}

#[pymethods]
impl PyPlan {
    /// The hosts in the order of their places, the root first, level by level.
    #[getter(tree)]
    fn host_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let hosts = (0..self.plan.hosts.len()).map(|place| self.host_at(py, place));
        PyList::new(py, hosts.collect::<PyResult<Vec<_>>>()?)
    }

    /// The root.
    #[getter(root)]
    fn root_host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.host_at(py, 0)
    }

    /// The parent of each host.
    #[getter(parents)]
    fn parent_hosts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parents = PyDict::new(py);
        for (place, parent) in self.plan.parent_places.iter().enumerate() {
            let parent = parent.map(|parent| self.host_at(py, parent)).transpose()?;
            parents.set_item(self.host_at(py, place)?, parent)?;
        }
        Ok(parents)
    }

    /// The predicted delay from the root to each host.
    #[getter(delays_us)]
    fn predicted_delays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let delays = PyDict::new(py);
        for (place, us) in self.plan.delays_us.iter().enumerate() {
            delays.set_item(self.host_at(py, place)?, us)?;
        }
        Ok(delays)
    }

    /// The leaf with the longest way.
    #[getter(worst_leaf)]
    fn worst_host<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.worst_place().map(|place| self.host_at(py, place)).transpose()
    }

    /// The objective: the percentile of the worst leaf.
    #[getter(worst_leaf_us)]
    fn objective_us(&self) -> f64 {
        self.plan.worst_leaf_us
    }

    /// No tree has a better worst leaf by the same estimates.
    #[getter(bound_us)]
    fn lower_bound_us(&self) -> Option<f64> {
        self.plan.bound_us
    }

    /// How much worse than the best possible tree the tree is at most, as a share.
    #[getter(gap)]
    fn gap_share(&self) -> Option<f64> {
        self.plan.gap
    }

    fn __repr__(&self) -> String {
        let AssessedPlan { depth, fanout, root, worst_leaf_us, .. } = &self.plan;
        let root = if self.is_named { root.clone() } else { self.plan.hosts[0].to_string() };
        format!(
            "<Plan of {} hosts below {root}: depth {depth}, fanout {fanout}, worst leaf \
             {worst_leaf_us:.1} us>",
            self.plan.hosts.len()
        )
    }
}
