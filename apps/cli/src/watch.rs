//! `evenfall watch`: the live page of a run. One process reads the pages of all nodes, and serves
//! any number of browsers.

mod history;
mod live_server;
mod observer;
pub mod picture;
pub mod told;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_host::interrupt;
use evenfall_multicast_service::Settings;
use evenfall_runtime::address::look_up;
use evenfall_runtime::settings::Node;

pub use self::live_server::{LiveServer, LiveThread};
pub use self::observer::{LOOK_EVERY, PageOwner, RunObserver};

use crate::services::CONFIG;
use crate::{Outcome, stat};

/// Longest time between a signal and the end of a watcher.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);

/// Which run is watched.
#[derive(clap::Args, Debug)]
pub struct WatchedRun {
    /// The settings file of the run. Nodes with `http` in it are read.
    #[arg(long, default_value = CONFIG)]
    config: PathBuf,
    /// Read the root at this address, in place of the settings file. The root names the other
    /// nodes. The option may be given several times, for a root and its standbys.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = look_up)]
    root: Vec<SocketAddr>,
}

impl WatchedRun {
    /// The pages to begin with.
    pub fn page_owners(&self) -> Result<Vec<PageOwner>, Box<dyn std::error::Error>> {
        if !self.root.is_empty() {
            let root = |http: &SocketAddr| PageOwner {
                name: http.to_string(),
                is_root: true,
                http: *http,
            };
            return Ok(self.root.iter().map(root).collect());
        }
        let nodes: Vec<Node> = crate::services::load(&self.config, &[])?.list("node")?;
        let owners: Vec<PageOwner> = nodes.iter().filter_map(PageOwner::of).collect();
        match owners.iter().any(|owner| owner.is_root) {
            true => Ok(owners),
            false => Err(stat::without_http(&self.config).into()),
        }
    }

    /// Whether the run has a key, without which nothing listens beyond loopback.
    fn is_keyed(&self) -> bool {
        let settings = Settings::load(&self.config, &[]);
        self.root.is_empty() && settings.is_ok_and(|settings| settings.run.is_keyed())
    }
}

/// Arguments of `evenfall watch`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    run: WatchedRun,
    /// Where to serve the page. Port 0 takes any free port. Beyond loopback the run needs a key.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:9190",
        value_parser = look_up
    )]
    listen: SocketAddr,
    /// Open the page in a browser.
    #[arg(long)]
    open: bool,
}

pub fn main(args: &Args) -> Outcome {
    interrupt::install()?;
    if !args.listen.ip().is_loopback() && !args.run.is_keyed() {
        let listen = args.listen;
        return Err(format!(
            "--listen {listen}: without a key nothing listens beyond loopback; set run.key_file in \
             the settings file, or listen in 127.0.0.0/8"
        )
        .into());
    }
    let mut observer = RunObserver::new(&args.run.page_owners()?)?;
    let server = LiveServer::bind(args.listen)
        .map_err(|error| format!("--listen {}: {error}", args.listen))?;
    say!("live page: {}", server.url());
    if args.open {
        open_browser(&server.url());
    }
    while !interrupt::raised() {
        let next = Instant::now() + LOOK_EVERY;
        observer.look();
        server.publish(&observer);
        wait_until(next);
    }
    Ok(())
}

/// Sleeps until then, or until a signal comes.
pub fn wait_until(then: Instant) {
    while !interrupt::raised() {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(SIGNAL_LOOK));
    }
}

/// Opens a page in the browser of the desktop. Where there is none, the page's address is printed
/// already.
pub fn open_browser(url: &str) {
    let opener = Command::new("xdg-open")
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if opener.is_err() {
        aside!("--open: there is no xdg-open here; open {url} by hand");
    }
}
