//! The mappings of the process, as far as recordings have them.

use crate::reply::{Answer, Failure};
use crate::route::Ask;
use serde_json::json;

/// The header that says what a recording lacks.
pub(crate) const NOT_RECORDED: &str = "x-prof-not-recorded";

/// The mappings: none, as recordings don't hold them.
pub(crate) fn maps(ask: &mut Ask) -> Result<Answer, Failure> {
    ask.params.filter()?;
    let answer = Answer::json(&json!({
        "recorded": false,
        "why": "recordings don't hold mappings",
        "total_count": 0,
        "rows": [],
        "stacks": {},
    }))?;
    Ok(answer.with(NOT_RECORDED, "maps"))
}
