//! A session's command window: the next expected command, and the number of commands that the
//! initiator may send (RFC 7143 §4.2.2.1).
//!
//! Owns ExpCmdSN and MaxCmdSN and nothing else. Connections hold early PDUs themselves; the window
//! tells when they may be delivered. A session of one connection owns its window; the connections
//! of a larger one share a [`SharedWindow`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shared_window::SharedWindow;
use crate::pdu::Lun;
use crate::sn;

/// A connection of a session: its CID (RFC 7143 §11.12.7).
pub type Cid = u16;

/// The action for a numbered command that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is the next one: deliver it now, then the held commands that it released.
    Deliver,
    /// Earlier commands are missing: hold it until the window has moved past it.
    Hold,
    /// It is outside the window or a duplicate: ignore it silently (§4.2.2.1).
    Ignore,
}

/// ExpCmdSN, MaxCmdSN and the numbers that arrived ahead of their turn.
#[derive(Debug)]
pub struct CommandWindow {
    exp: u32,
    max: u32,
    early: BTreeMap<u32, Option<Cid>>,
    released: Vec<Cid>,
}

impl CommandWindow {
    /// A window that expects `first` and permits `depth` outstanding commands (1 to 2³¹−1). `first`
    /// is the CmdSN of the leading login request, which does not consume it.
    pub fn new(first: u32, depth: u32) -> Self {
        let depth = depth.clamp(1, (1 << 31) - 1);
        Self { exp: first, max: first.wrapping_add(depth - 1), early: BTreeMap::new(), released: Vec::new() }
    }

    /// The CmdSN of the next command to deliver.
    pub fn exp_cmd_sn(&self) -> u32 {
        self.exp
    }

    /// The last CmdSN that the initiator may use now.
    pub fn max_cmd_sn(&self) -> u32 {
        self.max
    }

    /// Handles the arrival of a non-immediate command numbered `cmd_sn` on connection `cid`.
    #[inline]
    pub fn receive(&mut self, cmd_sn: u32, cid: Cid) -> Admission {
        if cmd_sn == self.exp && self.early.is_empty() && cmd_sn != self.max.wrapping_add(1) {
            self.exp = self.exp.wrapping_add(1);
            return Admission::Deliver;
        }
        self.receive_ahead(cmd_sn, cid)
    }

    fn receive_ahead(&mut self, cmd_sn: u32, cid: Cid) -> Admission {
        if sn::lt(cmd_sn, self.exp) || sn::lt(self.max, cmd_sn) {
            return Admission::Ignore;
        }
        if cmd_sn == self.exp {
            self.advance();
            return Admission::Deliver;
        }
        match self.early.entry(cmd_sn) {
            std::collections::btree_map::Entry::Occupied(_) => Admission::Ignore,
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Some(cid));
                Admission::Hold
            }
        }
    }

    /// Skips a command that has not arrived and will not be run: ABORT TASK named it first (RFC
    /// 7143 §11.5.5). Returns true if it had not arrived.
    pub fn skip(&mut self, cmd_sn: u32) -> bool {
        if sn::lt(cmd_sn, self.exp) || sn::lt(self.max, cmd_sn) || self.early.contains_key(&cmd_sn) {
            return false;
        }
        if cmd_sn == self.exp {
            self.complete();
            self.advance();
        } else {
            self.early.insert(cmd_sn, None);
        }
        true
    }

    /// Gives up a held command, which will not be run: it is aborted, or its connection is gone.
    /// Its place is returned at its turn, or now if the turn has passed.
    pub fn give_up(&mut self, cmd_sn: u32) {
        match self.early.get_mut(&cmd_sn) {
            Some(place) => *place = None,
            None => self.complete(),
        }
    }

    /// Moves a held command to connection `cid`.
    pub(crate) fn move_held(&mut self, cmd_sn: u32, cid: Cid) {
        if let Some(Some(place)) = self.early.get_mut(&cmd_sn) {
            *place = cid;
        }
    }

    fn advance(&mut self) {
        self.exp = self.exp.wrapping_add(1);
        while let Some(entry) = self.early.remove(&self.exp) {
            match entry {
                Some(cid) if !self.released.contains(&cid) => self.released.push(cid),
                Some(_) => {}
                // No end of a command returns the place of a skipped one. It is returned at its
                // turn, not before: otherwise a peer could enlarge the window, and `early`, without
                // limit.
                None => self.complete(),
            }
            self.exp = self.exp.wrapping_add(1);
        }
    }

    /// Returns the place of a finished command: the initiator may send one more.
    pub fn complete(&mut self) {
        self.max = self.max.wrapping_add(1);
    }

    /// Takes the connections with held commands that have become deliverable since the last call.
    pub fn take_released(&mut self) -> Vec<Cid> {
        std::mem::take(&mut self.released)
    }
}

/// A connection's reference to the window.
#[derive(Debug)]
pub enum Window {
    /// The session can only have one connection (MaxConnections=1): nothing is shared.
    Own(Box<CommandWindow>),
    /// Shared by the session's connections on any cores.
    Shared(Arc<SharedWindow>),
}

impl Window {
    /// ExpCmdSN and MaxCmdSN.
    #[inline]
    pub fn numbers(&self) -> (u32, u32) {
        match self {
            Self::Own(window) => (window.exp_cmd_sn(), window.max_cmd_sn()),
            Self::Shared(window) => window.numbers(),
        }
    }

    /// [`SharedWindow::receive`]. The driver of a session's only connection keeps the order of its
    /// commands itself.
    #[inline]
    pub fn receive(&mut self, cmd_sn: u32, cid: Cid, fence: Option<Lun>) -> Admission {
        match self {
            Self::Own(window) => window.receive(cmd_sn, cid),
            Self::Shared(window) => window.receive(cmd_sn, cid, fence),
        }
    }

    /// [`SharedWindow::lift`].
    #[inline]
    pub fn lift(&self, cmd_sn: u32) {
        if let Self::Shared(window) = self {
            window.lift(cmd_sn);
        }
    }

    /// [`CommandWindow::complete`].
    #[inline]
    pub fn complete(&mut self) {
        match self {
            Self::Own(window) => window.complete(),
            Self::Shared(window) => window.complete(),
        }
    }

    /// [`CommandWindow::skip`].
    pub fn skip(&mut self, cmd_sn: u32) -> bool {
        match self {
            Self::Own(window) => window.skip(cmd_sn),
            Self::Shared(window) => window.skip(cmd_sn),
        }
    }

    /// [`CommandWindow::give_up`].
    pub fn give_up(&mut self, cmd_sn: u32) {
        match self {
            Self::Own(window) => window.give_up(cmd_sn),
            Self::Shared(window) => window.give_up(cmd_sn),
        }
    }

    /// [`CommandWindow::move_held`].
    pub(crate) fn move_held(&mut self, cmd_sn: u32, cid: Cid) {
        match self {
            Self::Own(window) => window.move_held(cmd_sn, cid),
            Self::Shared(window) => window.move_held(cmd_sn, cid),
        }
    }

    /// Whether [`Self::take_released`] would return a connection.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        match self {
            Self::Own(window) => !window.released.is_empty(),
            Self::Shared(window) => window.has_released(),
        }
    }

    /// [`CommandWindow::take_released`].
    #[inline]
    pub fn take_released(&mut self) -> Vec<Cid> {
        match self {
            Self::Own(window) => window.take_released(),
            Self::Shared(window) => window.take_released(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_order_are_delivered_and_the_window_moves_with_completions() {
        let mut w = CommandWindow::new(10, 4);
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn()), (10, 13));
        for sn in 10..14 {
            assert_eq!(w.receive(sn, 0), Admission::Deliver);
        }
        assert_eq!(w.receive(14, 0), Admission::Ignore, "the window is full");
        w.complete();
        assert_eq!(w.receive(14, 0), Admission::Deliver);
        assert_eq!(w.receive(14, 0), Admission::Ignore, "a duplicate");
    }

    #[test]
    fn a_gap_holds_later_commands_until_it_is_filled() {
        let mut w = CommandWindow::new(u32::MAX, 8);
        assert_eq!(w.receive(1, 2), Admission::Hold);
        assert_eq!(w.receive(0, 1), Admission::Hold);
        assert_eq!(w.receive(1, 3), Admission::Ignore);
        assert_eq!(w.receive(u32::MAX, 1), Admission::Deliver);
        assert_eq!(w.exp_cmd_sn(), 2);
        assert_eq!(w.take_released(), vec![1, 2]);
        assert!(w.take_released().is_empty());
    }

    #[test]
    fn a_skipped_number_lets_the_rest_go_on() {
        let mut w = CommandWindow::new(5, 4);
        assert_eq!(w.receive(7, 0), Admission::Hold);
        assert!(w.skip(6));
        assert!(!w.skip(6));
        assert!(w.skip(5));
        assert_eq!(w.exp_cmd_sn(), 8);
        assert_eq!(w.take_released(), vec![0]);
        assert!(!w.skip(5), "it is behind the window");
        assert_eq!(w.max_cmd_sn(), 10);
    }

    #[test]
    fn skipping_what_is_ahead_never_widens_the_window() {
        let mut w = CommandWindow::new(5, 4);
        for _ in 0..100 {
            w.skip(w.max_cmd_sn());
        }
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn()), (5, 8));
        for sn in 5..8 {
            assert_eq!(w.receive(sn, 0), Admission::Deliver);
        }
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn()), (9, 9), "three are running, one place is free");
    }

    #[test]
    fn a_held_command_is_not_skipped_but_given_up_and_counts_once() {
        let mut w = CommandWindow::new(5, 4);
        assert_eq!(w.receive(6, 0), Admission::Hold);
        assert!(!w.skip(6), "it is there");
        w.give_up(6);
        assert_eq!(w.receive(6, 0), Admission::Ignore);
        assert_eq!(w.receive(5, 0), Admission::Deliver);
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn()), (7, 9), "6 is over, 5 is running");
        assert_eq!(w.receive(8, 0), Admission::Hold);
        assert_eq!(w.receive(7, 0), Admission::Deliver);
        w.give_up(8);
        assert_eq!((w.exp_cmd_sn(), w.max_cmd_sn()), (9, 10), "5 and 7 are running");
    }

    #[test]
    fn the_window_works_across_the_wrap_of_serial_numbers() {
        let mut w = CommandWindow::new(u32::MAX - 1, 4);
        for i in 0..100u32 {
            assert_eq!(w.receive((u32::MAX - 1).wrapping_add(i), 0), Admission::Deliver);
            w.complete();
        }
    }
}
