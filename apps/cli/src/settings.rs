//! `evenfall config default`: the union of all settings, as a file to begin with. Every service
//! brings its section ([`services`](crate::services)).

#[cfg(test)]
mod documented;
mod example;
#[cfg(test)]
mod tests;

pub use self::example::default_file;

/// The tables of every default, in the order in which people read them.
fn defaults() -> toml::Table {
    use evenfall_runtime::settings::SettingsDocument;
    let nothing = SettingsDocument::parse("", "defaults", std::iter::empty(), &[]);
    nothing.and_then(|nothing| crate::services::values(&nothing)).expect("defaults are valid")
}
