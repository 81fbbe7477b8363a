//! Measures what a frame of `prof top` takes with many stacks.
//!
//!     cargo run --release -p prof-top --example frame -- [STACKS]
//!
//! Each frame has new figures, so that rows are made, ordered and drawn. Times are processor time of this process.

use prof_analyze::live::Book;
use prof_top::app::{App, Process, SnapshotSource};
use prof_top::rows::View;
use prof_top::snapshot::{Moment, RowStats, Snapshot};
use prof_top::view;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, RwLock};

/// Frames of each view.
const FRAMES: u32 = 20;

struct Made {
    all: Vec<Arc<Snapshot>>,
    at: Rc<Cell<usize>>,
    book: RwLock<Book>,
}

impl SnapshotSource for Made {
    fn latest(&self) -> Option<Arc<Snapshot>> {
        self.all.get(self.at.get() % self.all.len()).cloned()
    }

    fn course(&self) -> Vec<Moment> {
        (0..2000).map(|i| Moment { at_ns: i << 30, live: i * 77 % 1000, rss: 2000 }).collect()
    }

    fn progress(&self) -> f64 {
        1.0
    }

    fn book(&self) -> &RwLock<Book> {
        &self.book
    }

    fn want(&self, _: Vec<u32>) {}
}

fn snapshot(stacks: u64, seed: u64) -> Snapshot {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let figures = (0..stacks).map(|_| {
        let live = next() % 100_000_000;
        RowStats {
            live,
            blocks: live / 100,
            peak: live * 2,
            growth: 10.0,
            rate: 5.0,
            ..RowStats::default()
        }
    });
    Snapshot { at_ns: seed << 30, is_on: true, stacks: figures.collect(), ..Snapshot::default() }
}

/// Returns the processor time of this process in milliseconds.
fn cpu_ms() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time to its argument.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stacks: u64 = std::env::args().nth(1).map_or(Ok(100_000), |n| n.parse())?;
    let at = Rc::new(Cell::new(0));
    let all = (1..4).map(|seed| Arc::new(snapshot(stacks, seed))).collect();
    let made = Made { all, at: Rc::clone(&at), book: RwLock::default() };
    let mut app = App::new(vec![Process::new(Default::default(), false, Box::new(made))]);
    let area = Rect::new(0, 0, 200, 60);
    let mut terminal = Terminal::new(TestBackend::new(area.width, area.height))?;
    println!("{stacks} stacks, {}x{}", area.width, area.height);
    for view in View::ALL {
        app.show(view);
        let (mut most, mut sum) = (0f64, 0.0);
        for _ in 0..FRAMES {
            at.set(at.get() + 1);
            let before = cpu_ms();
            app.refresh();
            app.arrange(view::window(&app, area));
            terminal.draw(|frame| view::draw(&mut app, frame))?;
            let took = cpu_ms() - before;
            (most, sum) = (most.max(took), sum + took);
        }
        println!("{:<10} mean {:6.1} ms, most {most:6.1} ms", view.name(), sum / f64::from(FRAMES));
    }
    Ok(())
}
