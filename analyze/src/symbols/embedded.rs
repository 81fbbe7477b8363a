//! Finds suppressions that are embedded in a program. LeakSanitizer calls its `__lsan_default_suppressions`, which
//! returns a text. Here the function is not called: the text is searched for in the file.

use super::elf::ObjectFile;
use super::find;
use crate::Analysis;
use crate::query::is_list;
use memchr::{memchr, memmem, memrchr};

const FUNCTION: &[u8] = b"__lsan_default_suppressions";
const MARK: &[u8] = b"leak:";

/// Greatest length of a text that is examined.
const LONGEST: usize = 1 << 20;

/// Greatest length of a function that returns a text.
const CODE: u64 = 256;

/// Returns the lists of suppressions in a recording's modules, with the modules' paths. A module that has the function
/// but no unambiguous text is listed without one.
pub fn suppressions(analysis: &Analysis) -> Vec<(String, Option<String>)> {
    let meta = analysis.meta();
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for module in meta.modules.values() {
        if found.iter().any(|f| f.0 == module.path) {
            continue;
        }
        let Some(image) = find::find(analysis, module).image else { continue };
        if let Some(text) = of_image(&image) {
            found.push((module.path.clone(), text));
        }
    }
    found
}

/// Returns the text of an image; `None` if it does not have the function.
fn of_image(image: &ObjectFile) -> Option<Option<String>> {
    let mut function = None;
    image.symbols(|s| {
        if image.name(s.name_at) == Some(FUNCTION) {
            function = Some((s.start, s.size));
        }
    });
    let (start, size) = function?;
    let size = if size == 0 { CODE } else { size.min(CODE) };
    let texts = texts(image);
    let code = image.loaded(start, size).unwrap_or_default();
    let table = image.section(".got").unwrap_or_default();
    let refers = |address| image.machine().refers(code, start, address, &table);
    let named = texts.iter().find(|(address, _)| refers(*address));
    let only = if texts.len() == 1 { texts.first() } else { None };
    Some(named.or(only).map(|t| t.1.clone()))
}

/// Returns all lists of suppressions in an image's data, with their addresses.
fn texts(image: &ObjectFile) -> Vec<(u64, String)> {
    let mut out: Vec<(u64, String)> = Vec::new();
    for (address, bytes) in image.data() {
        let mut at = 0;
        while let Some(found) = bytes.get(at..).and_then(|b| memmem::find(b, MARK)) {
            let here = at + found;
            let start = memrchr(0, &bytes[..here]).map_or(0, |i| i + 1);
            let end = memchr(0, &bytes[here..]).map_or(bytes.len(), |i| here + i);
            at = end + 1;
            let text = &bytes[start..end];
            if let Ok(text) = std::str::from_utf8(text)
                && text.len() <= LONGEST
                && is_list(text)
            {
                out.push((address.wrapping_add(start as u64), text.to_owned()));
            }
        }
    }
    out
}
