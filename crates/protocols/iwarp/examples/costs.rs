//! Measures the CPU cost of FPDUs alone, in nanoseconds each: `costs [ROUNDS=1000000]`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use iwarp::mpa::{Agreed, Role};
use iwarp::stag::{Domain, Registration, Rights, Stag, Table};
use iwarp::stream::{Landing, Options, Remote, SendFlags, Sink, Step, Stream};

/// Counts the bytes appended to it.
#[derive(Default)]
struct Count(usize, Vec<u8>);

impl Sink<&'static [u8]> for Count {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += black_box(bytes).len();
    }
    fn payload(&mut self, payload: &'static [u8]) {
        self.0 += black_box(payload).len();
    }
    fn marked(
        &mut self,
        payload: &'static [u8],
        len: usize,
        fill: impl FnOnce(&&'static [u8], &mut [u8]) -> bool,
    ) {
        self.1.resize(len, 0);
        fill(&payload, &mut self.1);
        self.0 += black_box(&self.1).len();
    }
}

static DATA: [u8; 65536] = [0x5a; 65536];

fn agreed(role: Role, crc: bool, markers: bool) -> Agreed {
    Agreed {
        role,
        revision: 2,
        crc,
        send_markers: markers,
        receive_markers: markers,
        ird: 128,
        ord: 128,
        rtr: None,
    }
}

fn memory(rights: Rights) -> Registration {
    Registration { index: 0, base: 0, len: 1 << 20, rights, domain: Domain(0) }
}

fn report(what: &str, fpdus: usize, spent: Duration) {
    println!("{what:<56} {:8.1} ns", spent.as_nanos() as f64 / fpdus as f64);
}

/// Receives `wire` over and over; takes the payload by reference.
fn drain(stream: &mut Stream, wire: &[u8]) {
    let mut input = wire;
    loop {
        match stream.step(&mut input).expect("a good stream") {
            Step::More => return,
            Step::Payload { here, .. } => {
                let (bytes, rest) = input.split_at(here);
                stream.took(bytes);
                input = rest;
            }
            Step::Event(event) => drop(black_box(event)),
        }
    }
}

const BATCH: usize = 64;

fn receiving(rounds: usize, crc: bool, markers: bool, payload: usize, write: bool) {
    let mut sender = Stream::new(&agreed(Role::Requester, crc, markers), &Options::new([1; 16]));
    let mut receiver = Stream::new(&agreed(Role::Responder, crc, markers), &Options::new([2; 16]));
    let stag = receiver.register(memory(Rights::REMOTE_WRITE)).expect("room");
    let mut wire = Vec::new();
    let mut spent = Duration::ZERO;
    let batches = (rounds / BATCH).max(1);
    for _ in 0..batches {
        wire.clear();
        for _ in 0..BATCH {
            let data = &DATA[..payload];
            if write {
                sender.write(Remote { stag, to: 0 }, data, &mut wire).expect("open");
            } else {
                sender.send(data, SendFlags::default(), &mut wire).expect("open");
            }
        }
        receiver.post_receives(BATCH as u32);
        let start = Instant::now();
        drain(&mut receiver, &wire);
        spent += start.elapsed();
    }
    let kind = if write { "Write" } else { "Send" };
    let options = [if crc { ", CRC" } else { "" }, if markers { ", markers" } else { "" }].concat();
    report(&format!("receive: {kind} of {payload} bytes{options}"), batches * BATCH, spent);
}

fn sending(rounds: usize, crc: bool, markers: bool, payload: usize, write: bool) {
    let mut sender = Stream::new(&agreed(Role::Requester, crc, markers), &Options::new([1; 16]));
    let mut sink = Count::default();
    let start = Instant::now();
    for _ in 0..rounds {
        let data = &DATA[..payload];
        if write {
            sender.write(Remote { stag: Stag(1), to: 0 }, data, &mut sink).expect("open");
        } else {
            sender.send(data, SendFlags::default(), &mut sink).expect("open");
        }
    }
    black_box(sink.0);
    let kind = if write { "Write" } else { "Send" };
    let options = [if crc { ", CRC" } else { "" }, if markers { ", markers" } else { "" }].concat();
    report(&format!("send: {kind} of {payload} bytes{options}"), rounds, start.elapsed());
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
        receiving(rounds, crc, markers, 76, false);
        receiving(rounds, crc, markers, 76, true);
        receiving(rounds, crc, markers, 4096, true);
        sending(rounds, crc, markers, 76, false);
        sending(rounds / 4, crc, markers, 4096, true);
        receiving(rounds / 64, crc, markers, 64000, true);
        sending(rounds / 64, crc, markers, 64000, true);
    }

    let mut reader = Stream::new(&agreed(Role::Requester, false, false), &Options::new([1; 16]));
    let mut source = Stream::new(&agreed(Role::Responder, false, false), &Options::new([2; 16]));
    let stag = source.register(memory(Rights::REMOTE_READ)).expect("room");
    let start = Instant::now();
    let mut wire: Vec<u8> = Vec::new();
    let mut back: Vec<u8> = Vec::new();
    for id in 0..rounds as u64 {
        let remote = Remote { stag, to: id % 4096 };
        reader.read::<&[u8]>(remote, 64, Landing::Given, id, &mut wire).expect("open");
        drain(&mut source, &wire);
        source.read_response(&DATA[..64], &mut back).expect("asked");
        drain(&mut reader, &back);
        wire.clear();
        back.clear();
    }
    report("read of 64 bytes, both sides, both ways", rounds, start.elapsed());

    let mut table = Table::new([3; 16], 1024);
    let live: Vec<Stag> =
        (0..500).map(|_| table.register(memory(Rights::REMOTE_WRITE)).expect("room")).collect();
    let start = Instant::now();
    for i in 0..rounds {
        let stag = live[i % live.len()];
        let at = table.locate(stag, 4096, 512, Rights::REMOTE_WRITE, Domain(0));
        black_box(at).expect("registered");
    }
    report("locate one of 500 STags", rounds, start.elapsed());
    let start = Instant::now();
    for _ in 0..rounds {
        let stag = table.register(memory(Rights::REMOTE_WRITE)).expect("room");
        black_box(table.remove(stag)).expect("live");
    }
    report("register and take back", rounds, start.elapsed());
}
