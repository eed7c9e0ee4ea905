//! Hosts as network namespaces, with a network of limited links between them.
//!
//! | made by | between the hosts |
//! |---|---|
//! | [`NetworkLab::with_racks`] | bridges of racks below one core: [`Racks`] |
//! | [`NetworkLab::with_fabric`] | a fat tree of routers, with several paths between racks: [`Fabric`] |
//! | [`NetworkLab::with_switches`] | the same tree of Open vSwitch's switches, which a controller steers |

mod fabric;
mod racks;
mod switches;

use std::time::Duration;

use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::lab::{Lab, within_namespace};

pub use fabric::Fabric;
pub use racks::{RackHost, Racks};
pub use switches::CONTROLLER_PORT;

/// How long links and daemons may take to come up.
const SETTLE: Duration = Duration::from_secs(10);

/// Hosts and the network between them. Dropping the lab removes them.
#[derive(Debug)]
pub struct NetworkLab {
    /// Dropped before the lab, because the daemons live in a namespace of the lab.
    daemons: Option<switches::Daemons>,
    has_racks: bool,
    /// The hosts.
    pub hosts: Lab,
}

impl NetworkLab {
    /// Makes racks of hosts with links of limited rate.
    ///
    /// # Errors
    /// As for [`Lab::new`], and when the kernel has no htb.
    pub fn with_racks(racks: &Racks) -> Result<Self, Error> {
        let lab = Lab::reserve(racks.hosts.len(), &["br".to_owned()])?;
        lab.wire_hosts()?;
        racks.build(&lab.between()[0])?;
        for host in 0..lab.hosts() {
            lab.set_up_host(host)?;
            racks.limit_host(host, &lab.name(host))?;
        }
        // A rack's uplink has two ports, one at each bridge.
        lab.settle(lab.hosts() + 2 * racks.count())?;
        Ok(Self { daemons: None, has_racks: true, hosts: lab })
    }

    /// Makes a fat tree of hosts and routing switches with links of limited rate.
    ///
    /// # Errors
    /// As for [`Lab::new`], when the kernel has no htb or no routes over several ways, and when a
    /// number of the fabric makes no sense.
    pub fn with_fabric(fabric: Fabric) -> Result<Self, Error> {
        fabric.check()?;
        let switches: Vec<String> = (0..fabric.switch_count()).map(|at| format!("s{at}")).collect();
        let lab = Lab::reserve(fabric.host_count(), &switches)?;
        fabric.build(lab.name_prefix())?;
        for (number, name) in lab.between().iter().enumerate() {
            within_namespace(name, || Fabric::set_up_switch(number))?.map_err(|source| {
                let what = format!("make {name} a router");
                Error::Os { what, source, advice: "the kernel needs routes over several ways" }
            })?;
        }
        wait_for(|| Ok(fabric.is_up(lab.name_prefix())? && lab.count_up()? == lab.hosts()))?;
        Ok(Self { daemons: None, has_racks: false, hosts: lab })
    }

    /// Makes a fat tree of hosts and switches of Open vSwitch in its userspace datapath, with links
    /// of limited rate. Their daemons have a database of their own, and end with the lab.
    ///
    /// # Errors
    /// As for [`with_fabric`](Self::with_fabric), and when Open vSwitch is not installed.
    pub fn with_switches(fabric: Fabric) -> Result<Self, Error> {
        fabric.check()?;
        switches::sweep();
        let lab = Lab::reserve(fabric.host_count(), &["s0".to_owned()])?;
        fabric.build_wires(lab.name_prefix(), &lab.between()[0])?;
        for host in 0..lab.hosts() {
            lab.set_up_host(host)?;
            lab.turn_off_checksums(host)?;
        }
        wait_for(|| Ok(lab.count_up()? == lab.hosts()))?;
        let daemons = switches::Daemons::start(lab.name_prefix(), &lab.between()[0])?;
        fabric.build_switches(&daemons)?;
        Ok(Self { daemons: Some(daemons), has_racks: false, hosts: lab })
    }

    /// Bytes that wait at present before each limited link of the racks; empty without racks.
    ///
    /// # Errors
    /// When `tc` cannot be run.
    pub fn backlogs(&self) -> Result<Vec<u64>, Error> {
        match self.has_racks {
            true => Racks::backlogs(&self.hosts.between()[0]),
            false => Ok(Vec::new()),
        }
    }

    /// Runs a function beside the switches of Open vSwitch, as [`Lab::within`] does. The switches
    /// connect to a controller that listens there at [`CONTROLLER_PORT`].
    ///
    /// # Errors
    /// As for [`Lab::within`], and when the lab has no such switches.
    pub fn within_switches<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.daemons()?;
        within_namespace(&self.hosts.between()[0], work)
    }

    /// The rules of a switch of Open vSwitch, as `ovs-ofctl` prints them.
    ///
    /// # Errors
    /// When the lab has no such switches, or the switch does not answer.
    pub fn rules(&self, switch: usize) -> Result<String, Error> {
        self.daemons()?.rules(switch)
    }

    /// The processes of the switches of Open vSwitch; none without such switches.
    pub fn switch_pids(&self) -> Vec<u32> {
        self.daemons.iter().flat_map(switches::Daemons::pids).collect()
    }

    fn daemons(&self) -> Result<&switches::Daemons, Error> {
        self.daemons.as_ref().ok_or_else(|| Error::Lab {
            what: "this lab has no switches of Open vSwitch".into(),
            advice: "make it by NetworkLab::with_switches",
        })
    }
}

/// Waits until the links of a fabric are up.
fn wait_for(is_up: impl Fn() -> Result<bool, Error>) -> Result<(), Error> {
    let end = MonotonicClock::now() + SETTLE;
    while !is_up()? {
        if MonotonicClock::now() > end {
            return Err(Error::Lab {
                what: format!("the links of the fabric did not come up in {SETTLE:?}"),
                advice: "the host is overloaded: try again, or with fewer hosts",
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
