//! Cost of the runtime over raw TCP: requests of 48 bytes, responses of 48 + 4096, many in flight.
//!
//! `tcp_pingpong DEPTH SECONDS [RESPONSE=4144] [SPIN_US=0] [MODE=buf]`: a server on the ring,
//! pinned to processor 0, and a client with blocking calls on processor 1 that keeps DEPTH requests
//! in flight. Prints the server's cost of an operation. MODE is the source of payloads: `buf` (one
//! pool buffer), `pool` (a new one each time), `region`.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use runtime::{Buf, Config, Gather, ListenOptions, Region, Runtime, TcpListener, pool};

const REQUEST: usize = 48;

fn thread_time() -> (f64, f64) {
    // SAFETY: the structure is plain numbers and outlives the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
        (seconds(usage.ru_utime), seconds(usage.ru_stime))
    }
}

async fn serve(mut listener: TcpListener, response: usize, mode: &str) -> u64 {
    let stream = listener.accept().await.expect("accept");
    let header = [7u8; REQUEST];
    let payload = response - REQUEST;
    let region = Region::new(64 << 20).expect("map");
    region.fill(0, 64 << 20, 7).expect("within");
    let fixed = pool::alloc(payload).expect("a buffer").freeze();
    let mut gather = Gather::new();
    let (mut have, mut served) = (0, 0u64);
    loop {
        let bytes = match stream.recv_some(64 << 10).await {
            Ok(bytes) if !bytes.is_empty() => bytes,
            _ => return served,
        };
        have += bytes.len();
        while have >= REQUEST {
            have -= REQUEST;
            gather.push_copy(&header);
            let buf: Buf = match mode {
                "pool" => pool::alloc(payload).expect("a buffer").freeze(),
                "region" => {
                    region.slice((served as usize * 4096 * 17) % (32 << 20), payload).expect("within")
                }
                _ => fixed.clone(),
            };
            gather.push(buf);
            served += 1;
        }
        if !gather.is_empty() {
            let (result, back) = stream.send(gather).await;
            if result.is_err() {
                return served;
            }
            gather = back;
        }
    }
}

fn client(addr: SocketAddr, depth: usize, time: Duration, response: usize) -> (u64, Duration, Vec<f32>) {
    let mut stream = std::net::TcpStream::connect(addr).expect("connect");
    stream.set_nodelay(true).expect("an option");
    let requests = vec![0u8; depth * REQUEST];
    let mut buf = vec![0u8; 1 << 20];
    let start = Instant::now();
    let mut sent = std::collections::VecDeque::from(vec![start; depth]);
    let (mut have, mut ops, mut times) = (0, 0u64, Vec::new());
    stream.write_all(&requests).expect("send");
    loop {
        let n = stream.read(&mut buf).expect("receive");
        assert!(n > 0, "the server has gone");
        have += n;
        let done = have / response;
        have %= response;
        if done == 0 {
            continue;
        }
        let now = Instant::now();
        for _ in 0..done {
            times.extend(sent.pop_front().map(|at| (now - at).as_nanos() as f32 / 1e3));
            sent.push_back(now);
        }
        ops += done as u64;
        if now - start >= time {
            return (ops, now - start, times);
        }
        stream.write_all(&requests[..done * REQUEST]).expect("send");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (depth, seconds, response, spin) = (number(1, 32), number(2, 2), number(3, 4144), number(4, 0));
    let mode = args.get(5).cloned().unwrap_or_else(|| "buf".into());
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let config = Config { core: Some(0), spin_us: spin as u32, ..Config::default() };
        let runtime = Runtime::new(config).expect("a ring");
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(addr, ListenOptions::default()).expect("a listener");
        tell.send(listener.local_addr().expect("an address")).expect("somebody listens");
        let served = runtime.block_on(serve(listener, response, &mode));
        (served, thread_time())
    });
    let addr = told.recv().expect("an address");
    // SAFETY: the set is plain bits and outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(1, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
    let (ops, time, mut times) = client(addr, depth, Duration::from_secs(seconds as u64), response);
    times.sort_by(f32::total_cmp);
    let (served, (user, system)) = server.join().expect("the server");
    println!(
        "depth {depth} response {response}: {:.0} a second, {:.1} us median, {:.1} us 99% | server {:.3} us each \
         (user {:.3}, system {:.3}), {:.0}% busy",
        ops as f64 / time.as_secs_f64(),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        (user + system) / served as f64 * 1e6,
        user / served as f64 * 1e6,
        system / served as f64 * 1e6,
        (user + system) / time.as_secs_f64() * 100.0,
    );
}
