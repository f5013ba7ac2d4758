//! The floor with many connections, reads only: one thread on each side, which takes ready sockets
//! from epoll and serves them with the same calls as the floor of one connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use load::cpu;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::LoadError;
use crate::args::Args;
use crate::floor::{AWAKE, Client, Hello, Load, Served, Server, connect, greeted};
use crate::ready::Ready;
use crate::report::Report;
use crate::run::PATIENCE;
use crate::wire::BHS;

/// Accepts the other connections of a client that has connected once and sent `hello`, and serves
/// all until one ends.
pub(crate) fn serve(
    first: TcpStream,
    hello: Hello,
    listener: &TcpListener,
    memory: &[u8],
) -> Result<Served, LoadError> {
    let mut servers = vec![Server::new(first, hello, memory.len(), 1)];
    while servers.len() < usize::from(hello.connections) {
        let stream = listener.accept().map_err(|e| LoadError::Io("accepting", e))?.0;
        if greeted(&stream, memory.len())? != hello {
            return Err(LoadError::Protocol("another client came in between".into()));
        }
        servers.push(Server::new(stream, hello, memory.len(), servers.len() as u64 + 1));
    }
    // The client begins when all are there.
    for server in &servers {
        (&server.stream).write_all(&[0; BHS]).map_err(|e| LoadError::Io("serving", e))?;
    }
    let before = cpu::own();
    let mut waited = Duration::ZERO;
    match answer(&mut servers, hello, memory, &mut waited) {
        // A client that is done closes the connection with I/Os in flight.
        Err(LoadError::Io(_, e))
            if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        other => other?,
    }
    let used = cpu::own().saturating_sub(before);
    let ios: u64 = servers.iter().map(|server| server.ios).sum();
    let working_us = used.saturating_sub(waited).as_secs_f64() * 1e6 / ios.max(1) as f64;
    Ok(Served { ios, working_us })
}

/// Answers until a connection ends; adds up the time in which it polled without work.
fn answer(
    servers: &mut [Server],
    hello: Hello,
    memory: &[u8],
    waited: &mut Duration,
) -> Result<(), LoadError> {
    let mut ready = Ready::of(servers.iter().map(|server| &server.stream))?;
    let mut requests = vec![0; usize::from(hello.depth) * BHS];
    let mut partial = vec![0; servers.len()];
    let mut idle: Option<Instant> = None;
    loop {
        let awake = idle.map_or(Duration::ZERO, |from| from.elapsed());
        ready.wait(Some(if awake > AWAKE { Duration::from_secs(60) } else { Duration::ZERO }))?;
        if ready.numbers().len() == 0 {
            idle.get_or_insert_with(Instant::now);
            continue;
        }
        if idle.take().is_some() {
            *waited += awake.min(AWAKE);
        }
        for index in ready.numbers() {
            let server = &mut servers[index];
            let got = match rustix::net::recv(&server.stream, &mut requests[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(()),
                Ok((_, got)) => partial[index] + got,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(errno) => return Err(LoadError::Io("receiving", errno.into())),
            };
            partial[index] = got % BHS;
            server.answer(got / BHS, memory)?;
        }
    }
}

/// Loads the server at `portal` with the options `args` and the connections of `hello`.
pub(crate) fn run(args: &Args, portal: &str, hello: Hello) -> Result<Report, LoadError> {
    let mut clients = Vec::new();
    for _ in 0..hello.connections {
        clients.push(Client::new(connect(portal, hello)?, hello));
    }
    for client in &clients {
        (&client.stream).read_exact(&mut [0; BHS]).map_err(|e| LoadError::Io("waiting for the floor", e))?;
    }
    let mut load = Load::new(args);
    let mut ready = Ready::of(clients.iter().map(|client| &client.stream))?;
    for client in &mut clients {
        client.request(&mut load)?;
    }
    let patience = if args.spin { Duration::ZERO } else { PATIENCE };
    load.measure(args, |load, limit| {
        let from = Instant::now();
        while from.elapsed() < limit {
            load.tally.calls += 1;
            ready.wait(Some(patience))?;
            for index in ready.numbers() {
                clients[index].receive(load, true)?;
            }
        }
        Ok(())
    })
}
