//! Adds up the oldest figures of a recording of figures alone, so that it becomes shorter: of many steps becomes one, whose
//! end has the figures that it had. The rest of the recording can be appended as it is.

use super::RewriteError;
use super::out::Out;
use super::thin::History;
use crate::load::{ChunkFile, Item};
use prof_trace::derived::Zipped;
use prof_trace::records::{LifetimeStep, SizeStep, StackStep, Step, Stripped, kind};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Greatest number of steps of which the oldest part consists afterwards, but for those without stacks.
const COLUMNS: u64 = 512;
/// Part of its bytes that the steps of the oldest part may take afterwards, if fewer steps make that possible.
const PART: u64 = 2;
/// Greatest number of stacks in a record.
const STACKS: usize = 100_000;

/// Returns whether a recording says at its front that it has figures in place of events.
pub(super) fn is_of_figures(path: &Path) -> Result<bool, RewriteError> {
    let mut file = ChunkFile::open(path)?;
    while let Item::Chunk(kind, payload, _) = file.next()? {
        match kind {
            kind::STRIPPED => {
                let how = Stripped::decode(payload).map(|s| s.how);
                return Ok(how == Some(Stripped::AGGREGATED));
            }
            kind::PASS | kind::EVENTS | kind::PACKED => break,
            _ => {}
        }
    }
    Ok(false)
}

/// Writes the oldest part of a recording of figures to `out`, with fewer steps: all but about its last `keep` bytes. Returns
/// the offset in the recording behind this part, and the length of the output.
///
/// # Errors
/// If the recording can't be read, or has too little in front of these bytes; if the output can't be written.
pub(super) fn add_up(
    path: &Path,
    keep: u64,
    out: &mut dyn Write,
) -> Result<[u64; 2], RewriteError> {
    let history = History::read(path)?;
    let (cut, _) = history.cut(keep).ok_or_else(|| {
        RewriteError::Different(format!(
            "{} has too few figures in front of its last {keep} bytes to be added up",
            path.display()
        ))
    })?;
    let (all, span) = steps(path, cut, |_| Ok(()))?;
    let mut columns = COLUMNS;
    loop {
        let mut bytes = 0;
        let mut adder = Adder::new(span, columns);
        let mut count = |step: Step| {
            bytes += step.encode().len() as u64;
            Ok(())
        };
        steps(path, cut, |step| adder.add(&step, &mut count))?;
        adder.finish(&mut count)?;
        if bytes <= all / PART || columns == 1 {
            break;
        }
        columns /= 2;
    }
    let mut to = Out::new(out)?;
    describe(path, cut, &history, Adder::new(span, columns), &mut to)?;
    Ok([cut, to.bytes])
}

/// Passes the steps in front of an offset to `take`. Returns their bytes, and when the first begins and the last ends.
fn steps(
    path: &Path,
    cut: u64,
    mut take: impl FnMut(Step) -> Result<(), RewriteError>,
) -> Result<(u64, [Ticks; 2]), RewriteError> {
    let mut file = ChunkFile::open(path)?;
    let (mut bytes, mut span) = (0, None);
    while file.position() < cut {
        let Item::Chunk(kind, payload, _) = file.next()? else { break };
        let Some((step, len)) = step_of(kind, payload) else { continue };
        bytes += len;
        let [begin, _] = span.unwrap_or([step.begin; 2]);
        span = Some([begin, step.end]);
        take(step)?;
    }
    Ok((bytes, span.unwrap_or_default()))
}

/// Returns the step in a chunk, and its length; `None` if it has none.
fn step_of(kind: u16, payload: &[u8]) -> Option<(Step, u64)> {
    let unzipped;
    let payload = match kind {
        kind::STEP => payload,
        kind::ZIPPED => {
            let zipped = Zipped::decode(payload).filter(|z| z.kind == kind::STEP)?;
            unzipped = zipped.unzip()?;
            &unzipped
        }
        _ => return None,
    };
    Some((Step::decode(payload)?, payload.len() as u64))
}

/// Copies what stands in front of an offset, with fewer steps.
fn describe(
    path: &Path,
    cut: u64,
    history: &History,
    mut adder: Adder,
    to: &mut Out<'_>,
) -> Result<(), RewriteError> {
    let stays = history.stays(cut);
    let mut file = ChunkFile::open(path)?;
    let (mut counters, mut failed) = (None, None);
    while file.position() < cut {
        let at = file.position();
        let Item::Chunk(kind, payload, _) = file.next()? else { break };
        if let Some((step, _)) = step_of(kind, payload) {
            // The nodes that a step names stand in front of it, and so have been written.
            adder.add(&step, &mut |step| put(&step, to))?;
            continue;
        }
        match kind {
            kind::COUNTERS => counters = Some(payload.to_vec()),
            kind::FOLD_FAILED => failed = Some(payload.to_vec()),
            kind::END => {}
            kind::PASS if stays.pass(at).is_none() => {}
            _ if stays.drops(at) => {}
            _ => to.put(kind, payload)?,
        }
    }
    adder.finish(&mut |step| put(&step, to))?;
    // Of these the last ones count.
    for (kind, payload) in [(kind::COUNTERS, counters), (kind::FOLD_FAILED, failed)] {
        if let Some(payload) = payload {
            to.put(kind, &payload)?;
        }
    }
    Ok(())
}

/// Writes a step, in as many records as it needs.
pub(super) fn put(step: &Step, to: &mut Out<'_>) -> Result<(), RewriteError> {
    if step.stacks.len() <= STACKS {
        return Ok(to.put_zipped(kind::STEP, &step.encode())?);
    }
    for stacks in step.stacks.chunks(STACKS) {
        let part = Step { stacks: stacks.to_vec(), ..step.clone() };
        to.put_zipped(kind::STEP, &part.encode())?;
    }
    Ok(())
}

/// Adds up the steps of each column of time. One with stacks ends with a step that has them, as a step without says nothing
/// of what stacks had at its end.
struct Adder {
    start: Ticks,
    width: u64,
    column: u64,
    /// The steps of this column up to the last one with stacks, and those behind it.
    open: Option<Sum>,
    tail: Option<Sum>,
}

impl Adder {
    fn new([start, end]: [Ticks; 2], columns: u64) -> Self {
        let width = (end.since(start) / columns).max(1);
        Self { start, width, column: 0, open: None, tail: None }
    }

    /// Adds a step. Passes on what is complete by that.
    fn add(
        &mut self,
        step: &Step,
        put: &mut impl FnMut(Step) -> Result<(), RewriteError>,
    ) -> Result<(), RewriteError> {
        let column = step.end.since(self.start) / self.width;
        if column != self.column {
            self.column = column;
            if let Some(sum) = self.open.take().or_else(|| self.tail.take()) {
                put(sum.step)?;
            }
        }
        self.tail.get_or_insert_default().add(step);
        if !step.stacks.is_empty()
            && let Some(tail) = self.tail.take()
        {
            match &mut self.open {
                Some(open) => open.add(&tail.step),
                None => self.open = Some(tail),
            }
        }
        Ok(())
    }

    /// Passes on what is left.
    fn finish(
        &mut self,
        put: &mut impl FnMut(Step) -> Result<(), RewriteError>,
    ) -> Result<(), RewriteError> {
        let left = [self.open.take(), self.tail.take()];
        left.into_iter().flatten().try_for_each(|sum| put(sum.step))
    }
}

/// Steps that follow each other, as one.
#[derive(Default)]
struct Sum {
    step: Step,
    /// Index of each stack in the step, by node. The stacks keep the order in which they came.
    places: HashMap<u32, usize>,
    is_begun: bool,
}

impl Sum {
    fn add(&mut self, step: &Step) {
        let all = &mut self.step;
        let [frees, least_bytes, most_bytes, least, most] = step.course;
        if std::mem::replace(&mut self.is_begun, true) {
            let before = all.course;
            all.course = [
                frees,
                before[1].min(least_bytes),
                before[2].max(most_bytes),
                before[3].min(least),
                before[4].max(most),
            ];
        } else {
            (all.begin, all.course) = (step.begin, step.course);
        }
        all.end = step.end;
        all.totals.clone_from(&step.totals);
        for peak in &step.peaks {
            match all.peaks.iter_mut().find(|p| p[0] == peak[0]) {
                Some(p) => *p = *peak,
                None => all.peaks.push(*peak),
            }
        }
        for stack in &step.stacks {
            let next = all.stacks.len();
            let at = *self.places.entry(stack.node).or_insert(next);
            match all.stacks.get_mut(at) {
                Some(sum) => add_stack(sum, stack),
                None => all.stacks.push(stack.clone()),
            }
        }
    }
}

/// Adds what has changed of a stack in a later step.
pub(super) fn add_stack(sum: &mut StackStep, later: &StackStep) {
    sum.figures.iter_mut().zip(later.figures).for_each(|(n, d)| *n = n.wrapping_add(d));
    sum.first = sum.first.or(later.first);
    sum.last = later.last.or(sum.last);
    sum.peak = later.peak.or(sum.peak);
    for SizeStep { class, figures } in &later.sizes {
        match sum.sizes.iter_mut().find(|s| s.class == *class) {
            Some(s) => s.figures.iter_mut().zip(figures).for_each(|(n, d)| *n = n.wrapping_add(*d)),
            None => sum.sizes.push(SizeStep { class: *class, figures: *figures }),
        }
    }
    for LifetimeStep { class, count, bytes } in &later.lifetimes {
        match sum.lifetimes.iter_mut().find(|l| l.class == *class) {
            Some(l) => {
                (l.count, l.bytes) = (l.count.wrapping_add(*count), l.bytes.wrapping_add(*bytes));
            }
            None => {
                let (class, count, bytes) = (*class, *count, *bytes);
                sum.lifetimes.push(LifetimeStep { class, count, bytes });
            }
        }
    }
}
