//! The memory of the protocol's state machine: the runtime's buffers as its payload, a gather as
//! its sink, and the memory that a read fills. Over RDMA a queue pair owns that memory meanwhile.

use iscsi::digest::{Crc32c, DigestBytes};
use iscsi::initiator::Place;
use iscsi::target::{Payload, Sink};
use rdma::Buffers;
use runtime::{BufMut, Bytes, Chain, Gather};

/// A write's data.
#[derive(Debug, Clone, Default)]
pub(crate) struct Data(pub Chain);

impl Payload for Data {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_to(&mut self, n: usize) -> Self {
        Data(self.0.split_to(n))
    }

    fn with_digest(self) -> (Self, DigestBytes) {
        let len = self.0.len();
        let mut stable = Chain::new();
        let mut crc = Crc32c::new();
        for buf in self.0 {
            // A region may change between the digest and the send, so it is copied first.
            let bytes = buf.stable().unwrap_or_else(|| Bytes::from(buf.to_vec()));
            crc.update(&bytes);
            stable.push(bytes);
        }
        crc.pad(len);
        (Data(stable), crc.finish())
    }

    fn copied(bytes: Vec<u8>) -> Self {
        Data(bytes.into())
    }

    fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// The queue in front of a socket.
pub(crate) struct Out<'a>(pub &'a mut Gather);

impl Sink<Data> for Out<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.push_copy(bytes);
    }

    fn payload(&mut self, payload: Data) {
        self.0.push_chain(payload.0);
    }
}

/// Memory for the data of a read. The session places no byte beyond the requested length.
#[derive(Debug)]
pub(crate) enum Destination {
    /// The command reads nothing.
    Nothing,
    /// The data is dropped.
    Discard,
    /// A buffer of the read's length.
    Pool(BufMut),
    /// For more than one buffer of the pool; grows as data arrives.
    Heap(Vec<u8>),
    /// Several buffers of the pool, all of them present from the start; for RDMA.
    Pieces(Buffers),
    /// A queue pair owns the memory, this many bytes, while the target may write it.
    Lent(usize),
}

impl Destination {
    /// The first `received` bytes.
    pub fn into_chain(self, received: usize) -> Chain {
        match self {
            Destination::Nothing | Destination::Discard | Destination::Lent(_) => Chain::new(),
            Destination::Pool(mut buf) => {
                buf.truncate(received);
                buf.freeze().into()
            }
            Destination::Pieces(buffers) => {
                let mut chain: Chain = buffers.into_iter().map(BufMut::freeze).collect();
                chain.truncate(received);
                chain
            }
            Destination::Heap(mut bytes) => {
                bytes.truncate(received);
                Bytes::from(bytes).into()
            }
        }
    }
}

impl Destination {
    /// Memory of the pool for an RDMA Read, all at once. `None` if the pool does not have that
    /// much.
    pub fn in_pieces(len: usize) -> Option<Self> {
        let buffers = runtime::pool::alloc_many(len)?;
        Some(Self::of_buffers(buffers.into_iter().collect()))
    }

    /// The memory that a queue pair returned.
    pub fn of_buffers(mut buffers: Buffers) -> Self {
        match (buffers.len(), buffers.pop()) {
            (1, Some(buffer)) => Destination::Pool(buffer),
            (_, Some(last)) => {
                buffers.push(last);
                Destination::Pieces(buffers)
            }
            (_, None) => Destination::Nothing,
        }
    }

    /// Takes the memory out for a queue pair, if there is any.
    pub fn lend(&mut self) -> Option<Buffers> {
        let (len, buffers) = match std::mem::replace(self, Destination::Nothing) {
            Destination::Pool(buffer) => (buffer.len(), Buffers::from_iter([buffer])),
            Destination::Pieces(buffers) => (buffers.iter().map(|b| b.len()).sum(), buffers),
            other => {
                *self = other;
                return None;
            }
        };
        *self = Destination::Lent(len);
        Some(buffers)
    }

    /// The pool's buffer, truncated to the first `received` bytes.
    pub fn into_buffer(self, received: usize) -> Option<BufMut> {
        let Destination::Pool(mut buf) = self else { return None };
        buf.truncate(received);
        Some(buf)
    }
}

impl Place<&[u8]> for Destination {
    fn place(&mut self, offset: usize, data: &[u8]) {
        match self {
            // A queue pair fills these itself.
            Destination::Nothing | Destination::Discard | Destination::Pieces(_) | Destination::Lent(_) => {}
            Destination::Pool(buf) => {
                if let Some(part) = buf.get_mut(offset..offset + data.len()) {
                    runtime::count_copy(data.len());
                    part.copy_from_slice(data);
                }
            }
            Destination::Heap(bytes) => {
                runtime::count_copy(data.len());
                bytes.place(offset, data);
            }
        }
    }
}
