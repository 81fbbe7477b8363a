//! Recordings that grow, and the events that tell of them.

use crate::body::Stream;
use crate::state::Shared;
use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use std::sync::Arc;
use std::time::Duration;

/// Time between two ticks.
const TICK: Duration = Duration::from_secs(1);

/// A recording that grows.
pub(crate) struct Live {}

/// Returns the events of the server, until the client goes.
pub(crate) fn events(shared: &Arc<Shared>) -> Response<Body> {
    let (sender, body) = Stream::new();
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut told: Vec<String> = Vec::new();
        loop {
            let mut text = String::new();
            let now: Vec<String> = shared
                .recordings()
                .iter()
                .map(|r| crate::api::recordings::item(r).to_string())
                .collect();
            for (i, item) in now.iter().enumerate() {
                if told.get(i) != Some(item) {
                    text.push_str(&format!("event: recording\ndata: {item}\n\n"));
                }
            }
            told = now;
            if text.is_empty() {
                text.push_str("event: ping\ndata: {}\n\n");
            }
            if sender.send(Bytes::from(text)).await.is_err() {
                break;
            }
            tokio::time::sleep(TICK).await;
        }
    });
    let response = Response::builder().header(CONTENT_TYPE, "text/event-stream");
    response.body(Body::new(body)).unwrap_or_default()
}
