//! Which requests may come from a page in a browser.
//!
//! A browser lets any page of the web send requests to this host. Two kinds of pages do harm:
//!
//! - A page of another site. The browser names the page's site in `Origin`, and says in
//!   `Sec-Fetch-Site` that the site is another one.
//! - A page whose own name an attacker has pointed to this host (DNS rebinding). The browser then
//!   takes this server for the page's own site, and both headers are of no help. The name of the
//!   host is all that tells this request from others, so a server answers only to names that no
//!   attacker can own: IP addresses, `localhost`, the name of this host, and names of the settings.
//!
//! Programs that are no browsers send neither header, and may leave the name of the host out in
//! HTTP/1.0.

use std::net::IpAddr;

use super::Request;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignRequest {
    /// The request names the host by this name, to which the server does not answer.
    #[error(
        "this server does not answer to the name {0:.100?}: use an IP address, localhost or the \
         name of this host, or allow the name in the server's settings (files.hosts for servers of \
         files)"
    )]
    Host(String),
    /// The request comes from a page of this origin.
    #[error("requests from pages of {0:.100?} are refused: it is another site")]
    Origin(String),
    /// A browser says that the page is of another site.
    #[error("requests from pages of another site are refused (Sec-Fetch-Site: {0:.100})")]
    Site(String),
}

/// The names by which a server may be addressed. IP addresses are always allowed.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    /// Names in lower case, without a dot at the end. A name that begins with `*.` allows every
    /// name that ends with the rest.
    names: Vec<String>,
}

impl AllowedHosts {
    /// `localhost`, and the name of this host.
    pub fn of_this_host() -> Self {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { names: vec!["localhost".into()] }.and(own.trim())
    }

    /// The same names and another one. `*.` at the beginning stands for any name in front of the
    /// rest.
    #[must_use]
    pub fn and(mut self, name: &str) -> Self {
        let name = plain(name);
        if !name.is_empty() {
            self.names.push(name);
        }
        self
    }

    fn allows(&self, name: &str) -> bool {
        let is_it = |allowed: &String| match allowed.strip_prefix('*') {
            Some(end) => name.len() > end.len() && name.ends_with(end),
            None => name == allowed,
        };
        name.parse::<IpAddr>().is_ok() || self.names.iter().any(is_it)
    }

    /// Refuses a request that may come from a page of another site.
    ///
    /// # Errors
    /// [`ForeignRequest`].
    pub fn check(&self, request: &Request) -> Result<(), ForeignRequest> {
        let host = request.host.as_str();
        let name = plain(name_of(host));
        if !name.is_empty() && !self.allows(&name) {
            return Err(ForeignRequest::Host(name));
        }
        // An origin that is no text belongs to no page of this server.
        if let Some(origin) = request.headers.get(hyper::header::ORIGIN) {
            let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
            let is_own =
                origin.strip_prefix("http://").is_some_and(|of| of.eq_ignore_ascii_case(host));
            if !is_own {
                return Err(ForeignRequest::Origin(origin));
            }
        }
        match request.header("sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            Some(site) => Err(ForeignRequest::Site(site.to_owned())),
        }
    }
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.trim_start_matches('[').trim_end_matches(']')
}

fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&str, &str)]) -> Request {
        let mut head = hyper::Request::builder().uri("/x");
        for (name, value) in fields {
            head = head.header(*name, *value);
        }
        let from = "127.0.0.1:1".parse().unwrap();
        Request::new(&mut head.body(()).unwrap(), bytes::Bytes::new(), from)
    }

    #[test]
    fn a_server_answers_to_addresses_its_own_names_and_names_of_the_settings() {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let hosts = AllowedHosts::of_this_host().and("NameNode").and("*.files.svc.");
        let own = format!("{}:9870", own.trim().to_uppercase());
        for host in [
            "127.0.0.1:9870",
            "10.0.0.7",
            "[::1]:9870",
            "LOCALHOST:9870",
            "localhost.",
            &own,
            "namenode:9870",
            "data-1.files.svc:9871",
        ] {
            assert_eq!(hosts.check(&request(&[("host", host)])), Ok(()), "{host}");
        }
        assert_eq!(hosts.check(&request(&[])), Ok(()), "HTTP/1.0");
        for host in ["example.org", "example.org:9870", "files.svc", "xfiles.svc", "namenode.evil"]
        {
            let refused = hosts.check(&request(&[("host", host)])).unwrap_err().to_string();
            assert!(refused.contains(&format!("{:?}", name_of(host))), "{refused}");
        }
        let absolute = hyper::Request::builder().uri("http://evil.example/x");
        let mut head = absolute.header("host", "127.0.0.1").body(()).unwrap();
        let read = Request::new(&mut head, bytes::Bytes::new(), "127.0.0.1:1".parse().unwrap());
        assert_eq!(hosts.check(&read), Err(ForeignRequest::Host("evil.example".into())));
    }

    #[test]
    fn pages_of_other_sites_are_refused_by_what_their_browser_says() {
        let hosts = AllowedHosts::of_this_host();
        let host = ("host", "localhost:1");
        for (name, value) in [
            ("origin", "http://localhost:1"),
            ("origin", "http://LOCALHOST:1"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(hosts.check(&request(&[host, (name, value)])), Ok(()), "{name}: {value}");
        }
        for (name, value) in [
            ("origin", "http://localhost:2"),
            ("origin", "https://localhost:1"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(hosts.check(&request(&[host, (name, value)])).is_err(), "{name}: {value}");
        }
    }
}
