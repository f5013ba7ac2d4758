//! A session's command window, shared by its connections on several cores, without a lock while
//! commands arrive in order.
//!
//! One atomic word contains ExpCmdSN and the room up to MaxCmdSN. A command in order takes its
//! number, and an ended command returns its place, with one atomic operation each. A command ahead
//! of its turn sets a mark in the word. Until all gaps are filled, arrivals use a mutex; command
//! ends do not.
//!
//! An ORDERED command sets a fence with its number: later commands of its unit wait on all
//! connections until it has ended. While there are fences, the ends of commands use the mutex.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::window::{Admission, Cid};
use crate::pdu::Lun;
use crate::sn;

/// Set while numbers have arrived ahead of their turn: arrivals use the mutex.
const GAPS: u64 = 1 << 63;
/// One additional place.
const PLACE: u64 = 1 << 32;

/// The word's fields: bit 63 [`GAPS`], bits 62 to 32 MaxCmdSN − ExpCmdSN + 1, bits 31 to 0
/// ExpCmdSN.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn exp(self) -> u32 {
        self.0 as u32
    }

    /// The number of commands that may arrive.
    fn room(self) -> u32 {
        (self.0 >> 32) as u32 & (u32::MAX >> 1)
    }

    fn max(self) -> u32 {
        self.exp().wrapping_add(self.room()).wrapping_sub(1)
    }

    fn has_gaps(self) -> bool {
        self.0 & GAPS != 0
    }

    /// The word after the next number is taken. There must be room.
    fn taken(self) -> Self {
        Self((self.0 & GAPS) | u64::from(self.room() - 1) << 32 | u64::from(self.exp().wrapping_add(1)))
    }
}

/// The shared window; see the module. It has its own cache lines, since all cores of the session
/// write it.
#[derive(Debug)]
#[repr(align(128))]
pub struct SharedWindow {
    word: AtomicU64,
    /// Whether `released` is not empty.
    news: AtomicBool,
    /// Whether an ORDERED command has ever arrived.
    ordered: AtomicBool,
    /// Whether `fences` is not empty.
    fenced: AtomicBool,
    /// Whether `unfenced` is not empty.
    lifted: AtomicBool,
    ahead: Mutex<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    /// Numbers that arrived ahead of their turn, each with its connection; `None` if skipped.
    early: BTreeMap<u32, Option<Cid>>,
    released: Vec<Cid>,
    /// ORDERED commands that have arrived and not ended: their numbers and LUNs.
    fences: Vec<(u32, Lun)>,
    /// Connections with commands that wait for one of them.
    waiting: Vec<Cid>,
    /// Those of them that have to look again: a fence is gone.
    unfenced: Vec<Cid>,
}

impl SharedWindow {
    /// A window that expects `first` and permits `depth` outstanding commands (1 to 2³¹−1).
    pub fn new(first: u32, depth: u32) -> Self {
        let depth = depth.clamp(1, (1 << 31) - 1);
        let word = AtomicU64::new(u64::from(depth) << 32 | u64::from(first));
        let no = || AtomicBool::new(false);
        Self { word, news: no(), ordered: no(), fenced: no(), lifted: no(), ahead: Mutex::default() }
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

    /// Handles the arrival of a non-immediate command numbered `cmd_sn` on connection `cid`. An
    /// ORDERED command comes with its LUN, which it [fences](Self::is_fenced) until
    /// [`Self::lift`].
    #[inline]
    pub fn receive(&self, cmd_sn: u32, cid: Cid, fence: Option<Lun>) -> Admission {
        let mut word = self.word();
        while fence.is_none() && !word.has_gaps() && cmd_sn == word.exp() && word.room() > 0 {
            match self.word.compare_exchange_weak(word.0, word.taken().0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Admission::Deliver,
                Err(now) => word = Word(now),
            }
        }
        self.receive_ahead(cmd_sn, cid, fence)
    }

    #[cold]
    fn receive_ahead(&self, cmd_sn: u32, cid: Cid, fence: Option<Lun>) -> Admission {
        self.with_gaps(|this, ahead| {
            let word = this.word();
            if !word.admits(cmd_sn) || ahead.early.contains_key(&cmd_sn) {
                return Admission::Ignore;
            }
            if let Some(lun) = fence {
                // Before its number is taken: no later command has its turn without seeing this.
                ahead.fences.push((cmd_sn, lun));
                this.ordered.store(true, Ordering::Release);
                this.fenced.store(true, Ordering::Release);
            }
            if cmd_sn == word.exp() {
                this.advance(ahead);
                return Admission::Deliver;
            }
            ahead.early.insert(cmd_sn, Some(cid));
            Admission::Hold
        })
    }

    /// Skips a command that has not arrived and will not be run. Returns true if it had not
    /// arrived.
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

    /// Gives up a held command, which will not be run. Its place is returned at its turn, or now if
    /// the turn has passed.
    pub fn give_up(&self, cmd_sn: u32) {
        let mut ahead = self.ahead();
        match ahead.early.get_mut(&cmd_sn) {
            Some(place) => *place = None,
            None => self.complete(),
        }
        self.lift_fence(&mut ahead, cmd_sn);
    }

    /// Whether an ORDERED command has ever arrived.
    #[inline]
    pub fn has_ordered(&self) -> bool {
        self.ordered.load(Ordering::Acquire)
    }

    /// Whether there are fences.
    #[inline]
    fn has_fences(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Whether an earlier ORDERED command of `lun` has not ended, on whatever connection. If so,
    /// [`Self::take_unfenced`] names connection `cid` when one of them has.
    #[inline]
    pub fn is_fenced(&self, cmd_sn: u32, lun: Lun, cid: Cid) -> bool {
        self.has_fences() && self.waits_for_fence(cmd_sn, lun, cid)
    }

    #[cold]
    fn waits_for_fence(&self, cmd_sn: u32, lun: Lun, cid: Cid) -> bool {
        let mut ahead = self.ahead();
        let fenced = ahead.fences.iter().any(|(number, of)| *of == lun && sn::lt(*number, cmd_sn));
        if fenced && !ahead.waiting.contains(&cid) {
            ahead.waiting.push(cid);
        }
        fenced
    }

    /// The command with this number has ended: lifts its fence, if it has one.
    #[inline]
    pub fn lift(&self, cmd_sn: u32) {
        if self.has_fences() {
            self.lift_fence(&mut self.ahead(), cmd_sn);
        }
    }

    #[cold]
    fn lift_fence(&self, ahead: &mut Ahead, cmd_sn: u32) {
        let Some(at) = ahead.fences.iter().position(|(number, _)| *number == cmd_sn) else { return };
        ahead.fences.swap_remove(at);
        for cid in std::mem::take(&mut ahead.waiting) {
            if !ahead.unfenced.contains(&cid) {
                ahead.unfenced.push(cid);
            }
        }
        self.lifted.store(!ahead.unfenced.is_empty(), Ordering::Release);
        self.fenced.store(!ahead.fences.is_empty(), Ordering::Release);
    }

    /// Whether [`Self::take_unfenced`] would return a connection.
    #[inline]
    pub fn has_unfenced(&self) -> bool {
        self.lifted.load(Ordering::Acquire)
    }

    /// Takes the connections that were fenced, and have to look again.
    pub fn take_unfenced(&self) -> Vec<Cid> {
        let mut ahead = self.ahead();
        self.lifted.store(false, Ordering::Release);
        std::mem::take(&mut ahead.unfenced)
    }

    /// Moves a held command to connection `cid`.
    pub(crate) fn move_held(&self, cmd_sn: u32, cid: Cid) {
        if let Some(Some(place)) = self.ahead().early.get_mut(&cmd_sn) {
            *place = cid;
        }
    }

    /// The missing number, if later ones have arrived: only the initiator can fill this gap.
    pub fn gap(&self) -> Option<u32> {
        let ahead = self.ahead();
        (!ahead.early.is_empty()).then(|| self.word().exp())
    }

    /// Returns the place of a finished command: the initiator may send one more.
    #[inline]
    pub fn complete(&self) {
        self.word.fetch_add(PLACE, Ordering::AcqRel);
    }

    /// Whether [`Self::take_released`] would return a connection.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// Takes the connections with held commands that have become deliverable since the last call.
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

    /// Runs `f` while no other thread takes numbers; other threads can only return places.
    fn with_gaps<T>(&self, f: impl FnOnce(&Self, &mut Ahead) -> T) -> T {
        let mut ahead = self.ahead();
        self.word.fetch_or(GAPS, Ordering::AcqRel);
        let result = f(self, &mut ahead);
        if ahead.early.is_empty() {
            self.word.fetch_and(!GAPS, Ordering::AcqRel);
        }
        result
    }

    /// Takes the next number, and those after it that have arrived.
    fn advance(&self, ahead: &mut Ahead) {
        self.take_number();
        while let Some(place) = ahead.early.remove(&self.word().exp()) {
            self.take_number();
            match place {
                Some(cid) if !ahead.released.contains(&cid) => ahead.released.push(cid),
                Some(_) => {}
                // No end of a command returns the place of a skipped one. It is returned at its
                // turn, not before: otherwise a peer could enlarge the window, and `early`, without
                // limit.
                None => self.complete(),
            }
        }
        if !ahead.released.is_empty() {
            self.news.store(true, Ordering::Release);
        }
    }

    fn take_number(&self) {
        // The closure always returns a word, so it cannot fail.
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
                        assert_eq!(shared.receive(near, cid, None), admission);
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
                        // Their connections deliver them.
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
    fn later_commands_of_a_unit_are_fenced_until_the_ordered_one_has_ended() {
        let window = SharedWindow::new(u32::MAX, 8);
        let (lun, other) = (Lun::ZERO, Lun::new(1).expect("a small number"));
        assert_eq!(window.receive(1, 2, Some(lun)), Admission::Hold);
        assert_eq!(window.receive(u32::MAX, 1, None), Admission::Deliver);
        assert_eq!(window.receive(0, 1, None), Admission::Deliver);
        assert_eq!(window.take_released(), [2]);
        assert!(!window.is_fenced(0, lun, 1) && !window.is_fenced(1, lun, 2), "an older one, and itself");
        assert!(!window.is_fenced(2, other, 1));
        assert!(window.is_fenced(2, lun, 1) && window.is_fenced(3, lun, 1));
        window.lift(0);
        assert!(window.is_fenced(2, lun, 3) && !window.has_unfenced());
        window.lift(1);
        assert!(window.has_unfenced() && !window.has_fences());
        assert_eq!(window.take_unfenced(), [1, 3]);
        assert!(!window.has_unfenced() && !window.is_fenced(2, lun, 1));
        // One that is given up before its turn.
        assert_eq!(window.receive(3, 1, Some(lun)), Admission::Hold);
        assert!(window.is_fenced(4, lun, 2));
        window.give_up(3);
        assert_eq!((window.has_fences(), window.take_unfenced()), (false, vec![2]));
        // One that does not count.
        assert_eq!(window.receive(3, 1, Some(lun)), Admission::Ignore);
        assert!(!window.has_fences());
    }

    #[test]
    fn concurrent_cores_deliver_each_number_once_and_in_order() {
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
                        // Numbers are assigned in order; they arrive in any order.
                        let cmd_sn = mine.take().unwrap_or_else(|| next.fetch_add(1, Ordering::Relaxed));
                        let done = cmd_sn >= COUNT;
                        if !done && sn::lt(window.numbers().1, cmd_sn) {
                            // Like an initiator, wait for MaxCmdSN.
                            mine = Some(cmd_sn);
                            std::thread::yield_now();
                        } else if !done {
                            match window.receive(cmd_sn, cid, None) {
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
