//! Bodies of answers: streams, and the end of a request in progress.

use crate::net::Busy;
use crate::reply::Writer;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;

/// Number of pieces of a stream that wait for the network.
const PIECES: usize = 8;
/// Length of a piece.
const PIECE: usize = 64 << 10;

/// A body whose pieces come from a channel.
pub(crate) struct Stream(mpsc::Receiver<Bytes>);

impl Stream {
    /// Returns the two ends of a stream.
    pub(crate) fn new() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(PIECES);
        (sender, Self(receiver))
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match ready!(self.0.poll_recv(cx)) {
            // An empty piece says that the writer has failed: the body must not look whole.
            Some(piece) if piece.is_empty() => Poll::Ready(Some(Err(io::Error::other("cut off")))),
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None => Poll::Ready(None),
        }
    }
}

/// Writes to a stream, from a thread that may block.
pub(crate) struct Pieces {
    sender: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
}

impl Pieces {
    pub(crate) fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self { sender, buffer: Vec::with_capacity(PIECE) }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        self.sender.blocking_send(piece.into()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Writes all that a writer writes. The writer ends when the client is gone: it can't write any more.
    pub(crate) fn write_all_of(mut self, writer: Writer) {
        let written = writer(&mut self).and_then(|()| self.flush().map_err(|e| e.to_string()));
        if let Err(e) = written {
            log::info!("an answer was cut off: {e}");
            self.cut();
        }
    }

    /// Ends the body so that the client sees that it is not whole.
    fn cut(self) {
        let _ = self.sender.blocking_send(Bytes::new());
    }
}

impl Write for Pieces {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(buf);
        if self.buffer.len() >= PIECE {
            self.send()?;
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// A body that keeps its request in progress until it is sent.
pub(crate) struct Held<B> {
    pub body: B,
    pub _busy: Busy,
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
