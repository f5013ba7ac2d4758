//! iWARP: startup frames, streams of bytes, streams of segments that are right but for what the
//! input changes, and two streams that talk. An owner behind each stream checks that no step names
//! a byte that was not posted or registered.

use std::collections::VecDeque;

use crate::fpdus::{self, joined, segment};
use crate::input::{Input, Seed};
use iwarp::mpa::{
    Agreed, CrcPolicy, MAX_PRIVATE_DATA, Options as Mpa, Reply, Requester, Responder, Role, Rtr,
};
use iwarp::rdmap::{Atomic, Terminate};
use iwarp::stag::{Domain, Registration, Rights, Stag};
use iwarp::stream::{Event, Landing, Options, Place, Remote, SendFlags, Step, Stream};

fn mpa(flags: u8) -> Mpa {
    Mpa {
        revision: if flags & 1 != 0 { 1 } else { 2 },
        crc: match flags >> 1 & 3 {
            0 => CrcPolicy::Never,
            1 => CrcPolicy::Prefer,
            _ => CrcPolicy::Require,
        },
        markers: flags & 8 != 0,
        ird: u16::from(flags >> 4 & 3) * 3,
        ord: u16::from(flags >> 4 & 3) * 2,
        rtr: match flags >> 6 {
            0 => None,
            1 => Some(Rtr::Send),
            2 => Some(Rtr::Write),
            _ => Some(Rtr::Read),
        },
    }
}

/// A frame to either side. Byte 0 is that side's options, byte 1 where the bytes are cut in two.
pub fn startup(data: &[u8]) {
    let mut input = Input::new(data);
    let options = mpa(input.u8());
    let cut = usize::from(input.u8());
    let bytes = input.rest();
    let (first, second) = bytes.split_at(cut.min(bytes.len()));

    let mut responder = Responder::new();
    let mut seen = Ok(None);
    for piece in [first, second] {
        if matches!(seen, Ok(None)) {
            seen = responder.receive(&mut &piece[..]);
        }
    }
    if let Ok(Some(request)) = seen {
        assert!(request.private_data().len() <= MAX_PRIVATE_DATA);
        let (bytes, agreed) = request.accept(&options, b"ours").expect("it fits");
        assert!(agreed.ird >= 1 && agreed.ord <= options.ord);
        assert!(request.ird().is_none_or(|theirs| agreed.ord <= theirs));
        assert_eq!(agreed.crc, request.wants_crc() || options.crc == CrcPolicy::Require);
        assert!(bytes.starts_with(b"MPA ID Rep Frame"));
        let rejection = request.reject(b"no").expect("it fits");
        let mut asks = Requester::new(Mpa { revision: request.revision(), ..options }, b"").expect("it fits");
        let expected = Reply::Rejected { private_data: b"no".to_vec() };
        assert_eq!(asks.receive(&mut &rejection[..]), Ok(Some(expected)));
    }

    let mut requester = Requester::new(options, b"mine").expect("it fits");
    let mut seen = Ok(None);
    for piece in [first, second] {
        if matches!(seen, Ok(None)) {
            seen = requester.receive(&mut &piece[..]);
        }
    }
    match seen {
        Ok(Some(Reply::Accepted { agreed, .. })) => {
            assert!(agreed.ord <= options.ord && agreed.ird == options.ird);
            assert_eq!(
                (agreed.rtr, agreed.revision),
                (options.rtr.filter(|_| agreed.revision == 2), options.revision)
            );
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty() && !error.terminate().to_string().is_empty()),
    }
}

const RECEIVE: u32 = 600;
const LEN: usize = 1024;

/// Outcome of a stream.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    events: Vec<Event>,
    memory: Vec<Vec<u8>>,
    messages: Vec<u8>,
    error: Option<Terminate>,
}

/// The memory behind a stream.
struct Owner {
    stream: Stream,
    stags: Vec<Stag>,
    /// Whether each registered memory may be written, by index.
    writable: Vec<bool>,
    reads: VecDeque<(u64, u32)>,
    answers: VecDeque<Option<u32>>,
    /// Requests that wait for their turn are flushed separately, and not sent to a peer.
    flushes: bool,
    /// Payload is taken without being shown: only without a CRC.
    unseen: bool,
    outcome: Outcome,
}

impl Owner {
    fn new(agreed: &Agreed, seed: u8) -> Self {
        let options = Options {
            max_fpdu: 400,
            receive_size: RECEIVE,
            max_stags: 8,
            max_queued: 8,
            domain: Domain(1),
            seed: [seed; 16],
        };
        let mut owner = Self {
            stream: Stream::new(agreed, &options),
            stags: Vec::new(),
            writable: Vec::new(),
            reads: VecDeque::new(),
            answers: VecDeque::new(),
            flushes: false,
            unseen: false,
            outcome: Outcome::default(),
        };
        owner.stream.post_receives(3);
        let all = Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        for (index, (rights, base, domain)) in [
            (all | Rights::REMOTE_INVALIDATE, 0, 1),
            (all, u64::MAX - LEN as u64 + 1, 1),
            (Rights::REMOTE_READ, 1 << 33, 1),
            (all, 0, 2),
            (Rights::LOCAL_WRITE, 0, 1),
        ]
        .into_iter()
        .enumerate()
        {
            let domain = Domain(domain);
            let registration = Registration { index: index as u32, base, len: LEN as u64, rights, domain };
            owner.stags.push(owner.stream.register(registration).expect("there is room"));
            owner.writable.push(rights.contain(Rights::LOCAL_WRITE) && domain == Domain(1));
            owner.outcome.memory.push(vec![index as u8; LEN]);
        }
        owner
    }

    fn within(&self, place: Place, offset: u64, len: usize) {
        let room = match place {
            Place::Receive => RECEIVE as usize,
            Place::Tagged(index) => {
                assert!(self.writable[index as usize], "memory that nobody may write");
                LEN
            }
            Place::Read(id) => {
                let read = self.reads.iter().find(|read| read.0 == id).expect("a read that was asked for");
                read.1 as usize
            }
        };
        assert!(offset as usize <= room && len <= room - offset as usize, "beyond what is there");
    }

    /// Takes bytes; the first error ends it.
    fn receive(&mut self, mut input: &[u8]) {
        while self.outcome.error.is_none() {
            match self.stream.step(&mut input) {
                Ok(Step::More) => {
                    assert!(input.is_empty());
                    return;
                }
                Ok(Step::Payload { place, offset, here, rest }) => {
                    self.within(place, offset, here + rest);
                    if here == 0 {
                        assert!(input.is_empty());
                        return;
                    }
                    let (bytes, behind) = input.split_at(here);
                    let at = offset as usize;
                    match place {
                        Place::Tagged(index) => {
                            self.outcome.memory[index as usize][at..at + here].copy_from_slice(bytes)
                        }
                        _ => self.outcome.messages.extend_from_slice(bytes),
                    }
                    match self.unseen {
                        true => self.stream.took_unseen(here),
                        false => self.stream.took(bytes),
                    }
                    input = behind;
                }
                Ok(Step::Event(event)) => {
                    self.event(event);
                    if self.flushes {
                        self.stream.flush::<Vec<u8>>(&mut Ignored);
                    }
                }
                Err(error) => self.outcome.error = Some(error),
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.outcome.events.push(event);
        match event {
            Event::Received { len, invalidated, .. } => {
                assert!(len <= RECEIVE);
                if let Some(invalidated) = invalidated {
                    assert_eq!(self.stags[invalidated.index as usize], invalidated.stag);
                    assert!(self.stream.stags().get(invalidated.stag).is_none());
                    self.writable[invalidated.index as usize] = false;
                }
            }
            Event::ReadRequest { index, offset, len } => {
                assert!(index != 3 && index != 4 && len > 0);
                assert!(offset as usize + len as usize <= LEN);
                self.answers.push_back(Some(len));
            }
            Event::AtomicRequest { index, offset, .. } => {
                assert!(index < 2 && offset as usize + 8 <= LEN);
                self.answers.push_back(None);
            }
            Event::ReadDone { id } => {
                assert_eq!(self.reads.pop_front().map(|read| read.0), Some(id), "reads are done in order");
            }
            _ => {}
        }
    }

    /// Answers all that was asked.
    fn answer(&mut self, out: &mut Vec<u8>) {
        while let Some(answer) = self.answers.pop_front() {
            let answered = match answer {
                Some(len) => self.stream.read_response(vec![0x77; len as usize], out),
                None => self.stream.atomic_response::<Vec<u8>>(1, out),
            };
            assert!(answered.is_ok() || self.stream.is_over());
        }
        self.stream.flush::<Vec<u8>>(out);
        assert!(!self.stream.wants_flush());
    }
}

fn agreed(flags: u8) -> Agreed {
    Agreed {
        role: if flags & 1 != 0 { Role::Requester } else { Role::Responder },
        revision: 2,
        crc: flags & 2 != 0,
        send_markers: flags & 4 != 0,
        receive_markers: flags & 4 != 0,
        ird: 3,
        ord: 2,
        rtr: (flags & 8 != 0).then_some(Rtr::Send),
    }
}

/// An owner of a stream. A requester has reads outstanding, and waiting ones: bit 4 of `flags` has
/// the last land in registered memory, bit 5 puts an atomic behind them.
fn asking(flags: u8, seed: u8, out: &mut impl iwarp::stream::Sink<Vec<u8>>) -> Owner {
    let mut owner = Owner::new(&agreed(flags), seed);
    if flags & 1 != 0 {
        owner.flushes = true;
        let remote = Remote { stag: Stag(1), to: 0 };
        for (id, len) in [(7, 100), (8, 0), (9, 50)] {
            owner.reads.push_back((id, len));
            let landing = match id {
                9 if flags & 16 != 0 => Landing::Registered { stag: owner.stags[4], to: 8 },
                _ => Landing::Given,
            };
            assert!(owner.stream.read(remote, len, landing, id, out).is_ok());
        }
        if flags & 32 != 0 {
            let operation = Atomic::FetchAdd { add: 1, mask: 0 };
            assert!(owner.stream.atomic(remote, operation, 10, out).is_ok());
        }
    }
    owner
}

/// The STag that reads without memory of their own name.
fn sink(seed: u8) -> u32 {
    let mut out = Vec::new();
    asking(1, seed, &mut out);
    // Behind the length and an untagged header.
    u32::from_be_bytes([out[20], out[21], out[22], out[23]])
}

/// The same bytes, whole and in pieces, seen and, without a CRC, unseen, mean the same.
fn both_ways(flags: u8, cut: usize, bytes: &[u8], seed: u8) {
    let owner = || asking(flags, seed, &mut Ignored);
    let mut whole = owner();
    whole.receive(bytes);
    let mut pieces = owner();
    pieces.unseen = flags & 2 == 0;
    for piece in bytes.chunks(cut.max(1)) {
        pieces.receive(piece);
    }
    assert_eq!(whole.outcome.events, pieces.outcome.events);
    assert_eq!(whole.outcome.error.is_some(), pieces.outcome.error.is_some());
    if flags & 2 == 0 {
        // Under CRC an FPDU in pieces is placed before its CRC is there.
        assert_eq!(whole.outcome, pieces.outcome);
    }
    let mut out = Vec::new();
    if let Some(error) = whole.outcome.error {
        whole.stream.terminate::<Vec<u8>>(error, &mut out);
        assert!(whole.stream.may_send());
        if flags & 1 != 0 {
            // Requests went before it, in another sink.
            return;
        }
        let mut peer = Owner::new(&Agreed { role: Role::Requester, ..agreed(flags) }, 99);
        peer.receive(&out);
        let told = matches!(peer.outcome.events[..], [Event::Terminated(t)] if t.error == Some(error));
        assert!(told, "{error:?}");
    } else {
        whole.answer(&mut out);
    }
}

struct Ignored;

impl iwarp::stream::Sink<Vec<u8>> for Ignored {
    fn bytes(&mut self, _: &[u8]) {}
    fn payload(&mut self, _: Vec<u8>) {}
    fn marked(&mut self, data: Vec<u8>, len: usize, fill: impl FnOnce(&Vec<u8>, &mut [u8]) -> bool) {
        fill(&data, &mut vec![0; len]);
    }
}

/// Any bytes to a stream. Byte 0 has the negotiated options, byte 1 the size of the pieces. CRCs
/// and markers are made right, unless bit 6 of byte 0 is set.
pub fn stream(data: &[u8]) {
    let mut input = Input::new(data);
    let (flags, cut) = (input.u8(), usize::from(input.u8()));
    let mut bytes = input.rest().to_vec();
    if flags & 64 == 0 {
        fpdus::repair(&mut bytes, flags & 4 != 0);
    }
    both_ways(flags, cut, &bytes, 3);
}

/// Segments with their lengths, CRCs, markers and message numbers right, unless the input says
/// otherwise. Byte 0 and 1 as in [`stream`]; then [`fpdus::wire`]'s.
pub fn segments(data: &[u8]) {
    let mut input = Input::new(data);
    let (flags, cut) = (input.u8(), usize::from(input.u8()));
    let seed = 3;
    let (sink, stags) = (sink(seed), Owner::new(&agreed(flags), seed).stags);
    let stag = |which: u8| match which {
        0xff => sink,
        _ => stags.get(usize::from(which)).map_or(u32::from(which), |stag| stag.0),
    };
    both_ways(flags, cut, &fpdus::wire(&mut input, flags & 4 != 0, false, stag), seed);
}

/// Two sides with the options of bytes 0 and 1, which then do the work that the rest requests, cut
/// in pieces of byte 2: nothing is ever refused.
pub fn pair(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = (mpa(input.u8()), mpa(input.u8()));
    let cut = usize::from(input.u8()).max(1);
    let mut asks = Requester::new(ours, b"a").expect("it fits");
    let request = Responder::new().receive(&mut asks.request()).expect("a good frame").expect("it is whole");
    // Revision 1 carries no depths, so both sides must know them.
    let theirs = if ours.revision == 1 { Mpa { ird: ours.ord, ord: ours.ird, ..theirs } } else { theirs };
    let (reply, responder) = request.accept(&theirs, b"b").expect("it fits");
    let Ok(Some(Reply::Accepted { agreed: requester, .. })) = asks.receive(&mut &reply[..]) else {
        panic!("what a responder says is right");
    };
    let mut a = Owner::new(&requester, 1);
    let mut b = Owner::new(&responder, 2);
    b.unseen = !responder.crc;
    let (mut there, mut back) = (Vec::new(), Vec::new());
    a.stream.start::<Vec<u8>>(&mut there);
    a.stream.immediate::<Vec<u8>>([0; 8], false, &mut there).expect("it is open");
    for round in 0..12u64 {
        for piece in there.chunks(cut) {
            b.receive(piece);
        }
        there.clear();
        b.answer(&mut back);
        assert!(b.stream.may_send());
        for piece in back.chunks(cut) {
            a.receive(piece);
        }
        back.clear();
        a.answer(&mut there);
        assert_eq!((a.outcome.error, b.outcome.error), (None, None));
        if input.is_empty() || round == 11 {
            continue;
        }
        let (what, size) = (input.u8(), usize::from(input.u16()) % LEN);
        let (from, to, out) =
            if what & 0x80 == 0 { (&mut a, &mut b, &mut there) } else { (&mut b, &mut a, &mut back) };
        let remote = Remote { stag: to.stags[1], to: u64::MAX - LEN as u64 + 1 };
        let done = match what & 7 {
            0 | 1 => {
                to.stream.post_receives(1);
                let flags = SendFlags { invalidate: None, solicited: what & 1 != 0 };
                from.stream.send(vec![0x11; size.min(RECEIVE as usize)], flags, out)
            }
            2 => from.stream.write(remote, vec![0x22; size], out),
            3 | 4 => {
                let landing = match what & 7 {
                    3 => Landing::Given,
                    _ => Landing::Registered { stag: from.stags[4], to: 0 },
                };
                let read = from.stream.read::<Vec<u8>>(remote, size as u32, landing, round, out);
                if read.is_ok() {
                    from.reads.push_back((round, size as u32));
                    Ok(())
                } else {
                    // The other side's IRD is 0.
                    continue;
                }
            }
            5 => {
                let operation = Atomic::FetchAdd { add: 1, mask: 0 };
                let _ = from.stream.atomic::<Vec<u8>>(remote, operation, round, out);
                Ok(())
            }
            6 => {
                to.stream.post_receives(1);
                from.stream.immediate::<Vec<u8>>([9; 8], true, out)
            }
            _ => from.stream.write(remote, Vec::new(), out),
        };
        done.expect("it is open, and what is asked for is right");
    }
    for _ in 0..16 {
        for piece in back.chunks(cut) {
            a.receive(piece);
        }
        back.clear();
        a.answer(&mut there);
        for piece in there.chunks(cut) {
            b.receive(piece);
        }
        there.clear();
        b.answer(&mut back);
    }
    assert_eq!((a.outcome.error, b.outcome.error), (None, None));
    assert_eq!((a.stream.outstanding(), b.stream.outstanding()), (0, 0));
    assert!(a.reads.is_empty() && b.reads.is_empty());
}

/// Frames of both sides, good and bad.
pub fn startup_seeds() -> Vec<(&'static str, Seed)> {
    let frame = |options: u8, key: &str, flags: u8, revision: u8, private_data: &[u8]| {
        Seed::new().bytes([options, 9]).bytes(key).bytes([flags, revision]).chunk(private_data)
    };
    vec![
        ("siw-request", frame(0x30, "MPA ID Req Frame", 0x10, 2, &[0, 0x80, 0, 1, 0x80, 0, 0, 0])),
        ("peer-to-peer", frame(0x34, "MPA ID Req Frame", 0xd0, 2, &[0xc0, 4, 0xc0, 4])),
        ("revision-1", frame(0x31, "MPA ID Req Frame", 0x40, 1, b"private")),
        ("no-depths", frame(0x30, "MPA ID Req Frame", 0x10, 2, &[0, 1])),
        ("reply", frame(0x30, "MPA ID Rep Frame", 0x10, 2, &[0, 4, 0, 4, 1, 2, 3])),
        ("reply-rtr", frame(0xb0, "MPA ID Rep Frame", 0xd0, 2, &[0x80, 4, 0x80, 4])),
        ("reply-deep", frame(0x10, "MPA ID Rep Frame", 0x10, 2, &[0x3f, 0xfe, 0x3f, 0xfe])),
        ("rejected", frame(0x30, "MPA ID Rep Frame", 0x30, 2, &[0, 0, 0, 0, 7])),
        ("reply-revision-1", frame(0x31, "MPA ID Rep Frame", 0, 1, b"x")),
        ("too-long", Seed::new().bytes([0x30, 3]).bytes("MPA ID Req Frame\0\x01\x02\x01")),
    ]
}

/// One of each operation, whole and in segments, and each twist.
pub fn segments_seeds() -> Vec<(&'static str, Seed)> {
    let data = [0x5a; 300];
    let answered = |last: Seed, flags: u8| {
        let (first, second) =
            (segment(0x80, 2, 0xff, 0, 0, &data[..60]), segment(0xc0, 2, 0xff, 0, 60, &data[..40]));
        joined(flags, 30, [first, second, segment(0xc0, 2, 0xff, 0, 100, b""), last])
    };
    // Opcode 11 answers the first atomic, whose identifier is 0.
    let fetched = segment(0x40, 11, 0, 0, 0, &[0; 12]);
    let in_memory = segment(0xc0, 2, 4, 0, 8, &data[..50]);
    vec![
        ("reads-answered", answered(segment(0xc0, 2, 0xff, 0, 100, &data[..50]), 1)),
        ("reads-answered-crc-markers", answered(in_memory.clone(), 0x17)),
        ("atomic-answered", {
            let all = answered(in_memory, 0x33).into_bytes();
            Seed::new().bytes(all).bytes(fetched.into_bytes())
        }),
        ("marked", joined(6, 100, (0..8).map(|n| segment(0x40, 3, 0, 0, 0, &data[..40 * n])))),
        ("sends", joined(0, 50, [segment(0x00, 3, 9, 0, 0, &data), segment(0x40, 3, 9, 0, 0, &data[..50])])),
        (
            "send-too-long",
            joined(0, 50, [segment(0x00, 3, 9, 0, 0, &data), segment(0x40, 3, 9, 0, 0, &[1; 301])]),
        ),
        ("invalidate", joined(2, 7, [segment(0x40, 4, 0, 0, 0, b"x"), segment(0xc0, 0, 0, 0, 0, b"late")])),
        ("invalidate-not", joined(0, 7, [segment(0x40, 6, 1, 0, 0, b"x")])),
        ("write", joined(0, 9, [segment(0x80, 0, 0, 0, 0, &data), segment(0xc0, 0, 0, 0, 300, &data)])),
        ("write-last-byte", joined(2, 9, [segment(0xc0, 0, 1, 1, 299, &data)])),
        ("write-wraps", joined(0, 9, [segment(0xc0, 0, 1, 1, 298, &data)])),
        ("write-read-only", joined(0, 9, [segment(0xc0, 0, 2, 2, 0, &data)])),
        ("write-foreign", joined(0, 9, [segment(0xc0, 0, 3, 0, 0, &data)])),
        ("write-unknown", joined(0, 9, [segment(0xc0, 0, 77, 0, 0, &data), segment(0xc0, 0, 77, 0, 0, b"")])),
        ("reads", joined(0, 30, (0..4).map(|_| segment(0x40, 1, 2, 2, 5, &data)))),
        ("read-nothing", joined(2, 30, [segment(0x40, 1, 99, 0, 5, b""), segment(0x40, 1, 0, 0, 5, b"1")])),
        ("response", joined(1, 30, [segment(0xc0, 2, 99, 0, 0, &data[..100])])),
        ("atomic", joined(0, 30, [segment(0x40, 10, 0, 0, 8, b""), segment(0x40, 10, 0, 0, 4, b"")])),
        (
            "immediate",
            joined(2, 30, [segment(0x40, 8, 0, 0, 0, &[1; 8]), segment(0x40, 9, 0, 0, 0, &[2; 8])]),
        ),
        (
            "terminate",
            joined(0, 30, [segment(0x40, 7, 0, 0, 0, &[0x21, 2, 3, 0]), segment(0x40, 3, 0, 0, 0, b"x")]),
        ),
        ("wrong-queue", joined(0, 30, [segment(0x40, 3, 0, 0x40, 0, b"x")])),
        ("wrong-msn", joined(0, 30, [segment(0x40, 3, 0, 0x20, 0, b"x")])),
        ("wrong-mo", joined(0, 30, [segment(0x40, 3, 0, 0x10, 0, b"x")])),
        ("wrong-version", joined(0, 30, [segment(0x42, 0x83, 0, 4, 0, b"x")])),
        ("rtr-send", joined(8, 30, [segment(0x40, 3, 0, 0, 0, b""), segment(0x40, 3, 0, 0, 0, b"")])),
    ]
}

/// Wires of a stream that does everything, under each agreement.
pub fn stream_seeds() -> Vec<(&'static str, Seed)> {
    [("plain", 0u8), ("crc", 2), ("markers", 4), ("crc-and-markers", 6)]
        .into_iter()
        .map(|(name, flags)| {
            let stags = Owner::new(&agreed(flags), 3).stags;
            let mut peer = Owner::new(&agreed(flags | 1), 4);
            let mut wire: Vec<u8> = Vec::new();
            let remote = Remote { stag: stags[0], to: 16 };
            let stream = &mut peer.stream;
            let flags_of_send = SendFlags { invalidate: Some(stags[0]), solicited: true };
            let posted = [
                stream.write(remote, vec![0x33; 700], &mut wire),
                stream.read::<Vec<u8>>(remote, 100, Landing::Given, 1, &mut wire),
                stream.atomic::<Vec<u8>>(remote, Atomic::FetchAdd { add: 1, mask: 0 }, 2, &mut wire),
                stream.send(vec![0x44; 500], SendFlags::default(), &mut wire),
                stream.immediate::<Vec<u8>>([5; 8], false, &mut wire),
                stream.send(vec![0x55; 5], flags_of_send, &mut wire),
            ];
            assert!(posted.iter().all(Result::is_ok));
            stream.terminate::<Vec<u8>>(Terminate::StreamCatastrophic, &mut wire);
            (name, Seed::new().bytes([flags, 100]).bytes(wire))
        })
        .collect()
}

/// Agreements of all kinds with all operations.
pub fn pair_seeds() -> Vec<(&'static str, Seed)> {
    let all: Vec<u8> = (0..8).flat_map(|what| [what | (what & 1) << 7, what, 99]).collect();
    let seed = |ours: u8, theirs: u8, cut: u8| Seed::new().bytes([ours, theirs, cut]).bytes(&all);
    vec![
        ("plain", seed(0x30, 0x30, 255)),
        ("crc", seed(0x32, 0x30, 20)),
        ("markers", seed(0x38, 0x38, 40)),
        ("markers-one-way", seed(0x30, 0x3c, 1)),
        ("revision-1", seed(0x31, 0x30, 77)),
        ("no-reads", seed(0x02, 0x02, 77)),
        ("rtr-send", seed(0x70, 0x30, 77)),
        ("rtr-write", seed(0xb4, 0x3a, 77)),
        ("rtr-read", seed(0xf0, 0x10, 77)),
    ]
}
