//! A run inside the test's own process, with receivers in threads, over loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use evenfall_core::NodeId;
use evenfall_host::ports;
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::roles::receiver::{NoSink, ReceiverSummary, run};
use evenfall_multicast_service::settings::{MulticastNode, RoleName};

/// Addresses of loopback whose ports are free.
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    std::array::from_fn(|_| ports::free(Ipv4Addr::LOCALHOST.into()).unwrap())
}

/// Settings of a root and some receivers.
pub fn settings(receivers: u32, trees: u32) -> Settings {
    let mut settings = Settings::default();
    settings.run.log = false;
    settings.course.trees = trees;
    settings.run.clock = "same-host".into();
    settings.course.warm_up = Duration::from_millis(100);
    settings.course.finish_timeout = Duration::from_secs(60);
    let node = |name: String, id, role, address| MulticastNode {
        name,
        id: NodeId(id),
        role,
        address,
        http: None,
        tree: 0,
        record: None,
        from: None,
    };
    let [root] = free_addresses();
    settings.nodes.push(node("root".into(), 0, RoleName::Root, root));
    for i in 1..=receivers {
        let any = "127.0.0.1:0".parse().unwrap();
        settings.nodes.push(node(format!("receiver-{i}"), i, RoleName::Receiver, any));
    }
    settings
}

/// Starts all receivers except those in `except`.
#[allow(dead_code, reason = "each test file uses its own part of this")]
pub fn receivers(settings: &Settings, except: &[&str]) -> Vec<JoinHandle<ReceiverSummary>> {
    let nodes = settings.nodes.iter().filter(|n| n.role == RoleName::Receiver);
    nodes
        .filter(|node| !except.contains(&node.name.as_str()))
        .map(|node| {
            let (settings, node) = (settings.clone(), node.clone());
            std::thread::spawn(move || run(&settings, &node, &mut NoSink).unwrap())
        })
        .collect()
}
