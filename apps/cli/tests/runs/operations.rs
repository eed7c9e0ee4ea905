//! `docs/operations.md` lists every metric that a role has.

const PAGE: &str = include_str!("../../../../docs/operations.md");

#[test]
fn every_metric_is_on_the_page() {
    let sources = [
        include_str!("../../../../crates/multicast/service/src/roles/root/page.rs"),
        include_str!("../../../../crates/multicast/service/src/roles/proxy.rs"),
        include_str!("../../../../crates/multicast/service/src/roles/receiver.rs"),
        include_str!("../../../../crates/multicast/recorder/src/role.rs"),
        include_str!("../../../../crates/placement/survey/src/agent.rs"),
        include_str!("../../../../crates/feed/service/src/intake/mod.rs"),
        include_str!("../../../../crates/runtime/src/telemetry.rs"),
    ];
    let mut found = 0;
    for source in sources {
        for call in source.split("m.counter(\"").chain(source.split("m.gauge(\"")).skip(1) {
            let Some((name, _)) = call.split_once('"') else { continue };
            if name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') && name.len() > 3 {
                assert!(PAGE.contains(&format!("`{name}`")), "{name} is not on the page");
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found} metrics");
}
