//! From one thread to the next: items by the thousand, in buffers that come back.

use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Batches that are on their way at most.
const BATCHES: usize = 4;

/// The end where items are put on; `M` is what goes over, mostly buffers of items.
pub(super) struct Feed<T, M> {
    to: SyncSender<M>,
    back: Receiver<Vec<T>>,
    batch: Vec<T>,
    most: usize,
}

/// The end where they are taken off.
pub(super) struct Take<T, M> {
    from: Receiver<M>,
    give_back: Sender<Vec<T>>,
    items: PhantomData<T>,
}

/// A belt for batches of so many items.
pub(super) fn belt<T, M: From<Vec<T>>>(most: usize) -> (Feed<T, M>, Take<T, M>) {
    let (to, from) = sync_channel(BATCHES);
    let (give_back, back) = channel();
    let batch = Vec::with_capacity(most);
    (Feed { to, back, batch, most }, Take { from, give_back, items: PhantomData })
}

impl<T: Copy, M: From<Vec<T>>> Feed<T, M> {
    /// Adds an item.
    #[inline(always)]
    pub(super) fn push(&mut self, item: T) {
        if self.batch.len() == self.most {
            self.send();
        }
        self.batch.push(item);
    }

    /// Adds some items.
    pub(super) fn extend(&mut self, items: &[T]) {
        if self.batch.len() + items.len() > self.most {
            self.send();
        }
        self.batch.extend_from_slice(items);
    }

    /// Sends something else, after all that was added before.
    pub(super) fn say(&mut self, message: M) {
        self.send();
        let _ = self.to.send(message);
    }

    /// Sends what has not been sent.
    #[cold]
    #[inline(never)]
    pub(super) fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let next = self.back.try_recv().unwrap_or_else(|_| Vec::with_capacity(self.most));
        let batch = std::mem::replace(&mut self.batch, next);
        // If the other side is gone, it says itself why.
        let _ = self.to.send(batch.into());
    }
}

impl<T, M> Take<T, M> {
    /// The next that was sent; `None` when there will be nothing more.
    pub(super) fn next(&self) -> Option<M> {
        self.from.recv().ok()
    }

    /// Gives a buffer back.
    pub(super) fn done(&self, mut batch: Vec<T>) {
        batch.clear();
        let _ = self.give_back.send(batch);
    }
}
