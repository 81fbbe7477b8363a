//! Families: several processes that are recorded together, each to a recording of its own in one folder.
//!
//! [`supervise`] attaches to new ones, of which it learns from [`events`]. [`find`] says which processes belong to one,
//! [`folder`] is where their recordings are, [`journal`] what happened to each. [`record`] attaches to them, [`heir`] begins the
//! recordings of those that are recorded from their fork on, [`workers`] do both side by side, [`fates`] says whose children are
//! too short to be recorded from their fork on, [`collectors`] replaces collectors that were killed, [`again`] goes on after all
//! of prof was, [`control`] pauses, resumes and ends all at once, and [`joined`] makes one recording of all for the commands on
//! recordings.

pub(crate) mod again;
mod collectors;
pub(crate) mod control;
pub(crate) mod events;
mod fates;
pub(crate) mod find;
pub(crate) mod folder;
pub(crate) mod heir;
pub(crate) mod joined;
pub(crate) mod journal;
pub(crate) mod record;
pub(crate) mod supervise;
mod workers;
