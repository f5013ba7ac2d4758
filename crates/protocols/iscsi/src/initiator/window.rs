//! Assigns CmdSNs to commands, within the target's window and the limits of this side (RFC 7143
//! §4.2.2.1).

use crate::sn;

/// The numbers of a session's commands.
#[derive(Debug)]
pub(super) struct Window {
    /// The CmdSN of the next command.
    cmd_sn: u32,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    /// The maximum number of outstanding commands, regardless of the target.
    limit: usize,
    /// Commands have waited because of `limit`.
    limited: bool,
    /// Waiting commands are held back.
    held: bool,
}

impl Window {
    /// A closed window at `first`.
    pub fn new(first: u32) -> Self {
        let max_cmd_sn = first.wrapping_sub(1);
        Self { cmd_sn: first, exp_cmd_sn: first, max_cmd_sn, limit: usize::MAX, limited: false, held: false }
    }

    /// Begins a session's numbers again: the next login carries `first`.
    pub fn restart(&mut self, first: u32) {
        self.cmd_sn = first;
        self.open_at(first);
    }

    /// The leading login is over: the target expects `exp_cmd_sn`, and takes nothing yet.
    pub fn open_at(&mut self, exp_cmd_sn: u32) {
        (self.exp_cmd_sn, self.max_cmd_sn) = (exp_cmd_sn, exp_cmd_sn.wrapping_sub(1));
    }

    /// The CmdSN of the next command.
    #[inline]
    pub fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    /// The CmdSN that the target expects.
    #[inline]
    pub fn exp_cmd_sn(&self) -> u32 {
        self.exp_cmd_sn
    }

    /// The width of the target's window in its last PDU.
    pub fn width(&self) -> u32 {
        // A closed window has MaxCmdSN = ExpCmdSN - 1.
        self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1)
    }

    /// Limits the outstanding commands, to at least one.
    pub fn limit(&mut self, commands: usize) {
        self.limit = commands.max(1);
    }

    /// Whether there is such a limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.limit != usize::MAX
    }

    /// Whether commands have waited because of the limit since the last call.
    pub fn take_limited(&mut self) -> bool {
        std::mem::take(&mut self.limited)
    }

    /// Holds waiting commands back, or releases them.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether one more command may be sent while `outstanding` are.
    #[inline]
    pub fn admits(&mut self, outstanding: usize) -> bool {
        if self.held || !sn::le(self.cmd_sn, self.max_cmd_sn) {
            return false;
        }
        self.limited |= outstanding >= self.limit;
        outstanding < self.limit
    }

    /// Takes the next CmdSN.
    #[inline]
    pub fn take(&mut self) -> u32 {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = sn::next(cmd_sn);
        cmd_sn
    }

    /// Takes in ExpCmdSN and MaxCmdSN of a PDU; ignores older values, and pairs that contradict
    /// themselves.
    pub fn update(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        if sn::lt(max_cmd_sn, exp_cmd_sn.wrapping_sub(1)) {
            return;
        }
        if sn::gt(max_cmd_sn, self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
        if sn::gt(exp_cmd_sn, self.exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
    }
}
