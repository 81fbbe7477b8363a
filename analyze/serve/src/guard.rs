//! Decides, before anything else looks at a request, whether it may be answered: by its form, its `Host`, where it
//! comes from, and its token.
//!
//! Other users of the machine reach a port of the loopback interface, so there is a token even there. A page in the
//! user's browser can send requests too: it is told by `Origin` and `Sec-Fetch-Site` or, after a rebinding of its name
//! to this address, by the `Host` that it names.

use crate::work::lock;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, HeaderMap, ORIGIN};
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use subtle::ConstantTimeEq;

/// Greatest length of the target of a request.
const LONGEST_TARGET: usize = 16 << 10;
/// Greatest length of all headers.
const LONGEST_HEADERS: usize = 32 << 10;
/// Greatest length of a body.
pub(crate) const LONGEST_BODY: u64 = 1 << 20;

/// The policy for pages: nothing but our own files, no scripts in the text, no frames, no text as markup.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every answer.
pub(crate) const HEADERS: [(&str, &str); 6] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), usb=()"),
    ("x-frame-options", "DENY"),
];

/// The address that the server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Tcp(SocketAddr),
    /// A socket that only its owner can open.
    Unix,
}

/// The rules for requests.
pub(crate) struct Guard {
    pub at: At,
    /// Names that a request may give as its host besides the address, with or without a port.
    pub names: Vec<String>,
    /// `None`: no token is asked for.
    pub token: Option<String>,
    /// Tokens that are good for one request, as those in the command line of a browser that is started.
    pub once: Mutex<Vec<String>>,
}

/// The decision on a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The request is answered.
    Pass,
    /// The browser is given the token as a cookie, and sent to the path without it.
    Enter(String),
    /// The request is refused with a status and a reason.
    Refuse(u16, &'static str),
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        _ => Err(()),
    }
}

/// Divides a host into name and port.
fn divide(host: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']')?;
            (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let digits = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
    let port = match port {
        None => None,
        Some(p) if digits(p) => Some(p.parse().ok()?),
        Some(_) => return None,
    };
    Some((name, port))
}

impl Guard {
    /// Returns the name of the cookie: servers on other ports of the machine share its cookies.
    pub(crate) fn cookie(&self) -> String {
        match self.at {
            At::Tcp(at) => format!("prof_{}", at.port()),
            At::Unix => "prof_unix".to_owned(),
        }
    }

    /// Decides on a request by its head.
    pub(crate) fn decide<B>(&self, request: &Request<B>) -> Decision {
        use Decision::Refuse;
        let (uri, headers) = (request.uri(), request.headers());
        if let Some((status, why)) = too_long(uri, headers) {
            return Refuse(status, why);
        }
        if uri.scheme().is_some() || uri.authority().is_some() || !uri.path().starts_with('/') {
            return Refuse(400, "the target must be a path");
        }
        let Ok(Some(host)) = single(headers, &HOST) else {
            return Refuse(400, "one Host header is needed");
        };
        if !self.knows(host) {
            return Refuse(
                403,
                "this server has another name; start it with --allow-host to give it this one",
            );
        }
        if let Some(why) = self.is_foreign(headers, host) {
            return Refuse(403, why);
        }
        let method = request.method();
        if !matches!(*method, Method::GET | Method::HEAD | Method::POST) {
            return Refuse(405, "only GET, HEAD and POST");
        }
        let bearer = self.has_bearer(headers);
        if *method == Method::POST {
            if let Some(why) = wrong_post(headers, bearer || self.token.is_none()) {
                return Refuse(why.0, why.1);
            }
        } else if request.version() > Version::HTTP_11 {
            return Refuse(505, "only HTTP/1");
        }
        self.admit(uri, headers, bearer)
    }

    /// Decides on a request by its token.
    fn admit(&self, uri: &Uri, headers: &HeaderMap, bearer: bool) -> Decision {
        let Some(token) = &self.token else { return Decision::Pass };
        if bearer || self.has_cookie(headers, token) {
            // A token in the address is of no more use: a page that is opened goes on without it.
            return match token_in(uri) {
                Some(given) if is_page(uri) && same(&given, token) => {
                    Decision::Enter(without_token(uri))
                }
                _ => Decision::Pass,
            };
        }
        let Some(given) = token_in(uri) else {
            return Decision::Refuse(401, "a token is needed");
        };
        if is_page(uri) && (same(&given, token) || self.use_once(&given)) {
            return Decision::Enter(without_token(uri));
        }
        if same(&given, token) {
            Decision::Pass
        } else {
            Decision::Refuse(401, "this is not the token")
        }
    }

    fn use_once(&self, given: &str) -> bool {
        let mut once = lock(&self.once);
        let before = once.len();
        once.retain(|t| !same(t, given));
        once.len() < before
    }

    /// Returns whether a request names this server as its host.
    fn knows(&self, host: &str) -> bool {
        let Some((name, port)) = divide(host) else { return false };
        let name = name.to_ascii_lowercase();
        let own = match self.at {
            At::Tcp(at) => Some(at.port()),
            At::Unix => None,
        };
        let named = self.names.iter().any(|allowed| match divide(allowed) {
            Some((n, Some(p))) => n.eq_ignore_ascii_case(&name) && port.unwrap_or(80) == p,
            Some((n, None)) => {
                n.eq_ignore_ascii_case(&name) && own.is_none_or(|o| port.unwrap_or(80) == o)
            }
            None => false,
        });
        if named {
            return true;
        }
        if own.is_some_and(|own| port.unwrap_or(80) != own) {
            return false;
        }
        let address: Option<IpAddr> = name.parse().ok();
        match (self.at.clone(), address) {
            (At::Unix, address) => name == "localhost" || address.is_some_and(|a| a.is_loopback()),
            // No page can make its name an address: a rebound one still sends its name.
            (At::Tcp(at), Some(a)) => a == at.ip() || at.ip().is_unspecified(),
            (At::Tcp(at), None) => {
                name == "localhost" && (at.ip().is_loopback() || at.ip().is_unspecified())
            }
        }
    }

    /// Returns why a request is one of another site's page.
    fn is_foreign(&self, headers: &HeaderMap, host: &str) -> Option<&'static str> {
        match single(headers, &ORIGIN) {
            Ok(None) => {}
            Ok(Some(origin)) => {
                let own =
                    origin.strip_prefix("http://").is_some_and(|o| o.eq_ignore_ascii_case(host));
                // A proxy with a certificate, in front of a server that has been given its name.
                let secure = origin.strip_prefix("https://").is_some_and(|o| {
                    o.eq_ignore_ascii_case(host)
                        && self.names.iter().any(|n| n.eq_ignore_ascii_case(o))
                });
                if !own && !secure {
                    return Some("requests of other sites' pages are not answered");
                }
            }
            Err(()) => return Some("one Origin at most"),
        }
        let site = HeaderName::from_static("sec-fetch-site");
        match single(headers, &site) {
            Ok(None | Some("same-origin" | "none")) => None,
            _ => Some(
                "requests of other sites' pages are not answered; open the address in a new tab",
            ),
        }
    }

    fn has_bearer(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return false };
        let Ok(Some(value)) = single(headers, &AUTHORIZATION) else { return false };
        let Some((scheme, given)) = value.split_once(' ') else { return false };
        scheme.eq_ignore_ascii_case("bearer") && same(given.trim(), token)
    }

    fn has_cookie(&self, headers: &HeaderMap, token: &str) -> bool {
        let name = self.cookie();
        let texts = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
        let mut pairs = texts.flat_map(|t| t.split(';')).filter_map(|p| p.trim().split_once('='));
        pairs.any(|(n, value)| n == name && same(value, token))
    }

    /// Returns the header that gives the browser the token.
    pub(crate) fn set_cookie(&self) -> Option<HeaderValue> {
        let token = self.token.as_ref()?;
        let text = format!("{}={token}; HttpOnly; SameSite=Strict; Path=/", self.cookie());
        HeaderValue::from_str(&text).ok()
    }
}

fn too_long(uri: &Uri, headers: &HeaderMap) -> Option<(u16, &'static str)> {
    let target = uri.path_and_query().map_or(0, |p| p.as_str().len());
    if target > LONGEST_TARGET {
        return Some((414, "the target is longer than 16 KiB"));
    }
    let all: usize = headers.iter().map(|(n, v)| n.as_str().len() + v.len() + 4).sum();
    if all > LONGEST_HEADERS {
        return Some((431, "the headers are longer than 32 KiB"));
    }
    let length = headers.get(http::header::CONTENT_LENGTH).and_then(|l| l.to_str().ok());
    if length.is_some_and(|l| l.parse::<u64>().is_ok_and(|l| l > LONGEST_BODY)) {
        return Some((413, "the body is longer than 1 MiB"));
    }
    None
}

/// Returns why a POST is refused. A form of another site can send neither of the two types with a header of its own.
fn wrong_post(headers: &HeaderMap, bearer: bool) -> Option<(u16, &'static str)> {
    let kind = single(headers, &CONTENT_TYPE).ok().flatten().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" && kind != "text/plain" {
        return Some((415, "the body must be application/json or text/plain"));
    }
    if headers.get(ORIGIN).is_none() && !bearer {
        return Some((403, "a POST needs an Origin, or the token as Authorization: Bearer"));
    }
    None
}

/// Compares in a time that does not depend on where the texts differ.
fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

/// Returns whether the path is of the page, not of the API.
fn is_page(uri: &Uri) -> bool {
    let path = uri.path();
    !(path.starts_with("/api/")
        || path.starts_with("/data/")
        || path == "/list"
        || path.starts_with("/assets/"))
}

fn token_in(uri: &Uri) -> Option<String> {
    let pairs = uri.query()?.split('&');
    pairs.filter_map(|p| p.strip_prefix("token=")).map(str::to_owned).next()
}

fn without_token(uri: &Uri) -> String {
    let rest: Vec<_> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|p| !p.starts_with("token=") && !p.is_empty())
        .collect();
    // A path that begins with two slashes would be the address of another server.
    let path = format!("/{}", uri.path().trim_start_matches('/'));
    if rest.is_empty() { path } else { format!("{path}?{}", rest.join("&")) }
}

/// Returns a new token: 32 random bytes, in the letters that addresses can have.
///
/// # Errors
/// If the system gives no random bytes.
pub(crate) fn new_token() -> Result<String, String> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = [0u8; 32];
    getrandom::getrandom(&mut bytes).map_err(|e| format!("no random bytes for a token: {e}"))?;
    let mut text = String::with_capacity(43);
    for part in bytes.chunks(3) {
        let n = part.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - part.len()));
        for i in 0..=part.len() {
            text.push(LETTERS[(n >> (18 - 6 * i)) as usize & 63].into());
        }
    }
    Ok(text)
}

/// Returns whether a text can be a token: nothing that an address or a cookie would need to escape.
pub(crate) fn is_token(text: &str) -> bool {
    text.len() >= 8 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b))
}
