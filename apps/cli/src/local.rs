//! Several processes of one service on this machine, which end together.

use std::net::SocketAddr;
use std::path::PathBuf;

use evenfall_runtime::address::look_up;
use evenfall_runtime::settings::{Node, SettingsDocument};

use crate::Outcome;

/// Arguments of a role that can run as several processes on this machine.
#[derive(clap::Args, Debug)]
pub struct LocalArgs {
    /// Run this many replicas or dataservers on this machine, each a process, until Ctrl-C.
    #[arg(long, value_name = "COUNT")]
    pub(crate) local: Option<usize>,
    /// Directory of logs and files [default: evenfall-keys or evenfall-files]. Processes that find
    /// logs there go on where the logs end.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The number of this process, counted from 0.
    #[arg(long, hide = true)]
    pub(crate) node: Option<usize>,
    /// The number of all processes.
    #[arg(long, hide = true)]
    pub(crate) of: Option<usize>,
}

impl LocalArgs {
    /// Names the directory of a replica that the settings describe. Replicas on this machine are
    /// without a settings file.
    pub(crate) fn apply(&self, document: &mut SettingsDocument, at: usize) -> Outcome {
        if self.local.is_some() || self.node.is_some() {
            return Err("--local: the settings file says where the replicas are".into());
        }
        let Some(dir) = &self.dir else { return Ok(()) };
        let nodes: Vec<Node> = document.list("node")?;
        let (role, before) = (&nodes[at].role, &nodes[..at]);
        let number = before.iter().filter(|node| node.role == *role).count();
        let whole = std::path::absolute(dir.join(number.to_string()))?.display().to_string();
        let (origin, key) = (format!("--dir {}", dir.display()), format!("node.{at}.keys"));
        Ok(document.set(&origin, &key, &toml::Value::from(whole).to_string())?)
    }

    /// The first of these options that was given.
    pub(crate) fn given_option(&self) -> Option<&'static str> {
        let local = self.local.map(|_| "--local").or(self.node.map(|_| "--node"));
        local.or(self.dir.as_ref().map(|_| "--dir"))
    }
}

/// A port of this machine, or a loopback address with its port.
pub fn first(text: &str) -> Result<SocketAddr, String> {
    let address = match text.parse::<u16>() {
        Ok(port) => SocketAddr::from(([127, 0, 0, 1], port)),
        Err(_) => look_up(text).map_err(|error| format!("give a port, or HOST:PORT: {error}"))?,
    };
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("connections have no key, so the address has to be a loopback address".into()),
    }
}

#[cfg(any(feature = "files", feature = "keys"))]
pub use processes::{at, supervise};

#[cfg(any(feature = "files", feature = "keys"))]
mod processes {
    use std::net::SocketAddr;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use evenfall_host::interrupt;
    use evenfall_host::process::{self, Lifeline, Signal};

    use crate::Outcome;

    /// Shortest time between two starts of a process that ends.
    const RESTART_EVERY: Duration = Duration::from_secs(1);
    /// Time between two looks at the processes and for a signal. A person does not notice the wait.
    const LOOK: Duration = Duration::from_millis(100);

    /// The address of a process: each further process has the next port.
    pub fn at(first: SocketAddr, number: usize) -> Result<SocketAddr, String> {
        let port = u16::try_from(number).ok().and_then(|number| first.port().checked_add(number));
        let port = port.ok_or_else(|| format!("there is no port {} + {number}", first.port()))?;
        Ok((first.ip(), port).into())
    }

    struct Running {
        number: usize,
        child: Child,
        started: Instant,
    }

    /// Starts processes of this program, and starts a process again when it ends, until a signal
    /// comes. `name` is what notes call a process, and `arguments` adds the arguments of a process.
    ///
    /// # Errors
    /// When a process ends with an error in the first second. The same error would come again.
    pub fn supervise(
        count: usize,
        name: &dyn Fn(usize) -> String,
        arguments: &dyn Fn(usize, &mut Command),
    ) -> Outcome {
        let lifeline = Lifeline::new()?;
        let start = |number: usize| -> Result<Running, Box<dyn std::error::Error>> {
            let mut command = Command::new(std::env::current_exe()?);
            arguments(number, &mut command);
            lifeline.tie(&mut command)?;
            Ok(Running { number, child: command.spawn()?, started: Instant::now() })
        };
        let mut all = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
        let mut have_stood = false;
        while !interrupt::raised() {
            std::thread::sleep(LOOK);
            have_stood |= all.iter().all(|running| running.started.elapsed() >= RESTART_EVERY);
            for running in &mut all {
                let ended = running.child.try_wait()?;
                let Some(ended) = ended.filter(|_| !interrupt::raised()) else { continue };
                let name = name(running.number);
                if !have_stood && ended.code().is_some() {
                    return Err(
                        format!("{name} cannot start ({ended}): its error stands above").into()
                    );
                }
                if running.started.elapsed() >= RESTART_EVERY {
                    aside!("{name} ended ({ended}) and is started again");
                    *running = start(running.number)?;
                }
            }
        }
        for running in &mut all {
            process::send(running.child.id(), Signal::Terminate);
        }
        for running in &mut all {
            running.child.wait()?;
        }
        Ok(())
    }
}
