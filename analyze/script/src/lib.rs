//! Runs scripts that ask questions about recordings.
//!
//! The language is Rhai with bytehound's names, types and operators, and more. Lists of blocks are selections in a
//! recording's index: a filter is computed when its result is needed, by the code that answers the command line's
//! filters.
//!
//! * [`Script`]: an engine with its recordings, which runs pieces of code;
//! * [`Host`]: where output goes, and what a script may read: [`Native`] for the command line, [`Virtual`] for a server;
//! * [`names`]: all names with their descriptions, as the reference lists them;
//! * [`code_of`], [`report_script`], [`maps_script`]: a filter of the command line as code.

mod api;
mod askers;
mod backtrace;
mod block;
mod code;
mod complete;
mod duration;
mod engine;
mod error;
mod graph;
mod group;
mod host;
mod list;
mod loaded;
mod maplist;
mod memory;
mod objects;
mod only;
mod print;
mod recording;
mod reference;
mod registry;
mod save;
mod save_objects;
mod save_scans;
mod scans;
mod slave;
mod sort;
mod stack;
mod table;
mod text;
mod types;
mod words;

pub use code::{code_of, maps_script, quoted, report_script};
pub use engine::{Limits, Ran, Script, ScriptOptions, names};
pub use error::{ErrorKind, ScriptError};
pub use host::{
    CLOSED, FileKind, Host, Native, Output, OutputLimits, Sink, Virtual, Write, remove_part,
    virtual_path,
};
pub use recording::{Fallback, Indexed, Open, Recording};
pub use reference::{help, reference};
pub use registry::Name;
pub use slave::serve_stdin;
pub use stack::on_stack;
