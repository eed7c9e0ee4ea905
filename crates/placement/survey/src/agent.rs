//! An agent as a process: measures what surveyors order, until a signal comes.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Machine, Timestamp};
use evenfall_host::interrupt;
use evenfall_placement_machine::{Agent, AgentConfig, AgentEvent, AgentStatus, MacKey};
use serde::Serialize;

use evenfall_runtime::process::{Process, ProcessOptions};

use crate::SurveyError;
use crate::carrier::{Carried, Carrier, CarrierCounters};
use evenfall_host::pin;
use evenfall_runtime::settings::Node;

use crate::Settings;
use crate::experiment::served;
use evenfall_runtime::telemetry::{FilesPage, Metrics};

/// The context for which the key of surveys is derived. The key authenticates control messages and
/// probes.
const KEY_CONTEXT: &str = "evenfall survey v1 authentication";

/// The summary of an agent.
#[derive(Clone, Debug, Serialize)]
pub struct AgentSummary {
    /// Its name.
    pub name: String,
    /// Its counters.
    pub status: AgentStatus,
    /// The counters of its connections.
    pub carrier: CarrierCounters,
    /// Datagrams and carried messages that were not of the protocol.
    pub malformed: u64,
    /// Why it ended.
    pub ended: String,
}

/// The key of surveys, derived from the key of the run.
pub(crate) fn mac_key(key: Option<&evenfall_core::SharedKey>) -> Option<MacKey> {
    let (id, bytes) = key?.derive(KEY_CONTEXT);
    Some(MacKey::new(id, &bytes))
}

fn metrics(name: &str, status: &AgentStatus, malformed: u64) -> Metrics {
    let mut m = Metrics::of(name, "agent");
    m.counter("survey_jobs_total", "Jobs taken.", 0, status.jobs);
    m.counter("probes_sent_total", "Probes sent; a group counts once.", 0, status.probes_sent);
    m.counter(
        "probes_ignored_total",
        "Probes of other jobs, and copies.",
        0,
        status.probes_ignored,
    );
    m.counter("probes_dropped_total", "Probes not forwarded.", 0, status.probes_dropped);
    m.counter("leases_lapsed_total", "Jobs dropped because no poll came.", 0, status.leases_lapsed);
    m.counter("malformed_datagrams_total", "Datagrams that were no messages.", 0, malformed);
    m.gauge("survey_busy", "1 while it has a job.", 0, f64::from(u8::from(status.busy.is_some())));
    m
}

/// Hands in the messages that the carrier brought. Returns the number of malformed ones.
pub(crate) fn take_carried<M: Machine>(
    process: &mut evenfall_runtime::process::DriverAndPort<'_>,
    machines: &mut [Carried<M>; 1],
    events: &mut impl FnMut(&Carried<M>, Timestamp, M::Event),
) -> Result<u64, SurveyError> {
    let mut malformed = 0;
    while let Some((from, message)) = machines[0].carrier.take() {
        let taken = take_one(process, &mut machines[0], from, message, events)?;
        malformed += u64::from(!taken);
    }
    Ok(malformed)
}

fn take_one<M: Machine>(
    process: &mut evenfall_runtime::process::DriverAndPort<'_>,
    machine: &mut Carried<M>,
    from: SocketAddr,
    message: Bytes,
    events: &mut impl FnMut(&Carried<M>, Timestamp, M::Event),
) -> Result<bool, SurveyError> {
    let input = |machine: &mut Carried<M>, now: Timestamp| {
        machine.handle(now, Carried::<M>::arrival(now, from, message)).is_ok()
    };
    Ok(process.driver.input(0, machine, process.port, input, events)?)
}

/// Runs an agent until a signal comes.
///
/// # Errors
/// [`SurveyError`].
pub fn run(settings: &Settings, node: &Node) -> Result<AgentSummary, SurveyError> {
    let is_one_host = settings.agents.iter().all(|agent| agent.address.ip().is_loopback());
    let here = settings.agents.iter().filter(|agent| agent.address.ip() == node.address.ip());
    let options = ProcessOptions {
        run: &settings.run,
        io: &settings.io,
        inject: &settings.inject,
        dispatch: |_| Some(0),
        is_crowded: pin::is_crowded(here.count()),
        is_one_host,
        is_meshed: false,
        steps: None,
        may_moderate: false,
        orders: &[],
        trial: None,
        files: settings.survey.results.as_deref().map(|directory| FilesPage {
            path: served::PAGE,
            directory,
            read: served::read_page,
        }),
        streams: None,
    };
    let mut process = Process::start(node, options)?;
    let address = process.port.local_addr();
    let keyed = process.key.is_some();
    let carrier = Carrier::start(Some(address), keyed, process.port.waker());
    let carrier = carrier?;
    let config = AgentConfig {
        key: mac_key(process.key.as_ref()),
        probes_per_second_max: settings.survey.agent_probes_per_second_max,
        ..AgentConfig::default()
    };
    let mut machines = [Carried { machine: Agent::new(config), carrier }];
    let mut first = true;
    let mut unread = 0;
    let mut on = |_: &Carried<Agent>, _: Timestamp, event: AgentEvent| {
        if let AgentEvent::Idle { run, job, why } = event {
            // Only an abandoned job is reported. The end of a job by its surveyor is normal.
            if why == evenfall_placement_machine::Idle::LeaseLapsed {
                tracing::warn!(
                    "{}: job {job} of run {run:016x} was not asked for any more",
                    node.name
                );
            }
        }
    };
    loop {
        process.keep_time(&mut machines, core::mem::take(&mut first), &mut on)?;
        process.driver.turn(&mut machines, process.port.as_mut(), None, &mut on)?;
        unread += take_carried(&mut process.driver_and_port(), &mut machines, &mut on)?;
        if process.housekeeping_due() {
            let status = machines[0].machine.status();
            let page = metrics(&node.name, &status, process.refused() + unread);
            process.telemetry.publish(page, &status, &(), None);
        }
        if interrupt::raised() {
            break;
        }
    }
    Ok(AgentSummary {
        name: node.name.clone(),
        status: machines[0].machine.status(),
        carrier: machines[0].carrier.counters(),
        malformed: process.refused() + unread,
        ended: "asked to stop".to_owned(),
    })
}
