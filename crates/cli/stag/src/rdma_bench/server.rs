//! The side that answers: lends memory, says what has arrived and what time it is. It never loads
//! by itself, and a client that breaks the rules costs its own connection only.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use rdma::{Completion, Flags, Incoming, Listener, QueuePair, Rights, VerbsListener};
use runtime::{Chain, Notify, pool};

use super::wire::{Hello, MESSAGE, Message, head};
use super::{RdmaBenchError, options};
use crate::args::Rdma;
use crate::args::rdma_bench::{Operation, RdmaBench};

/// Clients at once, at most.
pub const CLIENTS: usize = 8;
/// Messages beside the load that may be in flight.
pub const SPARE: u32 = 16;

/// Either kind of listener.
enum Door {
    Software(Listener),
    Verbs(VerbsListener),
}

/// Answers until it is ended, or with `--once` until the first client has gone.
pub async fn serve(args: &RdmaBench) -> Result<(), RdmaBenchError> {
    let address =
        args.answer.listen.unwrap_or_else(|| ([127, 0, 0, 1], crate::args::rdma_bench::PORT).into());
    let (mut door, bound) = match args.wire.rdma {
        Rdma::Software => {
            let listener = Listener::bind(address).map_err(|error| RdmaBenchError::Listen(address, error))?;
            let bound = listener.local_addr().map_err(|error| RdmaBenchError::Listen(address, error))?;
            (Door::Software(listener), bound)
        }
        Rdma::Verbs => {
            let listener =
                VerbsListener::bind(address).map_err(|error| RdmaBenchError::Listen(address, error))?;
            let bound = listener.local_addr().unwrap_or(address);
            (Door::Verbs(listener), bound)
        }
    };
    crate::out::write(format!("{bound}\n").as_bytes())?;
    let clients = Rc::new(Cell::new(0usize));
    let gone = Rc::new(Notify::default());
    let served = Rc::new(Cell::new(false));
    loop {
        let incoming = {
            let mut accepting = std::pin::pin!(async {
                match &mut door {
                    Door::Software(listener) => listener.accept().await,
                    Door::Verbs(listener) => listener.accept().await.map(Incoming::from),
                }
            });
            poll_fn(|cx| {
                if args.answer.once && served.get() {
                    return Poll::Ready(None);
                }
                gone.register(cx.waker());
                accepting.as_mut().poll(cx).map(Some)
            })
            .await
        };
        let Some(incoming) = incoming else { return Ok(()) };
        let incoming = match incoming {
            Ok(incoming) => incoming,
            Err(error) => {
                // Possibly too many open files, which may pass.
                tracing::warn!(%error, "nobody could be let in");
                runtime::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        if clients.get() >= CLIENTS {
            let _ = incoming.reject(b"too many clients").await;
            continue;
        }
        clients.set(clients.get() + 1);
        let (args, clients, gone, served) = (args.clone(), clients.clone(), gone.clone(), served.clone());
        runtime::spawn(async move {
            let peer = incoming.peer_addr();
            if let Err(error) = client(incoming, &args).await {
                tracing::info!(%peer, %error, "a client is gone");
            }
            clients.set(clients.get() - 1);
            served.set(true);
            gone.notify();
        });
    }
}

/// Serves one client until it disconnects.
async fn client(incoming: Incoming, args: &RdmaBench) -> Result<(), RdmaBenchError> {
    let Some(hello) = Hello::parse(incoming.private_data()) else {
        let _ = incoming.reject(b"this is stag rdma-bench").await;
        return Err(RdmaBenchError::Peer("it asked for something else"));
    };
    let receives = 2 * hello.depth + SPARE;
    let receive = match hello.operation {
        Operation::Send => MESSAGE as u32 + hello.size,
        _ => MESSAGE as u32,
    };
    let limit = args.answer.memory;
    // A device holds a buffer for each receive; software holds received messages until they are
    // read.
    let needed = match hello.operation {
        Operation::Send => u64::from(receives) * u64::from(receive),
        _ => u64::from(hello.size),
    };
    if needed > limit {
        let _ = incoming.reject(b"that takes more than --memory").await;
        return Err(RdmaBenchError::Peer("it asked for more memory than there is for it"));
    }
    let outstanding = hello.outstanding;
    let pair = incoming.accept(&[], &options(&args.wire, receives, receive, outstanding)).await?;
    let area = match hello.operation {
        Operation::Send => 0,
        _ => area(&hello, limit),
    };
    let stag = match hello.operation {
        Operation::Read => Some(pair.expose_source(zeros(area)?)?),
        Operation::Write => Some(pair.expose(buffers(area)?, Rights::Write)?),
        Operation::Send => None,
    };
    let memory = Message::Memory {
        stag: stag.map_or(0, |stag| stag.0),
        origin: stag.map_or(0, |stag| pair.origin(stag)),
        len: area,
    };
    answer(&pair, hello.operation, memory).await
}

/// Bytes that the client's messages cover: a place for each message in flight, as far as there is
/// room.
fn area(hello: &Hello, limit: u64) -> u64 {
    let size = u64::from(hello.size);
    let places = u64::from(hello.depth).min(limit / size).max(1);
    size * places
}

/// Buffers that make `len` bytes.
fn buffers(len: u64) -> Result<Vec<runtime::BufMut>, RdmaBenchError> {
    let mut buffers = Vec::new();
    let mut left = usize::try_from(len).map_err(|_| RdmaBenchError::Memory)?;
    while left > 0 {
        let here = left.min(pool::MAX_ALLOC);
        buffers.push(pool::alloc_zeroed(here).ok_or(RdmaBenchError::Memory)?);
        left -= here;
    }
    Ok(buffers)
}

/// `len` bytes of zeros, of which no two are the same memory.
pub fn zeros(len: u64) -> Result<Chain, RdmaBenchError> {
    let mut chain = Chain::new();
    for buffer in buffers(len)? {
        chain.push(buffer.freeze());
    }
    Ok(chain)
}

/// Receives messages, and acknowledges all that arrived together at once.
async fn answer(pair: &QueuePair, operation: Operation, memory: Message) -> Result<(), RdmaBenchError> {
    loop {
        let mut completion = Some(pair.next().await);
        let mut arrived = None;
        while let Some(result) = completion {
            match result {
                Ok(Completion::Received { message, .. }) => {
                    pair.post_receives(1);
                    match (head(&message), operation) {
                        (Some(Message::Where), _) => {
                            pair.post_send(&memory.encode(), Chain::new(), Flags::default(), None);
                        }
                        (Some(Message::Mark(mark)), _) => {
                            let marked = Message::Marked { mark, cpu_ns: super::cpu_ns() };
                            pair.post_send(&marked.encode(), Chain::new(), Flags::default(), None);
                        }
                        (Some(Message::Wrote(number)), Operation::Write)
                        | (Some(Message::Data(number)), Operation::Send) => arrived = Some(number),
                        _ => return Err(RdmaBenchError::Peer("it sent what makes no sense")),
                    }
                }
                Ok(_) => {}
                Err(rdma::Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            completion = super::ready(pair).await;
        }
        if let Some(number) = arrived {
            pair.post_send(&Message::Arrived(number).encode(), Chain::new(), Flags::default(), None);
        }
    }
}
