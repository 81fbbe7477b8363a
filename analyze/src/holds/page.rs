//! The report as a page of its own, without scripts, which any browser shows.

use super::report::{HoldsData, NodeData, PathData, RootReport, StackReport, SumData};
use crate::style::escaped;
use prof_trace::values::text::{bytes, count, duration};
use std::fmt::{self, Write};

/// Returns the page.
pub(super) fn of(report: &HoldsData) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = write(report, &mut out);
    out
}

fn write(r: &HoldsData, out: &mut String) -> fmt::Result {
    let title = format!("Who holds the memory of process {}", r.pid);
    out.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    writeln!(out, "<title>{title}</title>\n<style>{}</style></head>", include_str!("page.css"))?;
    writeln!(out, "<body><main>\n<h1>{title}</h1>")?;
    head(r, out)?;
    let all = r.live.bytes.max(1);
    if !r.paths.is_empty() {
        writeln!(out, "<h2>Chains of pointers</h2>")?;
        r.paths.iter().try_for_each(|p| path(p, out))?;
    }
    if !r.top_roots.is_empty() || r.shared.is_some() {
        writeln!(
            out,
            "<h2>Roots</h2>\n<p class=\"hint\">What each retains would be unreachable without it. Open a line to see \
             what hangs on it, by the function that asked for the memory.</p>"
        )?;
    }
    r.top_roots.iter().try_for_each(|of| root(of, all, out))?;
    if let Some(s) = &r.shared {
        root(s, all, out)?;
    }
    if !r.top_stacks.is_empty() {
        writeln!(
            out,
            "<h2>Call stacks</h2>\n<p class=\"hint\">What all blocks of a stack retain together.</p>"
        )?;
    }
    r.top_stacks.iter().try_for_each(|s| stack(s, all, out))?;
    out.push_str("</main></body></html>\n");
    Ok(())
}

/// Writes the figures at the top.
fn head(r: &HoldsData, out: &mut String) -> fmt::Result {
    let blocks = |s: &SumData| format!("in {}", count(s.blocks, "block", "blocks"));
    let moment = match &r.saved {
        Some(s) => {
            format!("after the start of the recording; scan #{} of {} {}", s.number, s.of, s.name)
        }
        None => "after the start of the recording".to_owned(),
    };
    let how = match r.scan.stop_ns {
        Some(ns) => format!("all threads stopped for {}", duration(ns)),
        None => "the process ran meanwhile: pointers are of different moments".to_owned(),
    };
    let facts = [
        ("Live", bytes(r.live.bytes), blocks(&r.live)),
        ("Held by", count(r.roots, "root", "roots"), String::new()),
        ("No root leads to", bytes(r.unreachable.bytes), blocks(&r.unreachable)),
        ("Moment", duration(r.at_ns), moment),
        ("Read", bytes(r.scan.scanned_bytes), how),
    ];
    out.push_str("<dl>\n");
    for (name, value, more) in facts {
        let (value, more) = (escaped(&value), escaped(&more));
        writeln!(out, "<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>")?;
    }
    out.push_str("</dl>\n");
    let mut hidden = r.scan.hidden();
    if r.pointers_left_out > 0 {
        let n = count(r.pointers_left_out, "pointer", "pointers");
        hidden.push(format!("{n} for which there was no room"));
    }
    if !hidden.is_empty() {
        writeln!(out, "<p class=\"warn\">May hide pointers: {}.</p>", escaped(&hidden.join("; ")))?;
    }
    Ok(())
}

/// Writes a bar that shows the share of all live bytes, and a sum.
fn share(s: &SumData, all: u64, out: &mut String) -> fmt::Result {
    let percent = 100.0 * s.bytes as f64 / all as f64;
    write!(
        out,
        "<span class=\"bar\"><i style=\"width:{percent:.2}%\"></i></span><b>{}</b> <small>{percent:.1}% in {}</small> ",
        bytes(s.bytes),
        count(s.blocks, "block", "blocks")
    )
}

fn root(r: &RootReport, all: u64, out: &mut String) -> fmt::Result {
    out.push_str("<details class=\"root\"><summary>");
    share(&r.retained, all, out)?;
    writeln!(out, "<span class=\"name\">{}</span></summary>", escaped(&r.root.text()))?;
    below(&r.holds, r.more, all, out)?;
    out.push_str("</details>\n");
    Ok(())
}

fn below(nodes: &[NodeData], more: Option<SumData>, all: u64, out: &mut String) -> fmt::Result {
    out.push_str("<ul>\n");
    for n in nodes {
        out.push_str("<li>");
        let is_leaf = n.holds.is_empty() && n.more.is_none();
        out.push_str(if is_leaf { "<p class=\"leaf\">" } else { "<details><summary>" });
        share(&n.retained, all, out)?;
        if let Some(class) = &n.class {
            write!(out, "<code>{}</code> ", escaped(class))?;
        }
        write!(out, "<span class=\"name\">{}</span>", escaped(&n.from))?;
        if n.stack.is_some() && n.own != n.retained {
            write!(out, " <small>own {}</small>", n.own)?;
        }
        if is_leaf {
            out.push_str("</p>");
        } else {
            out.push_str("</summary>\n");
            below(&n.holds, n.more, all, out)?;
            out.push_str("</details>");
        }
        out.push_str("</li>\n");
    }
    if let Some(more) = more {
        writeln!(
            out,
            "<li><p class=\"leaf\">{more}: smaller, or below the levels that are shown</p></li>"
        )?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

fn stack(s: &StackReport, all: u64, out: &mut String) -> fmt::Result {
    out.push_str("<details><summary>");
    share(&s.retained, all, out)?;
    if let Some(class) = &s.class {
        write!(out, "<code>{}</code> ", escaped(class))?;
    }
    let text = s.plain.as_str();
    let first = text.lines().next().unwrap_or_default();
    let least = if s.at_least { "at least; " } else { "" };
    writeln!(
        out,
        "<span class=\"name\">{}</span> <small>{least}own {}, stack {}</small></summary>",
        escaped(first),
        s.own,
        s.stack
    )?;
    writeln!(out, "<pre>{}</pre></details>", escaped(text))
}

fn path(p: &PathData, out: &mut String) -> fmt::Result {
    let mut text = String::new();
    p.write(&format!("chain to {}", p.to), &mut text)?;
    writeln!(out, "<pre>{}</pre>", escaped(text.trim()))
}
