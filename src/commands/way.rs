//! The option for how prof's code gets into a process.

use crate::failure::usage;
use anyhow::Result;
use clap::{Args, ValueEnum};
use prof_inject::{By, WayIn};

/// The option `--by` of the commands that begin a recording.
#[derive(Args, Clone, Debug)]
pub(crate) struct WayArgs {
    /// How prof's code gets into the process: `map`, by system calls alone, which needs nothing of the process; `dlopen`,
    /// as a library that its own dynamic linker loads and that debuggers and profilers know by name (glibc 2.34 and newer);
    /// or `auto`, by `map`, and by `dlopen` where the process may not map code that is in no file
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Way::Auto)]
    pub by: Way,
    /// With `dlopen`, leave the file of the library in place until prof is taken out of the process, so that debuggers and
    /// profilers find its symbols and unwind tables: it is `/tmp/prof-hook-NUMBER/libprof_hook.so`, or in /var/tmp,
    /// /dev/shm or /run
    #[arg(long)]
    pub keep_library: bool,
}

impl WayArgs {
    /// Returns the way for the injector.
    ///
    /// # Errors
    /// If a library is to be kept and none is to be loaded.
    pub(crate) fn way_in(&self) -> Result<WayIn> {
        if self.keep_library && self.by == Way::Map {
            return Err(usage(
                "--keep-library needs --by dlopen: with --by map there is no library",
            ));
        }
        Ok(WayIn { by: self.by.into(), keeps_library: self.keep_library })
    }
}

/// How the hook gets into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// prof maps it, unless that is forbidden
    Auto,
    /// prof maps it
    Map,
    /// The process's own dynamic linker loads it
    Dlopen,
}

impl From<Way> for By {
    fn from(way: Way) -> Self {
        match way {
            Way::Auto => Self::Auto,
            Way::Map => Self::Map,
            Way::Dlopen => Self::Dlopen,
        }
    }
}
