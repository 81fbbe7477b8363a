//! The C++ classes of blocks: a block has the class of the object that it begins with.

use prof_trace::values::text::{bytes, count};
use serde::Serialize;

/// Greatest number of classes that are named in a line of a report.
const NAMED: usize = 5;

/// The blocks that begin with an object of a C++ class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectData {
    /// Name of the class.
    pub class: String,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Number of the blocks.
    pub blocks: u64,
}

/// Returns the classes, those of most bytes first.
#[must_use]
pub fn in_order(mut all: Vec<ObjectData>) -> Vec<ObjectData> {
    all.sort_by(|a, b| (b.bytes, &a.class).cmp(&(a.bytes, &b.class)));
    all
}

/// Returns a line of a report that names the first classes; `None` if there are none.
#[must_use]
pub fn line(all: &[ObjectData]) -> Option<String> {
    let of = |c: &ObjectData| {
        format!("{} in {} of {}", bytes(c.bytes), count(c.blocks, "block", "blocks"), c.class)
    };
    let named: Vec<String> = all.iter().take(NAMED).map(of).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!("; {} more", count(n as u64, "class", "classes")),
    };
    (!named.is_empty()).then(|| format!("  C++ classes: {}{more}", named.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_classes_of_most_bytes() {
        assert_eq!(line(&[]), None);
        let of = |(class, bytes): (&str, u64)| ObjectData { class: class.into(), bytes, blocks: 1 };
        let all = [("f", 1), ("a", 60), ("b", 50), ("c", 40), ("d", 30), ("e", 20)];
        let text = line(&in_order(all.into_iter().map(of).collect())).expect("a line");
        assert!(text.starts_with("  C++ classes: 60 B in 1 block of a; 50 B"), "{text}");
        assert!(text.ends_with(" of e; 1 class more"), "{text}");
    }
}
