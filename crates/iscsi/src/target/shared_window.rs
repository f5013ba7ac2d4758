//! A session's command window as its connections on several cores share it, without a lock while commands come in order.
//!
//! ExpCmdSN and the room up to MaxCmdSN are one atomic word. A command whose turn it is takes its number, and a command that
//! ends gives its place back, by one atomic operation each. When a command comes ahead of its turn the word is marked, and
//! from then on until all gaps are filled arrivals take their turns behind a mutex; endings never do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::window::{Admission, Cid};
use crate::sn;

/// Set while there are numbers that came ahead of their turn: arrivals go by the mutex.
const GAPS: u64 = 1 << 63;
/// One place more.
const PLACE: u64 = 1 << 32;

/// The word's parts: bit 63 [`GAPS`], bits 62 to 32 MaxCmdSN − ExpCmdSN + 1, bits 31 to 0 ExpCmdSN.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn exp(self) -> u32 {
        self.0 as u32
    }

    /// How many commands may come.
    fn room(self) -> u32 {
        (self.0 >> 32) as u32 & (u32::MAX >> 1)
    }

    fn max(self) -> u32 {
        self.exp().wrapping_add(self.room()).wrapping_sub(1)
    }

    fn has_gaps(self) -> bool {
        self.0 & GAPS != 0
    }

    /// With the next number taken. There is room.
    fn taken(self) -> Self {
        Self((self.0 & GAPS) | u64::from(self.room() - 1) << 32 | u64::from(self.exp().wrapping_add(1)))
    }
}

/// See the module. Cache lines of its own, since all cores of the session write it.
#[derive(Debug)]
#[repr(align(128))]
pub struct SharedWindow {
    word: AtomicU64,
    /// Whether there are connections to be told.
    news: AtomicBool,
    ahead: Mutex<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    /// Numbers that came ahead of their turn: on which connection, or nowhere any more.
    early: BTreeMap<u32, Option<Cid>>,
    released: Vec<Cid>,
}

impl SharedWindow {
    /// A window that expects `first` and lets `depth` commands be outstanding at once (1 to 2³¹−1).
    pub fn new(first: u32, depth: u32) -> Self {
        let depth = depth.clamp(1, (1 << 31) - 1);
        let word = AtomicU64::new(u64::from(depth) << 32 | u64::from(first));
        Self { word, news: AtomicBool::new(false), ahead: Mutex::default() }
    }

    #[inline]
    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// ExpCmdSN and MaxCmdSN.
    #[inline]
    pub fn numbers(&self) -> (u32, u32) {
        let word = self.word();
        (word.exp(), word.max())
    }

    /// A non-immediate command numbered `cmd_sn` arrived on connection `cid`.
    #[inline]
    pub fn receive(&self, cmd_sn: u32, cid: Cid) -> Admission {
        let mut word = self.word();
        while !word.has_gaps() && cmd_sn == word.exp() && word.room() > 0 {
            match self.word.compare_exchange_weak(word.0, word.taken().0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Admission::Deliver,
                Err(now) => word = Word(now),
            }
        }
        self.receive_ahead(cmd_sn, cid)
    }

    #[cold]
    fn receive_ahead(&self, cmd_sn: u32, cid: Cid) -> Admission {
        self.with_gaps(|this, ahead| {
            let word = this.word();
            if !word.admits(cmd_sn) || ahead.early.contains_key(&cmd_sn) {
                return Admission::Ignore;
            }
            if cmd_sn == word.exp() {
                this.advance(ahead);
                return Admission::Deliver;
            }
            ahead.early.insert(cmd_sn, Some(cid));
            Admission::Hold
        })
    }

    /// Fills the place of a command that has not arrived and will not be run. True if the place was open.
    pub fn skip(&self, cmd_sn: u32) -> bool {
        self.with_gaps(|this, ahead| {
            let word = this.word();
            if !word.admits(cmd_sn) || ahead.early.contains_key(&cmd_sn) {
                return false;
            }
            if cmd_sn == word.exp() {
                this.advance(ahead);
                this.complete();
            } else {
                ahead.early.insert(cmd_sn, None);
            }
            true
        })
    }

    /// A command that was held will not be run. Its place is given back when its turn comes, or now if it had come.
    pub fn give_up(&self, cmd_sn: u32) {
        let mut ahead = self.ahead();
        match ahead.early.get_mut(&cmd_sn) {
            Some(place) => *place = None,
            None => self.complete(),
        }
    }

    /// A command that was held on one connection is held on `cid` from now on.
    pub fn move_held(&self, cmd_sn: u32, cid: Cid) {
        if let Some(Some(place)) = self.ahead().early.get_mut(&cmd_sn) {
            *place = cid;
        }
    }

    /// The number that has not come, if others behind it have: a gap, which only the initiator can fill.
    pub fn gap(&self) -> Option<u32> {
        let ahead = self.ahead();
        (!ahead.early.is_empty()).then(|| self.word().exp())
    }

    /// A delivered command is finished: the initiator may have one more.
    #[inline]
    pub fn complete(&self) {
        self.word.fetch_add(PLACE, Ordering::AcqRel);
    }

    /// Whether [`Self::take_released`] would give something.
    #[inline]
    pub fn has_released(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// The connections that hold commands which have become deliverable since the last call.
    #[inline]
    pub fn take_released(&self) -> Vec<Cid> {
        match self.news.load(Ordering::Acquire) {
            false => Vec::new(),
            true => self.take_news(),
        }
    }

    #[cold]
    fn take_news(&self) -> Vec<Cid> {
        let mut ahead = self.ahead();
        self.news.store(false, Ordering::Release);
        std::mem::take(&mut ahead.released)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` while nobody else takes numbers; only places are given back meanwhile.
    fn with_gaps<T>(&self, f: impl FnOnce(&Self, &mut Ahead) -> T) -> T {
        let mut ahead = self.ahead();
        self.word.fetch_or(GAPS, Ordering::AcqRel);
        let result = f(self, &mut ahead);
        if ahead.early.is_empty() {
            self.word.fetch_and(!GAPS, Ordering::AcqRel);
        }
        result
    }

    /// Takes the next number, and those after it that have come.
    fn advance(&self, ahead: &mut Ahead) {
        self.take_number();
        while let Some(place) = ahead.early.remove(&self.word().exp()) {
            self.take_number();
            match place {
                Some(cid) if !ahead.released.contains(&cid) => ahead.released.push(cid),
                Some(_) => {}
                // Nothing will ever complete a skipped command: its place is given back when its turn has come, not
                // before, or a peer could widen the window, and `early` with it, without end.
                None => self.complete(),
            }
        }
        if !ahead.released.is_empty() {
            self.news.store(true, Ordering::Release);
        }
    }

    fn take_number(&self) {
        // It always gives a word, so it cannot fail.
        let _ =
            self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(Word(word).taken().0));
    }
}

impl Word {
    /// Whether the number lies in the window.
    fn admits(self, cmd_sn: u32) -> bool {
        self.room() > 0 && !sn::lt(cmd_sn, self.exp()) && !sn::lt(self.max(), cmd_sn)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU32;

    use super::super::window::CommandWindow;
    use super::*;

    fn random(state: &mut u64) -> u32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as u32
    }

    #[test]
    fn one_after_the_other_it_does_what_the_plain_window_does() {
        for seed in 0..200 {
            let (first, depth) = (u32::MAX - 20, 1 + seed as u32 % 9);
            let (shared, mut plain) = (SharedWindow::new(first, depth), CommandWindow::new(first, depth));
            let mut state = seed;
            let (mut running, mut held) = (0u32, BTreeSet::new());
            for _ in 0..500 {
                let near = plain.exp_cmd_sn().wrapping_add(random(&mut state) % (depth + 3)).wrapping_sub(1);
                let cid = (random(&mut state) % 3) as Cid;
                match random(&mut state) % 8 {
                    0..4 => {
                        let admission = plain.receive(near, cid);
                        assert_eq!(shared.receive(near, cid), admission);
                        match admission {
                            Admission::Deliver => running += 1,
                            Admission::Hold => _ = held.insert(near),
                            Admission::Ignore => {}
                        }
                    }
                    4 if running > 0 => {
                        running -= 1;
                        plain.complete();
                        shared.complete();
                    }
                    5 => assert_eq!(shared.skip(near), plain.skip(near)),
                    6 => {
                        if let Some(cmd_sn) = held.pop_first() {
                            plain.give_up(cmd_sn);
                            shared.give_up(cmd_sn);
                        }
                    }
                    _ => {
                        assert_eq!(shared.take_released(), plain.take_released());
                        // Whoever held them delivers them.
                        let exp = plain.exp_cmd_sn();
                        let due: Vec<u32> = held.iter().copied().filter(|sn| sn::lt(*sn, exp)).collect();
                        running += due.len() as u32;
                        due.iter().for_each(|sn| _ = held.remove(sn));
                    }
                }
                assert_eq!(shared.numbers(), (plain.exp_cmd_sn(), plain.max_cmd_sn()), "seed {seed}");
                assert_eq!(shared.word().has_gaps(), !shared.ahead().early.is_empty());
            }
        }
    }

    #[test]
    fn cores_that_take_and_complete_at_once_deliver_each_number_once_and_in_order() {
        const COUNT: u32 = 20_000;
        const DEPTH: u32 = 16;
        let window = SharedWindow::new(0, DEPTH);
        let next = AtomicU32::new(0);
        let delivered: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
        let deliver = |cmd_sn: u32| {
            assert!(sn::lt(cmd_sn, window.numbers().0), "{cmd_sn} before its turn");
            delivered[cmd_sn as usize].fetch_add(1, Ordering::Relaxed);
            window.complete();
        };
        std::thread::scope(|scope| {
            for cid in 0..3 {
                let (window, next, deliver) = (&window, &next, &deliver);
                scope.spawn(move || {
                    let mut held: Vec<u32> = Vec::new();
                    let mut mine: Option<u32> = None;
                    loop {
                        // Numbers are handed out in order; they arrive as the threads happen to run.
                        let cmd_sn = mine.take().unwrap_or_else(|| next.fetch_add(1, Ordering::Relaxed));
                        let done = cmd_sn >= COUNT;
                        if !done && sn::lt(window.numbers().1, cmd_sn) {
                            // As an initiator does: it waits for MaxCmdSN.
                            mine = Some(cmd_sn);
                            std::thread::yield_now();
                        } else if !done {
                            match window.receive(cmd_sn, cid) {
                                Admission::Deliver => deliver(cmd_sn),
                                Admission::Hold => held.push(cmd_sn),
                                Admission::Ignore => panic!("{cmd_sn} is within the window and new"),
                            }
                        }
                        let exp = window.numbers().0;
                        held.retain(|cmd_sn| {
                            let due = sn::lt(*cmd_sn, exp);
                            if due {
                                deliver(*cmd_sn);
                            }
                            !due
                        });
                        if done && held.is_empty() {
                            break;
                        }
                    }
                });
            }
        });
        assert!(delivered.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        assert_eq!(window.numbers(), (COUNT, COUNT + DEPTH - 1));
        assert!(!window.word().has_gaps());
    }
}
