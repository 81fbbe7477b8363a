//! Fuzzes the input that a client of `prof serve` controls.

/// The head of a request and its query, through the guard, the filters of both APIs, and filters as code.
pub fn request(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        prof_serve::hostile::head(text);
        prof_serve::hostile::query(text.lines().next().unwrap_or_default());
    }
}
