//! All tests of the recorder that need no processes.

mod audits;
