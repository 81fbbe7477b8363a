//! Finishes the recording of a process that has ended while no collector was at work.

use super::{Left, is_finished, open_own};
use crate::Error;
use prof_os::Pid;
use prof_trace::chunk;
use prof_trace::records::{End, kind};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

/// Reason for the end of such a recording.
const REASON: &str =
    "stopped: the collector had died, and then the process: what came after the collector is lost";

/// Finishes the recording at `path` of a process that has ended after its collector. The ring went with the process, so
/// what was in it is lost. Returns when it was written to last; `None`: it was finished already, or another prof is at
/// work on it, as the locked file or `is_written` says: that is only asked of a file that is not finished.
///
/// # Errors
/// If it is no recording of this user's, or can't be written.
pub fn finish_unattended(
    path: &Path,
    is_written: impl FnOnce() -> bool,
) -> Result<Option<SystemTime>, Error> {
    // The process's user, who could own the file as well, is not known any more.
    let mut file = open_own(Pid::NONE, path)?;
    let io = |what: &str| Error::io(format!("cannot {what} {}", path.display()));
    if file.try_lock().is_err() || is_finished(&file).unwrap_or(true) || is_written() {
        return Ok(None);
    }
    let meta = file.metadata().map_err(io("read"))?;
    let written = meta.modified().map_err(io("read"))?;
    let left = Left::read(&file).map_err(io("read"))?;
    let left = left.ok_or_else(|| Error::NotARecording(path.into()))?;
    if left.ended {
        return Ok(None);
    }
    // A fold that the collector had begun is of no use.
    crate::folding::remove_left(path, &meta);
    let ticks = left.last_pass.map_or(left.target.start_ticks, |pass| pass.ticks);
    let mut last = Vec::new();
    chunk::put(&mut last, kind::END, &End { ticks, reason: REASON.into() }.encode());
    file.set_len(left.len).map_err(io("cut"))?;
    file.seek(SeekFrom::Start(left.len)).map_err(io("write"))?;
    file.write_all(&last).map_err(io("write"))?;
    Ok(Some(written))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::chunk::Next;
    use prof_trace::records::Pass;
    use prof_trace::ticks::Ticks;

    #[test]
    fn a_recording_whose_process_is_gone_gets_an_end_behind_its_last_whole_chunk() {
        let path = std::env::temp_dir().join(format!("prof-unattended-{}", std::process::id()));
        let mut bytes = chunk::file_header().to_vec();
        let pass = Pass { number: 4, ticks: Ticks(77), ..Default::default() };
        chunk::put(&mut bytes, kind::PASS, &pass.encode());
        let whole = bytes.len();
        chunk::put(&mut bytes, kind::TOGGLE, &[1, 1]);
        bytes.pop();
        std::fs::write(&path, &bytes).expect("write");
        assert_eq!(finish_unattended(&path, || true).expect("a collector writes"), None);
        assert!(finish_unattended(&path, || false).expect("finished").is_some());
        let now = std::fs::read(&path).expect("read");
        assert_eq!(now[..whole], bytes[..whole]);
        let Next::Chunk(kind::END, payload, n) = chunk::next(&now[whole..]) else {
            panic!("no end: {now:?}")
        };
        assert_eq!(
            (whole + n, End::decode(payload).map(|e| e.ticks)),
            (now.len(), Some(Ticks(77)))
        );
        assert_eq!(finish_unattended(&path, || false).expect("nothing to do"), None);
        assert_eq!(std::fs::read(&path).expect("read"), now);
        let open = std::fs::File::open(&path).expect("open");
        open.lock().expect("a lock");
        std::fs::write(&path, &bytes).expect("write");
        assert_eq!(finish_unattended(&path, || false).expect("another is at work"), None);
        drop(open);
        std::fs::write(&path, b"something else").expect("write");
        assert!(finish_unattended(&path, || false).is_err());
        std::fs::remove_file(&path).expect("removed");
    }
}
