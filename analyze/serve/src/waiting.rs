//! Answers that begin while their work still waits: the client is told its place in the line.

use crate::body::{Pieces, Stream};
use crate::reply::{Answer, Failure, Writer};
use crate::work::{Place, Turn};
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;

/// Time between two signs of life, by which a client that is gone is noticed.
pub(crate) const QUIET: Duration = Duration::from_millis(250);

/// Returns why a script was given up that has waited as long as it may.
pub(crate) fn too_long(place: &Place, patience: Duration) -> String {
    let (seconds, before) = (patience.as_secs(), place.before().unwrap_or(0));
    format!(
        "the script has waited {seconds} seconds for its turn, and {before} others are still before it: the server \
         runs {} at a time; run it again later, or with `prof script`, where it does not wait",
        place.at_once
    )
}

/// Writes lines of JSON while the work waits for its turn, and then what the work writes. The first line says how many
/// begin before it, and a further one whenever that changes; another says that it runs.
pub(crate) fn stream(
    mut place: Place,
    patience: Duration,
    write: impl FnOnce() -> Result<(Answer, Writer), Failure> + Send + 'static,
) -> Stream {
    let (sender, body) = Stream::new();
    tokio::spawn(async move {
        let Some(turn) = waited(&mut place, patience, &sender).await else { return };
        let written = tokio::task::spawn_blocking(move || {
            match write() {
                Ok((_, writer)) => Pieces::new(sender).write_all_of(writer),
                Err(f) => {
                    let _ = sender.blocking_send(failed(&f));
                }
            }
            drop(turn);
        });
        if let Err(e) = written.await {
            log::error!("a request failed: {e}");
        }
    });
    body
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

fn failed(f: &Failure) -> Bytes {
    line(&json!({ "kind": "error", "message": f.why, "line": null, "column": null }))
}

/// Waits for the turn, and tells the client about it; `None`: it has waited too long, or is gone.
async fn waited(place: &mut Place, patience: Duration, to: &Sender<Bytes>) -> Option<Turn> {
    let (until, at_once) = (Instant::now() + patience, place.at_once);
    let mut told = None;
    loop {
        let before = place.before();
        if let Some(n) = before {
            let text = match told == before {
                true => Bytes::from_static(b"\n"),
                false => line(&json!({ "kind": "waiting", "before": n, "at_once": at_once })),
            };
            match to.try_send(text) {
                Ok(()) => told = before,
                // A client that reads nothing must not keep a turn from others: it is told later.
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => return None,
            }
        }
        let turn = tokio::select! {
            turn = place.turn() => turn,
            () = tokio::time::sleep(QUIET) => {
                if Instant::now() < until {
                    continue;
                }
                Err(Failure::new(503, too_long(place, patience)))
            }
        };
        let last = match &turn {
            Ok(_) if told.is_none() => return turn.ok(),
            Ok(_) => line(&json!({ "kind": "running" })),
            Err(f) => failed(f),
        };
        // It is an error if the client is gone, which the work then notices.
        let _ = to.send(last).await;
        return turn.ok();
    }
}
