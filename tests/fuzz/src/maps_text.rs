//! Fuzzes the parser of lists of mappings.

/// Runs the parser, whose results must be bounded by the input.
pub fn maps(bytes: &[u8]) {
    let all = prof_os::maps::parse(bytes);
    assert!(all.len() <= bytes.split(|b| *b == b'\n').count());
    for m in &all {
        assert!(m.start < m.end && m.holds(m.start) && !m.holds(m.end));
        let _ = (m.len(), m.path(), m.text(), m.is_memfd("prof-ring"));
    }
    let _ = prof_inject::process::rings::ring_in(&all);
}
