//! A moment in which the heap can be looked at: all threads stand still, and none is inside of the allocator.
//!
//! Recording is turned on in the same moment. So each block was either there, or its allocation is recorded, whatever the
//! threads do before and after. A thread that is stopped in the midst of `malloc` or `free` would spoil that: its block is
//! half made, and that call is not recorded, as it has begun before. Such a thread is let run for a while, with all others
//! held that are outside, until it is outside, too: who holds an allocator's lock is inside, and so is let run as well.

use crate::hooked::plan::Planned;
use crate::installed::Installed;
use crate::process::elf::{self, Module};
use crate::stopped::threads::{Stopped, stop_all};
use crate::stopped::walk::Walker;
use crate::{Error, RemoteAddr, RemoteMemory, Result, clock, isolated};
use memchr::memmem;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::jump::code_at;
use prof_os::Pid;
use prof_os::maps::{self, Map};
use prof_os::process::comm;
use prof_trace::modules::doubt;
use prof_trace::protocol::note;
use prof_trace::shared::{Kind, clock as source};
use prof_trace::ticks::Ticks;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Greatest length of functions without names in front of and behind those that are hooked.
const BESIDE: u64 = 64 << 10;
/// Number of times that threads inside of the allocator are let run, while the others are held.
const RUNS: usize = 200;
/// Shortest and longest time for which a thread is let run: many threads may share few processors.
const RUN: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// What the names of allocators' libraries have in them.
const LIBRARIES: [&[u8]; 3] = [b"jemalloc", b"mimalloc", b"tcmalloc"];
/// What the names of allocators' own functions begin with in a program that they are linked into: the last two are of C++.
const PREFIXES: [&str; 7] =
    ["je_", "_rjem_je_", "mi_", "_mi_", "tc_", "_ZN8tcmalloc", "_ZNK8tcmalloc"];
/// Name of jemalloc's own threads, which give free pages back to the kernel (`background_thread_create`).
const BACKGROUND: &str = "jemalloc_bg_thd";
/// A function that only musl's allocator has.
const OF_MUSL: &str = "__malloc_alloc_meta";
/// Pause before all threads are stopped once more.
const PAUSE: Duration = Duration::from_millis(5);
/// Ticks by which the clock of a thread may seem to be behind prof's, as it counts in steps.
const STEPS: u64 = 64;

/// The moment in which recording was turned on.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Ticks that no event of the recording is older than.
    pub ticks: Ticks,
    /// Time for which all threads stood still.
    pub stop: Duration,
}

impl Installed {
    /// Turns recording on, after [`Installed::activate`] has left it off, in a moment in which no thread runs and none is
    /// inside of the allocator. `look` is called in this moment, and returns whether recording begins. Threads that are
    /// outside are held for at most `held` until the others are outside, too.
    ///
    /// # Errors
    /// If the target can't be stopped, or there is no such moment within the options' timeout. Recording is off then.
    pub fn begin_with(
        &mut self,
        held: Duration,
        mut look: impl FnMut() -> bool + Send,
    ) -> Result<Option<Begun>> {
        let (pid, deadline) = (self.target.pid, Instant::now() + self.options.timeout);
        isolated(|| {
            loop {
                let maps = maps::of(pid)?;
                let modules = elf::modules(&self.mem, &maps);
                let code = self.allocator_code(&modules, &maps);
                let mut walker = Walker::new(&self.mem, modules, maps);
                walker.read_tables();
                let mut stopped = stop_all(pid, self.options.timeout)?;
                let inside = match leave(&mut walker, &code, &mut stopped, (pid, held)) {
                    Ok(None) => {
                        let begins = look();
                        let begun = if begins { self.turn_on().map(Some) } else { Ok(None) };
                        let since = stopped.since;
                        stopped.resume(&mut self.stops);
                        let stop = since.elapsed();
                        return begun.map(|b| b.map(|ticks| Begun { ticks, stop }));
                    }
                    Ok(Some(tid)) => tid,
                    Err(e) => {
                        stopped.resume(&mut self.stops);
                        return Err(e);
                    }
                };
                stopped.resume(&mut self.stops);
                if Instant::now() >= deadline {
                    return Err(Error::Nonsense {
                        pid,
                        what: format!(
                            "thread {inside} was inside of the allocator each time that prof looked, so that its blocks \
                             can't be counted; nothing was recorded; try again, wait longer with --timeout, or attach \
                             without --census"
                        ),
                    });
                }
                std::thread::sleep(PAUSE);
            }
        })
    }

    /// Sets the flag. Returns ticks that no event is older than.
    fn turn_on(&self) -> Result<Ticks> {
        let c = self.shared.control();
        let kind = c.clock.load(Relaxed);
        let now = clock::now(kind);
        doubt(c);
        note(c, true, || now);
        self.mem.write(RemoteAddr(c.flag_addr.load(Relaxed)), &1u32.to_ne_bytes())?;
        // The times of some events are when the collector looked last.
        let coarse = kind == source::COARSE || kind == source::SYSCALL;
        let least = if coarse { now.min(Ticks(c.heartbeat.load(Relaxed))) } else { now };
        Ok(least.saturating_sub(STEPS))
    }

    /// Returns the code of allocators: of the functions that are hooked, of those that have no name beside them, and
    /// prof's own.
    fn allocator_code(&self, modules: &[Module], maps: &[Map]) -> Vec<Range<u64>> {
        const KINDS: [Kind; 7] = [
            Kind::Malloc,
            Kind::Calloc,
            Kind::Realloc,
            Kind::ReallocArray,
            Kind::Memalign,
            Kind::PosixMemalign,
            Kind::Free,
        ];
        let is_one =
            |p: &&Planned| KINDS.contains(&p.found.kind) && !p.found.name.starts_with("_Z");
        let functions: Vec<Range<u64>> = self
            .planned
            .iter()
            .filter(is_one)
            .map(|p| {
                let start = code_at(p.found.addr.0);
                start..start.saturating_add(p.found.size.max(p.code.len() as u64))
            })
            .collect();
        let mut all = Vec::new();
        for m in modules {
            let of: Vec<_> =
                functions.iter().filter(|f| m.start.0 <= f.start && f.start < m.end.0).collect();
            let (Some(start), Some(end)) =
                (of.iter().map(|f| f.start).min(), of.iter().map(|f| f.end).max())
            else {
                continue;
            };
            let code = with_neighbours(self.target.pid, &self.mem, m, start..end);
            all.extend(without_others(self.target.pid, &self.mem, m, code));
            all.extend(internals(self.target.pid, &self.mem, m, maps));
        }
        let stubs = self.planned.iter().filter_map(|p| Some((p.stub_addr.0, p.stub.as_ref()?)));
        all.extend(stubs.map(|(at, s)| at..at.saturating_add(s.bytes.len() as u64)));
        all.push(self.hook.0..self.hook.0.saturating_add(self.image.len() as u64));
        all
    }
}

/// Extends a range of code over the functions on both sides that have no names: parts of the allocator's functions, which
/// these may leave to with a jump.
fn with_neighbours(pid: Pid, mem: &RemoteMemory, m: &Module, code: Range<u64>) -> Range<u64> {
    let (mut start, mut end) = (
        m.start.0.max(code.start.saturating_sub(BESIDE)),
        m.end.0.min(code.end.saturating_add(BESIDE)),
    );
    for s in m.symbols(pid, mem, |name| !is_allocators(name)) {
        let (from, to) = (code_at(s.addr.0), code_at(s.addr.0).saturating_add(s.size));
        if to <= code.start {
            start = start.max(to);
        } else if from >= code.end {
            end = end.min(from);
        }
    }
    start..end
}

/// Leaves out of a range of code what lies between functions of musl's allocator. These are in several object files, so a
/// static program may have any others between them, in which its threads wait. glibc's are in one.
fn without_others(pid: Pid, mem: &RemoteMemory, m: &Module, code: Range<u64>) -> Vec<Range<u64>> {
    if m.symbols(pid, mem, |name| name == OF_MUSL).is_empty() {
        return vec![code];
    }
    let all = m.symbols(pid, mem, |_| true);
    let all = all.iter().map(|s| (code_at(s.addr.0), s.size, is_allocators(&s.name)));
    between(code, all.collect())
}

/// Returns the parts of a range of code that belong to no function but an allocator's: given are address, size and
/// whether it is one. A function that has no size (assembly) ends where the next one begins.
fn between(code: Range<u64>, mut functions: Vec<(u64, u64, bool)>) -> Vec<Range<u64>> {
    functions.sort_unstable();
    let (mut parts, mut from) = (Vec::new(), code.start);
    for (i, (start, size, is_allocators)) in functions.iter().enumerate() {
        let next = functions[i + 1..].iter().map(|f| f.0).find(|next| next > start);
        let end = match size {
            0 => next.unwrap_or(*start),
            _ => start.saturating_add(*size),
        };
        if *is_allocators || end <= from || *start >= code.end {
            continue;
        }
        if from < *start {
            parts.push(from..*start);
        }
        from = end;
    }
    if from < code.end {
        parts.push(from..code.end);
    }
    parts
}

/// Returns the code of an allocator's own functions, far from those that programs call: its library, or what has its
/// prefix.
fn internals(pid: Pid, mem: &RemoteMemory, m: &Module, maps: &[Map]) -> Vec<Range<u64>> {
    let file = m.path.file_name().unwrap_or_default();
    if LIBRARIES.iter().any(|name| memmem::find(file.as_bytes(), name).is_some()) {
        let code = maps.iter().filter(|c| c.exec && m.start <= c.start && c.end <= m.end);
        return code.map(|c| c.start.0..c.end.0).collect();
    }
    let is_one = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let all = m.symbols(pid, mem, is_one).into_iter();
    all.map(|s| code_at(s.addr.0)..code_at(s.addr.0).saturating_add(s.size)).collect()
}

/// Returns whether a function may be one of an allocator's, by its name.
fn is_allocators(name: &str) -> bool {
    ["alloc", "free", "memalign", "mall"].iter().any(|part| name.contains(part))
}

/// Lets threads that are inside of the code run until they are outside. Returns one that stays inside.
fn leave(
    walker: &mut Walker<'_>,
    code: &[Range<u64>],
    stopped: &mut Stopped,
    (pid, held): (Pid, Duration),
) -> Result<Option<Pid>> {
    let began = Instant::now();
    // A thread of the allocator's own waits inside of it for ever. It has to do with free pages alone.
    let all = stopped.threads.iter().map(|t| t.tid);
    let mut outside: Vec<Pid> = all.filter(|tid| comm(*tid) == BACKGROUND).collect();
    let (mut run, mut last) = (RUN.0, None);
    for _ in 0..RUNS {
        let mut inside = Vec::new();
        for t in stopped.threads.iter_mut().filter(|t| !outside.contains(&t.tid)) {
            let regs = t.regs()?;
            // Threads that the kernel itself has in the process (io_uring's) have no stack.
            if regs.sp() != 0 && walker.may_be_inside(&regs, code) {
                inside.push(t.tid);
            }
        }
        let Some(first) = inside.first().copied() else { return Ok(None) };
        if began.elapsed() > held {
            return Ok(Some(first));
        }
        last = Some(first);
        outside = stopped.threads.iter().map(|t| t.tid).filter(|t| !inside.contains(t)).collect();
        if !stopped.let_run(pid, &inside, run)? {
            // Others run by now.
            return Ok(Some(first));
        }
        run = (run * 2).min(RUN.1);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_others_are_left_out() {
        // malloc, a function of the allocator's without a name, one of others, one of theirs without a size, free, and what
        // lies outside.
        let functions = vec![
            (0x100, 0x40, true),
            (0x180, 0x20, false),
            (0x1a0, 0, false),
            (0x1c0, 0x30, true),
            (0x300, 0x10, false),
            (0x80, 0x10, false),
        ];
        assert_eq!(between(0x100..0x200, functions), [0x100..0x180, 0x1c0..0x200]);
        assert_eq!(between(0x100..0x200, Vec::new()).first(), Some(&(0x100..0x200)));
        // Another name for the same code, and one that reaches beyond both ends.
        assert_eq!(
            between(0x100..0x200, vec![(0x150, 0, false), (0x150, 8, false)]),
            [0x100..0x150, 0x158..0x200]
        );
        assert_eq!(between(0x100..0x200, vec![(0x50, 0x1000, false)]), []);
    }
}
