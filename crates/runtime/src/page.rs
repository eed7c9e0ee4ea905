//! The frame of a page: one HTML file with its title, data and scripts. The file needs no network,
//! so it still opens from a mail attachment in ten years.

use serde::Serialize;

/// The markup and the styles.
pub const PAGE: &str = include_str!("../../../web/report.html");
/// The charts of all pages.
const CHARTS: &str = include_str!("../../../web/charts.js");

/// A page: one file, no network, no libraries. `script` reads `data` as `run`.
pub fn page(title: &str, script: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).unwrap_or_else(|_| "{}".into());
    // Inside a script element only `<` could end the data. As an escape it is still JSON.
    let data = data.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    PAGE.replace("<!-- title -->", &title)
        .replace("/* script */", &format!("{CHARTS}{script}"))
        .replace("\"run data\"", &data)
}
