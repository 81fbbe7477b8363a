//! Finds where the descriptions of pages begin, from which a page's number follows.

use super::Programs;
use crate::live::Kind;
use crate::stacks::Stacks;
use prof_os::Pid;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Number of pages that are looked at together, and how often.
const PAGES: usize = 8;
const ROUNDS: usize = 8;
/// Bits of an entry of `/proc/PID/pagemap`: the page is there, and its number.
const PRESENT: u64 = 1 << 63;
const NUMBER: u64 = (1 << 55) - 1;

/// Returns the address of the description of page 0: this process takes some pages, whose numbers the kernel tells it,
/// while programs tell the addresses of their descriptions.
pub(super) fn first_page(
    programs: &mut Programs,
    stacks: &mut Stacks,
    page: u64,
) -> Result<u64, String> {
    let kinds = programs.kinds.clone();
    let mut votes: HashMap<u64, usize> = HashMap::new();
    // A ring may be small, so that only a few pages are taken at a time.
    for _ in 0..ROUNDS {
        programs.read(stacks, |_, _| {});
        let numbers = take_pages(page as usize)
            .map_err(|e| format!("this process's page numbers can't be read: {e}"))?;
        let size = u64::from(programs.facts.page);
        programs.read(stacks, |_, e| {
            if kinds[e.tracepoint] == (Kind::Page, true) && e.size == 0 && e.pid == Pid::this() {
                for number in &numbers {
                    *votes.entry(e.address.wrapping_sub(number * size)).or_default() += 1;
                }
            }
        });
    }
    let (first, count) = votes.into_iter().max_by_key(|v| v.1).unwrap_or_default();
    if count < ROUNDS * PAGES / 2 {
        let all = ROUNDS * PAGES;
        return Err(format!("the numbers of pages can't be told ({count} of {all} agree)"));
    }
    Ok(first)
}

/// Takes pages, and returns their numbers, as far as they are told.
fn take_pages(page: usize) -> std::io::Result<Vec<u64>> {
    let len = PAGES * page;
    // SAFETY: the kernel chooses the address, so that no other mapping is touched.
    let base = unsafe {
        let (both, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), len, both, private, -1, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let mut entries = vec![0; PAGES * 8];
    // SAFETY: the mapping has `len` bytes, and nothing else refers to it.
    let read = unsafe {
        libc::madvise(base, len, libc::MADV_NOHUGEPAGE);
        (0..PAGES).for_each(|i| base.cast::<u8>().add(i * page).write_volatile(1));
        let at = (base as usize / page * 8) as u64;
        let read = File::open("/proc/self/pagemap").and_then(|f| f.read_exact_at(&mut entries, at));
        libc::munmap(base, len);
        read
    };
    read?;
    let (words, _) = entries.as_chunks::<8>();
    let numbers = words.iter().map(|w| u64::from_ne_bytes(*w)).filter(|e| e & PRESENT != 0);
    Ok(numbers.map(|e| e & NUMBER).filter(|n| *n != 0).collect())
}
