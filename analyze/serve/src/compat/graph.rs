//! Graphs of groups: the live bytes of a stack's blocks over time, as SVG.

use super::filter;
use crate::ask::Ask;
use crate::params::Params;
use crate::reply::{Answer, Failure};
use prof_analyze::query::{Query, Span};
use std::fmt::Write;

/// Width and height of a graph, and of a small one.
const SIZE: (usize, usize) = (1000, 400);
const SMALL: (usize, usize) = (200, 80);

/// Returns the addresses of the graphs of a stack's blocks, given the parameters of the request for groups: that of the
/// large one, and of the small one.
pub(super) fn urls(recording: &str, node: u32, filter: &str) -> [String; 2] {
    let url = |preview| format!("/data/{recording}/group_graph/{node}?preview={preview}{filter}");
    [url(false), url(true)]
}

/// Returns the filter among parameters as a part of a query, with an ampersand in front of each.
pub(super) fn filter_of(params: &Params) -> String {
    let fields = params.encoded(|name| prof_analyze::query::find(name).is_some());
    fields.map(|field| format!("&{field}")).collect()
}

/// Draws the graph of a stack.
pub(super) fn graph(ask: &mut Ask) -> Result<Answer, Failure> {
    let small = ask.params.switch("preview")?.unwrap_or(false);
    let missing = || Failure::missing("there is no such group");
    let node: u32 = ask.variable("backtrace_id").parse().map_err(|_| missing())?;
    if !ask.open.index.analysis().groups().iter().any(|g| g.node == node) {
        return Err(missing());
    }
    let mut filter = filter::take(ask)?;
    filter.set("stacks", &node.to_string()).map_err(|e| Failure::internal(e.to_string()))?;
    let (width, height) = if small { SMALL } else { SIZE };
    let index = ask.index();
    let line = Query::new(index, &filter)?.timeline(&Span::whole(index, width), false)?;
    Ok(Answer::new(super::SVG, drawn(&line.live_bytes.max, width, height)))
}

/// Draws an area below the values, one for each unit of the width.
fn drawn(values: &[u64], width: usize, height: usize) -> String {
    let most = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut path = format!("M0 {height}");
    for (x, value) in values.iter().enumerate() {
        let y = height as f64 * (1.0 - *value as f64 / most);
        // Writing to a string can't fail.
        let _ = write!(path, "L{x} {y:.1}L{} {y:.1}", x + 1);
    }
    let _ = write!(path, "L{} {height}Z", values.len());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\"><title>live bytes, at most {}</title>\
         <path fill=\"#2f6f9f\" d=\"{path}\"/></svg>",
        values.iter().copied().max().unwrap_or(0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_value_reaches_the_top() {
        let svg = drawn(&[0, 5, 10], 3, 100);
        assert!(svg.contains("M0 100L0 100.0L1 100.0L1 50.0L2 50.0L2 0.0L3 0.0L3 100Z"), "{svg}");
        assert!(drawn(&[0, 0], 2, 10).contains("M0 10L0 10.0L1 10.0L1 10.0L2 10.0L2 10Z"));
    }
}
