//! All tests of the clock that drive whole machines.

mod machines;
mod node_keys;
