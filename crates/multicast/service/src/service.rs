//! The roles of the multicast as a [`Service`]: root, standby, author, proxy and receiver. The
//! recorder is a service of its own, because it needs a store, and reads the same settings.

use std::error::Error;

use evenfall_multicast_machine::tree::Dimensions;
use evenfall_runtime::service::{RoleSpec, Service, Start};
use evenfall_runtime::settings::{KnownTable, SettingsDocument, SettingsError};
use serde_json::Value;

use crate::roles::receiver::NoSink;
use crate::roles::{author, proxy, receiver, root};
use crate::settings::{RoleName, Settings};

/// The roles of this service.
const ROLES: &[RoleSpec] = &[
    RoleSpec {
        word: "root",
        aliases: &[],
        nouns: ["root", "roots"],
        help: "Reads the feed, sets the deadline of each message and builds the tree",
        keys: &[],
        keeps_data: false,
    },
    RoleSpec {
        word: "standby",
        aliases: &[],
        nouns: ["standby", "standbys"],
        help: "Votes with the root on every frame, and goes on with the feed when the root dies. A \
               run has no standby, two or four",
        keys: &[],
        keeps_data: false,
    },
    RoleSpec {
        word: "author",
        aliases: &[],
        nouns: ["author", "authors"],
        help: "Reads the feed in place of the root, and publishes it to the root that leads. The \
               author outlives the root, and goes on where it was when it is started again",
        keys: &[],
        keeps_data: false,
    },
    RoleSpec {
        word: "proxy",
        aliases: &[],
        nouns: ["proxy", "proxies"],
        help: "Forwards messages to its children",
        keys: &["tree"],
        keeps_data: false,
    },
    RoleSpec {
        word: "receiver",
        aliases: &["recv"],
        nouns: ["receiver", "receivers"],
        help: "Holds each message until its deadline and releases it then",
        keys: &["from"],
        keeps_data: false,
    },
];

/// Root, standbys, authors, proxies and receivers.
pub struct MulticastService;

impl Service for MulticastService {
    fn roles(&self) -> &'static [RoleSpec] {
        ROLES
    }

    fn tables(&self) -> Vec<KnownTable> {
        Settings::known()
    }

    fn values(&self, document: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        let mut tables = Settings::of(document)?.to_table();
        tables.remove("node");
        Ok(tables)
    }

    fn check(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        Settings::of(document).map(drop)
    }

    fn check_run(&self, document: &SettingsDocument) -> Result<(), SettingsError> {
        let settings = Settings::of(document)?;
        settings.check_run().map_err(|mistake| document.refuse(mistake))?;
        settings.check_here().map_err(|mistake| document.refuse(mistake))?;
        settings.key().map(drop)
    }

    fn describe(&self, document: &SettingsDocument) -> Result<Vec<String>, SettingsError> {
        let settings = Settings::of(document)?;
        if settings.count(RoleName::Root) == 0 {
            return Ok(Vec::new());
        }
        let multicast = &settings.multicast;
        let leaves = settings.count_leaves();
        let tree = Dimensions::of(&multicast.shape, multicast.mode, leaves);
        let trees = settings.course.trees.max(1);
        let plural = if trees == 1 { "" } else { "s" };
        let mut lines = vec![format!(
            "mode {}: depth {}, fan-out {}, hedging {}, {trees} tree{plural}",
            multicast.mode, tree.depth, tree.fanout, multicast.shape.hedging,
        )];
        let wanted = tree.proxies(&multicast.shape);
        let per_tree = settings.count(RoleName::Proxy) / trees as usize;
        if !multicast.mode.direct() && per_tree < wanted {
            let proxies = if wanted == 1 { "1 proxy".into() } else { format!("{wanted} proxies") };
            lines.push(format!(
                "note: a full tree needs {proxies}; with {per_tree} its nodes have more children"
            ));
        }
        Ok(lines)
    }

    fn run(&self, start: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        let settings = Settings::of(start.document)?;
        let node = settings.node(&start.node.name)?;
        Ok(match node.role {
            RoleName::Root | RoleName::Standby => {
                serde_json::to_value(root::run(&settings, node)?)?
            }
            RoleName::Author => serde_json::to_value(author::run(&settings, node)?)?,
            RoleName::Proxy => serde_json::to_value(proxy::run(&settings, node)?)?,
            _ => serde_json::to_value(receiver::run(&settings, node, &mut NoSink)?)?,
        })
    }
}
