//! The frame of a page: one self-contained HTML file of a title, data and scripts, which opens from
//! a mail attachment in ten years. No request leaves the page.

use serde::Serialize;

/// The markup and the styles.
pub const PAGE: &str = include_str!("../../../web/report.html");
/// Charts that every page draws with.
const CHARTS: &str = include_str!("../../../web/charts.js");

/// A page: one file, no network, no libraries. `script` reads `data` as `run`.
pub fn page(title: &str, script: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).unwrap_or_else(|_| "{}".into());
    // Inside a script element only `<` could end the data; as an escape it is still JSON.
    let data = data.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    PAGE.replace("<!-- title -->", &title)
        .replace("/* script */", &format!("{CHARTS}{script}"))
        .replace("\"run data\"", &data)
}
