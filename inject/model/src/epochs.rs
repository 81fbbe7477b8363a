//! Times that nobody looks at here.

#[derive(Debug, Default)]
pub struct Epochs;

impl Epochs {
    pub fn offset_of(&mut self, _first: u64) -> u64 {
        0
    }
}
