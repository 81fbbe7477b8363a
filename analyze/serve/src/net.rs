//! Accepts connections, and keeps those that stall from keeping others out.

use crate::work::lock;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Number of connections without a request in progress that are kept. The oldest is closed for a new one.
const IDLE: usize = 64;
/// Number of connections in all.
const MOST: usize = 512;
/// Time in which a connection must send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Time that a reader may take nothing of an answer.
const STALLED: Duration = Duration::from_secs(60);
/// Bytes that are buffered of the head of a request.
const BUFFER: usize = 64 << 10;

/// A connection.
#[derive(Default)]
pub(crate) struct Connection {
    /// Number of requests in progress, to the end of their answers.
    busy: AtomicUsize,
    close: Notify,
    /// Answers that the peer does not read since this moment.
    stalled: Mutex<Option<Instant>>,
    closed: AtomicBool,
}

/// A request in progress.
pub(crate) struct Busy(Arc<Connection>);

impl Connection {
    /// Notes a request that is in progress until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections of a server, by their numbers: the oldest first.
#[derive(Default)]
pub(crate) struct Connections {
    all: Mutex<(u64, BTreeMap<u64, Arc<Connection>>)>,
}

impl Connections {
    /// Adds a connection, for which an idle one may be closed; `None`: there are too many.
    fn add(&self) -> Option<(u64, Arc<Connection>)> {
        let mut all = lock(&self.all);
        let idle = |c: &Arc<Connection>| {
            c.busy.load(Ordering::Relaxed) == 0 && !c.closed.load(Ordering::Relaxed)
        };
        let open = all.1.values().filter(|c| !c.closed.load(Ordering::Relaxed)).count();
        let idle_now = all.1.values().filter(|c| idle(c)).count();
        if idle_now >= IDLE || open >= MOST {
            let oldest = all.1.values().find(|c| idle(c))?;
            oldest.closed.store(true, Ordering::Relaxed);
            oldest.close.notify_one();
        }
        let connection = Arc::new(Connection::default());
        all.0 += 1;
        let number = all.0;
        all.1.insert(number, connection.clone());
        Some((number, connection))
    }

    fn remove(&self, number: u64) {
        lock(&self.all).1.remove(&number);
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve<T, F, R>(connections: Arc<Connections>, io: T, answer: F)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Arc<Connection>, http::Request<Incoming>) -> R,
    R: Future<Output = Result<http::Response<axum::body::Body>, std::convert::Infallible>>,
{
    let Some((number, connection)) = connections.add() else { return };
    let io = TokioIo::new(Watched { io, connection: connection.clone() });
    let own = connection.clone();
    let service = hyper::service::service_fn(move |request| answer(own.clone(), request));
    let conn = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .keep_alive(true)
        .serve_connection(io, service);
    let mut conn = std::pin::pin!(conn);
    loop {
        tokio::select! {
            ended = conn.as_mut() => {
                if let Err(e) = ended {
                    log::debug!("a connection ended: {e}");
                }
                break;
            }
            () = connection.close.notified() => break,
            () = tokio::time::sleep(STALLED / 12) => {
                let stalled = *lock(&connection.stalled);
                if stalled.is_some_and(|since| since.elapsed() > STALLED) {
                    break;
                }
            }
        }
    }
    connections.remove(number);
}

/// A connection whose writes are watched.
struct Watched<T> {
    io: T,
    connection: Arc<Connection>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        let mut stalled = lock(&self.connection.stalled);
        match written {
            Poll::Pending => _ = stalled.get_or_insert_with(Instant::now),
            Poll::Ready(_) => *stalled = None,
        }
        drop(stalled);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
