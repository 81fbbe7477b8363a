//! Creates the file of a recording.

use crate::failure::usage;
use anyhow::Result;
use prof_collect::create_recording;
use prof_os::Pid;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Creates the file of a recording, before anything is touched: the requested one, or `./prof.NAME.PID.TIME.prof`.
pub(crate) fn create(wanted: Option<&Path>, name: &str, pid: Pid) -> Result<(PathBuf, File)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = local_time(now.as_secs() as i64);
    // There may be two recordings within a second.
    let more = (2..100).map(|n| format!("{time}-{n}"));
    for time in std::iter::once(time.clone()).chain(more) {
        let path = wanted.map_or_else(|| default_path(name, pid, &time), Path::to_owned);
        match create_recording(&path) {
            Ok(file) => return Ok((path, file)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && wanted.is_none() => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                return Err(usage(format!("{} exists; give another file with -o", path.display())));
            }
            Err(e) => {
                return Err(usage(format!(
                    "cannot create {}: {e}; give another file with -o",
                    path.display()
                )));
            }
        }
    }
    Err(usage("too many recordings of this second; give a file with -o"))
}

fn default_path(name: &str, pid: Pid, time: &str) -> PathBuf {
    format!("./prof.{}.{pid}.{time}.prof", plain_name(name)).into()
}

/// Returns a name without characters that are special in the names of files.
pub(crate) fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_+".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Returns a path in the current folder for a file about a process's recording, with the present time:
/// `prof.NAME.PID.TIME.SUFFIX`.
#[cfg(feature = "top")]
pub(crate) fn beside(name: &str, pid: Pid, suffix: &str) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    default_path(name, pid, &local_time(now.as_secs().cast_signed())).with_extension(suffix)
}

/// Returns a time in local time, as `20261121-061500`.
pub(crate) fn local_time(seconds: i64) -> String {
    let t = broken_down(seconds);
    format!(
        "{:04}{:02}{:02}-{:02}{:02}{:02}",
        t.tm_year + 1900,
        t.tm_mon + 1,
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec
    )
}

/// Returns the local time of day, as `06:15:00`.
pub(crate) fn time_of_day(seconds: i64) -> String {
    let t = broken_down(seconds);
    format!("{:02}:{:02}:{:02}", t.tm_hour, t.tm_min, t.tm_sec)
}

fn broken_down(seconds: i64) -> libc::tm {
    let mut t = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid, and all zeroes are a valid `tm`.
    unsafe {
        libc::localtime_r(&(seconds as libc::time_t), t.as_mut_ptr());
        t.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_paths_are_plain_file_names() {
        let p = default_path("a/b c:d", Pid::from_raw(7), "20261121-061500").display().to_string();
        assert_eq!(p, "./prof.a_b_c_d.7.20261121-061500.prof");
        assert_eq!(local_time(0).len(), 15);
        assert_eq!(time_of_day(0).len(), 8);
    }
}
