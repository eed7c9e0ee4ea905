//! The pages of a role over HTTP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use super::{Orders, Page, lock};
pub(super) use crate::http::Server;
use crate::http::{AllowedHosts, Limits, Request, Response, Routes, StatusCode};

/// The content type of the Prometheus text format, with its version.
const METRICS_KIND: &str = "text/plain; version=0.0.4";
/// Orders that may wait. A role takes orders several times a second.
const ORDERS_MAX: usize = 16;

/// Serves the pages of a role at this address.
pub(super) fn serve(
    page: &Arc<Mutex<Page>>,
    address: SocketAddr,
    orders: Option<Orders>,
) -> io::Result<Server> {
    let orders = orders.map(|orders| (orders, address.ip()));
    Server::bind(address, Limits::default(), routes(page, orders))
}

/// The pages of a role. `orders` has the orders that the role takes, and the address at which the
/// pages are served.
fn routes(page: &Arc<Mutex<Page>>, orders: Option<(Orders, IpAddr)>) -> Routes {
    let on = |answer: fn(&Page) -> Response| {
        let page = Arc::clone(page);
        move |_: &Request| answer(&lock(&page))
    };
    let routes = Routes::default()
        .get("/metrics", on(|page| Response::page(METRICS_KIND, page.metrics.clone())))
        .get("/status", on(|page| Response::page("application/json", page.status.clone())))
        .get("/clock", on(|page| Response::page("application/json", page.clock.clone())))
        .get(
            "/healthz",
            on(|page| match &page.ill {
                None => Response::text(StatusCode::OK, "ok"),
                Some(why) => Response::text(StatusCode::SERVICE_UNAVAILABLE, why),
            }),
        );
    let Some((orders, own)) = orders else { return routes };
    let (page, hosts) = (Arc::clone(page), AllowedHosts::of_this_host());
    routes.post(orders.path, 0, move |request| match hosts.check(request) {
        Ok(()) => take_order(request, orders, own, &mut lock(&page)),
        Err(why) => Response::text(StatusCode::FORBIDDEN, why),
    })
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
            page.orders.push_back(wanted.to_owned());
            let words = format_args!("{wanted} from one of the next frames on");
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
