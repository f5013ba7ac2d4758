//! The settings of a queue pair.

use std::time::Duration;

/// The settings of a queue pair. Each is limited to the device's maximum.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum outstanding RDMA Reads of the peer (responder resources), at most 128.
    pub ird: u8,
    /// Maximum outstanding RDMA Reads of this side (initiator depth), at most 128.
    pub ord: u8,
    /// Maximum operations posted to the device: Sends, RDMA Writes and RDMA Reads together. Further
    /// ones wait in a queue. 4 to 4096.
    pub sends: u32,
    /// Maximum number of posted receives; 1 to 16384.
    pub receives: u32,
    /// Number of receives posted at the start.
    pub first_receives: u32,
    /// Length of the longest Send to receive: 64 bytes to 1 MiB.
    pub receive_size: usize,
    /// Maximum number of exposed keys.
    pub stags: usize,
    /// Maximum bytes of slots of a connection, if data is exposed by copying: see `domain`.
    pub slot_bytes: usize,
    /// Bind memory windows even if the device does not enforce their bounds (Linux' rxe), which
    /// exposes up to 2 MiB around the memory. Only for tests of windows without another device.
    pub unsound_windows: bool,
    /// Maximum duration of the setup.
    pub setup_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ird: 16,
            ord: 16,
            sends: 256,
            receives: 128,
            first_receives: 128,
            receive_size: 8 << 10,
            stags: 16 << 10,
            slot_bytes: 128 << 20,
            unsound_windows: false,
            setup_timeout: Duration::from_secs(10),
        }
    }
}
