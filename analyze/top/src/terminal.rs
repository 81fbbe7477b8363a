//! The terminal: it is taken over and given back on every way out; and the loop of events and frames.

use crate::app::{Action, App, Format, Leave, Process};
use crate::feed::{Feed, FeedOptions, Source};
use crate::tty::{Input, Tty};
use crate::{keys, view};
use prof_os::files::open_regular;
use prof_os::{Pid, signals};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{
    self, DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture,
    Event, KeyCode, KeyModifiers,
};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use std::io::{self, BufRead, BufReader, Read, Stdout, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// Longest time until a new snapshot or a signal is noticed.
const TICK: Duration = Duration::from_millis(100);
/// Lines of source around the one that is shown, and the most that is read of a file.
const AROUND: u32 = 2;
const SOURCE: u64 = 16 << 20;

/// The actions that change a process or write files. The caller of this crate does them.
pub trait Control: Send + Sync {
    /// Switches the recording of a process on or off.
    ///
    /// # Errors
    /// The reason as a sentence.
    fn toggle(&self, pid: Pid, on: bool) -> Result<(), String>;

    /// Returns the formats that recordings can be exported to.
    fn formats(&self) -> Vec<Format>;

    /// Exports a recording to a new file; returns its path and what else there is to say.
    ///
    /// # Errors
    /// The reason as a sentence.
    fn export(&self, source: &Source, format: &Format) -> Result<String, String>;

    /// Returns whether this process is to end.
    fn is_interrupted(&self) -> bool;
}

/// A recording to show.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The recording.
    pub source: Source,
    /// Whether the caller has attached to the process for this view.
    pub own: bool,
}

/// Options of the view.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options for following the recordings.
    pub feed: FeedOptions,
    /// The answer to the question whether to detach.
    pub leave: Option<Leave>,
    /// Use colours.
    pub color: bool,
    /// The filter at the beginning.
    pub filter: String,
    /// The view at the beginning.
    pub view: crate::rows::View,
}

/// Shows recordings until the user quits; returns what was answered to the question whether to detach.
///
/// # Errors
/// If a recording can't be followed, or the terminal can't be used.
pub fn run(
    shown: Vec<Shown>,
    options: &Options,
    control: &Arc<impl Control + 'static>,
) -> Result<Option<Leave>, String> {
    let mut processes = Vec::new();
    for s in shown {
        let feed = Feed::start(s.source.clone(), options.feed.clone())?;
        processes.push(Process::new(s.source, s.own, Box::new(feed)));
    }
    let mut app = App::new(processes);
    (app.leave, app.color) = (options.leave, options.color);
    app.formats = control.formats();
    app.filter(&options.filter);
    app.view = options.view;
    let text = |e: io::Error| format!("cannot use the terminal: {e}");
    let mut screen = Screen::enter().map_err(text)?;
    let left = events(&mut app, &mut screen, control);
    drop(screen);
    match PANICKED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(panic) => Err(format!("prof top has failed: {panic}")),
        None => left.map_err(text),
    }
}

/// A result of a thread that works in the background.
enum Done {
    /// A text for the status line.
    Message(String),
    /// Lines of a source file.
    Source((String, u32), Vec<(u32, String)>),
}

/// Draws and takes events, until the end.
fn events(
    app: &mut App,
    screen: &mut Screen,
    control: &Arc<impl Control + 'static>,
) -> io::Result<Option<Leave>> {
    let (done, finished) = channel();
    let tty = Tty::new()?;
    let mut draws = true;
    loop {
        take(app, &finished, &mut draws);
        draws |= app.refresh();
        if PANICKED.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(None);
        }
        if control.is_interrupted() || tty.wait(Duration::ZERO) == Input::Gone {
            return Ok(app.leave);
        }
        if CONTINUED.swap(false, Relaxed) {
            screen.again()?;
            draws = true;
        }
        if STOPPED.swap(false, Relaxed) {
            screen.suspend()?;
            draws = true;
        }
        if draws {
            frame(app, screen, &done)?;
        }
        // While names are looked up, and messages are shown, there is something new without an event.
        let input = tty.wait(TICK);
        draws = input == Input::None;
        while tty.wait(Duration::ZERO) != Input::Gone && event::poll(Duration::ZERO)? {
            let event = event::read()?;
            draws = true;
            if is_redraw(&event) {
                screen.anew()?;
                continue;
            }
            let area = screen.terminal.size()?;
            let window = view::window(app, Rect::new(0, 0, area.width, area.height));
            match keys::handle(app, &event, window) {
                Action::None => {}
                Action::Quit(answer) => return Ok(answer.or(app.leave)),
                Action::Suspend => screen.suspend()?,
                Action::Toggle(on) => toggle(app, on, control, &done),
                Action::Export(at) => export(app, at, control, &done),
            }
            // The next key refers to what this one has made of the rows.
            app.arrange(window);
        }
    }
}

fn frame(app: &mut App, screen: &mut Screen, done: &Sender<Done>) -> io::Result<()> {
    screen.terminal.draw(|frame| {
        let window = view::window(app, frame.area());
        app.arrange(window);
        view::draw(app, frame);
    })?;
    if let Some(key) = app.wanted_source.take() {
        // Noted at once, so that it is read once.
        app.sources.insert(key.clone(), Vec::new());
        let done = done.clone();
        in_thread(move || {
            let lines = source(Path::new(&key.0), key.1).unwrap_or_default();
            let _ = done.send(Done::Source(key, lines));
        });
    }
    Ok(())
}

fn take(app: &mut App, finished: &Receiver<Done>, draws: &mut bool) {
    for done in finished.try_iter() {
        *draws = true;
        match done {
            Done::Message(text) => app.say(text),
            Done::Source(key, lines) => drop(app.sources.insert(key, lines)),
        }
    }
}

fn is_redraw(event: &Event) -> bool {
    matches!(event, Event::Resize(..))
        || matches!(event, Event::Key(k) if k.code == KeyCode::Char('l') && k.modifiers.contains(KeyModifiers::CONTROL))
}

fn in_thread(work: impl FnOnce() + Send + 'static) {
    // Without a thread it is not done, and can be asked for again.
    let _ = std::thread::Builder::new().spawn(work);
}

fn toggle(app: &mut App, on: bool, control: &Arc<impl Control + 'static>, done: &Sender<Done>) {
    let (control, done, pid) = (Arc::clone(control), done.clone(), app.process().source.pid);
    app.say(if on { "switching the recording on" } else { "switching the recording off" });
    in_thread(move || {
        let text = match control.toggle(pid, on) {
            Ok(()) if on => format!("process {pid} is recorded again"),
            Ok(()) => {
                format!("process {pid} is not recorded until p; its frees are not seen meanwhile")
            }
            Err(e) => e,
        };
        let _ = done.send(Done::Message(text));
    });
}

fn export(app: &mut App, at: usize, control: &Arc<impl Control + 'static>, done: &Sender<Done>) {
    let Some(format) = app.formats.get(at).cloned() else { return };
    let (control, done) = (Arc::clone(control), done.clone());
    let source = app.process().source.clone();
    app.say(format!("exporting as {}", format.name));
    in_thread(move || {
        let text = control.export(&source, &format).unwrap_or_else(|e| e);
        let _ = done.send(Done::Message(text));
    });
}

/// Returns the lines around one of a source file.
fn source(path: &Path, line: u32) -> Option<Vec<(u32, String)>> {
    let file = open_regular(path).ok()?;
    let lines = BufReader::new(file.take(SOURCE)).lines();
    let from = line.saturating_sub(AROUND).max(1);
    let wanted = lines.skip(from as usize - 1).take((line + AROUND + 1 - from) as usize);
    let shown = |text: String| {
        let plain = text.replace('\t', "    ");
        plain.chars().filter(|c| !c.is_control()).collect()
    };
    Some((from..).zip(wanted.map_while(Result::ok).map(shown)).collect())
}

static STOPPED: AtomicBool = AtomicBool::new(false);
static CONTINUED: AtomicBool = AtomicBool::new(false);
/// The terminal is taken over.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// The message of a thread that has panicked.
static PANICKED: Mutex<Option<String>> = Mutex::new(None);

extern "C" fn stopped(_: i32) {
    STOPPED.store(true, Relaxed);
}

extern "C" fn continued(_: i32) {
    CONTINUED.store(true, Relaxed);
}

fn catch_stops() {
    for (signal, handler) in
        [(libc::SIGTSTP, stopped as extern "C" fn(i32)), (libc::SIGCONT, continued)]
    {
        // SAFETY: the handlers only store to atomics, which is async-signal-safe.
        let _ = unsafe { signals::handle(signal, handler) };
    }
}

/// The terminal while it is taken over. It is given back when this is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn enter() -> io::Result<Self> {
        on_panic(std::thread::current().id());
        catch_stops();
        take_over()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        terminal.map(|terminal| Self { terminal }).inspect_err(|_| give_back())
    }

    /// Gives the terminal back, stops, and takes it over again when it is continued.
    fn suspend(&mut self) -> io::Result<()> {
        give_back();
        let _ = signals::set_default(libc::SIGTSTP);
        // SAFETY: sends a signal to the own process group, as the terminal does at Ctrl-Z.
        unsafe { libc::kill(0, libc::SIGTSTP) };
        catch_stops();
        CONTINUED.store(false, Relaxed);
        self.again()
    }

    /// Takes the terminal over once more: others may have used it meanwhile.
    fn again(&mut self) -> io::Result<()> {
        give_back();
        take_over()?;
        self.anew()
    }

    /// Draws all of the next frame. The terminal is not asked for anything, as one that does not answer, or late, would
    /// hold the view up.
    fn anew(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
        for signal in [libc::SIGTSTP, libc::SIGCONT] {
            let _ = signals::set_default(signal);
        }
    }
}

fn take_over() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Relaxed);
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, EnableBracketedPaste)
        .inspect_err(|_| give_back())
}

/// Gives the terminal back, if it is taken over. Errors mean that it is gone.
fn give_back() {
    if !TAKEN.swap(false, Relaxed) {
        return;
    }
    let mut out = io::stdout();
    let _ = execute!(out, DisableBracketedPaste, DisableMouseCapture, LeaveAlternateScreen, Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

/// Gives the terminal back before a panic of this thread is printed. One of another thread ends the view.
fn on_panic(main: ThreadId) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().id() == main {
                give_back();
            } else if TAKEN.load(Relaxed) {
                *PANICKED.lock().unwrap_or_else(PoisonError::into_inner) = Some(info.to_string());
                return;
            }
            before(info);
        }));
    });
}
