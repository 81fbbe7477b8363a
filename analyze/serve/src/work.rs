//! Runs the work of requests: each once however many ask for it, no more of it at a time than there are processors,
//! fairly between clients, and ended when nobody waits for it any more. Work of some milliseconds has places of its own:
//! it does not wait for passes over all blocks, which take seconds together. Answers are kept as far as memory is
//! allowed for them.

use crate::reply::{Answer, Failure};
use prof_analyze::Job;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{oneshot, watch};

/// Greatest number of pieces of work that wait.
const MOST_WAITING: usize = 1000;

/// Locks a mutex. The data of all of them is valid at any time, so a panic of another holder does no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A class of requests by the work that they cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Some milliseconds: figures that are known are put together.
    Light,
    /// A pass over many blocks, or several.
    Heavy,
}

/// The result of a piece of work, shared by all who wait for it.
pub(crate) type Outcome = Result<Arc<Answer>, Failure>;

/// A piece of work that is waiting or running.
struct Flight {
    cancel: Job,
    waiters: usize,
    result: watch::Receiver<Option<Outcome>>,
    number: u64,
}

/// The answers that are kept, the least recently used first to go.
#[derive(Default)]
struct Kept {
    answers: HashMap<String, (Arc<Answer>, u64)>,
    bytes: u64,
    clock: u64,
}

impl Kept {
    fn get(&mut self, key: &str) -> Option<Arc<Answer>> {
        self.clock += 1;
        let clock = self.clock;
        self.answers.get_mut(key).map(|(answer, used)| {
            *used = clock;
            answer.clone()
        })
    }

    fn put(&mut self, key: String, answer: Arc<Answer>, most: u64) {
        let weight = answer.weight() + key.len() as u64;
        // One answer must not push out all others.
        if weight > most / 4 {
            return;
        }
        self.clock += 1;
        if let Some((old, _)) = self.answers.insert(key.clone(), (answer, self.clock)) {
            self.bytes -= old.weight() + key.len() as u64;
        }
        self.bytes += weight;
        while self.bytes > most {
            let oldest = self.answers.iter().min_by_key(|(_, (_, used))| *used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { break };
            if let Some((old, _)) = self.answers.remove(&key) {
                self.bytes -= old.weight() + key.len() as u64;
            }
        }
    }
}

/// A piece of work that waits: its number, and where it is told that its turn has come.
type Ticket = (u64, oneshot::Sender<()>);

/// Work that waits for its turn: the clients in turn, and each client's in order.
#[derive(Default)]
struct Line {
    free: usize,
    /// Number of tickets so far.
    tickets: u64,
    waiting: VecDeque<(String, VecDeque<Ticket>)>,
}

impl Line {
    fn len(&self) -> usize {
        self.waiting.iter().map(|w| w.1.len()).sum()
    }

    /// Adds a piece of work of a client; returns its number.
    fn add(&mut self, client: &str, sender: oneshot::Sender<()>) -> u64 {
        self.tickets += 1;
        let ticket = (self.tickets, sender);
        match self.waiting.iter_mut().find(|w| w.0 == client) {
            Some(own) => own.1.push_back(ticket),
            None => self.waiting.push_back((client.to_owned(), VecDeque::from([ticket]))),
        }
        self.tickets
    }

    /// Lets the next one begin, if there is a free place.
    fn next(&mut self) {
        while self.free > 0 {
            let Some((client, mut line)) = self.waiting.pop_front() else { break };
            let Some((_, first)) = line.pop_front() else { continue };
            if !line.is_empty() {
                self.waiting.push_back((client, line));
            }
            // It is an error if the one who waited is gone.
            if first.send(()).is_ok() {
                self.free -= 1;
            }
        }
    }

    /// Returns how many begin before the work of that number, if it waits.
    fn before(&self, number: u64) -> Option<usize> {
        let own = |w: &(String, VecDeque<Ticket>)| w.1.iter().position(|t| t.0 == number);
        let (at, behind) =
            self.waiting.iter().enumerate().find_map(|(i, w)| own(w).map(|n| (i, n)))?;
        // In each round every client has a turn; those before this one have theirs in the last round as well.
        let turns = |i: usize| if i < at { behind + 1 } else { behind };
        Some(self.waiting.iter().enumerate().map(|(i, w)| w.1.len().min(turns(i))).sum())
    }

    /// Removes the work of that number.
    fn remove(&mut self, number: u64) {
        for w in &mut self.waiting {
            w.1.retain(|t| t.0 != number);
        }
        self.waiting.retain(|w| !w.1.is_empty());
    }
}

/// All work of the server.
pub(crate) struct Work {
    flights: Mutex<HashMap<String, Flight>>,
    kept: Mutex<Kept>,
    line: Arc<Mutex<Line>>,
    /// The line in which light work waits.
    light: Arc<Mutex<Line>>,
    most_bytes: u64,
    at_once: usize,
    /// Number of flights so far.
    flown: AtomicU64,
}

/// A place for a piece of work that runs; the next one begins when it is dropped.
pub(crate) struct Turn(Arc<Mutex<Line>>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = lock(&self.0);
        line.free += 1;
        line.next();
    }
}

impl Work {
    /// Creates the work of a server that keeps answers of `most_bytes` bytes, and runs `at_once` pieces of heavy work at
    /// a time, and half as many of light work beside them.
    pub(crate) fn new(most_bytes: u64, at_once: usize) -> Self {
        let at_once = at_once.max(1);
        let line = |free| Arc::new(Mutex::new(Line { free, ..Line::default() }));
        Self {
            flights: Mutex::default(),
            kept: Mutex::default(),
            line: line(at_once),
            light: line(at_once.div_ceil(2)),
            most_bytes,
            at_once,
            flown: AtomicU64::new(0),
        }
    }

    /// Waits for a turn at heavy work.
    pub(crate) async fn turn(&self, client: &str) -> Result<Turn, Failure> {
        self.place(client)?.turn().await
    }

    /// Takes a place in the line of heavy work.
    pub(crate) fn place(&self, client: &str) -> Result<Place, Failure> {
        self.place_in(&self.line, client)
    }

    fn place_in(&self, own: &Arc<Mutex<Line>>, client: &str) -> Result<Place, Failure> {
        let mut line = lock(own);
        if line.len() >= MOST_WAITING {
            return Err(Failure::new(503, "too many requests are waiting; try again later"));
        }
        let (sender, receiver) = oneshot::channel();
        let number = line.add(client, sender);
        line.next();
        drop(line);
        let (receiver, at_once) = (Some(receiver), self.at_once);
        Ok(Place { receiver, number, at_once, line: own.clone() })
    }

    /// Returns the answer to a request: one that is kept, or that of the same work under way, or that of `job`, which
    /// is then run in a thread of its own.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        key: String,
        client: &str,
        weight: Weight,
        job: impl FnOnce(Job) -> Result<Answer, Failure> + Send + 'static,
    ) -> Outcome {
        if let Some(answer) = self.kept(&key) {
            return Ok(answer);
        }
        let (mut result, waiter, _) = self.join(&key, client, weight, job);
        let outcome = loop {
            if let Some(outcome) = result.borrow_and_update().clone() {
                break outcome;
            }
            if result.changed().await.is_err() {
                break Err(Failure::internal(
                    "the work ended without a result; this is a bug of prof",
                ));
            }
        };
        drop(waiter);
        outcome
    }

    /// Returns the kept answer of that key.
    pub(crate) fn kept(&self, key: &str) -> Option<Arc<Answer>> {
        lock(&self.kept).get(key)
    }

    /// Joins the work of that key, or begins it. Returns where its result will be, what keeps it going, and the job
    /// that tells of its progress.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: &str,
        client: &str,
        weight: Weight,
        job: impl FnOnce(Job) -> Result<Answer, Failure> + Send + 'static,
    ) -> (watch::Receiver<Option<Outcome>>, Waiter, Job) {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get_mut(key) {
            flight.waiters += 1;
            let waiter = Waiter { work: self.clone(), key: key.to_owned(), number: flight.number };
            return (flight.result.clone(), waiter, flight.cancel.clone());
        }
        let number = self.flown.fetch_add(1, Ordering::Relaxed);
        let (sender, result) = watch::channel(None);
        let cancel = Job::default();
        let flight = Flight { cancel: cancel.clone(), waiters: 1, result: result.clone(), number };
        flights.insert(key.to_owned(), flight);
        drop(flights);
        let (work, own, client) = (self.clone(), key.to_owned(), client.to_owned());
        let told = cancel.clone();
        tokio::spawn(async move {
            let outcome = work.run(&client, weight, cancel, job).await.map(Arc::new);
            work.leave(&own, number, true);
            if let Ok(answer) = &outcome {
                lock(&work.kept).put(own, answer.clone(), work.most_bytes);
            }
            let _ = sender.send(Some(outcome));
        });
        (result, Waiter { work: self.clone(), key: key.to_owned(), number }, told)
    }

    async fn run(
        &self,
        client: &str,
        weight: Weight,
        cancel: Job,
        job: impl FnOnce(Job) -> Result<Answer, Failure> + Send + 'static,
    ) -> Result<Answer, Failure> {
        let line = match weight {
            Weight::Light => &self.light,
            Weight::Heavy => &self.line,
        };
        let turn = self.place_in(line, client)?.turn().await?;
        if cancel.is_cancelled() {
            return Err(Failure::gone());
        }
        let own = cancel.clone();
        let done = tokio::task::spawn_blocking(move || own.run(|| job(own.clone()))).await;
        drop(turn);
        match done {
            Ok(_) if cancel.is_cancelled() => Err(Failure::gone()),
            Ok(result) => result,
            Err(e) => {
                log::error!("a request failed: {e}");
                Err(Failure::internal("the request failed inside prof; this is a bug of prof"))
            }
        }
    }

    /// Forgets a waiter of a flight, or the flight if it has landed. The last waiter to leave ends the work.
    fn leave(&self, key: &str, number: u64, landed: bool) {
        let mut flights = lock(&self.flights);
        let Some(flight) = flights.get_mut(key).filter(|f| f.number == number) else { return };
        flight.waiters -= 1;
        if landed {
            flights.remove(key);
        } else if flight.waiters == 0 {
            flight.cancel.cancel();
            flights.remove(key);
        }
    }
}

/// A place in the line of work, which is left when it is dropped.
pub(crate) struct Place {
    receiver: Option<oneshot::Receiver<()>>,
    number: u64,
    /// Number of pieces of work that run at a time.
    pub at_once: usize,
    line: Arc<Mutex<Line>>,
}

impl Place {
    /// Returns how many begin before this one; `None`: its turn has come.
    pub(crate) fn before(&self) -> Option<usize> {
        lock(&self.line).before(self.number)
    }

    /// Waits for the turn. The place is kept if the wait is given up.
    pub(crate) async fn turn(&mut self) -> Result<Turn, Failure> {
        let given = match self.receiver.as_mut() {
            Some(receiver) => receiver.await,
            None => return Err(Failure::internal("the turn has come before")),
        };
        self.receiver = None;
        given.map_err(|_| Failure::internal("the line of work has ended"))?;
        Ok(Turn(self.line.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        let mut line = lock(&self.line);
        line.remove(self.number);
        // A turn that was given in this moment is passed on.
        if receiver.try_recv().is_ok() {
            line.free += 1;
            line.next();
        }
    }
}

/// A request that waits for a piece of work; the work ends with the last of them.
pub(crate) struct Waiter {
    work: Arc<Work>,
    key: String,
    number: u64,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.work.leave(&self.key, self.number, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
    }

    fn text(text: &str) -> Answer {
        Answer::new(crate::reply::TEXT, text.to_owned())
    }

    #[test]
    fn the_same_work_is_done_once_and_kept() {
        runtime().block_on(async {
            let work = Arc::new(Work::new(1 << 20, 2));
            let runs = Arc::new(AtomicUsize::new(0));
            let ask = |work: Arc<Work>, runs: Arc<AtomicUsize>| async move {
                let job = move |_| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    Ok(text("done"))
                };
                work.answer("key".into(), "client", Weight::Heavy, job).await
            };
            let tasks: Vec<_> =
                (0..8).map(|_| tokio::spawn(ask(work.clone(), runs.clone()))).collect();
            for task in tasks {
                assert_eq!(task.await.expect("joined").expect("an answer").body, "done");
            }
            ask(work, runs.clone()).await.expect("kept");
            assert_eq!(runs.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn work_that_nobody_waits_for_ends_and_frees_its_place() {
        runtime().block_on(async {
            let work = Arc::new(Work::new(1 << 20, 1));
            let (told, ended) = std::sync::mpsc::channel();
            let own = work.clone();
            let asked = tokio::spawn(async move {
                let job = move |cancel: Job| {
                    while !cancel.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    told.send(()).expect("sent");
                    Ok(text("never"))
                };
                own.answer("endless".into(), "a", Weight::Heavy, job).await
            });
            tokio::time::sleep(Duration::from_millis(50)).await;
            asked.abort();
            let next = work.answer("next".into(), "b", Weight::Heavy, |_| Ok(text("next"))).await;
            assert_eq!(next.expect("an answer").body, "next");
            assert!(ended.recv_timeout(Duration::from_secs(10)).is_ok());
        });
    }

    #[test]
    fn clients_take_turns() {
        runtime().block_on(async {
            let work = Arc::new(Work::new(0, 1));
            let first = work.turn("busy").await.expect("a turn");
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = Vec::new();
            for client in ["busy", "busy", "busy", "other"] {
                let (own, order) = (work.clone(), order.clone());
                tasks.push(tokio::spawn(async move {
                    let turn = own.turn(client).await.expect("a turn");
                    lock(&order).push(client);
                    drop(turn);
                }));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            drop(first);
            for task in tasks {
                task.await.expect("joined");
            }
            assert_eq!(*lock(&order), ["busy", "other", "busy", "busy"]);
        });
    }

    #[test]
    fn light_work_does_not_wait_for_heavy_work() {
        runtime().block_on(async {
            let work = Arc::new(Work::new(0, 1));
            let heavy = work.turn("busy").await.expect("a turn");
            let ask = |key: &str, weight| {
                let (work, key) = (work.clone(), key.to_owned());
                async move { work.answer(key, "other", weight, |_| Ok(text("done"))).await }
            };
            let waits = tokio::spawn(ask("heavy", Weight::Heavy));
            assert_eq!(ask("light", Weight::Light).await.expect("an answer").body, "done");
            assert!(!waits.is_finished());
            drop(heavy);
            assert_eq!(waits.await.expect("joined").expect("an answer").body, "done");
        });
    }

    #[test]
    fn those_who_wait_know_how_many_begin_before_them() {
        runtime().block_on(async {
            let work = Arc::new(Work::new(0, 1));
            let first = work.turn("busy").await.expect("a turn");
            let place = |client: &str| work.place(client).expect("a place");
            let mut places: Vec<Option<Place>> =
                ["busy", "busy", "busy", "other", "third", "third"].map(|c| Some(place(c))).into();
            let before = |places: &[Option<Place>]| -> Vec<Option<usize>> {
                places.iter().flatten().map(Place::before).collect()
            };
            // The clients take turns: busy, other, third, busy, third, busy.
            assert_eq!(before(&places), [0, 3, 5, 1, 2, 4].map(Some));
            places[0] = None;
            assert_eq!(before(&places), [0, 3, 1, 2, 4].map(Some));
            drop(first);
            let turn = places[1].as_mut().expect("there").turn().await.expect("a turn");
            assert_eq!(before(&places), [None, Some(2), Some(0), Some(1), Some(3)]);
            drop(turn);
            assert_eq!(before(&places), [None, Some(1), None, Some(0), Some(2)]);
            // A place that is left when its turn has been given passes it on.
            places[3] = None;
            assert_eq!(before(&places), [None, Some(0), None, Some(1)]);
        });
    }

    #[test]
    fn kept_answers_stay_within_their_bytes() {
        let mut kept = Kept::default();
        for i in 0..100 {
            kept.put(format!("key{i}"), Arc::new(text(&"x".repeat(1000))), 10_000);
        }
        assert!(kept.bytes <= 10_000 && kept.answers.len() > 5, "{}", kept.bytes);
        assert!(kept.get("key99").is_some() && kept.get("key0").is_none());
        kept.put("large".into(), Arc::new(text(&"x".repeat(9000))), 10_000);
        assert!(kept.get("large").is_none());
    }
}
