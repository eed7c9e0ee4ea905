//! Both machines, driven by hand.

mod example;
