//! One request to a server.

use crate::progress::Wait;
use prof_trace::values::text::{bytes, number};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// A server that sends less within the timeout is taken to hang.
pub(super) const LEAST: u64 = 100 << 10;

/// Files in which systems keep the certificates that they trust.
const TRUSTED: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reason of a failed download.
#[derive(Debug)]
pub(super) enum Problem {
    /// With the server: another file would meet the same.
    Server(String),
    /// With this file.
    File(String),
}

/// Limits of a download.
pub(super) struct Limits {
    pub timeout: Option<Duration>,
    pub max_time: Option<Duration>,
    pub max_size: u64,
}

/// For all requests: it keeps connections.
pub(super) fn agent(timeout: Option<Duration>) -> ureq::Agent {
    let tls = TlsConfig::builder().root_certs(trusted()).build();
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("prof/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .timeout_resolve(timeout)
        .timeout_connect(timeout)
        .timeout_send_request(timeout)
        .timeout_recv_response(timeout)
        .timeout_per_read(timeout)
        .build()
        .new_agent()
}

/// The certificates that this machine trusts (`SSL_CERT_FILE` names others); without any, those that browsers do.
fn trusted() -> RootCerts {
    let named = std::env::var_os("SSL_CERT_FILE");
    let files = named.iter().map(Path::new).chain(TRUSTED.iter().map(Path::new));
    for file in files {
        let Ok(pem) = prof_os::files::read_at_most(file, 16 << 20) else { continue };
        let certificate = |item| match item {
            Ok(PemItem::Certificate(c)) => Some(c),
            _ => None,
        };
        let all: Vec<Certificate<'static>> = parse_pem(&pem).filter_map(certificate).collect();
        if !all.is_empty() {
            return RootCerts::Specific(Arc::new(all));
        }
    }
    RootCerts::WebPki
}

/// Writes what the server has to a file; false if it has nothing of that name.
pub(super) fn fetch(
    agent: &ureq::Agent,
    url: &str,
    limits: &Limits,
    file: &mut File,
    wait: &Wait,
    begun: impl Fn(Option<u64>),
) -> Result<bool, Problem> {
    let began = Instant::now();
    let response = agent.get(url).call().map_err(|e| failed(&e, limits))?;
    match response.status().as_u16() {
        200 => {}
        404 => return Ok(false),
        _ => return Err(Problem::Server(format!("it has answered {}", response.status()))),
    }
    let header = |name: &str| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
    let length = header("content-length");
    let size = length.or_else(|| header("x-debuginfod-size"));
    if size.is_some_and(|n| n > limits.max_size) {
        return Err(too_long(size, limits));
    }
    begun(size);
    wait.begins(size);
    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; 64 << 10];
    let (mut got, mut since, mut before) = (0u64, Instant::now(), 0u64);
    loop {
        let n = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(failed(&ureq::Error::from(e), limits)),
        };
        got += n as u64;
        if got > limits.max_size {
            return Err(too_long(size, limits));
        }
        let write = file.write_all(&buffer[..n]);
        write.map_err(|e| Problem::File(format!("cannot be written to the cache: {e}")))?;
        wait.has(got);
        if limits.max_time.is_some_and(|t| began.elapsed() > t) {
            let text = "it took longer than DEBUGINFOD_MAXTIME allows, and is left out";
            return Err(Problem::File(text.into()));
        }
        if let Some(t) = limits.timeout.filter(|t| since.elapsed() >= *t) {
            if got - before < LEAST {
                let text = format!("it has sent less than 100 KiB in {t:?} (DEBUGINFOD_TIMEOUT)");
                return Err(Problem::Server(text));
            }
            (since, before) = (Instant::now(), got);
        }
    }
    match length {
        Some(n) if n != got => {
            let (got, n) = (number(got), number(n));
            Err(Problem::Server(format!("it has sent {got} of {n} bytes")))
        }
        _ => Ok(true),
    }
}

fn too_long(size: Option<u64>, limits: &Limits) -> Problem {
    let size = size.map_or("it".to_owned(), |n| format!("its {}", bytes(n)));
    let most = bytes(limits.max_size);
    Problem::File(format!(
        "{size} exceed the {most} that DEBUGINFOD_MAXSIZE, and half of what the disk has left, allow"
    ))
}

fn failed(e: &ureq::Error, limits: &Limits) -> Problem {
    let timeout = limits.timeout.unwrap_or_default();
    Problem::Server(match e {
        ureq::Error::Timeout(_) => format!("no answer within {timeout:?} (DEBUGINFOD_TIMEOUT)"),
        e => e.to_string(),
    })
}
