//! The objects of a cluster of Kubernetes.
//!
//! Every node of the settings runs in the network of its host, because the settings know nodes by
//! address. So a node is placed on the host that has its address. Agents are one DaemonSet, and any
//! other role is a deployment of one pod. The map of settings is named by its content, so that
//! edited settings replace the pods one by one.

use std::net::IpAddr;

use evenfall_core::MacKey;
use evenfall_runtime::service;
use evenfall_runtime::settings::Node;
use serde_json::{Value, json};

use super::Inventory;
use crate::Outcome;
use crate::services::SERVICES;

use super::alerts::{self, AlertLimits};
use super::pod::{self, NODE_NAME, RolePod, check_host_name};

/// The file of the settings in their map.
const SETTINGS: &str = "evenfall.toml";

/// A host of the cluster.
struct ClusterHost {
    name: String,
    address: IpAddr,
}

/// Whether Kubernetes takes this as the size of a volume: a number, and a unit.
fn is_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let units = ["", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    number
        && digits.parse::<f64>().is_ok_and(|size| size > 0.0)
        && units.contains(&&text[digits.len()..])
}

/// Where the nodes run.
pub struct ClusterPlan {
    hosts: Vec<ClusterHost>,
    image: String,
    namespace: String,
    /// The size of the volume of a role that keeps data.
    storage: Option<String>,
}

impl ClusterPlan {
    /// # Errors
    /// A host that is no `NAME=ADDRESS`, and a name of a host, an image, a namespace or a size that
    /// a cluster would not take.
    pub fn new(
        hosts: &[String],
        image: &str,
        namespace: &str,
        storage: Option<&str>,
    ) -> Result<Self, String> {
        let parse = |text: &String| {
            let parsed = text.split_once('=').and_then(|(name, address)| {
                Some(ClusterHost { name: name.to_owned(), address: address.parse().ok()? })
            });
            let host = parsed.ok_or_else(|| format!("--hosts {text}: must be NAME=ADDRESS"))?;
            check_host_name(&host.name)?;
            Ok(host)
        };
        let hosts = hosts.iter().map(parse).collect::<Result<_, String>>()?;
        if image.is_empty() || image.contains(char::is_whitespace) {
            return Err(format!("--image {image:?}: must be a name such as evenfall:local"));
        }
        if !pod::is_label(namespace) {
            return Err(format!(
                "--namespace {namespace:?}: a namespace has 1 to 63 bytes of a-z, 0-9 and '-', \
                 and no '-' at its ends"
            ));
        }
        if let Some(size) = storage.filter(|size| !is_size(size)) {
            return Err(format!("--storage {size:?}: must be a size such as 100Gi"));
        }
        let (image, namespace) = (image.to_owned(), namespace.to_owned());
        Ok(Self { hosts, image, namespace, storage: storage.map(str::to_owned) })
    }

    fn host_of(&self, node: &Node) -> Result<&str, String> {
        let at = node.address.ip();
        let host = self.hosts.iter().find(|host| host.address == at);
        host.map(|host| host.name.as_str()).ok_or_else(|| {
            format!(
                "node {}: its address {at} belongs to no host of --hosts; add the node of the \
                 cluster that has it, as NAME={at}",
                node.name
            )
        })
    }

    /// One DaemonSet for all agents. Each agent has the name of its host.
    fn agents(&self, agents: &[&Node], settings_map: &str) -> Result<Option<Value>, String> {
        let Some(first) = agents.first() else { return Ok(None) };
        for agent in agents {
            let host = self.host_of(agent)?;
            let has_ports = agent.address.port() == first.address.port()
                && agent.http.map(|http| http.port()) == first.http.map(|http| http.port());
            if host != agent.name || !has_ports {
                return Err(format!(
                    "node {}: all agents are one DaemonSet, so each must have the name of its host \
                     ({host}) and the ports of {}",
                    agent.name, first.name
                ));
            }
        }
        let hosts: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        let pod = self.role_pod(first, NODE_NAME, settings_map);
        Ok(Some(pod::make_daemon_set("agents", &self.namespace, &hosts, &pod)))
    }

    fn role_pod<'a>(&'a self, node: &'a Node, name: &'a str, settings_map: &'a str) -> RolePod<'a> {
        RolePod {
            role: &node.role,
            name,
            image: &self.image,
            settings: SETTINGS,
            settings_map,
            address_port: node.address.port(),
            http_port: node.http.map(|http| http.port()),
            claim: None,
        }
    }

    /// The claim of a volume for a role that keeps data.
    fn claim(&self, node: &Node, name: &str) -> Result<Option<Value>, Box<dyn std::error::Error>> {
        if !service::find_role(SERVICES, &node.role)?.1.keeps_data {
            return Ok(None);
        }
        let storage = self.storage.as_ref().ok_or_else(|| {
            format!(
                "node {}: a {} keeps data, which must outlive its pod; state the size of its \
                 volume, as in --storage 100Gi",
                node.name, node.role
            )
        })?;
        Ok(Some(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": storage}},
            },
        })))
    }
}

/// What only the operator of Prometheus knows.
fn operator_objects(
    inventory: &Inventory,
    namespace: &str,
) -> Result<[Value; 2], Box<dyn std::error::Error>> {
    let limits = AlertLimits::of_defaults(inventory)?;
    let metadata = json!({"name": "evenfall", "namespace": namespace});
    let of_evenfall = json!({"matchLabels": {"app.kubernetes.io/name": "evenfall"}});
    let monitor = json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": metadata,
        "spec": {
            "selector": of_evenfall,
            "podMetricsEndpoints": [{"port": "http", "interval": "5s", "honorLabels": true}],
        },
    });
    let rules = json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata,
        "spec": alerts::operator_rules(&limits),
    });
    Ok([monitor, rules])
}

/// Refuses files with a secret of one node, because all pods have the same files: the settings, and
/// the key of the run.
fn refuse_own_secrets(inventory: &Inventory) -> Outcome {
    for (table, key) in
        [("run", "master_key_file"), ("run", "node_key_file"), ("trust", "signing_key_file")]
    {
        if inventory.setting(&[table, key])?.is_some() {
            return Err(format!(
                "{table}.{key}: the objects have one secret for all pods, `evenfall-key`, and a \
                 node with a key of its own would not start; leave {table}.{key} out"
            )
            .into());
        }
    }
    let protocol = inventory.setting(&["gateway", "protocol"])?;
    match protocol.as_ref().and_then(toml::Value::as_str) {
        Some("sealed") => {
            let why = "gateway.protocol = \"sealed\": the objects have one secret for all pods, \
                       and no keys of participants; hand on as mold or plain";
            Err(why.into())
        }
        _ => Ok(()),
    }
}

/// A `List` of all objects, as JSON. The key is not among them: it is the file `key` of the secret
/// `evenfall-key`. The user of the containers is not the owner of that file.
///
/// # Errors
/// A node that no host can take, an object name that Kubernetes does not take, and two nodes that
/// become one name.
pub fn objects(
    inventory: &Inventory,
    cluster: &ClusterPlan,
    has_operator: bool,
) -> Result<String, Box<dyn std::error::Error>> {
    refuse_own_secrets(inventory)?;
    // What `--set` and the environment changed is part of the settings that were checked.
    let settings = inventory.document.text_with_overrides();
    let content = MacKey::new(1, &[0; 16]).mac(&[settings.as_bytes()]);
    let settings_map = format!("evenfall-settings-{content:016x}");
    let namespace = &cluster.namespace;
    let mut items = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
            "metadata": {"name": settings_map, "namespace": namespace},
            "data": {SETTINGS: settings},
        }),
    ];
    let (agents, others): (Vec<&Node>, Vec<&Node>) =
        inventory.nodes.iter().partition(|node| node.role == "agent");
    items.extend(cluster.agents(&agents, &settings_map)?);
    for node in others {
        let name = node.name.to_ascii_lowercase().replace('_', "-");
        check_host_name(&name)
            .map_err(|_| format!("node {}: no object has this name", node.name))?;
        let is_this =
            |item: &Value| item["kind"] == "Deployment" && item["metadata"]["name"] == *name;
        if items.iter().any(is_this) {
            return Err(format!("node {}: another node becomes {name} too", node.name).into());
        }
        let claim = cluster.claim(node, &name)?;
        let mut pod = cluster.role_pod(node, &node.name, &settings_map);
        pod.claim = claim.is_some().then_some(name.as_str());
        items.extend(claim);
        items.push(pod::make_deployment(&name, namespace, cluster.host_of(node)?, &pod));
    }
    if has_operator {
        items.extend(operator_objects(inventory, namespace)?);
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}
