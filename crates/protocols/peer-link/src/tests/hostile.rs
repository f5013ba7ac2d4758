//! Peers that have the secret and break the rules: each case ends the connection with an error that
//! says why, and changes no command.

use std::time::Duration;

use super::shake;
use super::world::{Chance, command, limits, nexus};
use crate::Connection;
use crate::forwarder::{Event, Final, Forwarder, Refused};
use crate::frame::Sealer;
use crate::limits::{Limits, SILENT};
use crate::message::{Attach, Attention, Function, Message, NotBegun, Outcome};
use crate::number::Number;
use crate::owner::{Owner, Progress};
use crate::wire::Violation;

const NOW: Duration = Duration::from_secs(1);

struct ToOwner {
    owner: Owner,
    connection: Connection,
    sealer: Sealer,
}

impl ToOwner {
    fn new() -> Self {
        let mut owner = Owner::new(limits());
        let (welcome, keys) = shake::keys(false, 1_000);
        let connection = owner.connect(NOW, keys, 8192, 1_000);
        Self { owner, connection, sealer: Sealer::new(welcome.keys.sends) }
    }

    fn settled() -> Self {
        let mut to = Self::new();
        to.send(Message::Attach(Box::new(Attach { itl: 1, ..nexus(1) })), b"").expect("a nexus");
        to.send(Message::Settled, b"").expect("settled");
        to
    }

    fn send(&mut self, message: Message, data: &[u8]) -> Result<Vec<String>, Violation> {
        let mut bytes = Vec::new();
        self.sealer.seal_with(&message, &[data], &mut bytes);
        bytes.extend(data);
        self.receive(&bytes)
    }

    fn receive(&mut self, mut input: &[u8]) -> Result<Vec<String>, Violation> {
        let mut all = Vec::new();
        while let Some(progress) = self.owner.receive(self.connection, NOW, &mut input)? {
            all.push(format!("{progress:?}"));
        }
        Ok(all)
    }
}

fn number(slot: usize, turn: u64) -> Number {
    Number::new(slot, turn)
}

fn forwarded(slot: usize, turn: u64, data_out: u64, data_in: u64) -> Message {
    let command = Box::new(command(1, 1, data_out, data_in));
    Message::Command { number: number(slot, turn), command }
}

fn attach(itl: u32) -> Message {
    Message::Attach(Box::new(Attach { itl, ..nexus(1) }))
}

#[test]
fn an_owner_ends_a_connection_that_breaks_the_rules() {
    let changed = |change: fn(&mut crate::Command)| {
        let mut command = command(1, 1, 100, 0);
        change(&mut command);
        Message::Command { number: number(0, 1), command: Box::new(command) }
    };
    let state = |cases: Vec<(&'static str, Vec<(Message, usize)>)>| {
        for (expected, messages) in cases {
            let mut to = ToOwner::settled();
            let last = messages.len() - 1;
            for (at, (message, data)) in messages.into_iter().enumerate() {
                let got = to.send(message, &vec![7; data]);
                if at < last {
                    got.expect(expected);
                } else {
                    assert_eq!(got.map(|_| ()), Err(Violation::State(expected)));
                }
            }
        }
    };
    let zero = |message| (message, 0);
    state(vec![
        ("a nexus that is attached already", vec![zero(attach(1))]),
        ("the number of a nexus is used again", vec![zero(attach(5)), zero(attach(4))]),
        ("too many nexuses", vec![zero(attach(2)), zero(attach(3)), zero(attach(4))]),
        ("a nexus that is not attached", vec![zero(Message::Detach { itl: 9 })]),
        (
            "a nexus is detached whose commands have not ended",
            vec![zero(forwarded(0, 1, 0, 0)), zero(Message::Detach { itl: 1 })],
        ),
        ("too many commands", vec![zero(forwarded(limits().slots(), 1, 0, 0))]),
        ("a slot of the other kind", vec![zero(forwarded(4, 1, 0, 0))]),
        (
            "a slot of the other kind",
            vec![zero(Message::Function { number: number(0, 1), itl: 1, function: Function::ClearTaskSet })],
        ),
        (
            "the number of a command is used again",
            vec![zero(forwarded(0, 3, 0, 0)), zero(forwarded(0, 3, 0, 0))],
        ),
        (
            "a slot whose command has not ended",
            vec![zero(forwarded(0, 3, 0, 0)), zero(forwarded(0, 4, 0, 0))],
        ),
        (
            "a slot whose command's end was not sent",
            vec![
                zero(forwarded(0, 3, 0, 0)),
                zero(Message::Abort { number: number(0, 3) }),
                zero(forwarded(0, 4, 0, 0)),
            ],
        ),
        ("more unsolicited data than the command has", vec![(forwarded(0, 1, 10, 0), 11)]),
        (
            "more unsolicited data than there is room for",
            vec![(forwarded(0, 1, 100, 0), 60), (forwarded(1, 1, 100, 0), 41)],
        ),
        ("a time that the owner has not told", vec![zero(changed(|c| c.token = 1_001))]),
        ("a time that the owner has not told", vec![zero(Message::Beat { token: 1_001 })]),
        ("a generation that the owner has not told", vec![zero(changed(|c| c.generation = 1))]),
        (
            "a command that is not the last one of its slot",
            vec![zero(Message::Abort { number: number(0, 1) })],
        ),
        (
            "a command that is not the last one of its slot",
            vec![(Message::Data { number: number(9_999, 1), offset: 0 }, 1)],
        ),
        (
            "more Data-Out than was asked for",
            vec![zero(forwarded(0, 1, 10, 0)), (Message::Data { number: number(0, 1), offset: 0 }, 1)],
        ),
        (
            "Data-Out out of order",
            vec![(forwarded(0, 1, 10, 0), 5), (Message::Data { number: number(0, 1), offset: 4 }, 1)],
        ),
        (
            "Data-Out without bytes",
            vec![(forwarded(0, 1, 10, 0), 5), zero(Message::Data { number: number(0, 1), offset: 5 })],
        ),
        (
            "room for Data-In that there is none of",
            vec![zero(forwarded(0, 1, 0, 10)), zero(Message::Room { number: number(0, 1), end: 11 })],
        ),
        ("a question after all was asked for", vec![zero(Message::Query { number: number(0, 1) })]),
        ("settled twice", vec![zero(Message::Settled)]),
    ]);
    let mut to = ToOwner::new();
    let early = to.send(forwarded(0, 1, 0, 0), b"");
    assert_eq!(early, Err(Violation::State("a command before all was asked for")));
    let mut to = ToOwner::settled();
    let ended = Message::Ended { number: number(0, 1) };
    assert_eq!(to.send(ended, b""), Err(Violation::WrongWay(34)));
}

#[test]
fn a_command_that_is_not_begun_never_begins_after_its_end() {
    let mut to = ToOwner::settled();
    let got = to.send(forwarded(0, 1, 100, 0), &[7; 100]).expect("a command");
    assert!(got[0].starts_with("Command") && got.len() == 2, "{got:?}");
    to.send(Message::Abort { number: number(0, 1) }, b"").expect("an abort");
    assert!(!to.owner.begin(number(0, 1)));
    // Cleared: what the forwarder sent before it knew.
    to.send(forwarded(1, 1, 0, 0), b"").expect("a command");
    to.send(forwarded(2, 1, 0, 10), b"").expect("a command");
    assert!(to.owner.begin(number(2, 1)));
    assert_eq!(to.owner.clear(1, None), [number(2, 1)]);
    assert!(!to.owner.begin(number(1, 1)) && !to.owner.moves(number(2, 1)));
    assert_eq!(to.send(forwarded(3, 1, 0, 0), b""), Ok(Vec::new()));
    assert!(!to.owner.begin(number(3, 1)));
    // Lost before it began.
    let mut lost = ToOwner::settled();
    lost.send(forwarded(0, 1, 100, 0), &[7; 10]).expect("a command");
    lost.owner.lost();
    assert!(!lost.owner.begin(number(0, 1)));
    // A begun one ends by its owner's word alone.
    to.owner.lost();
    assert_eq!(to.owner.begun().collect::<Vec<_>>(), [number(2, 1)]);
    to.owner.ended(number(2, 1));
    assert_eq!(to.owner.begun().count(), 0);
}

#[test]
fn a_unit_whose_mover_is_lost_gives_no_outcome() {
    let said = |to: &mut ToOwner| {
        let mut out = Vec::new();
        to.owner.flush(NOW, 1_000, &mut out);
        // The kind of the only message, an end.
        out[0]
    };
    let begun = |to: &mut ToOwner| {
        to.send(forwarded(0, 1, 100, 0), b"").expect("a command");
        assert!(to.owner.begin(number(0, 1)));
    };
    // Aborted, and the unit has heard of it: it may say GOOD of a write without its data.
    let mut to = ToOwner::settled();
    begun(&mut to);
    to.send(Message::Abort { number: number(0, 1) }, b"").expect("an abort");
    assert!(!to.owner.moves(number(0, 1)));
    to.owner.finish(number(0, 1), Outcome::default());
    assert_eq!(said(&mut to), 34);
    // Aborted too late: the unit had all data, and its outcome stands.
    let mut to = ToOwner::settled();
    begun(&mut to);
    assert!(to.owner.moves(number(0, 1)));
    to.send(Message::Abort { number: number(0, 1) }, b"").expect("an abort");
    to.owner.finish(number(0, 1), Outcome::default());
    assert_eq!(said(&mut to), 32);
    // The connection was lost: what the next one asks for.
    let mut to = ToOwner::settled();
    begun(&mut to);
    to.owner.lost();
    assert!(!to.owner.moves(number(0, 1)));
    to.owner.finish(number(0, 1), Outcome::default());
    let (welcome, keys) = shake::keys(true, 2_000);
    to.connection = to.owner.connect(NOW, keys, 8192, 2_000);
    to.sealer = Sealer::new(welcome.keys.sends);
    to.send(attach(1), b"").expect("the nexus");
    to.send(Message::Query { number: number(0, 1) }, b"").expect("a question");
    assert_eq!(said(&mut to), 34);
}

#[test]
fn a_command_that_clears_its_own_nexus_goes_on() {
    let mut to = ToOwner::settled();
    for slot in 0..3 {
        to.send(forwarded(slot, 1, 100, 0), b"").expect("a command");
    }
    assert!(to.owner.begin(number(0, 1)) && to.owner.begin(number(1, 1)));
    assert_eq!(to.owner.clear(1, Some(number(1, 1))), [number(0, 1)]);
    assert!(to.owner.moves(number(1, 1)) && !to.owner.begin(number(2, 1)));
    // One by itself.
    assert!(to.owner.abort(number(1, 1)) && !to.owner.moves(number(1, 1)));
    assert!(!to.owner.abort(number(1, 1)), "it is aborted already");
}

#[test]
fn a_nexus_that_is_not_attached_again_is_detached() {
    let mut to = ToOwner::settled();
    let (welcome, keys) = shake::keys(true, 2_000);
    to.connection = to.owner.connect(NOW, keys, 8192, 2_000);
    to.sealer = Sealer::new(welcome.keys.sends);
    assert_eq!(to.send(attach(2), b"").expect("another nexus").len(), 1);
    let got = to.send(Message::Settled, b"").expect("settled");
    assert_eq!(got.len(), 2);
    assert!(got.contains(&"Detach { itl: 1 }".to_owned()), "{got:?}");
    assert_eq!(to.owner.nexuses().map(|nexus| nexus.itl).collect::<Vec<_>>(), [2]);
}

#[test]
fn bytes_that_were_changed_repeated_or_reflected_end_the_connection() {
    let sealed = |to: &mut ToOwner, message: Message| {
        let mut bytes = Vec::new();
        to.sealer.seal(&message, &mut bytes);
        bytes
    };
    // Each bit of a frame but those of its lengths, which are checked by themselves.
    let mut to = ToOwner::settled();
    let frame = sealed(&mut to, Message::Beat { token: 7 });
    for at in (0..frame.len()).filter(|at| !(4..12).contains(at)) {
        let mut to = ToOwner::settled();
        let mut changed = sealed(&mut to, Message::Beat { token: 7 });
        changed[at] ^= 1 << (at % 8);
        assert_eq!(to.receive(&changed), Err(Violation::Mac), "byte {at}");
    }
    let mut to = ToOwner::settled();
    let frame = sealed(&mut to, Message::Beat { token: 7 });
    assert!(to.receive(&frame).is_ok());
    assert_eq!(to.receive(&frame), Err(Violation::Mac), "repeated");
    // One lost in between.
    let mut to = ToOwner::settled();
    sealed(&mut to, Message::Beat { token: 7 });
    let second = sealed(&mut to, Message::Beat { token: 8 });
    assert_eq!(to.receive(&second), Err(Violation::Mac));
    // The owner's own frame.
    let mut to = ToOwner::settled();
    let mut own = Vec::new();
    to.owner.flush(NOW * 2, 1_000, &mut own);
    assert!(!own.is_empty());
    assert_eq!(to.receive(&own), Err(Violation::Mac));
    // Data whose checksum is wrong: nothing of its last part goes on.
    let mut to = ToOwner::settled();
    let mut bytes = Vec::new();
    to.sealer.seal_with(&forwarded(0, 1, 3, 0), &[b"abc"], &mut bytes);
    bytes.extend(b"abd");
    assert_eq!(to.receive(&bytes), Err(Violation::Checksum));
    // Another connection's.
    let mut to = ToOwner::settled();
    let old = to.connection;
    let (_, keys) = shake::keys(true, 2_000);
    to.owner.connect(NOW, keys, 8192, 2_000);
    to.connection = old;
    assert_eq!(to.receive(b"x"), Err(Violation::Replaced));
}

#[test]
fn lengths_are_checked_before_anything_is_kept() {
    let head = |body: u32, data: u32| {
        let mut head = vec![16, 0, 0, 0];
        head.extend(body.to_be_bytes());
        head.extend(data.to_be_bytes());
        head.extend([0; 4]);
        head
    };
    let mut to = ToOwner::settled();
    let long = Violation::Length { what: "a message", len: 4097, most: 4096 };
    assert_eq!(to.receive(&head(4097, 0)), Err(long));
    let mut to = ToOwner::settled();
    let long = Violation::Length { what: "data", len: 4097, most: 4096 };
    assert_eq!(to.receive(&head(0, 4097)), Err(long));
    let mut to = ToOwner::settled();
    let long = Violation::Length { what: "data", len: u32::MAX, most: 4096 };
    assert_eq!(to.receive(&head(0, u32::MAX)), Err(long));
    // Data behind a message that has none.
    let mut to = ToOwner::settled();
    let data = to.send(Message::Beat { token: 7 }, b"x");
    assert_eq!(data, Err(Violation::Malformed { kind: 16, what: "data" }));
}

#[test]
fn what_a_newer_release_adds_is_skipped_or_refused() {
    let raw = |to: &mut ToOwner, kind: u8, data: &[u8]| {
        let mut bytes = Vec::new();
        to.sealer.seal_raw(kind, &[data], &mut bytes, |out| out.extend(b"new"));
        bytes.extend(data);
        to.receive(&bytes)
    };
    let mut to = ToOwner::settled();
    assert_eq!(raw(&mut to, 200, b""), Ok(Vec::new()));
    assert_eq!(raw(&mut to, 128, &[7; 4096]), Ok(Vec::new()));
    assert_eq!(to.send(Message::Beat { token: 7 }, b"").map(|got| got.len()), Ok(1));
    assert_eq!(raw(&mut to, 127, b""), Err(Violation::Unknown(127)));
    let mut to = ToOwner::settled();
    let function = Function::Unknown(99);
    let got = to.send(Message::Function { number: number(4, 1), itl: 1, function }, b"");
    assert_eq!(got.map(|got| got.len()), Ok(1), "the host rejects it");
}

struct ToForwarder {
    forwarder: Forwarder,
    connection: Connection,
    sealer: Sealer,
    number: Number,
}

impl ToForwarder {
    /// With a command of 100 bytes each way outstanding: room for 50, and 10 bytes sent.
    fn new() -> Self {
        let mut forwarder = Forwarder::new(8192);
        let mut out = Vec::new();
        let (welcome, keys) = shake::keys(false, 1_000);
        let connection = forwarder.connect(NOW, welcome, &mut out).expect("a first connection");
        let itl = forwarder.attach(nexus(1), &mut out).expect("room");
        let mut command = command(itl, 1, 100, 100);
        command.room = 50;
        let number = forwarder.submit(command, &[&[7; 10]], &mut out).expect("room");
        Self { forwarder, connection, sealer: Sealer::new(keys.sends), number }
    }

    fn send(&mut self, message: Message, data: &[u8]) -> Result<usize, Violation> {
        let mut bytes = Vec::new();
        self.sealer.seal_with(&message, &[data], &mut bytes);
        bytes.extend(data);
        let mut input = &bytes[..];
        let mut events = 0;
        while self.forwarder.receive(self.connection, NOW, &mut input)?.is_some() {
            events += 1;
        }
        Ok(events)
    }
}

#[test]
fn a_forwarder_ends_a_connection_that_breaks_the_rules() {
    let number = ToForwarder::new().number;
    let other = Number::new(1, 1);
    let outcome = |sent| {
        let outcome = Box::new(Outcome { wanted_in: 100, ..Outcome::default() });
        (Message::Outcome { number, outcome, sent }, 0)
    };
    let reason = NotBegun::NotOwner;
    let cases: Vec<(&'static str, Vec<(Message, usize)>)> = vec![
        ("room for Data-Out that there is none of", vec![(Message::Room { number, end: 101 }, 0)]),
        ("room for Data-Out that there is none of", vec![(Message::Room { number, end: 10 }, 0)]),
        ("data of a command that moves none here", vec![(Message::Room { number: other, end: 1 }, 0)]),
        ("Data-In out of order", vec![(Message::Data { number, offset: 1 }, 5)]),
        ("Data-In out of order", vec![(Message::Data { number, offset: 0 }, 0)]),
        ("more Data-In than there is room for", vec![(Message::Data { number, offset: 0 }, 51)]),
        (
            "more Data-In than there is room for",
            vec![(Message::Data { number, offset: 0 }, 40), (Message::Data { number, offset: 40 }, 11)],
        ),
        ("an outcome before its Data-In", vec![outcome(1)]),
        ("more Data-In was sent than expected", vec![outcome(101)]),
        ("the end of nothing", vec![(Message::Ended { number: other }, 0)]),
        ("the end of nothing", vec![(Message::Ended { number }, 0), (Message::Ended { number }, 0)]),
        ("an end of another kind", vec![(Message::Managed { number, result: crate::Managed::Done }, 0)]),
        (
            "Data-In of a command that has not begun",
            vec![(Message::Data { number, offset: 0 }, 5), (Message::NotBegun { number, reason }, 0)],
        ),
        ("a nexus that never was", vec![(Message::Cleared { itl: 2, generation: 1 }, 0)]),
        ("the owner's time went back", vec![(Message::Beat { token: 999 }, 0)]),
    ];
    for (expected, messages) in cases {
        let mut to = ToForwarder::new();
        let last = messages.len() - 1;
        for (at, (message, data)) in messages.into_iter().enumerate() {
            let before: Vec<Number> = to.forwarder.outstanding().collect();
            let got = to.send(message, &vec![7; data]);
            if at < last {
                got.expect(expected);
            } else {
                assert_eq!(got, Err(Violation::State(expected)));
                let after: Vec<Number> = to.forwarder.outstanding().collect();
                assert_eq!(after, before, "a violation ends nothing: {expected}");
            }
        }
    }
    let mut to = ToForwarder::new();
    assert_eq!(to.send(Message::Settled, b""), Err(Violation::WrongWay(7)));
}

#[test]
fn a_forwarder_sends_no_more_than_it_may() {
    let mut to = ToForwarder::new();
    let (forwarder, mut out) = (&mut to.forwarder, Vec::new());
    assert_eq!(forwarder.data(to.number, &[&[7]], &mut out), Err(Refused::Length), "not asked for");
    assert_eq!(forwarder.unsolicited_room(), 90);
    let long = forwarder.submit(command(1, 2, 200, 0), &[&[7; 91]], &mut out);
    assert_eq!(long, Err(Refused::Full));
    let short = forwarder.submit(command(1, 2, 5, 0), &[&[7; 6]], &mut out);
    assert_eq!(short, Err(Refused::Length));
    assert_eq!(forwarder.submit(command(7, 2, 0, 0), &[], &mut out), Err(Refused::Gone));
    assert_eq!(forwarder.detach(1, &mut out), Err(Refused::Busy));
    for tag in 0..3 {
        forwarder.submit(command(1, tag, 0, 0), &[], &mut out).expect("a free slot");
    }
    assert_eq!(forwarder.submit(command(1, 9, 0, 0), &[], &mut out), Err(Refused::Full));
    // Task management does not wait for commands.
    for _ in 0..Limits::FUNCTIONS {
        forwarder.manage(1, Function::ClearTaskSet, &mut out).expect("a free slot");
    }
    assert_eq!(forwarder.manage(1, Function::ClearTaskSet, &mut out), Err(Refused::Full));
    let mut attach = nexus(1);
    attach.attentions = vec![Attention(0x29, 0); 17];
    assert_eq!(forwarder.attach(attach, &mut out), Err(Refused::Length));
    forwarder.lost();
    assert_eq!(forwarder.submit(command(1, 9, 0, 0), &[], &mut out), Err(Refused::NotConnected));
}

#[test]
fn an_owner_that_has_forgotten_is_no_owner() {
    let mut to = ToForwarder::new();
    to.forwarder.lost();
    let (welcome, _) = shake::keys(false, 2_000);
    let mut out = Vec::new();
    let forgotten = to.forwarder.connect(NOW, welcome, &mut out);
    assert_eq!(forgotten, Err(Violation::Forgotten));
    assert_eq!(to.forwarder.outstanding().collect::<Vec<_>>(), [to.number]);
    assert_eq!(to.forwarder.fenced(), [to.number]);
}

#[test]
fn a_silent_peer_loses_its_connection() {
    let (mut to, mut from) = (ToOwner::settled(), ToForwarder::new());
    assert_eq!(from.forwarder.due(), Some(NOW + SILENT));
    let just = NOW + SILENT - Duration::from_nanos(1);
    assert_eq!((to.owner.tick(just), from.forwarder.tick(just)), (Ok(()), Ok(())));
    let late = NOW + SILENT;
    let silent = Err(Violation::Silent);
    assert_eq!((to.owner.tick(late), from.forwarder.tick(late)), (silent, silent));
    let mut out = Vec::new();
    assert!(!to.owner.flush(just, 1_000, &mut out));
    assert!(!out.is_empty(), "the owner tells its time");
}

#[test]
fn a_forwarder_that_does_not_read_makes_nothing_grow() {
    let mut to = ToOwner::settled();
    for turn in 0..1_000 {
        to.owner.attentions(1, vec![Attention(0x2a, turn as u8)]);
        let _ = to.owner.clear(1, None);
    }
    let mut out = Vec::new();
    to.owner.flush(NOW, 1 << 20, &mut out);
    assert!(out.len() < 200, "{} bytes", out.len());
}

#[test]
fn bytes_of_no_sense_end_a_connection_and_no_command() {
    let mut chance = Chance(4);
    for _ in 0..200 {
        let mut to = ToForwarder::new();
        let bytes: Vec<u8> = (0..100).map(|_| chance.draw() as u8).collect();
        let mut input = &bytes[..];
        let got = to.forwarder.receive(to.connection, NOW, &mut input);
        assert!(matches!(got, Err(_) | Ok(None)), "{got:?}");
        assert_eq!(to.forwarder.outstanding().count(), 1);
    }
}

#[test]
fn an_end_frees_its_slot_and_says_what_is_known() {
    let mut to = ToForwarder::new();
    let number = to.number;
    assert_eq!(to.send(Message::Data { number, offset: 0 }, &[7; 50]), Ok(1));
    let outcome = Box::new(Outcome { wanted_in: 50, sense: vec![0x72], ..Outcome::default() });
    let mut bytes = Vec::new();
    to.sealer.seal(&Message::Outcome { number, outcome: outcome.clone(), sent: 50 }, &mut bytes);
    let mut input = &bytes[..];
    let event = to.forwarder.receive(to.connection, NOW, &mut input);
    let end = Final::Outcome { outcome: *outcome, whole: true };
    assert_eq!(event, Ok(Some(Event::End { number, end })));
    assert_eq!(to.forwarder.unsolicited_room(), 100);
    let next = to.forwarder.submit(command(1, 2, 0, 0), &[], &mut Vec::new()).expect("a free slot");
    assert_eq!((next.slot(), next.turn()), (number.slot(), number.turn() + 1));
    // What the owner gets is what was said.
    let mut owner = ToOwner::settled();
    let said = owner
        .send(Message::Function { number: Number::new(4, 1), itl: 9, function: Function::ClearTaskSet }, b"");
    assert_eq!(said, Ok(Vec::new()), "no such nexus: the machine answers");
    let progress = Progress::Beat { token: 7 };
    assert_eq!(owner.send(Message::Beat { token: 7 }, b""), Ok(vec![format!("{progress:?}")]));
}
