//! `docs/operations.md` lists every metric that a role has, with its help text.

const PAGE: &str = include_str!("../../../../docs/operations.md");

/// The sources that name metrics.
const SOURCES: [&str; 16] = [
    include_str!("../../../../crates/files/service/src/servers/flows.rs"),
    include_str!("../../../../crates/files/service/src/servers/pages.rs"),
    include_str!("../../../../crates/clock/service/src/mesh.rs"),
    include_str!("../../../../crates/multicast/service/src/roles/author.rs"),
    include_str!("../../../../crates/multicast/service/src/roles/root/page.rs"),
    include_str!("../../../../crates/multicast/service/src/roles/proxy.rs"),
    include_str!("../../../../crates/multicast/service/src/roles/receiver.rs"),
    include_str!("../../../../crates/multicast/service/src/gateway/role.rs"),
    include_str!("../../../../crates/multicast/recorder/src/role.rs"),
    include_str!("../../../../crates/placement/survey/src/agent.rs"),
    include_str!("../../../../crates/store/server/src/role.rs"),
    include_str!("../../../../crates/keys/zookeeper/src/service.rs"),
    include_str!("../../../../crates/feed/service/src/intake/mod.rs"),
    include_str!("../../../../crates/runtime/src/telemetry.rs"),
    include_str!("../../../../crates/runtime/src/telemetry/pages/card.rs"),
    include_str!("../../src/bursts/recent.rs"),
];

/// Name and help text of each row of the page's table.
fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    let (_, table) = PAGE.split_once("<!-- metrics").expect("the table has a mark");
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|')).filter_map(|line| {
        let (name, help) = line.split('|').nth(2)?.trim().split_once(": ")?;
        Some((name.trim_matches('`'), help))
    })
}

#[test]
fn every_row_has_the_name_and_the_help_of_the_code() {
    for (name, help) in rows() {
        let [name, help] = [name, help].map(|text| format!("\"{text}\""));
        let is_there = |source: &&str| source.contains(&name) && source.contains(&help);
        assert!(SOURCES.iter().any(is_there), "no source has {name} with {help}");
    }
}

#[test]
fn every_metric_is_on_the_page() {
    let mut found = 0;
    for source in SOURCES {
        let gauges = source.split(".gauge(\"").skip(1).filter_map(|call| call.split('"').next());
        let counters =
            source.split('"').filter(|text| text.ends_with("_total") && *text != "_total");
        for name in gauges.chain(counters) {
            assert!(rows().any(|(on_page, _)| on_page == name), "{name} is not on the page");
            found += 1;
        }
    }
    assert!(found > 50, "{found} metrics");
}
