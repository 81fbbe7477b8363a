//! The option for how prof's code gets into a process.

use clap::{Args, ValueEnum};
use prof_inject::By;

/// The option `--by` of the commands that begin a recording.
#[derive(Args, Clone, Debug)]
pub(crate) struct WayArgs {
    /// How prof's code gets into the process: `map`, by system calls alone, which needs nothing of the process; `dlopen`,
    /// as a library that its own dynamic linker loads and that debuggers and profilers know by name (AMD64 and AArch64,
    /// glibc 2.34 and newer); or `auto`, by `map`, and by `dlopen` where the process may not map code that is in no file
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Way::Auto)]
    pub by: Way,
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
