//! A surveyor as a process: orders jobs until its program is done or a signal comes.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenfall_core::SharedKey;
use evenfall_core::Timestamp;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_placement_machine::{Program, Surveyor, SurveyorConfig, SurveyorEvent};
use evenfall_port::memory::Switch;
use evenfall_port::run::Loop;
use evenfall_port::{Options, Port};

use crate::agent::{mac_key, take_carried};
use evenfall_runtime::process::DriverAndPort;

use crate::carrier::{Carried, Carrier};
use crate::{CarrierError, SurveyError};

/// How long the last messages may take to leave: many round trips of a connection.
const FAREWELL: Duration = Duration::from_millis(300);

/// Runs a program over these agents. `on` sees each event with the program.
///
/// Returns the program, and whether a signal ended it.
///
/// # Errors
/// [`SurveyError`].
pub fn run<P: Program>(
    config: SurveyorConfig,
    key: Option<&SharedKey>,
    agents: Vec<SocketAddr>,
    program: P,
    on: &mut impl FnMut(&P, &SurveyorEvent),
) -> Result<(P, bool), SurveyError> {
    if let Some(far) = agents.iter().find(|agent| key.is_none() && !agent.ip().is_loopback()) {
        return Err(CarrierError::Unkeyed { what: "agent", address: *far }.into());
    }
    // Control messages go over gRPC, so the port carries nothing. The loop only waits on it.
    let mut port = Switch::new().port(Options::default())?;
    let _signals = interrupt::watch(port.waker())?;
    let carrier = Carrier::start(None, key.is_some(), port.waker())?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The number of the process tells apart two surveyors that start in the same nanosecond.
    let run = since.as_nanos() as u64 ^ u64::from(std::process::id()) << 48;
    let config = SurveyorConfig { key: mac_key(key), ..config };
    let surveyor = Surveyor::new(config, run, agents, program, MonotonicClock::now());
    let mut machines = [Carried { machine: surveyor, carrier }];
    let mut driver = Loop::new();
    let mut stopped = false;
    let mut ends: Option<Timestamp> = None;
    loop {
        let mut see = |carried: &Carried<Surveyor<P>>, _: Timestamp, event: SurveyorEvent| {
            on(carried.machine.program(), &event);
        };
        driver.turn(&mut machines, &mut port, ends, &mut see)?;
        let mut driven = DriverAndPort { driver: &mut driver, port: &mut port };
        take_carried(&mut driven, &mut machines, &mut see)?;
        if interrupt::raised() && !stopped {
            stopped = true;
            let stop = |carried: &mut Carried<Surveyor<P>>, _| carried.machine.stop();
            driver.input(0, &mut machines[0], &mut port, stop, &mut see)?;
        }
        let now = MonotonicClock::now();
        if machines[0].machine.is_over() {
            // Agents get the message that they are free before the connections close.
            match ends {
                None => ends = Some(now + FAREWELL),
                Some(at) if now >= at => break,
                Some(_) => {}
            }
        }
    }
    let [carried] = machines;
    Ok((carried.machine.into_program(), stopped))
}
