//! Answers requests: from the guard through the router to the route, and the headers of every answer.

use crate::ask::Ask;
use crate::assets;
use crate::body::{Held, Pieces, Stream};
use crate::guard::{Decision, Guard, HEADERS, LONGEST_BODY, POLICY};
use crate::jobs;
use crate::net::{Connection, Connections};
use crate::params::Params;
use crate::reply::{Answer, Failure, JSON, Writer};
use crate::route::{Busy, Does, Route, Run};
use crate::state::{Open, Recording, Shared, State};
use crate::table::routes;
use crate::waiting;
use crate::work::Turn;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawPathParams, Request};
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use prof_analyze::{Job, query};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

/// Bodies that are shorter are not packed.
const WORTH_PACKING: usize = 4 << 10;
/// Time that a request of prof's own API waits for a recording that is being opened.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Time that other clients wait, who know no other answer than the data.
const LONG_PATIENCE: Duration = Duration::from_secs(600);
/// Time in which a body must arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// The server as one connection sees it.
pub(crate) struct Site {
    guard: Arc<Guard>,
    router: Router,
}

/// The way a request came.
#[derive(Clone)]
struct Peer {
    /// From this machine: its answers are not packed.
    local: bool,
    /// Name of the connection, for fairness.
    name: String,
}

impl Site {
    pub(crate) fn new(shared: Arc<Shared>, guard: Arc<Guard>) -> Self {
        let mut router = Router::new();
        for route in routes() {
            let shared = shared.clone();
            let handler = move |path: RawPathParams, request: Request| {
                let shared = shared.clone();
                async move { handle(shared, route, &path, request).await }
            };
            router = router
                .route(route.path, if route.is_post() { post(handler) } else { get(handler) });
        }
        let page = shared.options.page;
        let router = router.fallback(move |request: Request| async move { other(page, &request) });
        Self { guard, router }
    }

    async fn answer(&self, request: http::Request<Incoming>, peer: Peer) -> Response<Body> {
        let is_head = *request.method() == Method::HEAD;
        let mut response = match self.guard.decide(&request) {
            Decision::Pass => {
                let (mut parts, body) = request.into_parts();
                parts.extensions.insert(peer);
                let request = Request::from_parts(parts, Body::new(body));
                match self.router.clone().call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            Decision::Enter(path) => self.enter(&path),
            Decision::Refuse(status, why) => refusal(status, why, request.uri().path()),
        };
        if is_head {
            *response.body_mut() = Body::empty();
        }
        seal(&mut response);
        response
    }

    /// Gives the browser the token, and sends it to the page.
    fn enter(&self, path: &str) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SEE_OTHER;
        if let Some(cookie) = self.guard.set_cookie() {
            response.headers_mut().insert(http::header::SET_COOKIE, cookie);
        }
        let to = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/"));
        response.headers_mut().insert(http::header::LOCATION, to);
        response
    }
}

/// Adds the headers that every answer has.
fn seal(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Serves a connection in a task of its own.
pub(crate) fn spawn<T>(site: &Arc<Site>, connections: &Arc<Connections>, io: T, local: bool)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (site, connections) = (site.clone(), connections.clone());
    tokio::spawn(async move {
        let answer = move |connection: Arc<Connection>, request: http::Request<Incoming>| {
            let site = site.clone();
            let peer = Peer { local, name: format!("{:p}", Arc::as_ptr(&connection)) };
            let busy = connection.begin();
            async move {
                let response = site.answer(request, peer).await;
                let held = response.map(|body| Body::new(Held { body, _busy: busy }));
                Ok::<_, Infallible>(held)
            }
        };
        crate::net::serve(connections, io, answer).await;
    });
}

/// Answers a request that the guard refuses: a page for browsers, JSON for programs.
fn refusal(status: u16, why: &str, path: &str) -> Response<Body> {
    let is_data = path.starts_with("/api/") || path.starts_with("/data/") || path == "/list";
    if is_data || status != 401 {
        return failure(&Failure::new(status, why));
    }
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>prof: token needed</title>\
         <h1>A token is needed</h1><p>{why}. `prof serve` has printed the address of this page with its token: \
         open that.</p></html>"
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn failure(f: &Failure) -> Response<Body> {
    let mut body = serde_json::json!({ "error": f.why, "field": f.name });
    if let Some(progress) = f.progress {
        body["progress"] = (f64::from(progress) / 1000.0).into();
    }
    let mut response = Response::new(Body::from(body.to_string()));
    // 499 is a code of no standard, and nobody waits for it.
    let status = StatusCode::from_u16(f.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    if f.status == 405 {
        response
            .headers_mut()
            .insert(http::header::ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
    }
    response
}

/// Answers a request for a file of the page, or for the page itself.
fn other(page: bool, request: &Request) -> Response<Body> {
    let path = request.uri().path();
    let is_data = path.starts_with("/api") || path.starts_with("/data") || path == "/list";
    let found = match path.strip_prefix("/assets/").and_then(|rest| rest.split_once('/')) {
        _ if !page || is_data || *request.method() == Method::POST => None,
        Some((hash, file)) => assets::file(hash, file, accepts_gzip(request.headers())),
        None if path == "/favicon.ico" => assets::icon(),
        None if path == "/" || path.starts_with("/r/") => assets::page(),
        None => None,
    };
    match found {
        Some(answer) => whole(&answer, None),
        None => failure(&Failure::missing(
            "there is nothing at this path; /api/openapi.json lists the routes",
        )),
    }
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    let mut codings = accepted.flat_map(|v| v.split(','));
    codings.any(|c| {
        let (name, q) = c.split_once(';').unwrap_or((c, ""));
        name.trim() == "gzip" && !matches!(q.trim(), "q=0" | "q=0.0")
    })
}

fn head(answer: &Answer) -> http::response::Builder {
    let mut response = Response::builder().header(CONTENT_TYPE, answer.kind);
    for (name, value) in &answer.headers {
        // Names of recordings may have any characters.
        if let Ok(value) = HeaderValue::from_str(value) {
            response = response.header(*name, value);
        }
    }
    response
}

/// Makes a response of an answer; `accepted`: the headers of a request whose answer may be packed.
fn whole(answer: &Answer, accepted: Option<&HeaderMap>) -> Response<Body> {
    let packed = accepted
        .filter(|h| answer.body.len() >= WORTH_PACKING && accepts_gzip(h))
        .and_then(|_| pack(&answer.body));
    let mut response = head(answer);
    let body = match packed {
        Some(packed) => {
            response =
                response.header("content-encoding", "gzip").header("vary", "accept-encoding");
            Body::from(packed)
        }
        None => Body::from(answer.body.clone()),
    };
    response.body(body).unwrap_or_else(|e| failure(&Failure::internal(e.to_string())))
}

fn pack(body: &[u8]) -> Option<Vec<u8>> {
    use std::io::Write;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(body).ok()?;
    out.finish().ok()
}

/// Answers a request for a route.
async fn handle(
    shared: Arc<Shared>,
    route: &'static Route,
    path: &RawPathParams,
    request: Request,
) -> Response<Body> {
    match answer(shared, route, path, request).await {
        Ok(response) => response,
        Err(f) => failure(&f),
    }
}

async fn answer(
    shared: Arc<Shared>,
    route: &'static Route,
    path: &RawPathParams,
    request: Request,
) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<Peer>().cloned();
    let peer = peer.unwrap_or(Peer { local: true, name: String::new() });
    let mut params = Params::parse(parts.uri.query().unwrap_or_default())?;
    let _ = params.take("token");
    let ignored = check(route, &params)?;
    let packing = (!peer.local).then_some(&parts.headers);
    let named = |answer: &Answer| {
        let mut response = whole(answer, packing);
        say(&mut response, &ignored);
        response
    };
    let variables: Vec<_> = path.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let client = client_of(&parts.headers, peer);
    let make = match route.does {
        Does::Now(make) => return Ok(named(&make(&shared, &mut params)?)),
        Does::Open(make) => {
            for recording in shared.recordings() {
                // A recording that can't be read is not in the list.
                let _ = shared.ready(recording, LONG_PATIENCE).await;
            }
            return Ok(named(&make(&shared, &mut params)?));
        }
        Does::Events => return Ok(crate::live::events(&shared)),
        Does::Job(act) => {
            let number = variables.iter().find(|v| v.0 == "n").map_or("", |v| &*v.1);
            return Ok(named(&*shared.jobs.act(number, act)?));
        }
        Does::Control(control) => {
            read(body).await?;
            let pid = variables.iter().find(|v| v.0 == "pid").and_then(|v| v.1.parse().ok());
            let pid = pid.ok_or_else(|| Failure::bad("this is no id of a process"))?;
            return Ok(named(&blocking(move || control(&shared, pid)).await?));
        }
        Does::Data(make) | Does::Two(make) => make,
        Does::Stream(write) => {
            let ask = ask(&shared, route, variables, params).await?;
            let turn = shared.work.turn(&client).await?;
            let mut response = stream(turn, move || write(ask)).await?;
            say(&mut response, &ignored);
            return Ok(response);
        }
        Does::Post(run, busy) => {
            let text = read(body).await?;
            let ask = ask(&shared, route, variables, params).await?;
            return Ok(named(&run_script(&shared, &client, (run, busy), ask, text).await?));
        }
        Does::PostStream(run) => {
            let text = read(body).await?;
            let ask = ask(&shared, route, variables, params).await?;
            let place = shared.scripts.place(&client)?;
            let body = waiting::stream(place, shared.options.script_wait, move || run(ask, text));
            let response = head(&Answer::new(route.kind, "")).body(Body::new(body));
            return response.map_err(|e| Failure::internal(e.to_string()));
        }
    };
    let mut ask = ask(&shared, route, variables, params).await?;
    let (key, weight) = (key(route, &ask), route.weight(&ask.params));
    let work = shared.work.clone();
    let job = move |cancel: Job| {
        ask.cancel = cancel;
        make(&mut ask)
    };
    if !jobs::is_preferred(&parts.headers) || work.kept(&key).is_some() {
        return Ok(named(&*work.answer(key, &client, weight, job).await?));
    }
    let (result, waiter, job) = work.join(&key, &client, weight, job);
    let (number, status) = shared.jobs.add(route.path, job, result, waiter)?;
    let mut response = named(&accepted(number, &status)?);
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// Runs a script for a client when it is its turn. `run` answers, or `busy` if the wait for the turn is too long.
async fn run_script(
    shared: &Shared,
    client: &str,
    (run, busy): (Run, Busy),
    ask: Ask,
    text: String,
) -> Result<Answer, Failure> {
    // Not one of the places of other work, so that scripts without an end take none of them.
    let (mut place, patience) = (shared.scripts.place(client)?, shared.options.script_wait);
    let turn = match tokio::time::timeout(patience, place.turn()).await {
        Ok(turn) => turn?,
        Err(_) => return busy(&waiting::too_long(&place, patience)),
    };
    let _gone = CancelOnDrop(ask.cancel.clone());
    let work = move || {
        let done = run(ask, text);
        drop(turn);
        done
    };
    blocking(work).await
}

/// Returns the client that the header `x-prof-client` names, or the peer.
fn client_of(headers: &HeaderMap, peer: Peer) -> String {
    match headers.get("x-prof-client").and_then(|c| c.to_str().ok()) {
        Some(client) if client.len() <= 64 => client.to_owned(),
        _ => peer.name,
    }
}

/// Does work that blocks outside the threads that answer requests.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Failure::internal(e.to_string()))?
}

/// Answers that a request has become the job `number`.
fn accepted(number: u64, status: &serde_json::Value) -> Result<Answer, Failure> {
    Ok(Answer::json(status)?
        .with("location", format!("/api/v1/jobs/{number}"))
        .with("preference-applied", "respond-async"))
}

/// Names the parameters that were not known in a header.
fn say(response: &mut Response<Body>, ignored: &str) {
    if !ignored.is_empty()
        && let Ok(names) = HeaderValue::from_str(ignored)
    {
        response.headers_mut().insert(HeaderName::from_static("x-prof-ignored"), names);
    }
}

/// Collects what a request is about: its recording, or two, opened.
async fn ask(
    shared: &Arc<Shared>,
    route: &Route,
    mut path: Vec<(String, String)>,
    mut params: Params,
) -> Result<Ask, Failure> {
    let patience = if route.is_own() { PATIENCE } else { LONG_PATIENCE };
    let find = |id: &str| -> Result<Arc<Recording>, Failure> { shared.find(id).cloned() };
    let mut other = None;
    let recording = if let Does::Two(_) = route.does {
        let mut two = Vec::new();
        for name in ["before", "after"] {
            let text = params.take(name)?.ok_or_else(|| Failure::of(name, "is needed"))?;
            let (id, time) = text.split_once('@').unwrap_or((&text, ""));
            two.push(find(id)?);
            path.push((name.to_owned(), time.to_owned()));
        }
        let after = two.pop().ok_or_else(|| Failure::internal("no recording"))?;
        if let Some(before) = two.pop() {
            other = Some(shared.ready(&before, patience).await?);
        }
        after
    } else {
        let id = path.iter().position(|p| p.0 == "r").map(|i| path.remove(i).1).unwrap_or_default();
        find(&id)?
    };
    let in_place = recording.live.grows(&recording) && route.is_in_place(&params);
    let open: Arc<Open> = match recording.state() {
        // It need not be read anew.
        State::Ready(open) if in_place => open,
        _ => shared.ready(&recording, patience).await?,
    };
    let cancel = Job::default();
    Ok(Ask { shared: shared.clone(), recording, open, other, path, params, cancel, in_place })
}

/// Returns the key of an answer.
fn key(route: &Route, ask: &Ask) -> String {
    let mut key = format!("{} {}", route.path, ask.open.generation);
    if let Some(other) = &ask.other {
        let _ = write!(key, " {}", other.generation);
    }
    if ask.in_place {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let _ = write!(key, " second {}", now.map_or(0, |d| d.as_secs()));
    }
    for (name, value) in &ask.path {
        let _ = write!(key, " {name}={value:?}");
    }
    let _ = write!(key, " {}", ask.params.key());
    key
}

/// Checks the names of parameters: one that is not known is an error or, for bytehound's clients, named in a header.
fn check(route: &Route, params: &Params) -> Result<String, Failure> {
    let is_known = |name: &str| {
        let is_field = match route.path.contains("/map") {
            true => prof_analyze::maps::find(name).is_some(),
            false => query::find(name).is_some(),
        };
        route.params.iter().any(|p| p.0 == name) || route.filter && is_field
    };
    let unknown: Vec<&str> = params.rest().filter(|n| !is_known(n)).collect();
    if let (Some(name), true) = (unknown.first(), route.is_own()) {
        return Err(Failure::of(name, "there is no such parameter here"));
    }
    let printable = |n: &&str| n.bytes().all(|b| b.is_ascii_graphic() && b != b',');
    let names: Vec<&str> = unknown.into_iter().filter(printable).collect();
    Ok(names.join(", "))
}

/// Reads the body of a request.
async fn read(body: Body) -> Result<String, Failure> {
    let most = LONGEST_BODY as usize;
    let bytes = tokio::time::timeout(BODY_TIME, axum::body::to_bytes(body, most)).await;
    let bytes = bytes.map_err(|_| Failure::new(408, "the body did not arrive in time"))?;
    let bytes: Bytes =
        bytes.map_err(|_| Failure::new(413, "the body is longer than 1 MiB, or was cut off"))?;
    String::from_utf8(bytes.into()).map_err(|_| Failure::bad("the body is no UTF-8"))
}

/// Cancels a job when nobody waits for its result any more.
struct CancelOnDrop(Job);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Writes an answer while it is sent.
async fn stream(
    turn: Turn,
    write: impl FnOnce() -> Result<(Answer, Writer), Failure> + Send + 'static,
) -> Result<Response<Body>, Failure> {
    let begun = tokio::task::spawn_blocking(write).await;
    let (answer, writer) = begun.map_err(|e| Failure::internal(e.to_string()))??;
    let (sender, body) = Stream::new();
    tokio::task::spawn_blocking(move || {
        Pieces::new(sender).write_all_of(writer);
        drop(turn);
    });
    head(&answer).body(Body::new(body)).map_err(|e| Failure::internal(e.to_string()))
}
