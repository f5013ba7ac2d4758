//! The bytes in flight that socket buffers allow, and the sizes to request. Knows no path and no
//! target.

use runtime::SystemLimits;

/// The bytes in flight that a connection's buffer of one direction allows. The other end's system
/// is unknown here.
pub(super) struct Buffer {
    /// Bytes in flight with an automatic buffer.
    pub(super) auto: u64,
    /// The largest size that may be requested, bytes.
    most: u64,
    /// Bytes in flight per requested byte, in tenths: the kernel doubles the requested size.
    tenths: u64,
}

impl Buffer {
    /// The size to request for `needs` bytes in flight; `None` if the automatic buffer is as good.
    pub(super) fn chosen(&self, needs: u64) -> Option<u32> {
        let wanted = (needs * 10).div_ceil(self.tenths).next_multiple_of(64 << 10).min(self.most);
        if self.auto >= needs || wanted * self.tenths / 10 <= self.auto {
            return None;
        }
        u32::try_from(wanted).ok().filter(|bytes| (4096..=1 << 30).contains(bytes))
    }

    /// The bytes in flight with the chosen size.
    pub(super) fn reach(&self, chosen: Option<u32>) -> u64 {
        chosen.map_or(self.auto, |bytes| u64::from(bytes) * self.tenths / 10).max(64 << 10)
    }
}

/// A sender that found its buffer full continues when a third of it is empty
/// (sk_stream_is_writeable), so two thirds are usable. A larger buffer is harmful: the excess fills
/// queues on the path.
pub(super) fn sending(system: &SystemLimits) -> Buffer {
    Buffer { auto: system.send_auto as u64 * 2 / 3, most: system.send_max as u64, tenths: 13 }
}

/// A receiver's window is about half of its buffer, since the kernel counts allocated memory
/// (tcp_adv_win_scale).
pub(super) fn receiving(system: &SystemLimits) -> Buffer {
    Buffer { auto: system.recv_auto as u64 / 2, most: system.recv_max as u64, tenths: 10 }
}
