//! What the live view of `stag top` shows: keys and statuses go in; rows, in their order, come out.
//! Knows no terminal, reads no clock, does no I/O.

use std::cmp::Ordering;
use std::rc::Rc;

use super::history::History;
use super::items::{Item, Tab, items};
use super::rates::Top;
use crate::control::slow::Slow;
use crate::control::status::{CoreStatus, Status};

/// The longest filter, characters.
const FILTER: usize = 64;

/// A key of the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    /// Ctrl-C.
    Interrupt,
    Enter,
    Esc,
    Tab,
    BackTab,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    On,
    Quit,
    Interrupt,
}

/// The order of a view's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The number of the column; none for the name.
    pub by: Option<usize>,
    pub reversed: bool,
}

/// The place in a view.
#[derive(Clone, Debug)]
struct View {
    order: Order,
    /// The row that stays chosen wherever it goes. Without one, the first row is chosen.
    held: Option<String>,
    /// The chosen row, counted in the rows that are shown.
    at: usize,
    /// The first row on the screen.
    first: usize,
}

/// The row whose details are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    pub tab: Tab,
    pub name: String,
    /// Lines that are scrolled out at the top.
    pub scrolled: usize,
}

/// What a daemon has said, and the rates since the status before.
#[derive(Clone)]
pub struct Shown {
    pub status: Rc<Status>,
    /// None after the first status, and where two cannot be compared.
    pub top: Option<Rc<Top>>,
}

pub struct State {
    tab: Tab,
    views: [View; Tab::ALL.len()],
    filter: String,
    typing: bool,
    paused: bool,
    details: Option<Details>,
    /// Rows, or lines of details, that fit on the screen.
    page: usize,
    /// The latest status, also in a pause.
    last: Rc<Status>,
    shown: Shown,
    all: Vec<(Tab, Vec<Item>)>,
    /// Rows of the view that the filter leaves, in their order: indices of its items.
    rows: Vec<usize>,
    history: History,
    /// None before the first answer.
    slow: Option<Result<Vec<Slow>, String>>,
    /// Why no daemon answers.
    lost: Option<String>,
    /// For how long the daemon has owed an answer, seconds.
    silent_s: u64,
}

/// Whether the difference of two statuses says what happened between them: of one process, with the
/// counts of the same cores.
fn comparable(before: &Status, now: &Status) -> bool {
    let known = |status: &Status| status.cores.iter().map(Option::is_some).collect::<Vec<_>>();
    before.pid == now.pid
        && now.uptime_s > before.uptime_s
        && before.complete == now.complete
        && known(before) == known(now)
}

impl State {
    /// With the first status of a daemon.
    pub fn new(status: Status) -> Self {
        let view = View { order: Order { by: Some(0), reversed: false }, held: None, at: 0, first: 0 };
        let last = Rc::new(status);
        let mut state = Self {
            tab: Tab::Units,
            views: std::array::from_fn(|_| view.clone()),
            filter: String::new(),
            typing: false,
            paused: false,
            details: None,
            page: 1,
            shown: Shown { status: last.clone(), top: None },
            last,
            all: Vec::new(),
            rows: Vec::new(),
            history: History::default(),
            slow: None,
            lost: None,
            silent_s: 0,
        };
        state.show(None);
        state
    }

    /// The daemon has answered.
    pub fn status(&mut self, status: Status) {
        let (before, now) = (self.last.clone(), Rc::new(status));
        self.lost = None;
        self.silent_s = 0;
        self.last = now;
        if !self.paused {
            self.show(comparable(&before, &self.last).then_some(before));
        }
    }

    /// Shows the latest status, and the rates since `before`.
    fn show(&mut self, before: Option<Rc<Status>>) {
        let now = self.last.clone();
        let top = before.as_ref().map(|before| Rc::new(Top::between(before, &now)));
        let change = before.as_deref().zip(top.as_deref());
        let tabs = Tab::ALL.into_iter().filter(|tab| tab.is_of(&now));
        self.all = tabs.map(|tab| (tab, items(tab, &now, change))).collect();
        if top.is_some() {
            self.history.add(&self.all);
        }
        self.shown = Shown { status: now, top };
        if !self.tabs().any(|tab| tab == self.tab) {
            let first = self.tabs().find(|tab| *tab != Tab::Cores);
            self.tab = first.unwrap_or(Tab::Cores);
            // An address of a file server's client is none of its units.
            self.details = None;
        }
        self.arrange();
    }

    /// The daemon has told its slow commands, or why it does not.
    pub fn slow(&mut self, slow: Result<Vec<Slow>, String>) {
        if !self.paused {
            self.slow = Some(slow);
        }
    }

    /// No daemon answers.
    pub fn lost(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// The daemon has owed an answer for so long. Returns whether that is news.
    pub fn silent(&mut self, seconds: u64) -> bool {
        std::mem::replace(&mut self.silent_s, seconds) != seconds
    }

    /// Whether the list of slow commands is shown.
    pub fn wants_slow(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.tab != Tab::Cores)
    }

    pub fn key(&mut self, key: Key) -> Flow {
        match key {
            Key::Interrupt => return Flow::Interrupt,
            _ if self.typing => self.typed(key),
            Key::Char('q') => return Flow::Quit,
            Key::Char('p') => self.paused ^= true,
            Key::Tab => self.turn(1),
            Key::BackTab => self.turn(Tab::ALL.len() - 1),
            Key::Char(digit @ '1'..='5') => self.open(Tab::ALL[digit as usize - '1' as usize]),
            _ if self.details.is_some() => self.key_in_details(key),
            _ => self.key_in_rows(key),
        }
        Flow::On
    }

    fn typed(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(letter) if self.filter.chars().count() < FILTER => self.filter.push(letter),
            Key::Char(_) => {}
            _ => return self.key_in_rows(key),
        }
        self.arrange();
    }

    /// Goes on by `steps` views.
    fn turn(&mut self, steps: usize) {
        let at = Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or(0);
        let next = (1..=Tab::ALL.len()).map(|turn| Tab::ALL[(at + turn * steps) % Tab::ALL.len()]);
        if let Some(tab) = next.into_iter().find(|tab| self.tabs().any(|shown| shown == *tab)) {
            self.open(tab);
        }
    }

    fn open(&mut self, tab: Tab) {
        if self.tabs().any(|shown| shown == tab) {
            self.tab = tab;
            self.details = None;
            self.arrange();
        }
    }

    fn key_in_details(&mut self, key: Key) {
        let page = self.page.max(1);
        let Some(details) = &mut self.details else { return };
        let scrolled = &mut details.scrolled;
        match key {
            Key::Esc | Key::Backspace => self.details = None,
            Key::Up => *scrolled = scrolled.saturating_sub(1),
            Key::Down => *scrolled += 1,
            Key::PageUp => *scrolled = scrolled.saturating_sub(page),
            Key::PageDown => *scrolled += page,
            Key::Home => *scrolled = 0,
            // The drawing knows how many lines there are.
            Key::End => *scrolled = usize::MAX / 2,
            _ => {}
        }
    }

    fn key_in_rows(&mut self, key: Key) {
        let (page, last) = (self.page.max(1), self.rows.len().saturating_sub(1));
        let at = self.view().at;
        match key {
            Key::Up => self.choose(at.saturating_sub(1)),
            Key::Down => self.choose((at + 1).min(last)),
            Key::PageUp => self.choose(at.saturating_sub(page)),
            Key::PageDown => self.choose((at + page).min(last)),
            Key::Home => self.choose(0),
            Key::End => self.choose(last),
            Key::Enter => {
                if let Some(item) = self.chosen() {
                    let name = item.name.clone();
                    self.slow = None;
                    self.details = Some(Details { tab: self.tab, name, scrolled: 0 });
                }
            }
            Key::Esc => {
                self.filter.clear();
                self.arrange();
            }
            Key::Char('/') => self.typing = true,
            Key::Char('v') => {
                self.view_mut().order.reversed ^= true;
                self.arrange();
            }
            Key::Char('n') => self.sort(None),
            Key::Char(letter) => {
                let column = self.tab.columns().position(|column| column.key == letter);
                if column.is_some() {
                    self.sort(column);
                }
            }
            _ => {}
        }
    }

    fn sort(&mut self, by: Option<usize>) {
        self.view_mut().order = Order { by, reversed: false };
        self.arrange();
    }

    fn choose(&mut self, at: usize) {
        let name = self.rows.get(at).map(|row| self.items()[*row].name.clone());
        let view = self.view_mut();
        view.at = at;
        // The first place is for the first row, whichever that becomes.
        view.held = name.filter(|_| at > 0);
        self.scroll();
    }

    /// Puts the rows of the view in their order, without those that the filter hides.
    fn arrange(&mut self) {
        let Order { by, reversed } = self.view().order;
        let items = self.items();
        let filter = self.filter.to_lowercase();
        let mut rows: Vec<usize> = (0..items.len()).filter(|row| items[*row].has(&filter)).collect();
        rows.sort_by(|a, b| {
            let (a, b) = (&items[*a], &items[*b]);
            let value = |item: &Item| by.and_then(|by| item.values.get(by).copied().flatten());
            let flipped = |order: Ordering| if reversed { order.reverse() } else { order };
            let order = match (value(a), value(b)) {
                (Some(a), Some(b)) => flipped(b.total_cmp(&a)),
                // Rows without the number come last, either way.
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) if by.is_none() => flipped(a.name.cmp(&b.name)),
                (None, None) => Ordering::Equal,
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
        let held = self.view().held.as_ref();
        let place = held.and_then(|held| rows.iter().position(|row| items[*row].name == *held));
        let last = rows.len().saturating_sub(1);
        self.rows = rows;
        let lost_hold = self.view().held.is_some() && place.is_none();
        let view = self.view_mut();
        match place {
            Some(place) => view.at = place,
            None if view.held.is_none() => view.at = 0,
            // Another row is now where the chosen one was.
            None => view.at = view.at.min(last),
        }
        if lost_hold && !self.typing {
            self.choose(self.view().at);
        }
        self.scroll();
    }

    /// Keeps the chosen row on the screen.
    fn scroll(&mut self) {
        let (page, count) = (self.page.max(1), self.rows.len());
        let view = self.view_mut();
        view.first = view.first.clamp((view.at + 1).saturating_sub(page), view.at);
        view.first = view.first.min(count.saturating_sub(page));
    }

    /// So many rows, or lines of details, fit on the screen.
    pub fn fit(&mut self, page: usize) {
        self.page = page;
        self.scroll();
    }

    /// The details have so many lines.
    pub fn fit_details(&mut self, lines: usize, page: usize) {
        self.page = page;
        if let Some(details) = &mut self.details {
            details.scrolled = details.scrolled.min(lines.saturating_sub(page));
        }
    }

    fn view(&self) -> &View {
        &self.views[self.tab as usize]
    }

    fn view_mut(&mut self) -> &mut View {
        &mut self.views[self.tab as usize]
    }

    /// The views that the daemon has.
    pub fn tabs(&self) -> impl Iterator<Item = Tab> {
        self.all.iter().map(|(tab, _)| *tab)
    }

    /// Rows of a view, without a filter.
    pub fn count(&self, tab: Tab) -> usize {
        self.items_of(tab).len()
    }

    pub fn tab(&self) -> Tab {
        self.tab
    }

    pub fn order(&self) -> Order {
        self.view().order
    }

    fn items_of(&self, tab: Tab) -> &[Item] {
        self.all.iter().find(|(one, _)| *one == tab).map_or(&[], |(_, items)| items)
    }

    fn items(&self) -> &[Item] {
        self.items_of(self.tab)
    }

    /// The rows that are on the screen, and whether each is the chosen one.
    pub fn on_screen(&self) -> impl Iterator<Item = (&Item, bool)> {
        let (view, items) = (self.view(), self.items());
        let rows = self.rows.iter().enumerate().skip(view.first).take(self.page);
        rows.map(move |(at, row)| (&items[*row], at == view.at))
    }

    /// The chosen row's number, of all that the filter leaves.
    pub fn place(&self) -> (usize, usize) {
        (self.view().at + 1, self.rows.len())
    }

    pub fn chosen(&self) -> Option<&Item> {
        self.rows.get(self.view().at).map(|row| &self.items()[*row])
    }

    pub fn item(&self, tab: Tab, name: &str) -> Option<&Item> {
        self.items_of(tab).iter().find(|item| item.name == name)
    }

    pub fn details(&self) -> Option<&Details> {
        self.details.as_ref()
    }

    pub fn shown(&self) -> &Shown {
        &self.shown
    }

    pub fn slow_commands(&self) -> Option<&Result<Vec<Slow>, String>> {
        self.slow.as_ref()
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn filter(&self) -> &str {
        &self.filter
    }

    pub fn is_typing(&self) -> bool {
        self.typing
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// What is wrong with the connection to the daemon, or with its answers.
    pub fn trouble(&self) -> Option<String> {
        if let Some(why) = &self.lost {
            return Some(format!("waiting for a daemon: {why}"));
        }
        if self.silent_s > 0 {
            return Some(format!("the daemon has not answered for {} s", self.silent_s));
        }
        let silent = |cores: &[Option<CoreStatus>]| cores.iter().filter(|core| core.is_none()).count();
        match silent(&self.shown.status.cores) {
            _ if self.shown.status.complete => None,
            0 => Some("a part of the daemon did not answer in time: its counts are missing".into()),
            1 => Some("a core did not answer in time: its counts are missing".into()),
            cores => Some(format!("{cores} cores did not answer in time: their counts are missing")),
        }
    }
}
