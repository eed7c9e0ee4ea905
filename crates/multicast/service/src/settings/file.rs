//! Reads the settings of the multicast from a file, and writes them to one.

use std::path::Path;

use evenfall_runtime::settings::{
    self, KnownTable, RunSettings, SettingsDocument, SettingsError, keys_of,
};

use super::{RunOptions, Settings};

impl Settings {
    /// Reads the file, then the environment, then `sets` (`key=value`).
    ///
    /// # Errors
    /// Which file, line and key, or which override, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        Self::of(&SettingsDocument::load(path, sets)?)
    }

    /// Parses a text and applies overrides.
    ///
    /// # Errors
    /// Which line and key, or which override, and what is allowed.
    pub fn parse(
        text: &str,
        name: &str,
        variables: impl Iterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, SettingsError> {
        Self::of(&SettingsDocument::parse(text, name, variables, sets)?)
    }

    /// The tables and keys that these settings own, for [`SettingsDocument::refuse_unknown`].
    pub fn known() -> Vec<KnownTable> {
        let of = |table, keys| KnownTable { table, keys };
        let mut known =
            vec![of("run", keys_of::<RunSettings>()), of("run", keys_of::<RunOptions>())];
        let whole = ["feed", "io", "inject", "clock", "trust", "multicast"];
        known.extend(whole.map(|table| of(table, &[])));
        known
    }

    /// The settings of a document.
    ///
    /// # Errors
    /// Which file, line and key, and what is allowed.
    pub fn of(document: &SettingsDocument) -> Result<Self, SettingsError> {
        // A hold is the time from sending to release, and this key was never a hold.
        document.refuse_renamed("multicast.repair.missing_hold", "gap_timeout")?;
        let mut settings = Self {
            run: document.part("run")?,
            course: document.part("run")?,
            #[cfg(feature = "roles")]
            feed: document.part("feed")?,
            io: document.part("io")?,
            inject: document.part("inject")?,
            clock: document.part("clock")?,
            trust: document.part("trust")?,
            multicast: document.part("multicast")?,
            nodes: document.list("node")?,
        };
        document.check_durations()?;
        settings.check().map_err(|mistake| document.refuse(mistake))?;
        let base = document.base();
        settings.run.rebase(base);
        #[cfg(feature = "roles")]
        settings.feed.rebase(base);
        settings.inject.rebase(base);
        settings.clock.rebase(base);
        settings.trust.rebase(base);
        for node in &mut settings.nodes {
            node.record = node.record.take().map(|dir| base.join(dir));
        }
        Ok(settings)
    }

    /// The settings as tables that [`load`](Self::load) reads back.
    pub fn to_table(&self) -> toml::Table {
        let mut document = toml::Table::new();
        settings::put(&mut document, "run", &self.run);
        settings::put(&mut document, "run", &self.course);
        #[cfg(feature = "roles")]
        settings::put(&mut document, "feed", &self.feed);
        settings::put(&mut document, "io", &self.io);
        settings::put(&mut document, "inject", &self.inject);
        settings::put(&mut document, "clock", &self.clock);
        settings::put(&mut document, "trust", &self.trust);
        settings::put(&mut document, "multicast", &self.multicast);
        if !self.nodes.is_empty() {
            let nodes = toml::Value::try_from(&self.nodes).expect("nodes are plain tables");
            document.insert("node".into(), nodes);
        }
        document
    }

    /// The settings as a file that [`load`](Self::load) reads back.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_table()).expect("settings are plain tables")
    }
}
