//! The settings of a recording, and an attach that is under way.

use crate::hooked::plan::Planned;
use crate::hooked::search::FunctionChoice;
use crate::lock::Lock;
use crate::mapped::image::HookImage;
use crate::process::elf::Module;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::tables::Tables;
use crate::stopped::threads::StopTimes;
use crate::target::Target;
use crate::{RemoteAddr, RemoteMemory};
use prof_os::Pid;
use prof_trace::capture::Capture;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::shared::Shared;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Way in which the hook gets into a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// As [`By::Map`], or as [`By::Dlopen`] where the target may not map code.
    #[default]
    Auto,
    /// prof maps it, by system calls alone.
    Map,
    /// The target's dynamic linker loads it as a library.
    Dlopen,
}

/// How the hook gets into a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayIn {
    /// Who maps it.
    pub by: By,
    /// Whether the file of a library that the target's dynamic linker has loaded stays until the library is unloaded, for
    /// tools that read its symbols and unwind tables.
    pub keeps_library: bool,
}

/// Settings of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the ring in bytes.
    pub ring_size: usize,
    /// Path of the recording, which the control page keeps for `prof status` and `prof detach`.
    pub path: PathBuf,
    /// Time for which a thread waits for a free segment before it drops an event.
    pub wait: Duration,
    /// Whether recording is on from the attach.
    pub on: bool,
    /// Number of the toggle signal; 0: none.
    pub signal: u32,
    /// Number of the signal at which a report is written, which is another one; 0: none.
    pub dump_signal: u32,
    /// Whether stacks of frees are recorded, too.
    pub free_stacks: bool,
    /// Selection of the blocks that are recorded.
    pub capture: Capture,
    /// Whether each stack is also unwound in full, and both results are compared.
    pub verify: bool,
    /// Number of frames after which a stack is cut.
    pub max_depth: u32,
    /// Time for which prof tries to stop the target.
    pub timeout: Duration,
    /// Selection of the functions that are hooked.
    pub choice: FunctionChoice,
    /// How the hook gets into the target.
    pub way_in: WayIn,
    /// Called with the pid before the target gets a descriptor of the ring, or of the library. What it returns is dropped
    /// when the target has none any more.
    pub guard: Option<fn(Pid) -> Box<dyn Any>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_size: 64 << 20,
            path: PathBuf::new(),
            wait: Duration::from_millis(100),
            on: true,
            signal: libc::SIGUSR1 as u32,
            dump_signal: 0,
            free_stacks: false,
            capture: Capture::default(),
            verify: false,
            max_depth: 1024,
            timeout: Duration::from_secs(5),
            choice: FunctionChoice::default(),
            way_in: WayIn::default(),
            guard: None,
        }
    }
}

/// An attach: prof's memory in a target, which [`Installed::activate`] puts to use. If dropped before that, it is
/// removed.
#[derive(Debug)]
pub struct Installed {
    /// The process that is to be recorded.
    pub target: Target,
    /// Descriptor of the shared memory.
    pub ring_fd: OwnedFd,
    /// The shared memory, mapped in this process until that ends.
    pub shared: Shared<'static>,
    /// Settings of the recording.
    pub options: Options,
    /// Functions that will be patched.
    pub planned: Vec<Planned>,
    /// Functions that will be patched, as a recording lists them.
    pub hooked: Vec<Hook>,
    /// Functions that can't be patched, with the reasons.
    pub not_hooked: Vec<NotHooked>,
    /// Whether the target has a garbage collector that stops threads by signals.
    pub(crate) collects: bool,
    /// Modules of the target.
    pub modules: Vec<Module>,
    /// Times for which the target was stopped so far.
    pub stops: StopTimes,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// Unwind tables of the modules; the last ones' are missing if there are too many.
    pub(crate) tables: Vec<Tables>,
    /// Mappings of code at the time when the modules were read.
    pub(crate) code: Vec<(RemoteAddr, RemoteAddr, u64)>,
    pub(crate) mem: RemoteMemory,
    pub(crate) gadgets: Gadgets,
    pub(crate) image: HookImage,
    /// Address of the hook's image in the target.
    pub(crate) hook: RemoteAddr,
    /// Address of the note for forked children.
    pub(crate) note: RemoteAddr,
    pub(crate) done: bool,
    pub(crate) lock: Option<Lock>,
}
