//! The native module of the Python package `evenfall`.
//!
//! The module is a face: it turns the values of the crates `evenfall`, `evenfall-store-recording`
//! and `evenfall-multicast-service` into Python's, and holds no logic of the feed or of the store.
//! Rows leave as Arrow streams by the PyCapsule interface, so that Polars, pandas, PyArrow and
//! DuckDB read them without a copy and the package depends on none of them.
//!
//! Three rules hold for every call:
//!
//! - **A call that waits has let the interpreter go**, and looks for Ctrl-C every 50 ms (`waits`).
//! - **An error is an exception of `evenfall.errors`**, by its kind, with the sentence of the
//!   command line (`errors`).
//! - **A forked child is refused**: the threads of a subscription or a store do not live in it
//!   (`waits::expect_own_process`).
//!
//! | module | what it holds |
//! |---|---|
//! | `rows` | [`Rows`](rows::Rows): a fresh Arrow stream at each request |
//! | `capsule` | the three capsules of the Arrow interface |
//! | `place` | a store that is opened when its rows are read, and closed after |
//! | `store` | `Store` and `Table` |
//! | `recording` | `Recording`: tables, the book at a time, and rows as they come |
//! | `table_rows` | rows of the tables of a recording: columns, times, a symbol |
//! | `table_append` | rows of a frame into a user's table |
//! | `table_schema` | a user's table as Python states it |
//! | `bars` | open, high, low and close of trades |
//! | `feed`, `feed_batch` | the subscription: messages one by one, and batches as Arrow |
//! | `publish` | the root in a program, and a publisher that outlives the root |
//! | `report` | the figures of a run, and its fairness log as rows |
//! | `plan` | a multicast tree from a matrix of delays |
//! | `query` | SQL by the program `evenfall-query` |
//!
//! # Another class
//!
//! A class or a function of the package is in six places, and tests compare them. `plan.rs` is a
//! whole one to copy, with arguments, a class, errors and a wait.
//!
//! 1. `NAME.rs`: the function and the class, over the crate that has the capability. `plan.rs`
//!    shows the three rules: `run_beside` does work of any length on a thread of its own and hears
//!    Ctrl-C; `wrong_argument` is the exception of a mistake, and `errors.rs` has a function for
//!    each error type of the faces; a class is `frozen` and `Send + Sync`, because Python may call
//!    it from any thread. Rows leave as [`Rows`](rows::Rows) of a [`RowSource`](rows::RowSource),
//!    as `report.rs` does it, never as lists of objects.
//! 2. Here: `mod NAME;`, a line of the table above, and the class and the function in the module
//!    below.
//! 3. `evenfall/_evenfall.pyi`: the signature with its types and a sentence, which editors show.
//!    `tests/module.rs` counts the stubs.
//! 4. `evenfall/__init__.py`: the name, in the import and in `__all__`.
//! 5. `docs/python.md`: what the class is for. `tests/test_docs.py` runs the page, and asks mypy
//!    whether the stubs are true.
//! 6. `tests/test_NAME.py`: a `Case` of `tests/workplace.py` has a directory, and `program` runs
//!    the command line, whose answer is the right value where both answer one question.
//!
//! A crate that the package did not use before goes into `Cargo.toml` here and into the row
//! `evenfall-python` of ARCHITECTURE.md.

mod bars;
mod capsule;
mod errors;
mod feed;
mod feed_batch;
mod place;
mod plan;
mod publish;
mod query;
mod recording;
mod report;
mod rows;
mod store;
mod table_append;
mod table_rows;
mod table_schema;
mod times;
mod waits;

use pyo3::prelude::*;

/// The module `evenfall._evenfall`.
#[pymodule]
fn _evenfall(module: &Bound<'_, PyModule>) -> PyResult<()> {
    waits::remember_process(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<rows::Batches>()?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<recording::PyRecording>()?;
    module.add_class::<store::PyTable>()?;
    module.add_class::<recording::LiveRows>()?;
    module.add_class::<feed::Feed>()?;
    module.add_class::<feed::FeedBatches>()?;
    module.add_class::<feed::PyMessage>()?;
    module.add_class::<feed::LostMessages>()?;
    module.add_class::<publish::PyRoot>()?;
    module.add_class::<publish::PyPublisher>()?;
    module.add_class::<publish::PendingNumber>()?;
    module.add_class::<report::PyReport>()?;
    module.add_class::<plan::PyPlan>()?;
    module.add_function(wrap_pyfunction!(store::open_store, module)?)?;
    module.add_function(wrap_pyfunction!(feed::subscribe_to, module)?)?;
    module.add_function(wrap_pyfunction!(publish::publish_from, module)?)?;
    module.add_function(wrap_pyfunction!(report::read_report, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan_tree, module)?)?;
    module.add_function(wrap_pyfunction!(query::query_place, module)?)?;
    Ok(())
}
