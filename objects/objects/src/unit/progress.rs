//! Progress of a command, for the descriptor of sense data: functions that were done when it ended,
//! and functions that were not begun. They are bits of [`osd::sense::function`].

use osd::Id;
use osd::sense::Descriptor;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Functions that it consists of.
    wanted: u32,
    begun: u32,
    done: u32,
}

impl Progress {
    /// Of a command that consists of `wanted`.
    pub const fn of(wanted: u32) -> Self {
        Self { wanted, begun: 0, done: 0 }
    }

    pub fn begin(&mut self, functions: u32) {
        self.begun |= functions;
    }

    pub fn done(&mut self, functions: u32) {
        self.begun |= functions;
        self.done |= functions;
    }

    pub fn descriptor(&self, id: Id) -> Vec<u8> {
        let not_initiated = self.wanted & !self.begun;
        Descriptor::Object { not_initiated, completed: self.done & self.wanted, id }.emit()
    }
}
