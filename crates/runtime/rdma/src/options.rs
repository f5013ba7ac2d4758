//! The settings of a queue pair.

use std::time::Duration;

/// Whether FPDUs carry a CRC32C (RFC 5044 §4.4). It is on as soon as either side requests it.
/// Software iWARP only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crc {
    /// Does not request it; uses it if the peer requests it.
    Never,
    /// The connecting side requests it; the accepting side follows the request.
    #[default]
    Prefer,
    /// Always on.
    Require,
}

/// The implementation that transfers the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// iWARP in software over a TCP socket, with any network card.
    #[default]
    Software,
    /// rdma-core's verbs: InfiniBand, RoCE, and iWARP by a card or by the kernel.
    Verbs,
}

/// The settings of a queue pair.
#[derive(Clone, Debug)]
pub struct Options {
    /// The implementation that [`crate::connect`] uses.
    pub provider: Provider,
    /// Maximum outstanding RDMA Reads of the peer (inbound read queue depth), 1 to 16383. The peer
    /// may ask for less.
    pub ird: u16,
    /// Maximum outstanding RDMA Reads of this side (outbound read queue depth), 1 to 16383; further
    /// ones wait. The peer may allow less.
    pub ord: u16,
    /// Maximum number of posted receives.
    pub receives: u32,
    /// Number of receives posted at the start: Sends that the peer may send before the first
    /// [`crate::QueuePair::post_receives`].
    pub first_receives: u32,
    /// Length of the longest Send to receive, in bytes.
    pub receive_size: u32,
    /// Maximum number of STags exposed at a time.
    pub stags: u32,
    /// High-water mark in bytes of queued answers to the peer's RDMA Reads, above which the next
    /// answer waits. A peer that does not read its answers makes this side hold that much, one
    /// read's length, and everything posted to the peer ([`crate::QueuePair::queued`]).
    pub send_high_water: usize,
    /// Maximum duration of the setup.
    pub setup_timeout: Duration,
    /// Software iWARP: whether FPDUs carry a CRC.
    pub crc: Crc,
    /// Software iWARP: whether to request markers from the peer (RFC 5044 §4.3). The peer gets them
    /// if it requests them.
    pub markers: bool,
    /// Software iWARP: length of the longest FPDU sent, in bytes, including headers and CRC: 256 to
    /// 65544. RNICs may accept only as much as fits a TCP segment.
    pub max_fpdu: usize,
    /// Software iWARP: socket options of the connecting side.
    pub path: runtime::PathOptions,
    /// Software iWARP: without a CRC, send memory that may change (a [`runtime::Region`]) by
    /// reference. The peer then gets its content at the time of the transfer. See
    /// [`crate::QueuePair::confirm`].
    pub lend: bool,
    /// Verbs: bind memory windows even if the device does not enforce their bounds (Linux' rxe),
    /// which exposes up to 2 MiB around the memory. Only for measurements and tests of windows.
    pub unsound_windows: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            provider: Provider::Software,
            ird: 128,
            ord: 128,
            receives: 128,
            first_receives: u32::MAX,
            receive_size: 8 << 10,
            stags: 16 << 10,
            // Three quarters of a typical L2 cache: data digested and copied for one send is still
            // cached when the socket takes it.
            send_high_water: 768 << 10,
            setup_timeout: Duration::from_secs(10),
            crc: Crc::Prefer,
            markers: false,
            max_fpdu: 65_536,
            path: runtime::PathOptions::default(),
            lend: false,
            unsound_windows: false,
        }
    }
}
