//! What sockets' buffers let be on its way, and what to ask the system for. It knows no path and no target.

use ring::SystemLimits;

/// What a connection's buffer of one direction lets be on its way, bytes. What the other end's system does is not known here.
pub(super) struct Buffer {
    /// If it grows by itself.
    pub(super) auto: u64,
    /// The largest that may be asked for.
    most: u64,
    /// For each byte that is asked for, in tenths: the kernel doubles what it is given.
    tenths: u64,
}

impl Buffer {
    /// What to ask for so that `needs` are on their way; nothing where what grows by itself is as good.
    pub(super) fn chosen(&self, needs: u64) -> Option<u32> {
        let wanted = (needs * 10).div_ceil(self.tenths).next_multiple_of(64 << 10).min(self.most);
        if self.auto >= needs || wanted * self.tenths / 10 <= self.auto {
            return None;
        }
        u32::try_from(wanted).ok().filter(|bytes| (4096..=1 << 30).contains(bytes))
    }

    /// What it lets be on its way as it was chosen.
    pub(super) fn reach(&self, chosen: Option<u32>) -> u64 {
        chosen.map_or(self.auto, |bytes| u64::from(bytes) * self.tenths / 10).max(64 << 10)
    }
}

/// A sender that found its buffer full goes on when a third of it is empty (sk_stream_is_writeable): two thirds are what it can count
/// on. More of it is worse than it need be: what the path does not hold fills queues on the way.
pub(super) fn sending(system: &SystemLimits) -> Buffer {
    Buffer { auto: system.send_auto as u64 * 2 / 3, most: system.send_max as u64, tenths: 13 }
}

/// A receiver's window is about half of its buffer, since memory is counted as it is allocated (tcp_adv_win_scale).
pub(super) fn receiving(system: &SystemLimits) -> Buffer {
    Buffer { auto: system.recv_auto as u64 / 2, most: system.recv_max as u64, tenths: 10 }
}
