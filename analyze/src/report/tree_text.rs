//! Formats a tree as text: a line for each node, in columns. An only child is on the same level as its parent, so that
//! deep stacks fit the terminal.

use super::text::place_line;
use super::tree::{NodeData, Tree};
use super::{SortKey, Style, SumData};
use crate::table::Table;
use prof_trace::values::text::{
    about_bytes, about_number, count, duration, number, signed_bytes, signed_number,
};
use std::fmt::{self, Write};

impl Tree {
    /// Returns the tree as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        self.symbols.write(style, out)?;
        if let Some(at) = self.base_ns {
            style.line(out, "since", &duration(at))?;
        }
        writeln!(out)?;
        let [size, blocks] = match self.sort {
            SortKey::Allocated | SortKey::Allocations => ["ALLOCATED", "ALLOCATIONS"],
            SortKey::Temporary => ["ALLOCATED", "TEMPORARY"],
            _ => ["SIZE", "COUNT"],
        };
        let mut table = Table::new(vec![size, blocks, "FIRST", "LAST", "SOURCE"]);
        self.node(&self.tree, "", "", &mut table);
        table.write(style, out)
    }

    fn node(&self, n: &NodeData, front: &str, branch: &str, table: &mut Table) {
        let mut source = format!("{front}{branch}");
        match (&n.place, n.what) {
            (Some(p), _) => source.push_str(&place_line(p)),
            (None, Some(what)) => {
                // Writing to a string can't fail.
                let _ = write!(source, "({what})");
            }
            (None, None) => source.push_str(if self.bottom_up { "(all)" } else { "(root)" }),
        }
        if n.deeper {
            source.push_str(" ...");
        }
        let [size, blocks] = self.figures(n);
        table.row(vec![size, blocks, duration(n.first_ns), duration(n.last_ns), source]);
        let front = match branch {
            "├─ " => format!("{front}│  "),
            "└─ " => format!("{front}   "),
            _ => front.to_owned(),
        };
        let straight = n.children.len() == 1 && n.rest.is_none() && n.own.is_none();
        for (i, child) in n.children.iter().enumerate() {
            let last = i + 1 == n.children.len() && n.rest.is_none();
            let branch = match (straight, last) {
                (true, _) => "",
                (false, false) => "├─ ",
                (false, true) => "└─ ",
            };
            self.node(child, &front, branch, table);
        }
        if let Some(rest) = &n.rest {
            let [size, blocks] = self.sums(&rest.sums);
            let text = count(rest.nodes, "other", "others");
            let source = format!("{front}└─ ({text})");
            table.row(vec![size, blocks, String::new(), String::new(), source]);
        }
    }

    fn figures(&self, n: &NodeData) -> [String; 2] {
        match (&n.change, self.sort) {
            (None, _) => self.sums(&n.sums),
            (Some(c), SortKey::Allocated | SortKey::Allocations) => {
                [signed_bytes(c.allocated_bytes), signed_number(c.allocations)]
            }
            (Some(c), SortKey::Temporary) => {
                [signed_bytes(c.allocated_bytes), signed_number(c.temporary)]
            }
            (Some(c), _) => [signed_bytes(c.live_bytes), signed_number(c.live_count)],
        }
    }

    fn sums(&self, s: &SumData) -> [String; 2] {
        let allocated = about_bytes(s.allocated_bytes, s.allocated_bytes_stderr);
        match self.sort {
            SortKey::Allocated | SortKey::Allocations => {
                let error = s.allocations_stderr.zip(s.reallocations_stderr);
                let error = error.map(|(a, b)| (a as f64).hypot(b as f64).round() as u64);
                [allocated, about_number(s.allocations + s.reallocations, error)]
            }
            SortKey::Temporary => [allocated, number(s.temporary.unwrap_or(0))],
            _ => [
                about_bytes(s.live_bytes, s.live_bytes_stderr),
                about_number(s.live_count, s.live_count_stderr),
            ],
        }
    }
}
