//! Ports of the kind `tc`: a UDP socket, beside which the kernel forwards streams.
//!
//! Buffers of several datagrams are off in both directions. The kernel forwards single datagrams,
//! and leaves a buffer of several of them to the machine. A root of this kind therefore sends
//! single datagrams, and a proxy of this kind does not ask the kernel to gather what arrives.

use std::net::SocketAddr;

use evenfall_core::{ClockReading, Install, Installed};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;
use evenfall_port_ebpf::KernelForwarder;

use crate::udp::{Beside, UdpDriver};
use crate::{Answer, Options};

/// The place of live frames among the code points of the classes.
const LIVE: usize = evenfall_core::Class::Live as usize;

pub(crate) fn open(address: SocketAddr, options: Options) -> Result<UdpDriver, Error> {
    let options = Options { segmentation: false, coalescing: false, ..options };
    let tos = options.dscp.map_or(0, |points| points[LIVE] << 2);
    let mut driver = UdpDriver::bind(address, options)?;
    driver.forward_beside(|local| {
        let forwarder = KernelForwarder::attach(local, tos)?;
        Ok(Box::new(forwarder) as Box<dyn Beside>)
    })?;
    Ok(driver)
}

impl Beside for KernelForwarder {
    fn mark(&self) -> u32 {
        KernelForwarder::mark(self)
    }

    fn install(&mut self, owner: usize, install: &Install) -> Installed {
        match install {
            Install::Group(id, members) => {
                self.install_group(owner, *id, members);
                Installed::Taken
            }
            Install::Forward(id, rules) => self.install_forward(owner, *id, rules.as_ref()),
            _ => Installed::Ignored,
        }
    }

    fn answers(&mut self, out: &mut Vec<Answer>) {
        self.look(MonotonicClock::now(), |owner, of, counters| {
            out.push(Answer::Counters(owner, of, counters));
        });
    }

    fn adopt_clock(&mut self, reading: ClockReading) {
        KernelForwarder::adopt_clock(self, reading);
    }
}
