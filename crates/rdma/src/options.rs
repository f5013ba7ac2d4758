//! What a queue pair is set up with.

use std::time::Duration;

/// Whether FPDUs carry a CRC32C (RFC 5044 §4.4): they do as soon as either side asks. Software iWARP only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crc {
    /// Not asked for; used if the peer asks.
    Never,
    /// Asked for by the side that connects; the side that accepts does as it is asked.
    #[default]
    Prefer,
    /// Always used.
    Require,
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// iWARP in software over a TCP socket, with any network card.
    #[default]
    Software,
    /// rdma-core's verbs: InfiniBand, RoCE, and iWARP by a card or by the kernel.
    Verbs,
}

/// What a queue pair is set up with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who moves the bytes of a connection that is made by [`crate::connect`].
    pub provider: Provider,
    /// RDMA Reads that the peer may have outstanding at once (inbound read queue depth), 1 to 16383. The peer may ask for
    /// less.
    pub ird: u16,
    /// RDMA Reads that are sent at once (outbound read queue depth), 1 to 16383; more that are posted wait. The peer may allow
    /// less.
    pub ord: u16,
    /// Sends that the peer may send before more are posted with [`crate::QueuePair::post_receives`].
    pub receives: u32,
    /// Length of the longest Send that is received, in bytes.
    pub receive_size: u32,
    /// Memory exposed at once at most, in STags.
    pub stags: u32,
    /// Bytes of answers to the peer's RDMA Reads that are queued from which on the next answer waits: what a peer that does not
    /// read can make this side hold, beside one read's length and what is posted to it ([`crate::QueuePair::queued`]).
    pub send_high_water: usize,
    /// How long setting up may take.
    pub setup_timeout: Duration,
    /// Software iWARP: whether FPDUs carry a CRC.
    pub crc: Crc,
    /// Software iWARP: whether to demand markers of the peer (RFC 5044 §4.3). It gets them if it demands them.
    pub markers: bool,
    /// Software iWARP: length of the longest FPDU sent, in bytes, headers and CRC included: 256 to 65544. RNICs may take no
    /// more than fits a TCP segment.
    pub max_fpdu: usize,
    /// Software iWARP: what the socket that connects is set up with.
    pub path: ring::PathOptions,
    /// Software iWARP: data in memory that may change meanwhile (a [`ring::Region`]'s) may be sent as it is when the peer gets
    /// it, by reference, where there is no CRC. See [`crate::QueuePair::confirm`].
    pub lend: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            provider: Provider::Software,
            ird: 128,
            ord: 128,
            receives: 128,
            receive_size: 8 << 10,
            stags: 16 << 10,
            // Three quarters of a usual L2 cache: what was digested and copied for one send is still near when the socket takes it.
            send_high_water: 768 << 10,
            setup_timeout: Duration::from_secs(10),
            crc: Crc::Prefer,
            markers: false,
            max_fpdu: 65_536,
            path: ring::PathOptions::default(),
            lend: false,
        }
    }
}
