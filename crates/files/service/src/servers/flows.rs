//! The flowserver as a process, and how clients and dataservers talk to it.
//!
//! All orders are short requests of HTTP. Nobody waits for a flowserver: a client or a dataserver
//! that gets no answer goes on without it, and asks again some seconds later.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenfall_core::SharedKey;
use evenfall_files_flow::FlowId;
use evenfall_files_flow::flowserver::{COPIES_MAX, Flowserver, FlowserverSpec, Given};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_runtime::address::{HostPort, SourcePorts};
use evenfall_runtime::http::streams::StreamAnswer;
use evenfall_runtime::http::{self, AllowedHosts, HttpServer, Method, Routes};
use evenfall_runtime::http::{Upload, exchange_under};
use serde_json::{Value, json};

use super::nameserver::limits;
use super::owner::random_number;
use super::pages::StatePages;
use super::webhdfs::{ORDERS, WebHdfsException, WebHdfsRequest, escaped, json_of};
use crate::settings::{FLOWSERVER, PreparedPath};
use crate::{Options, ServiceError};

/// Silence after which a flow counts as dead: five counts of a dataserver.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest wait for a flowserver.
const PATIENCE: Duration = Duration::from_millis(500);
/// A flowserver that did not answer is not asked for this long.
const REST: Duration = Duration::from_secs(5);
/// Time between two counts of a dataserver.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// A dataserver names its rack with every tenth count, because the flowserver may have started
/// anew.
const PLACE_EVERY: u32 = 10;
/// Flows that a dataserver counts at once. Further flows are not counted.
const FLOWS_MAX: usize = 1_000;
/// A flow of which no byte was read for this long is not counted any more.
const IDLE: Duration = Duration::from_secs(10);
/// Time between two looks of the process at its signals.
const LOOK: Duration = Duration::from_millis(100);

/// The routes of a flowserver, with the paths that were set up beforehand.
#[derive(Clone)]
struct Flows(Arc<Mutex<Flowserver>>, AllowedHosts, Arc<[PreparedPath]>);

impl Flows {
    /// Locks the state. A thread that panicked while it held the lock has left the state in order,
    /// because each order is one call of the flowserver.
    fn state(&self) -> MutexGuard<'_, Flowserver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &http::Request) -> StreamAnswer {
        if let Err(foreign) = self.1.check(request) {
            return WebHdfsException::from(foreign).into();
        }
        let answered = match (&request.method, request.path.as_str()) {
            (&Method::GET, "/evenfall/flows") => Ok(self.shown()),
            (&Method::POST, _) => WebHdfsRequest::order(request).and_then(|order| {
                let client = request.from.ip().to_canonical();
                self.order(&order, client).map(|value| json_of(&value))
            }),
            _ => Err(WebHdfsException::unsupported("try GET /evenfall/flows")),
        };
        answered.unwrap_or_else(StreamAnswer::from)
    }

    /// The pages of the server about itself.
    fn pages(&self, options: &Options) -> StatePages {
        let flows = self.clone();
        StatePages::new(&options.name, FLOWSERVER, move || {
            let mut state = flows.state();
            state.expire(MonotonicClock::now());
            let totals = state.totals();
            let figures = vec![
                ("flows", "Flows that are known now.", state.len() as u64),
                ("flow_reads_total", "Reads that began.", totals.reads),
                ("flow_divided_reads_total", "Reads divided between two copies.", totals.divided),
                ("flow_writes_total", "Writes that began.", totals.writes),
                ("flow_expired_total", "Flows that fell silent.", totals.expired),
            ];
            Ok((figures, None))
        })
    }

    fn shown(&self) -> StreamAnswer {
        let mut state = self.state();
        state.expire(MonotonicClock::now());
        let totals = state.totals();
        json_of(&json!({
            "flows": state.len(), "reads": totals.reads, "divided": totals.divided,
            "writes": totals.writes, "expired": totals.expired,
        }))
    }

    fn order(&self, order: &WebHdfsRequest, client: IpAddr) -> Result<Value, WebHdfsException> {
        let (mut state, now) = (self.state(), MonotonicClock::now());
        let host = |name: &str| match order.text(name) {
            Some(text) => host_of(text),
            None => Ok(client),
        };
        match order.path.as_str() {
            "/place" => {
                state.place(now, host("host")?, order.text("rack").unwrap_or_default());
                Ok(json!({}))
            }
            "/read" => {
                let copies = order.text("copies").unwrap_or_default().split(',');
                let copies = copies.take(COPIES_MAX).map(host_of).collect::<Result<Vec<_>, _>>()?;
                let bytes = order.number("length")?.unwrap_or(0);
                let given = state.read(now, host("client")?, &copies, bytes);
                let one = |one: &Given| {
                    let Given { flow, copy, bytes, path } = *one;
                    let path = path.and_then(|path| self.2.get(path));
                    let (name, ports) = (path.map(|path| &path.name), path.map(|path| path.ports));
                    json!({
                        "flow": flow.0, "copy": copy, "bytes": bytes, "path": name, "ports": ports,
                    })
                };
                Ok(json!({ "given": given.iter().map(one).collect::<Vec<_>>() }))
            }
            "/write" => {
                let flow = state.write(now, host("from")?, host("to")?);
                Ok(json!({ "flow": flow.map(|flow| flow.0) }))
            }
            "/end" => {
                for flow in order.text("flows").unwrap_or_default().split(',') {
                    state.ended(now, FlowId(number_of(flow)?));
                }
                Ok(json!({}))
            }
            "/count" => {
                let counts = order.text("counts").unwrap_or_default().split(',');
                let count = |text: &str| {
                    let (flow, moved) = text.split_once('-').unwrap_or((text, ""));
                    Ok::<_, WebHdfsException>((FlowId(number_of(flow)?), number_of(moved)?))
                };
                let counts = counts.map(count).collect::<Result<Vec<_>, _>>()?;
                let unknown = state.counted(now, &counts);
                let unknown: Vec<u64> = unknown.iter().map(|flow| flow.0).collect();
                Ok(json!({ "unknown": unknown }))
            }
            path => Err(WebHdfsException::unsupported(format!("there is no order {path:.50}"))),
        }
    }
}

fn host_of(text: &str) -> Result<IpAddr, WebHdfsException> {
    let address = text.parse::<SocketAddr>().map(|address| address.ip());
    let host = address.or_else(|_| text.parse::<IpAddr>());
    host.map(|host| host.to_canonical())
        .map_err(|_| WebHdfsException::argument(format!("{text:.50} is no address")))
}

fn number_of(text: &str) -> Result<u64, WebHdfsException> {
    text.parse().map_err(|_| WebHdfsException::argument(format!("{text:.50} is no number")))
}

/// Runs a flowserver until SIGINT or SIGTERM. `started` is called once, when clients can connect.
///
/// # Errors
/// When the address cannot be had.
pub fn run(options: &Options, started: impl FnOnce()) -> Result<(), ServiceError> {
    options.check()?;
    let paths = &options.files.paths;
    let spec = FlowserverSpec {
        host_bytes_per_s: options.files.host_bytes_per_second as f64,
        rack_bytes_per_s: options.files.rack_bytes_per_second as f64,
        silence: SILENCE,
        paths_bytes_per_s: paths.iter().map(|path| path.bytes_per_second as f64).collect(),
    };
    let state = Arc::new(Mutex::new(Flowserver::new(spec, random_number()?)));
    let flows = Flows(state, options.allowed_hosts(), paths.as_slice().into());
    let answer = flows.clone();
    let _pages = flows.pages(options).serve(options.http)?;
    let pages = flows.pages(options);
    let routes = Routes::default()
        .streams(move |request, _| pages.answer(request).unwrap_or_else(|| answer.answer(request)));
    let listen = options.listen;
    let server = HttpServer::bind_guarded(listen, limits(), routes, options.guard());
    let failed = |error| ServiceError::Io(format!("listen on {listen}"), error);
    let _server = server.map_err(failed)?;
    started();
    while !interrupt::raised() {
        std::thread::sleep(LOOK);
        flows.state().expire(MonotonicClock::now());
    }
    Ok(())
}

/// How a client or a dataserver reaches the flowserver.
#[derive(Clone, Debug)]
pub struct FlowSteering {
    flowserver: String,
    key: Option<SharedKey>,
    /// When the flowserver last did not answer.
    silent: Arc<Mutex<Option<Instant>>>,
}

/// A part of a read as the flowserver gives it.
#[derive(Clone, Debug)]
pub struct SteeredLeg {
    pub flow: u64,
    /// The place of the copy in the list of copies.
    pub copy: usize,
    /// The path that was set up beforehand, and the ports of its connections.
    pub path: Option<(String, SourcePorts)>,
}

impl FlowSteering {
    /// A flowserver at this address.
    pub fn new(flowserver: HostPort, key: Option<SharedKey>) -> Self {
        Self { flowserver: flowserver.to_string(), key, silent: Arc::default() }
    }

    /// Gives an order; `None` when the flowserver does not answer or refuses.
    fn ask(&self, order: &str, arguments: &[(&str, &str)]) -> Option<Value> {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.is_some_and(|since| since.elapsed() < REST) {
            return None;
        }
        *silent = None;
        drop(silent);
        let mut url = format!("http://{}{ORDERS}/{order}?", self.flowserver);
        for (name, value) in arguments {
            url += &format!("{name}={}&", escaped(value));
        }
        let url = url.trim_end_matches(['&', '?']);
        let (key, none) = (self.key.as_ref(), Upload::none());
        let answer = exchange_under(key, url, Method::POST, none, PATIENCE, &mut |_| {});
        let text = answer.and_then(|answer| answer.text());
        if text.is_err() {
            *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        serde_json::from_str(&text.ok()?).ok()
    }

    /// The copies to read, each with its flow. Empty without an answer.
    pub fn read(&self, copies: &[&str], bytes: u64) -> Vec<SteeredLeg> {
        let (copies, bytes) = (copies.join(","), bytes.to_string());
        let arguments = [("copies", copies.as_str()), ("length", bytes.as_str())];
        let answer = self.ask("read", &arguments);
        let given = answer.as_ref().and_then(|answer| answer["given"].as_array());
        let leg = |one: &Value| {
            let copy = usize::try_from(one["copy"].as_u64()?).ok()?;
            let (name, ports) = (one["path"].as_str(), one["ports"].as_str());
            let ports = ports.and_then(|ports| ports.parse().ok());
            let path = name.map(str::to_owned).zip(ports);
            Some(SteeredLeg { flow: one["flow"].as_u64()?, copy, path })
        };
        given.into_iter().flatten().filter_map(leg).collect()
    }

    /// A write from one host to another begins.
    pub fn write(&self, from: IpAddr, to: IpAddr) -> Option<u64> {
        let (from, to) = (from.to_string(), to.to_string());
        self.ask("write", &[("from", &from), ("to", &to)])?["flow"].as_u64()
    }

    /// Flows have ended.
    pub fn end(&self, flows: &[u64]) {
        if !flows.is_empty() {
            let flows: Vec<String> = flows.iter().map(u64::to_string).collect();
            self.ask("end", &[("flows", &flows.join(","))]);
        }
    }
}

/// Counts the bytes of flows that leave a dataserver. The values of a flow are the number of its
/// bytes, and when the last byte left.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<u64, (u64, Instant)>>>);

impl Counts {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a flow leave.
    pub fn add(&self, flow: u64, bytes: u64) {
        let mut all = self.all();
        if all.len() < FLOWS_MAX || all.contains_key(&flow) {
            let (counted, at) = all.entry(flow).or_insert((0, Instant::now()));
            (*counted, *at) = (*counted + bytes, Instant::now());
        }
    }

    /// Tells the flowserver the counts once a second, until the process ends.
    pub fn tell(self, steering: &FlowSteering, host: IpAddr, rack: &str) {
        let mut turn = 0;
        while !interrupt::raised() {
            if turn % PLACE_EVERY == 0 {
                steering.ask("place", &[("host", &host.to_string()), ("rack", rack)]);
            }
            turn = turn.wrapping_add(1);
            let counts: Vec<String> = {
                let mut all = self.all();
                all.retain(|_, (_, at)| at.elapsed() < IDLE);
                all.iter().map(|(flow, (bytes, _))| format!("{flow}-{bytes}")).collect()
            };
            if !counts.is_empty()
                && let Some(answer) = steering.ask("count", &[("counts", &counts.join(","))])
            {
                let unknown = answer["unknown"].as_array().into_iter().flatten();
                let mut all = self.all();
                for flow in unknown.filter_map(Value::as_u64) {
                    all.remove(&flow);
                }
            }
            std::thread::sleep(COUNT_EVERY);
        }
    }
}
