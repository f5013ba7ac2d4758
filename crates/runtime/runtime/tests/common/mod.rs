//! Helpers that several test files use.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::time::Duration;

use runtime::{Backend, Config, Gather, ListenOptions, Runtime, TcpListener, TcpStream};

/// The configuration of a test: `tests/epoll.rs` runs the tests of the other files on epoll.
pub fn config() -> Config {
    let backend = if module_path!().starts_with("epoll::") { Backend::Epoll } else { Backend::Auto };
    Config { backend, ..Config::default() }
}

/// Runs a future on a new runtime, no longer than half a minute.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    run_with(config(), future)
}

/// The same, with a configuration.
pub fn run_with<T>(config: Config, future: impl Future<Output = T>) -> T {
    let runtime = Runtime::new(config).unwrap();
    runtime.block_on(async {
        runtime::timeout(Duration::from_secs(30), future).await.expect("the test is too slow")
    })
}

pub const ANY: &str = "127.0.0.1:0";

pub fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(ANY.parse().unwrap(), ListenOptions::default()).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

pub async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr, Duration::from_secs(5)).await.unwrap()
}

/// Two ends of a connection.
pub async fn pair() -> (TcpStream, TcpStream) {
    let (mut listener, addr) = listen();
    let there = connect(addr).await;
    (there, listener.accept().await.unwrap())
}

pub async fn send(stream: &TcpStream, bytes: &[u8]) {
    let mut gather = Gather::new();
    gather.push_copy(bytes);
    stream.send(gather).await.0.unwrap();
}

/// Receives exactly `len` bytes.
pub async fn recv(stream: &TcpStream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let bytes = stream.recv_some(len - all.len()).await.unwrap();
        assert!(!bytes.is_empty(), "ended after {} of {len} bytes", all.len());
        all.extend_from_slice(&bytes);
    }
    all
}

/// Bytes whose values depend on their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

/// Processor time that this thread has used.
pub fn thread_cpu() -> Duration {
    // SAFETY: the structure is plain numbers and outlives the call.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}
