//! What a queue pair is set up with.

use std::time::Duration;

/// What a queue pair is set up with. What the device cannot do is less.
#[derive(Clone, Debug)]
pub struct Options {
    /// RDMA Reads of the peer that are answered at once (responder resources), at most 128.
    pub ird: u8,
    /// RDMA Reads of ours that are outstanding at once (initiator depth), at most 128.
    pub ord: u8,
    /// Operations that the device has at once, of Sends, RDMA Writes and RDMA Reads together; more wait here. 4 to 4096.
    pub sends: u32,
    /// Receives posted at once; 1 to 16384.
    pub receives: u32,
    /// Length of the longest Send that is received, in bytes: 64 bytes to 1 MiB.
    pub receive_size: usize,
    /// Memory exposed at once at most, in keys.
    pub stags: usize,
    /// Bytes of slots that a connection may have, where data is exposed by copying it: see `domain`.
    pub slot_bytes: usize,
    /// Bind memory windows even where the device does not hold the peer to their bounds (Linux' rxe), which opens up to 2 MiB
    /// around what is exposed. For tests of windows where there is no other device.
    pub unsound_windows: bool,
    /// How long setting up may take.
    pub setup_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ird: 16,
            ord: 16,
            sends: 256,
            receives: 128,
            receive_size: 8 << 10,
            stags: 16 << 10,
            slot_bytes: 128 << 20,
            unsound_windows: false,
            setup_timeout: Duration::from_secs(10),
        }
    }
}
