//! The layouts of the messages that a recording holds, for the columns of sealed chunks.
//!
//! The store shreds messages by layouts that are given to it ([`message_layouts`]), because it
//! knows no venue. The layouts of ITCH come from the one table of ITCH's messages, so a field that
//! is named there needs no second description here. A program that opens a store to write in it
//! passes them on:
//!
//! ```
//! # use evenfall_store_engine::StoreConfig;
//! # use evenfall_store_recording::layouts::message_layouts;
//! # let directory = std::path::Path::new("ticks");
//! let config = StoreConfig { layouts: message_layouts(), ..StoreConfig::new(directory) };
//! ```
//!
//! A store that was opened without them keeps messages as bytes in its columns, and reads chunks of
//! both kinds.

#[cfg(feature = "arrow")]
mod feeds;

use evenfall_store_format::messages::InstalledLayouts;

#[cfg(feature = "arrow")]
pub(crate) use self::feeds::stated_ns;

/// The layouts of the formats whose fields are read; `None` in a build without the feature `arrow`,
/// which writes no columns.
#[cfg(feature = "arrow")]
pub fn message_layouts() -> InstalledLayouts {
    Some(&feeds::FeedLayouts)
}

/// The layouts of the formats whose fields are read; `None` in a build without the feature `arrow`,
/// which writes no columns.
#[cfg(not(feature = "arrow"))]
pub fn message_layouts() -> InstalledLayouts {
    None
}
