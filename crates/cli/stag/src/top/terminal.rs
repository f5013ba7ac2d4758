//! The terminal of the live view of `stag top`: its screen, its keys, and the signals that end it.
//! Must restore the terminal on every way out, a panic and SIGTERM included.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::draw::draw;
use super::paint::Paint;
use super::state::{Flow, Key, State};
use super::watch::{News, Watch};
use crate::control::client::Client;
use crate::control::status::Status;
use crate::exit::Exit;

/// The longest time for which news of the daemon and signals wait.
const TURN: Duration = Duration::from_millis(50);
/// A daemon may take so much longer than the interval for a report before that is told.
const SILENCE: Duration = Duration::from_secs(3);

/// Time for the view to end after a signal.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the terminal is this view's.
static OPEN: AtomicBool = AtomicBool::new(false);

/// A terminal that shows this view alone, until it is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        enable_raw_mode()?;
        OPEN.store(true, Ordering::SeqCst);
        // From here on, so that an error leaves the terminal as it was.
        let opened = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match opened {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was, unless it is that already.
fn restore() {
    if !OPEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // A terminal that is gone needs nothing.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

/// Whether a signal has come that ends the process. The process ends soon in any case: waiting for
/// the keys of a terminal that is gone, and writing to one that takes no output, never end.
fn signals() -> io::Result<Arc<AtomicBool>> {
    let mut all = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        all.add(signal);
    }
    // Threads that start later inherit that.
    all.thread_block()?;
    let came = Arc::new(AtomicBool::new(false));
    let seen = came.clone();
    let watch = move || {
        let _ = all.wait();
        seen.store(true, Ordering::Relaxed);
        thread::sleep(GRACE);
        if OPEN.load(Ordering::SeqCst) {
            let _ = disable_raw_mode();
        }
        std::process::exit(Exit::Interrupted as i32);
    };
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(came)
}

/// Shows the view until the user leaves it.
///
/// # Errors
/// The terminal fails.
pub fn live(client: Client, place: Option<PathBuf>, first: Status, interval: Duration) -> io::Result<Exit> {
    let ended = signals()?;
    let mut state = State::new(first);
    let watch = Watch::start(client, place, interval)?;
    let mut screen = Screen::open()?;
    let paint = Paint::of_environment();
    let (mut heard, mut wants_slow, mut dirty) = (Instant::now(), false, true);
    loop {
        if dirty {
            screen.terminal.draw(|frame| draw(frame, &mut state, paint))?;
        }
        dirty = false;
        if ended.load(Ordering::Relaxed) {
            return Ok(Exit::Interrupted);
        }
        if event::poll(TURN)? {
            dirty = true;
            if let Some(key) = key(&event::read()?) {
                match state.key(key) {
                    Flow::On => {}
                    Flow::Quit => return Ok(Exit::Done),
                    Flow::Interrupt => return Ok(Exit::Interrupted),
                }
            }
        }
        loop {
            match watch.news.try_recv() {
                Ok(News::Status(status)) => state.status(*status),
                Ok(News::Slow(slow)) => state.slow(slow),
                Ok(News::Lost(why)) => state.lost(why),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the thread that asks the daemon has ended"));
                }
            }
            (heard, dirty) = (Instant::now(), true);
        }
        let late = heard.elapsed().checked_sub(interval + SILENCE);
        let silent = late.map_or(0, |late| (late + SILENCE).as_secs());
        dirty |= state.silent(silent);
        if wants_slow != state.wants_slow() {
            wants_slow = state.wants_slow();
            watch.want_slow(wants_slow);
        }
    }
}

/// The key of an event, if it is one that may mean something.
fn key(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return None };
    if *kind == KeyEventKind::Release {
        return None;
    }
    if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        return (*code == KeyCode::Char('c') && *modifiers == KeyModifiers::CONTROL)
            .then_some(Key::Interrupt);
    }
    Some(match code {
        KeyCode::Char(letter) => Key::Char(*letter),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Tab | KeyCode::Right => Key::Tab,
        KeyCode::BackTab | KeyCode::Left => Key::BackTab,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_terminal_are_keys_of_the_view() {
        let pressed = |code, modifiers| key(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(pressed(KeyCode::Char('W'), KeyModifiers::SHIFT), Some(Key::Char('W')));
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(pressed(KeyCode::Char('q'), KeyModifiers::CONTROL), None);
        assert_eq!(pressed(KeyCode::Left, KeyModifiers::NONE), Some(Key::BackTab));
        assert_eq!(key(&Event::Resize(80, 24)), None);
    }
}
