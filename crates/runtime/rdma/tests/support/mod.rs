//! Two queue pairs over loopback in one thread, and helpers for their tests.
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod peer;
pub mod store;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use rdma::{Completion, Error, Listener, Options, QueuePair, connect};
use runtime::{BufMut, Chain, Config, Runtime, pool};

/// Runs a test's future on its own runtime, with a timeout.
pub fn run<F: Future>(future: F) -> F::Output {
    let runtime = Runtime::new(Config::default()).expect("a ring");
    runtime.block_on(async {
        runtime::timeout(Duration::from_secs(300), future).await.expect("the test ends in time")
    })
}

pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A connection: the accepting and the connecting side.
pub async fn two(accepting: &Options, connecting: &Options) -> (QueuePair, QueuePair) {
    let mut listener = Listener::bind(loopback()).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let (accepting, connecting) = (accepting.clone(), connecting.clone());
    let asking = runtime::spawn(async move { connect(address, b"hello", &connecting).await });
    let incoming = listener.accept().await.expect("a connection");
    assert_eq!(incoming.private_data(), b"hello");
    let accepted = incoming.accept(b"welcome", &accepting).await.expect("accepted");
    let (connected, private_data) = asking.await.expect("no panic").expect("connected");
    assert_eq!(private_data, b"welcome");
    (accepted, connected)
}

/// Pseudo-random bytes without repetition.
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

/// The same bytes in buffers of the pool.
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

/// Empty buffers with room for `len` bytes.
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

/// All completions until the end, and the final error.
pub async fn rest(pair: &QueuePair) -> (Vec<Completion>, Error) {
    let mut all = Vec::new();
    loop {
        match pair.next().await {
            Ok(completion) => all.push(completion),
            Err(error) => return (all, error),
        }
    }
}
