//! Ports for servers that cannot report the port they got.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A free TCP port that no other test of this process gets. The kernel does not use it for outgoing
/// connections either, before or while the server is away: those are above 32767.
pub fn free() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..COUNT {
        let offset =
            (std::process::id() as u16).wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + offset % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free")
}
