//! What is made of a settings file, beside what the settings say.

use super::*;

const SETTINGS: &str = r#"
[run]
key_file = "evenfall.key"

[feed.synthetic]
messages = 1000

[multicast.deadline]
hold_max = "20ms"

[[node]]
name = "root"
id = 0
role = "root"
address = "10.0.0.1:9000"
http = "10.0.0.1:9180"

[[node]]
name = "desk_1"
id = 1
role = "receiver"
address = "10.0.0.2:9000"
"#;

fn inventory() -> Inventory {
    inventory_with(&[])
}

fn inventory_with(sets: &[&str]) -> Inventory {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let parsed = SettingsDocument::parse(SETTINGS, "evenfall.toml", std::iter::empty(), &sets);
    let document = parsed.expect("settings");
    let nodes = document.list("node").expect("nodes");
    Inventory { file: "evenfall.toml".to_owned(), document, nodes }
}

#[test]
fn limits_of_alerts_follow_from_the_settings() {
    let rules = alerts::AlertLimits::of_defaults(&inventory()).expect("limits");
    let text = alerts::rules(&inventory(), &rules).expect("rules");
    // 99 % of 20 ms, and five times the .6 % that the deadline's rule allows.
    assert!(text.contains("evenfall_hold_seconds >= 0.0198"), "{text}");
    assert!(text.contains("evenfall_on_time_share < 0.9700"), "{text}");
}

#[test]
fn a_node_without_an_address_for_metrics_is_not_scraped() {
    let text = prometheus::settings(&inventory(), alerts::HOLD_FOR, "rules.yml").expect("settings");
    assert!(text.contains("10.0.0.1:9180") && !text.contains("desk_1"), "{text}");
}

#[test]
fn each_node_has_a_pod_on_the_host_with_its_address() {
    let hosts = ["a=10.0.0.1".to_owned(), "b=10.0.0.2".to_owned()];
    let cluster =
        kubernetes::ClusterPlan::new(&hosts, "evenfall:local", "feed", None).expect("cluster");
    let list = kubernetes::objects(&inventory(), &cluster, true).expect("objects");
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let items = list["items"].as_array().expect("items");
    let kinds: Vec<_> = items.iter().filter_map(|item| item["kind"].as_str()).collect();
    let deployments = ["Deployment"; 2];
    assert_eq!(kinds[..2], ["Namespace", "ConfigMap"]);
    assert_eq!(kinds[2..4], deployments);
    assert_eq!(kinds[4..], ["PodMonitor", "PrometheusRule"]);
    let desk = &items[3];
    // Kubernetes has no underscores in names, and the settings keep theirs.
    assert_eq!(desk["metadata"]["name"], "desk-1");
    assert_eq!(desk["spec"]["template"]["spec"]["containers"][0]["args"][3], "desk_1");
    let volumes = &desk["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"];
    assert_eq!(volumes[0]["configMap"]["name"], items[1]["metadata"]["name"]);
}

#[test]
fn the_map_of_settings_has_what_was_set_on_the_command_line() {
    let hosts = ["a=10.0.0.1".to_owned(), "b=10.0.0.2".to_owned()];
    let cluster = kubernetes::ClusterPlan::new(&hosts, "image", "feed", None).expect("cluster");
    let map_of = |sets: &[&str]| {
        let list = kubernetes::objects(&inventory_with(sets), &cluster, false).expect("objects");
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list["items"][1].clone()
    };
    let (plain, changed) = (map_of(&[]), map_of(&["multicast.mode=hedge"]));
    let text = changed["data"]["evenfall.toml"].as_str().expect("settings");
    assert!(text.contains("mode = \"hedge\""), "{text}");
    assert_eq!(plain["data"]["evenfall.toml"], SETTINGS);
    assert_ne!(plain["metadata"]["name"], changed["metadata"]["name"], "pods are replaced");
}

#[test]
fn a_secret_of_one_node_is_refused_by_name() {
    let hosts = ["a=10.0.0.1".to_owned(), "b=10.0.0.2".to_owned()];
    let cluster = kubernetes::ClusterPlan::new(&hosts, "image", "feed", None).expect("cluster");
    let sets = ["run.master_key_file=master.key", "run.node_key_file=keys/{name}.key"];
    let error = kubernetes::objects(&inventory_with(&sets), &cluster, false).expect_err("keys");
    assert!(error.to_string().starts_with("run.master_key_file: "), "{error}");
    let sealed = inventory_with(&["gateway.protocol=sealed"]);
    let error = kubernetes::objects(&sealed, &cluster, false).expect_err("no keys");
    assert!(error.to_string().starts_with("gateway.protocol = "), "{error}");
}

#[test]
fn a_node_on_no_host_of_the_cluster_is_named() {
    let cluster = kubernetes::ClusterPlan::new(&["a=10.0.0.1".into()], "image", "feed", None);
    let cluster = cluster.expect("one");
    let error = kubernetes::objects(&inventory(), &cluster, false).expect_err("desk_1 has no host");
    let error = error.to_string();
    assert!(error.contains("desk_1") && error.contains("10.0.0.2"), "{error}");
}

#[test]
fn names_that_no_cluster_takes_are_refused_by_their_option() {
    let refused = |image, namespace, storage| {
        let hosts = ["a=10.0.0.1".to_owned()];
        kubernetes::ClusterPlan::new(&hosts, image, namespace, storage).err().unwrap_or_default()
    };
    assert_eq!(refused("image", "feed-1", Some("1.5Gi")), "");
    let long = "n".repeat(64);
    for namespace in ["", "Feed", "feed_1", "-feed", "a.b", &long] {
        assert!(refused("image", namespace, None).starts_with("--namespace"), "{namespace}");
    }
    for image in ["", "an image"] {
        assert!(refused(image, "feed", None).starts_with("--image"), "{image}");
    }
    for size in ["", "0", "Gi", "-1Gi", "5 Gi", "5GB", "1.2.3Gi"] {
        assert!(refused("image", "feed", Some(size)).starts_with("--storage"), "{size}");
    }
}

#[test]
fn a_host_starts_its_own_nodes_alone() {
    let text = systemd::unit_script(&inventory());
    let (_, second) = text.split_once("10.0.0.2)").expect("the second host");
    assert!(second.contains("evenfall@receiver:desk_1") && !second.contains("evenfall@root"));
}
