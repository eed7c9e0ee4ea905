//! Ranks as threads over loopback: sorts and queries beside plain programs, faults, files.

mod checks;
mod faults;
mod group;
mod sorts;
mod standing;
