//! Sizes, durations and counts as people write and read them: one grammar for every option and filter ([`parse`]), and
//! one format for every line of text ([`text`]). Each text that is written is also accepted.
//!
//! Formats for programs (JSON, CSV) have plain integers in bytes and nanoseconds, and use neither.

pub mod parse;
pub mod text;
