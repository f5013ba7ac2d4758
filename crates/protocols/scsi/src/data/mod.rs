//! Parameter data that commands return or send, one file each: typed values, their `emit` and, for
//! initiators, their `parse`.
//!
//! `emit` returns the whole data; the caller truncates it to the ALLOCATION LENGTH. `parse` accepts
//! any bytes of a peer. For invalid data it returns `None`, or sense data where a unit reads a
//! parameter list; it never panics.

pub mod capacity;
pub mod defects;
pub mod format;
pub mod inquiry;
pub mod lba_status;
pub mod log;
pub mod luns;
pub mod opcodes;
pub mod sanitize;
pub mod target_port_groups;
pub mod text;
pub mod timestamp;
pub mod tmfs;
pub mod unmap;
pub mod vpd;

/// Big-endian fields of parameter data at fixed offsets; `None` beyond its end.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }
    pub fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(self.array(at)?))
    }
    pub fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.array(at)?))
    }
    pub fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_be_bytes(self.array(at)?))
    }
    pub fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}
