//! A client of NFS over RDMA, raw: it sends the messages that a test makes, exposes the memory that
//! it names, and shows what comes back. Its queue pair answers the server's RDMA Reads while it
//! waits for a message, and at no other time.

use std::future::Future;
use std::net::SocketAddr;

use nfs::v3::Arguments;
use rdma::{Completion, Flags, Options, QueuePair, Rights, Stag};
use rpc::xdr::{Chained, List, Reader, Writer};
use rpcrdma::{Body, Header, Lists, PrivateData, ReadSegment, Segment, WriteChunk};
use runtime::{Chain, Runtime, pool};

/// The private data of Linux's client.
pub const LINUX: PrivateData = PrivateData { remote_invalidation: true, send: 4096, receive: 4096 };

/// Runs a test's client on a ring of its own, and not for ever.
pub fn run<F: Future>(future: F) -> F::Output {
    let runtime = Runtime::new(runtime::Config::default()).expect("a ring");
    runtime.block_on(async {
        runtime::timeout(2 * super::PATIENCE, future).await.expect("the test ends in time")
    })
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    pub bytes: Vec<u8>,
    pub invalidated: Option<Stag>,
}

impl Message {
    pub fn header(&self) -> Header<'_> {
        Header::read(&mut Reader::new(&self.bytes)).expect("a header")
    }

    /// The RPC message, after the header.
    pub fn rpc(&self) -> &[u8] {
        let mut from = Reader::new(&self.bytes);
        Header::read(&mut from).expect("a header");
        from.remaining()
    }
}

/// The chunks of a call.
#[derive(Default)]
pub struct Chunks {
    pub reads: Vec<ReadSegment>,
    pub writes: Vec<Vec<Segment>>,
    pub reply: Option<Vec<Segment>>,
}

pub struct RdmaClient {
    pub pair: QueuePair,
    pub server: PrivateData,
    pub xid: u32,
}

impl RdmaClient {
    pub async fn connect(to: SocketAddr) -> Self {
        Self::connect_as(to, &LINUX.encode(), 4096).await
    }

    pub async fn connect_as(to: SocketAddr, private_data: &[u8], receive_size: u32) -> Self {
        let options = Options { receives: 400, receive_size, ..Options::default() };
        let (pair, reply) = rdma::connect(to, private_data, &options).await.expect("RDMA is let in");
        Self { pair, server: PrivateData::decode(&reply), xid: 1000 }
    }

    /// Sends any bytes as a message.
    pub fn send_raw(&self, message: &[u8]) {
        self.pair.post_send(message, Chain::new(), Flags::default(), None);
        self.pair.flush();
    }

    /// Sends a call with these chunks; without bytes it is in one of them.
    pub fn send(&self, xid: u32, chunks: &Chunks, rpc: &[u8]) {
        let reads = Chained::of(chunks.reads.iter().copied());
        let writes = Chained::of(chunks.writes.iter().map(|one| WriteChunk { segments: List::of(one) }));
        let reply = chunks.reply.as_ref().map(|one| WriteChunk { segments: List::of(one) });
        let lists = Lists { reads: reads.chain(), writes: writes.chain(), reply };
        let body = if rpc.is_empty() { Body::NoMessage(lists) } else { Body::Message(lists) };
        let mut message = Vec::new();
        Header::new(xid, 128, body).write(&mut Writer::new(&mut message));
        message.extend_from_slice(rpc);
        self.send_raw(&message);
    }

    /// The next message; `None` when the connection has ended.
    pub async fn receive(&self) -> Option<Message> {
        loop {
            match self.pair.next().await {
                Ok(Completion::Received { message, invalidated, .. }) => {
                    self.pair.post_receives(1);
                    return Some(Message { bytes: message.to_vec(), invalidated });
                }
                Ok(_) => {}
                Err(error) => {
                    println!("the connection has ended: {error}");
                    return None;
                }
            }
        }
    }

    /// Calls with these chunks, and returns the message that answers.
    pub async fn call(&mut self, arguments: &Arguments<'_>, chunks: &Chunks) -> Message {
        self.xid += 1;
        let call = super::nfs3(self.xid, arguments, &[]);
        self.send(self.xid, chunks, &call);
        let message = self.receive().await.expect("an answer");
        assert_eq!(message.header().xid, self.xid);
        message
    }

    /// Memory of `len` bytes that the server may write to.
    pub fn sink(&self, len: usize) -> Segment {
        let buffers = (0..len).step_by(pool::MAX_ALLOC).map(|at| {
            let mut buffer = pool::alloc((len - at).min(pool::MAX_ALLOC)).expect("a buffer");
            buffer.fill(0xee);
            buffer
        });
        let stag = self.pair.expose(buffers, Rights::Write).expect("an STag");
        Segment { handle: stag.0, length: len as u32, offset: self.pair.origin(stag) }
    }

    /// Memory with these bytes that the server may read.
    pub fn source(&self, bytes: &[u8]) -> Segment {
        let mut chain = Chain::new();
        bytes.chunks(1 << 20).for_each(|part| chain.push(part.to_vec()));
        let stag = self.pair.expose_source(chain).expect("an STag");
        Segment { handle: stag.0, length: bytes.len() as u32, offset: self.pair.origin(stag) }
    }

    /// Withdraws exposed memory and returns its bytes.
    pub fn take(&self, segment: Segment) -> Vec<u8> {
        let withdrawn = self.pair.withdraw(Stag(segment.handle)).expect("it was exposed");
        withdrawn.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect()
    }
}
