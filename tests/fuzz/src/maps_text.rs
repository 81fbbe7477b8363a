//! Fuzzes the parsers of lists of mappings.

/// Runs both parsers, whose results must be bounded by the input.
pub fn maps(bytes: &[u8]) {
    let all = prof_inject::process::proc::parse_maps(bytes);
    assert!(all.len() <= bytes.split(|b| *b == b'\n').count());
    for m in &all {
        assert!(m.start < m.end && m.holds(m.start) && !m.holds(m.end));
        let _ = (m.len(), prof_inject::process::proc::display(&m.name));
    }
    let _ = prof_inject::process::rings::ring_in(&all);
    for m in prof_collect::parse_maps(bytes) {
        assert!(m.start < m.end);
    }
}
