//! The hook as a library that the target's own dynamic linker loads and unloads (`--by dlopen`), by remote calls of libc's
//! functions in a moment in which they find every lock free ([`crate::stopped::safe_thread`]).
//!
//! The control page has the library's number before its file exists, and the linker's list tells by the path whether it is
//! loaded. So a prof that takes over from a killed one finds the library, whatever that one has got to know of it.

use crate::linker_calls::{self, Deed};
use crate::mapped::dlerror;
use crate::mapped::image::HookImage;
use crate::mapped::library_file::{self, FOLDERS, LibraryFile, LibraryInMemory};
use crate::mapped::listed::{Listed, Loaded, find, take_out};
use crate::mapped::loaded;
use crate::mapped::mapping::{Mapped, Site, advise, unmap_at};
use crate::process::c_library::CLibrary;
use crate::process::elf::{self, Module};
use crate::stopped::function_call::RemoteFunction;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::memory::words;
use crate::stopped::modules::{self, Modules};
use crate::stopped::remote::Caller;
use crate::stopped::safe_thread::Search;
use crate::stopped::stack_pointer::stack_pointer;
use crate::{Error, Refusal, RemoteAddr, RemoteMemory, Result, again, sandbox};
use nix::errno::Errno;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_arch::native::jump::breakpoint;
use prof_arch::native::syscall::nr;
use prof_os::{Pid, maps, process, sharers};
use prof_trace::shared::{Area, Control, NEEDS_FOR_LIBRARY};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Bytes of the stack on which a thread of the target loads and unloads the library. glibc's dlopen takes some 8 KiB, with
/// LD_DEBUG, audit libraries, or an allocator of the program's own more. The note for forked children lies behind it, and is
/// looked for in mappings of a limited length ([`inherited::MOST`](crate::inherited::MOST)).
pub(crate) const LINKER_STACK: u64 = 384 << 10;
/// Maximum length of the dynamic linker's message.
const MESSAGE: usize = 512;

/// Functions of libc.
#[derive(Clone, Debug)]
pub(crate) struct Functions {
    open: RemoteFunction,
    close: RemoteFunction,
    error: RemoteFunction,
    /// See [`dlerror::place`].
    message: Option<RemoteAddr>,
    /// All functions of libc that prof has looked for: these three, and those by which stacks are judged.
    library: CLibrary,
}

impl Functions {
    const OPEN: &str = "dlopen";
    const CLOSE: &str = "dlclose";
    const ERROR: &str = "dlerror";

    /// Returns the names of all functions that have to be found.
    fn names() -> HashSet<&'static str> {
        let called = [Self::OPEN, Self::CLOSE, Self::ERROR];
        modules::names().into_iter().chain(called).chain(UserRegs::KEEPER.map(|k| k.name)).collect()
    }

    /// Returns the deed of loading the library.
    fn loads(&self) -> Deed {
        if self.library.is_musl() { Deed::LoadByMusl } else { Deed::Load }
    }

    fn of(mem: &RemoteMemory, modules: &[Module], library: CLibrary) -> Option<Self> {
        let keeper = UserRegs::KEEPER.and_then(|k| {
            let at = library.functions(&[k.name]).next()?.addr;
            let is = |code: &&[u8]| mem.read_some(at, code.len()) == **code;
            k.code.iter().any(is).then_some(at)
        });
        let find = |what: &'static str| {
            let s = library.functions(&[what]).find(|s| !s.indirect && s.size > 0)?;
            Some(RemoteFunction { what, at: s.addr, keeper })
        };
        let message =
            library.among(modules).and_then(|(libc, _)| dlerror::place(mem, &modules[libc]));
        let [open, close, error] = [Self::OPEN, Self::CLOSE, Self::ERROR].map(find);
        Some(Self { open: open?, close: close?, error: error?, message, library })
    }
}

/// Looks whether a process's dynamic linker can load the hook. Returns the functions that this takes.
///
/// # Errors
/// If it can't, with the reason.
pub(crate) fn check(
    pid: Pid,
    mem: &RemoteMemory,
    modules: &[Module],
    gadgets: Gadgets,
) -> Result<Functions> {
    let functions = functions(pid, mem, modules)?;
    // The linker would map a file that this other process puts in the place of the library's descriptor.
    if let Some(other) = sharers::shares_descriptors(pid) {
        let why = format!(
            "process {other} shares its descriptors (CLONE_FILES) and is not stopped while they are used"
        );
        return Err(refused(pid, why));
    }
    if sandbox::is_filtered(pid) {
        linker_calls::look(pid, gadgets, functions.loads())?.map_err(|why| refused(pid, why))?;
    }
    Ok(functions)
}

fn refused(pid: Pid, why: String) -> Error {
    Refusal::NoDlopen { pid, comm: process::comm(pid), why }.into()
}

fn functions(pid: Pid, mem: &RemoteMemory, modules: &[Module]) -> Result<Functions> {
    let refused = |why: &str| refused(pid, why.into());
    // A kernel of AArch64 continues the system calls of a 32-bit program in another way than a kernel of ARM does. Nobody has
    // killed prof yet in the midst of a call there.
    if prof_os::is_wider_than_arm() {
        return Err(refused("prof can do that in 32-bit programs under a 32-bit kernel only"));
    }
    let library = CLibrary::of(mem, &maps::of(pid)?, modules, &Functions::names());
    let library = library.map_err(|why| refused(&why))?;
    Modules::of(mem, modules, &library).map_err(|why| refused(&why))?;
    if elf::r_debug(mem, modules) == 0 {
        return Err(refused("its dynamic linker has no list of modules"));
    }
    Functions::of(mem, modules, library).ok_or_else(|| {
        refused("its libc has no dlopen (glibc has one since 2.34; before, it was in a library of its own)")
    })
}

/// Result of a call of `dlopen`.
enum Opened {
    Loaded(Loaded),
    /// The library is not loaded, for this reason.
    Refused(String),
}

/// Arguments for calls of `dlopen`.
struct Linker<'a> {
    mem: &'a RemoteMemory,
    functions: &'a Functions,
    modules: &'a [Module],
    image: &'a HookImage,
    /// Stack on which the functions are called.
    stack: Area,
    /// Number of the library.
    number: u64,
}

impl Linker<'_> {
    /// Has the linker load the library from `path`.
    ///
    /// # Errors
    /// If a function can't be called, or does not end.
    fn open(&self, c: &mut Caller<'_>, path: &str, late: &mut dyn FnMut()) -> Result<Opened> {
        let opened =
            dlerror::keep(c, self.mem, self.functions.message, |c| self.ask(c, path, late))?;
        if let Opened::Loaded(loaded) = &opened {
            loaded::set_apart(c, self.mem, self.image, loaded.bias)?;
        }
        loaded::clear(c, self.stack);
        Ok(opened)
    }

    fn ask(&self, c: &mut Caller<'_>, path: &str, late: &mut dyn FnMut()) -> Result<Opened> {
        let Self { mem, functions, stack, .. } = *self;
        mem.write_data(RemoteAddr(stack.addr), format!("{path}\0").as_bytes())?;
        let flags = (libc::RTLD_NOW | libc::RTLD_LOCAL) as u64;
        c.call_function(&functions.open, [stack.addr, flags], stack, late)?;
        if let Listed::Yes(loaded) = find(mem, self.modules, self.number) {
            return Ok(Opened::Loaded(loaded));
        }
        let said = match c.call_function(&functions.error, [0; 2], stack, late)? {
            Some(at) => Some(text(mem, at)),
            None => left_on(mem, stack, path),
        };
        let said = said.filter(|s| !s.is_empty());
        Ok(Opened::Refused(said.unwrap_or_else(|| "its dynamic linker did not say why".into())))
    }
}

/// Returns whether the library with this number is mapped.
pub(crate) fn is_mapped(pid: Pid, number: u64) -> bool {
    maps::of(pid).is_ok_and(|maps| maps.iter().any(|m| library_file::is_of(m, number)))
}

impl<'a> Site<'a> {
    fn search<'f>(&self, deed: Deed, library: &'f CLibrary) -> Search<'f>
    where
        'a: 'f,
    {
        let (pid, mem, gadgets, timeout) = (self.pid, self.mem, self.gadgets, self.timeout);
        Search { pid, mem, gadgets, timeout, deed, library }
    }

    /// Has the target's dynamic linker load the hook, by these functions. The linker stack must be mapped.
    ///
    /// # Errors
    /// If that is not possible. The library may be loaded then, and [`Site::unload`] unloads it.
    pub(crate) fn load(
        &mut self,
        functions: &Functions,
        image: &HookImage,
        control: &mut Control,
        m: &mut Mapped,
    ) -> Result<()> {
        let pid = self.pid;
        let modules = elf::modules(self.mem, &maps::of(pid)?);
        let number = library_file::new_number();
        control.needs = control.needs.max(NEEDS_FOR_LIBRARY);
        control.library.store(number, Relaxed);
        m.library = number;
        let linker = Linker {
            mem: self.mem,
            functions,
            modules: &modules,
            image,
            stack: control.linker_stack.get(),
            number,
        };
        let serves = library_file::serves_files(pid);
        let mut why = serves.map_or(String::new(), |what| {
            format!("prof puts no library into folders of a process that has {what} open: the kernel may ask the process before it opens a file there")
        });
        for folder in FOLDERS.into_iter().filter(|_| serves.is_none()) {
            let mut file = match LibraryFile::new(pid, folder, number) {
                Ok(file) => file,
                Err(e) => {
                    why = format!("prof can't put the library into its folder {folder}: {e}");
                    continue;
                }
            };
            let opened = self.at_a_moment(functions, |c, late| linker.open(c, &file.path, late));
            file.stays = self.keeps_library && matches!(opened, Ok(Opened::Loaded(_)));
            drop(file);
            match opened? {
                Opened::Loaded(loaded) => return self.enter(image, control, m, &loaded),
                Opened::Refused(said) => why = said,
            }
        }
        if self.keeps_library {
            return Err(refused(pid, why));
        }
        if !library_file::sees_proc(pid) {
            let none = "nor can it be a memfd, as the process sees no /proc";
            return Err(refused(pid, format!("{why}; {none}")));
        }
        let guard = self.guard.map(|guard| guard(pid));
        let opened = self.at_a_moment(functions, |c, late| {
            let library = match LibraryInMemory::new(pid, c, number) {
                Ok(library) => library,
                Err(e @ (Error::Remote { .. } | Error::File { .. })) => {
                    return Ok(Opened::Refused(e.to_string()));
                }
                Err(e) => return Err(e),
            };
            let opened = linker.open(c, &library.path, late)?;
            library.close(c).map(|()| opened)
        });
        match opened {
            Ok(_) => drop(guard),
            // The guard closes the descriptor when prof ends.
            Err(_) => std::mem::forget(guard),
        }
        match opened? {
            Opened::Loaded(loaded) => self.enter(image, control, m, &loaded),
            Opened::Refused(said) => {
                Err(refused(pid, format!("{why}; nor can it be a memfd: {said}")))
            }
        }
    }

    /// Calls `f` in a moment in which a thread may load the library.
    ///
    /// # Errors
    /// If `f` fails, or there is no such moment in time.
    fn at_a_moment<T>(
        &mut self,
        functions: &Functions,
        f: impl FnOnce(&mut Caller<'_>, &mut dyn FnMut()) -> Result<T>,
    ) -> Result<T> {
        self.search(functions.loads(), &functions.library).run(self.stops, f)?.map_err(|reason| {
            let time = prof_trace::values::text::time(self.timeout);
            refused(
                self.pid,
                format!(
                    "no moment came within {time} in which no thread was inside its dynamic linker or its allocator: {reason}"
                ),
            )
        })
    }

    /// Notes the address of the library, after a check that its contents are those of the file that prof has written.
    fn enter(
        &mut self,
        image: &HookImage,
        control: &mut Control,
        m: &mut Mapped,
        loaded: &Loaded,
    ) -> Result<()> {
        m.hook = Area { addr: loaded.bias, len: image.len() as u64 };
        (control.hook_addr, control.hook_len) = (m.hook.addr, m.hook.len);
        let base = RemoteAddr(m.hook.addr);
        let expected = image.at(base, 0, RemoteAddr(0), RemoteAddr(0));
        for (from, len) in image.essential() {
            let there = self.mem.read_some(base.plus(from as u64), len);
            if there != expected[from..from + len] {
                let what = format!(
                    "the dynamic linker has not loaded the hook's library as prof knows it (at {base})"
                );
                return Err(Error::Nonsense { pid: self.pid, what });
            }
        }
        Ok(())
    }

    /// Maps the part of the area `a` between its guard pages, for stubs: as pages of the library's file, so that no memory
    /// without a file becomes executable. The kernel moves a part of the library's code there, and leaves the same pages of
    /// the file behind. Without guard pages nothing can be written there, either. Returns `false` if the kernel can't do
    /// that (before Linux 5.13).
    ///
    /// # Errors
    /// If the system calls for the mapping fail.
    pub(crate) fn map_of_library(
        &mut self,
        a: Area,
        image: &HookImage,
        hook: Area,
        mut note: impl FnMut(Area),
    ) -> Result<bool> {
        let page = prof_os::page_size();
        let to = Area { addr: a.addr + page, len: a.len - 2 * page };
        if image.code.1 < to.len as usize {
            return Err(Error::Broken("less code than stubs need room".into()));
        }
        let from = hook.addr + (image.code.0 + of_the_same_colour(image.code, to, page)) as u64;
        note(to);
        let moved = self.stop(|c| match move_pages(c, from, to) {
            Ok(true) => advise(c, to, libc::MADV_DONTDUMP).map(|()| Ok(true)),
            Ok(false) => Ok(Err(c.failed("mmap", Errno::EEXIST))),
            Err(Error::Remote { errno: Errno::EINVAL, .. }) => Ok(Ok(false)),
            Err(e @ Error::Remote { .. }) => Ok(Err(e)),
            Err(e) => Err(e),
        })?;
        if !matches!(moved, Ok(true)) {
            note(Area::default());
            return moved;
        }
        // The hook's code would not work at this address.
        let fill = breakpoint(to.addr).iter().copied().cycle().take(to.len as usize);
        self.mem.write(RemoteAddr(to.addr), &fill.collect::<Vec<_>>())?;
        Ok(true)
    }

    /// Unmaps pages of the library's file that are outside of the library, which a prof left that was killed when the kernel
    /// had mapped the stubs elsewhere. Returns whether they are gone.
    fn unmap_strays(&mut self, m: &Mapped) -> bool {
        let end = m.hook.addr.saturating_add(m.hook.len);
        let maps = maps::of(self.pid).unwrap_or_default();
        let is_stray = |p: &&maps::Map| {
            library_file::is_of(p, m.library) && (p.end.0 <= m.hook.addr || end <= p.start.0)
        };
        // Without the library's address, there are no stubs yet.
        m.hook.addr == 0 || maps.iter().filter(is_stray).all(|p| self.unmap(p.start.0, p.len()))
    }

    /// Has the target's dynamic linker unload the hook's library, if it is loaded. Returns whether it is gone, or has to
    /// stay because of the handler in it.
    pub(crate) fn unload(&mut self, m: &Mapped) -> bool {
        let (pid, mem, number, stack) = (self.pid, self.mem, m.library, m.linker_stack);
        if number == 0 {
            return true;
        }
        library_file::remove_left(pid, number);
        // A call that prof has given up waiting for goes on, and needs its stack.
        if let Err(e) = await_calls(pid, stack, self.timeout) {
            self.failed = Some(e);
            return false;
        }
        if !self.unmap_strays(m) {
            return false;
        }
        if m.kept.is_some() || !is_mapped(pid, number) {
            return true;
        }
        let unloaded = self.close(number, stack).and_then(|closed| {
            match closed {
                Ok(true) => Ok(()),
                Ok(false) if again::are_back(mem, self.hooked) => Err(None),
                Ok(false) => Err(Some("dlclose has left it loaded".to_owned())),
                Err(why) => Err(Some(why)),
            }
            .map_err(|why| Error::Nonsense {
                pid,
                what: why.map_or("a jump to prof came back into its code".into(), |why| {
                    format!("the hook's library stays loaded, without effect: {why}")
                }),
            })
        });
        unloaded.map_err(|e| self.failed = Some(e)).is_ok()
    }

    fn close(&mut self, number: u64, stack: Area) -> Result<std::result::Result<bool, String>> {
        let (pid, mem, hooked) = (self.pid, self.mem, self.hooked);
        let modules = elf::modules(mem, &maps::of(pid)?);
        let functions = match self.by_linker.clone() {
            Some(functions) => functions,
            None => functions(pid, mem, &modules)?,
        };
        let musl = functions.library.is_musl();
        let deed = if musl { Deed::Unlist } else { Deed::Unload };
        let search = self.search(deed, &functions.library);
        search.run(self.stops, |c, late| {
            let loaded = match find(mem, &modules, number) {
                Listed::Yes(loaded) => loaded,
                // glibc forgets a library that the kernel did not let it map whole, and leaves the part that is mapped. A
                // library that it still knows must not lose its pages: glibc runs its functions when the program ends.
                Listed::No => return unmap_library(c, &modules, number, musl).map(|()| Ok(true)),
                Listed::Unknown => {
                    let what = "the dynamic linker's list of modules can't be read, so the hook's library stays loaded";
                    return Err(Error::Nonsense { pid, what: what.into() });
                }
            };
            if again::are_back(mem, hooked) {
                return Ok(Ok(false));
            }
            if musl {
                if let Err(why) = take_out(mem, &modules, &functions.library, loaded.handle)? {
                    return Ok(Err(why));
                }
                return unmap_library(c, &modules, number, musl).map(|()| Ok(true));
            }
            dlerror::keep(c, mem, functions.message, |c| {
                c.call_function(&functions.close, [loaded.handle, 0], stack, late)
            })?;
            Ok(Ok(!is_mapped(pid, number)))
        }).map(Result::flatten)
    }
}

/// Unmaps what is mapped of the library, which the dynamic linker does not know. musl maps a library as a whole, with the
/// memory of its data that is in no file.
///
/// # Errors
/// If a system call fails.
fn unmap_library(c: &mut Caller<'_>, modules: &[Module], number: u64, whole: bool) -> Result<()> {
    let is_its = |m: &&Module| library_file::is_path(m.path.as_os_str().as_bytes(), number);
    if let Some(m) = modules.iter().find(is_its).filter(|_| whole) {
        unmap_at(c, Area { addr: m.start.0, len: m.end.0 - m.start.0 })?;
    }
    for p in maps::of(c.pid())?.iter().filter(|p| library_file::is_of(p, number)) {
        unmap_at(c, Area { addr: p.start.0, len: p.len() })?;
    }
    Ok(())
}

/// Has the kernel move the pages at `from` to `to`, with the same pages of the file left behind. Returns `false` if the kernel
/// has put them elsewhere; they are unmapped then.
///
/// # Errors
/// If a system call fails.
fn move_pages(c: &mut Caller<'_>, from: u64, to: Area) -> Result<bool> {
    // Without MREMAP_FIXED, nothing that the target has mapped there meanwhile is replaced.
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) as u64;
    let mut hint = to.addr;
    loop {
        let at = c.call("mremap", nr::MREMAP, [from, to.len, to.len, flags, hint, 0])?;
        if at == to.addr {
            return Ok(true);
        }
        unmap_at(c, Area { addr: at, ..to })?;
        // The kernel rounds the hint up to the next way, and then adds the colour, where pages have colours.
        let way = at.wrapping_sub(to.addr);
        let below = to.addr & !way.wrapping_sub(1);
        if hint != to.addr || below == to.addr || !way.is_power_of_two() || way > LARGEST_WAY {
            return Ok(false);
        }
        hint = below;
    }
}

/// Largest cache way, in bytes, for which pages are put at addresses of their colour. Offsets in the library's file and its
/// addresses are equal modulo this (`p_align` in elf(5)).
const LARGEST_WAY: u64 = 64 << 10;

/// Returns the offset, in the library's code at `code` (offset and length), of pages that may be at `to`. Where a processor finds
/// cache lines by virtual addresses, a page of a file has a colour: its offset in the file and its address are equal modulo the
/// size of a cache's way (`COLOUR_ALIGN` in `arch/mips/mm/mmap.c`). If there is too little code, the offset serves smaller ways.
fn of_the_same_colour(code: (usize, usize), to: Area, page: u64) -> usize {
    let room = code.1 as u64 - to.len;
    let mut way = LARGEST_WAY;
    while way > page {
        let at = to.addr.wrapping_sub(code.0 as u64) % way;
        if at <= room {
            return at as usize;
        }
        way /= 2;
    }
    0
}

/// Reads a message of the dynamic linker's.
fn text(mem: &RemoteMemory, at: u64) -> String {
    let bytes = if at == 0 { Vec::new() } else { mem.read_some(RemoteAddr(at), MESSAGE) };
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Returns the dynamic linker's message about the library at `path`, if `dlerror` has left the message's address on the stack
/// on which it was called. This is for machines on which there is no way to know what a function returns.
fn left_on(mem: &RemoteMemory, stack: Area, path: &str) -> Option<String> {
    /// Bytes at the end of the stack that hold the signal frame and, below it, what was the frame of `dlerror`.
    const END: u64 = 4096;
    let from = (stack.addr + stack.len).saturating_sub(END).max(stack.addr);
    let bytes = mem.read_some(RemoteAddr(from), END as usize);
    let message = |text: &String| text.len() > path.len() && text.contains(path);
    words(&bytes).map(|at| text(mem, at)).find(message)
}

/// Waits until no thread is on the linker stack: one that a killed prof has left in a function goes on by itself.
///
/// # Errors
/// If a thread still is after `timeout`, or can't be stopped.
pub(crate) fn await_calls(pid: Pid, stack: Area, timeout: Duration) -> Result<()> {
    if stack.len == 0 {
        return Ok(());
    }
    let range = stack.addr..stack.addr.saturating_add(stack.len);
    let began = Instant::now();
    for tid in process::threads(pid)? {
        let is_on = || {
            let sp = stack_pointer(pid, tid, began + timeout)?;
            Ok::<_, Error>(sp.is_some_and(|sp| range.contains(&sp.0)))
        };
        while is_on()? {
            if began.elapsed() >= timeout {
                return Err(Error::NotStopping { pid, tid, waited: began.elapsed() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_library_keep_their_colour() {
        let offset =
            |len, to| of_the_same_colour((0x1000, len), Area { addr: to, len: 0x3000 }, 0x1000);
        assert_eq!(offset(0x20000, 0x7f12_3000), 0x2000);
        assert_eq!(offset(0x20000, 0x7f12_0000), 0xf000);
        // Less code than there are colours.
        assert_eq!(offset(0x7000, 0x7f12_9000), 0);
        assert_eq!(offset(0x7000, 0x7f12_4000), 0x3000);
        assert_eq!(offset(0x3000, 0x7f12_4000), 0);
    }
}
