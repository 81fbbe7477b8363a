//! Passes items from one thread to another in batches, whose buffers are returned and used again.

use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Greatest number of batches in transit.
const BATCHES: usize = 32;

/// The sending end. `M` is the message type, mostly a buffer of items.
pub(super) struct Feed<T, M> {
    to: To<M>,
    back: Receiver<Vec<T>>,
    batch: Vec<T>,
    most: usize,
}

/// The destination of batches.
enum To<M> {
    Thread(SyncSender<M>),
    /// The sender does the work itself, at once.
    Here(Box<dyn FnMut(M) + Send>),
}

impl<M> To<M> {
    fn send(&mut self, message: M) {
        match self {
            // If the receiver is gone, it reports the reason itself.
            Self::Thread(to) => drop(to.send(message)),
            Self::Here(work) => work(message),
        }
    }
}

/// The receiving end.
pub(super) struct Take<T, M> {
    from: Receiver<M>,
    give_back: Sender<Vec<T>>,
    items: PhantomData<T>,
}

/// Creates a channel with batches of `most` items.
pub(super) fn batched_channel<T, M: From<Vec<T>>>(most: usize) -> (Feed<T, M>, Take<T, M>) {
    let (to, from) = sync_channel(BATCHES);
    let (give_back, back) = channel();
    let batch = Vec::with_capacity(most);
    (Feed { to: To::Thread(to), back, batch, most }, Take { from, give_back, items: PhantomData })
}

/// Creates a sending end whose batches are worked on by the sender.
pub(super) fn here<T, M: From<Vec<T>>>(
    most: usize,
    work: impl FnMut(M) + Send + 'static,
) -> Feed<T, M> {
    // Nobody returns a buffer.
    let (_, back) = channel();
    Feed { to: To::Here(Box::new(work)), back, batch: Vec::with_capacity(most), most }
}

/// Creates a sending end that nothing is sent to.
pub(super) fn nowhere<T, M: From<Vec<T>> + 'static>() -> Feed<T, M> {
    here(0, drop)
}

impl<T: Copy, M: From<Vec<T>>> Feed<T, M> {
    /// Adds an item to the batch, which is sent when it is full.
    #[inline(always)]
    pub(super) fn push(&mut self, item: T) {
        if self.batch.len() == self.most {
            self.send();
        }
        self.batch.push(item);
    }

    /// Sends a batch of items, after all that were added before, and replaces it by an empty one.
    pub(super) fn exchange(&mut self, items: &mut Vec<T>) {
        self.send();
        let full = std::mem::replace(items, self.empty());
        self.to.send(full.into());
    }

    fn empty(&self) -> Vec<T> {
        self.back.try_recv().unwrap_or_else(|_| Vec::with_capacity(self.most))
    }

    /// Sends another message, after all items that were added before.
    pub(super) fn say(&mut self, message: M) {
        self.send();
        self.to.send(message);
    }

    /// Sends the batch, if it is not empty.
    #[cold]
    #[inline(never)]
    pub(super) fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let next = self.empty();
        let batch = std::mem::replace(&mut self.batch, next);
        self.to.send(batch.into());
    }
}

impl<T, M> Take<T, M> {
    /// Receives the next message; `None` when the sender is gone.
    pub(super) fn next(&self) -> Option<M> {
        self.from.recv().ok()
    }

    /// Returns a buffer to the sender.
    pub(super) fn done(&self, mut batch: Vec<T>) {
        batch.clear();
        let _ = self.give_back.send(batch);
    }
}
