//! The pages of a role over HTTP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use super::{FilesPage, Orders, Page, lock};
pub(super) use crate::http::HttpServer;
use crate::http::{AllowedHosts, Limits, Request, Response, Routes, StatusCode};
#[cfg(feature = "service")]
use crate::service::Observed;
#[cfg(feature = "service")]
use crate::telemetry::Metrics;

mod card;
pub(super) use self::card::HostMetrics;

/// The content type of the Prometheus text format, with its version.
const METRICS_KIND: &str = "text/plain; version=0.0.4";
/// Orders that may wait. A role takes orders several times a second.
const ORDERS_MAX: usize = 16;

/// Serves the pages of a role at this address.
pub(super) fn serve(
    page: &Arc<Mutex<Page>>,
    address: SocketAddr,
    orders: &'static [Orders],
    files: Option<FilesPage<'_>>,
) -> io::Result<HttpServer> {
    let routes = routes(page, orders, address.ip());
    let routes = match files {
        Some(files) => add_files(routes, files),
        None => routes,
    };
    HttpServer::bind(address, Limits::default(), routes)
}

/// Adds a page of files.
fn add_files(routes: Routes, files: FilesPage<'_>) -> Routes {
    let FilesPage { path, directory, read } = files;
    let directory = directory.to_owned();
    routes.get(path, move |request| match read(&directory, &request.query) {
        Ok(text) => Response::page("text/plain; charset=utf-8", text),
        // 404 stays the answer of a role that has no such page.
        Err(why) if why.kind() == io::ErrorKind::InvalidInput => {
            Response::text(StatusCode::BAD_REQUEST, why)
        }
        Err(why) => Response::text(StatusCode::SERVICE_UNAVAILABLE, why),
    })
}

/// Serves the pages of a running service at this address. `labels` names the node.
#[cfg(feature = "service")]
pub(super) fn serve_observed(
    address: SocketAddr,
    labels: Metrics,
    observed: Arc<dyn Observed>,
) -> io::Result<HttpServer> {
    // The routes are older than the server whose connections they count.
    let counts = Arc::new(std::sync::OnceLock::<Box<dyn Fn() -> [u64; 2] + Send + Sync>>::new());
    let count = Arc::clone(&counts);
    let count = move || count.get().map_or([0; 2], |count| count());
    let routes = add_pages(Routes::default(), labels, observed, count)
        .get("/clock", |_| Response::page("application/json", "null".to_owned()));
    let server = HttpServer::bind(address, Limits::default(), routes)?;
    let _ = counts.set(Box::new(server.counts_reader()));
    Ok(server)
}

/// Adds `/metrics`, `/status` and `/healthz` of a running service to the routes of a server.
/// `counts` has the connections that the server closed at once, and those that made room.
#[cfg(feature = "service")]
pub fn add_pages(
    routes: Routes,
    labels: Metrics,
    observed: Arc<dyn Observed>,
    counts: impl Fn() -> [u64; 2] + Send + Sync + 'static,
) -> Routes {
    let (metrics, health) = (Arc::clone(&observed), Arc::clone(&observed));
    routes
        .get("/metrics", move |_| {
            let mut page = labels.clone();
            metrics.metrics(&mut page);
            page.put_connections(counts());
            Response::page(METRICS_KIND, page.text())
        })
        .get("/status", move |_| Response::page("application/json", observed.status().to_string()))
        .get("/healthz", move |_| health_page(health.explain_illness().as_deref()))
}

/// The answer of `/healthz`.
fn health_page(ill: Option<&str>) -> Response {
    match ill {
        None => Response::text(StatusCode::OK, "ok"),
        Some(why) => Response::text(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

/// The pages of a role, and the orders that the role takes. `own` is the address at which the pages
/// are served.
fn routes(page: &Arc<Mutex<Page>>, orders: &'static [Orders], own: IpAddr) -> Routes {
    let on = |answer: fn(&Page) -> Response| {
        let page = Arc::clone(page);
        move |_: &Request| answer(&lock(&page))
    };
    let routes = Routes::default()
        .get("/metrics", metrics_page(page))
        .get("/status", on(|page| Response::page("application/json", page.status.clone())))
        .get("/clock", on(|page| Response::page("application/json", page.clock.clone())))
        .get("/healthz", on(|page| health_page(page.ill.as_deref())));
    orders.iter().fold(routes, |routes, orders| {
        let (page, hosts) = (Arc::clone(page), AllowedHosts::of_this_host());
        routes.post(orders.path, 0, move |request| match hosts.check(request) {
            Ok(()) => take_order(request, *orders, own, &mut lock(&page)),
            Err(why) => Response::text(StatusCode::FORBIDDEN, why),
        })
    })
}

/// The metrics of the role, and behind them what the host tells now. The role waits for the lock of
/// the page, so that nothing is asked of the host under it.
fn metrics_page(page: &Arc<Mutex<Page>>) -> impl Fn(&Request) -> Response + use<> {
    let page = Arc::clone(page);
    move |_| {
        let (mut text, mut labelled, host) = {
            let page = lock(&page);
            (page.metrics.clone(), page.labels.clone(), page.host.clone())
        };
        // Before the role has published, nobody knows the labels.
        if let Some(host) = host.filter(|_| !text.is_empty()) {
            host.put_metrics(&mut labelled);
            text.push_str(&labelled.text());
        }
        Response::page(METRICS_KIND, text)
    }
}

/// Whether a client is on this host. `own` is the address at which the pages are served.
fn is_here(from: IpAddr, own: IpAddr) -> bool {
    let from = from.to_canonical();
    from.is_loopback() || from == own
}

/// Takes an order. Anybody may read the pages. An order carries no identity, so it must come from
/// this host, and must not come through a browser from a page of another site.
fn take_order(request: &Request, orders: Orders, own: IpAddr, page: &mut Page) -> Response {
    if !is_here(request.from.ip(), own) {
        return Response::text(StatusCode::FORBIDDEN, "orders are taken from this host only");
    }
    let wanted = request.query.strip_prefix("to=").unwrap_or("");
    match (orders.check)(wanted) {
        Ok(()) if page.orders.len() >= ORDERS_MAX => {
            Response::text(StatusCode::SERVICE_UNAVAILABLE, "too many orders are waiting")
        }
        Ok(()) => {
            page.orders.push_back((orders.path, wanted.to_owned()));
            let order = orders.path.trim_start_matches('/');
            let words = format_args!("{order} {wanted}: from one of the next frames on");
            Response::text(StatusCode::ACCEPTED, words)
        }
        Err(why) => {
            let words = format_args!("POST {}?to=VALUE: {why}", orders.path);
            Response::text(StatusCode::BAD_REQUEST, words)
        }
    }
}

#[cfg(test)]
mod tests;
