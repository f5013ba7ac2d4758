//! Two queue pairs over loopback in one thread, and what tests say about them.
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod peer;
pub mod store;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use ring::{BufMut, Chain, Config, Runtime, pool};
use stag_rdma::{Completion, Error, Listener, Options, QueuePair, connect};

/// Runs a test's future on a runtime of its own, and not for ever.
pub fn run<F: Future>(future: F) -> F::Output {
    let runtime = Runtime::new(Config::default()).expect("a ring");
    runtime.block_on(async {
        ring::timeout(Duration::from_secs(300), future).await.expect("the test ends in time")
    })
}

pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A connection: who accepted, and who connected.
pub async fn two(accepting: &Options, connecting: &Options) -> (QueuePair, QueuePair) {
    let mut listener = Listener::bind(loopback()).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let (accepting, connecting) = (accepting.clone(), connecting.clone());
    let asking = ring::spawn(async move { connect(address, b"hello", &connecting).await });
    let incoming = listener.accept().await.expect("a connection");
    assert_eq!(incoming.private_data(), b"hello");
    let accepted = incoming.accept(b"welcome", &accepting).await.expect("accepted");
    let (connected, private_data) = asking.await.expect("no panic").expect("connected");
    assert_eq!(private_data, b"welcome");
    (accepted, connected)
}

/// Bytes that are not the same twice.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as u8
        })
        .collect()
}

/// The same in buffers of the pool.
pub fn chain(bytes: &[u8]) -> Chain {
    bytes
        .chunks(pool::MAX_ALLOC)
        .map(|part| {
            let mut buffer = pool::alloc(part.len()).expect("a buffer");
            buffer.copy_from_slice(part);
            buffer
        })
        .collect()
}

/// Empty buffers for so many bytes.
pub fn buffers(len: usize) -> Vec<BufMut> {
    let mut buffers: Vec<BufMut> = pool::alloc_many(len).expect("buffers").into_iter().collect();
    buffers.iter_mut().for_each(|buffer| buffer.fill(0xee));
    buffers
}

/// The next completion, which must be a message.
pub async fn received(pair: &QueuePair) -> Vec<u8> {
    match pair.next().await {
        Ok(Completion::Received { message, .. }) => message.to_vec(),
        other => panic!("{other:?} instead of a message"),
    }
}

/// All that comes until the end, and the end.
pub async fn rest(pair: &QueuePair) -> (Vec<Completion>, Error) {
    let mut all = Vec::new();
    loop {
        match pair.next().await {
            Ok(completion) => all.push(completion),
            Err(error) => return (all, error),
        }
    }
}
