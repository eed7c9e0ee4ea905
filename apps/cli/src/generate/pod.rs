//! Pods and names of Kubernetes.

use evenfall_core::MacKey;
use serde_json::{Value, json};

/// Bytes of a label's value on Kubernetes.
const LABEL_BYTES_MAX: usize = 63;
/// Bytes of the name of an object on Kubernetes, of which a pod's suffix takes a part.
const OBJECT_NAME_BYTES_MAX: usize = 230;
/// Processors of a role: one for its datagrams, one for all other work.
const ROLE_CPUS: u32 = 2;
/// The name of the host that a pod runs on, in the arguments of a container.
pub const NODE_NAME: &str = "$(NODE_NAME)";

/// A pod with one role, in the network of its host, because nodes are known by address.
pub struct RolePod<'a> {
    pub role: &'a str,
    /// The name of the node in the settings. With [`NODE_NAME`] it is the name of the host.
    pub name: &'a str,
    pub image: &'a str,
    /// The file of the settings in their map.
    pub settings: &'a str,
    pub settings_map: &'a str,
    /// The port of the node, over TCP and UDP.
    pub address_port: u16,
    /// The port of metrics and health.
    pub http_port: Option<u16>,
    /// The claim of the volume with the data of the role, for a role that keeps data.
    pub claim: Option<&'a str>,
}

/// The directory of the volume, the only one that a role may write.
const STATE: &str = "/var/lib/evenfall";
/// The user of every container. The image has no other.
const USER: u32 = 65_534;

/// Whether a name is one of 1 to 63 bytes as a namespace has it.
pub fn is_label(name: &str) -> bool {
    name.len() <= LABEL_BYTES_MAX && is_part(name)
}

/// Whether the name has a-z, 0-9 and '-', and no '-' at its ends.
fn is_part(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut ends = name.bytes().next().into_iter().chain(name.bytes().last());
    !name.is_empty()
        && name.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && ends.all(is_plain)
}

/// Refuses a name that no node of Kubernetes has.
pub fn check_host_name(name: &str) -> Result<(), String> {
    match name.len() <= OBJECT_NAME_BYTES_MAX && name.split('.').all(is_part) {
        true => Ok(()),
        false => Err(format!(
            "--hosts {name}: a node of Kubernetes has a name of a-z, 0-9, '-' and '.', and \
             {OBJECT_NAME_BYTES_MAX} bytes at most: give the name that `kubectl get nodes` shows"
        )),
    }
}

/// A name as the value of a label. A longer name ends in a code of the whole name, so that two long
/// names with one beginning stay two.
pub fn label_value(name: &str) -> String {
    if name.len() <= LABEL_BYTES_MAX {
        return name.to_owned();
    }
    let code = format!("-{:016x}", MacKey::new(1, &[0; 16]).mac(&[name.as_bytes()]));
    // Names of nodes are ASCII.
    let kept = name[..LABEL_BYTES_MAX - code.len()].trim_end_matches(['-', '.']);
    format!("{kept}{code}")
}

fn role_labels(name: &str, role: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "evenfall", "app.kubernetes.io/instance": label_value(name),
        "app.kubernetes.io/component": role,
    })
}

/// A pod on each of these hosts.
pub fn make_daemon_set(name: &str, namespace: &str, hosts: &[&str], pod: &RolePod<'_>) -> Value {
    let labels = role_labels(name, pod.role);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod.spec(hosts)},
        },
    })
}

/// A pod on one host. The arguments of a pod cannot be changed, so a deployment makes the pod and
/// replaces it.
pub fn make_deployment(name: &str, namespace: &str, host: &str, pod: &RolePod<'_>) -> Value {
    let labels = role_labels(name, pod.role);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 1,
            // Two pods cannot bind one port of a host, so the old pod ends before the new pod
            // starts.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod.spec(&[host])},
        },
    })
}

impl RolePod<'_> {
    fn spec(&self, hosts: &[&str]) -> Value {
        // The label with the name of a node may have another, shorter value than the name. A field
        // takes one value, and a host that fits one of the terms is taken.
        let is_host =
            |host: &str| json!({"key": "metadata.name", "operator": "In", "values": [host]});
        let term = |host: &&str| json!({"matchFields": [is_host(host)]});
        let state = match self.claim {
            Some(claim) => {
                json!({"name": "state", "persistentVolumeClaim": {"claimName": claim}})
            }
            None => json!({"name": "state", "emptyDir": {}}),
        };
        let terms: Vec<_> = hosts.iter().map(term).collect();
        let affinity = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }});
        json!({
            "hostNetwork": true,
            // Nodes that are reserved for a feed are tainted `evenfall=...`.
            "tolerations": [{"key": "evenfall", "operator": "Exists"}],
            "affinity": affinity,
            "restartPolicy": "Always",
            "securityContext": {"runAsNonRoot": true, "runAsUser": USER, "fsGroup": USER},
            "containers": [self.make_container()],
            "volumes": [
                {"name": "settings", "projected": {"sources": [
                    {"configMap": {"name": self.settings_map}},
                    {"secret": {"name": "evenfall-key"}},
                ]}},
                state,
            ],
        })
    }

    fn make_container(&self) -> Value {
        // Requests and limits are the same number of whole processors. A kubelet with the static
        // CPU policy then gives the container processors of its own, on which releases may spin.
        let resources = json!({"cpu": ROLE_CPUS, "memory": "1Gi"});
        let mut ports = vec![
            json!({"containerPort": self.address_port, "protocol": "TCP", "name": "control"}),
            json!({"containerPort": self.address_port, "protocol": "UDP", "name": "datagrams"}),
        ];
        let mut container = json!({
            "name": self.role,
            "image": self.image,
            "args": ["run", self.role, "--name", self.name,
                     "--config", format!("/etc/evenfall/{}", self.settings)],
            "workingDir": STATE,
            "env": [
                {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "EVENFALL_RUN__KEY_FILE", "value": "/etc/evenfall/key"},
                {"name": "EVENFALL_RUN__DIR", "value": format!("{STATE}/run")},
            ],
            "resources": {"requests": resources, "limits": resources},
            "securityContext": {
                "seccompProfile": {"type": "RuntimeDefault"},
                "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "settings", "mountPath": "/etc/evenfall", "readOnly": true},
                {"name": "state", "mountPath": STATE},
            ],
        });
        if let Some(port) = self.http_port {
            ports.push(json!({"containerPort": port, "protocol": "TCP", "name": "http"}));
            let health = json!({"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 5});
            container["livenessProbe"] = health;
        }
        if self.role == "agent" {
            // Only agents answer over TCP at their address.
            let answers = json!({"tcpSocket": {"port": self.address_port}, "periodSeconds": 2});
            container["readinessProbe"] = answers;
        }
        container["ports"] = Value::Array(ports);
        container
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_longer_than_a_label_is_cut_and_stays_apart_from_its_neighbours() {
        let longest = "n".repeat(LABEL_BYTES_MAX);
        for name in ["receiver-2", "Node_B", longest.as_str()] {
            assert_eq!(label_value(name), name);
        }
        let host = "gke-production-pool-1-".repeat(3);
        let labels = ["a", "b"].map(|end| label_value(&format!("{host}{end}")));
        for label in &labels {
            assert!(
                label.len() <= LABEL_BYTES_MAX && label.starts_with("gke-production"),
                "{label}"
            );
            assert!(label.ends_with(|end: char| end.is_ascii_alphanumeric()), "{label}");
        }
        assert_ne!(labels[0], labels[1]);
    }
}
