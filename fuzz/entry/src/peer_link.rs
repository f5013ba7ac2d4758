//! The link between gateways: a handshake with anybody, and frames of a peer that has the secret.

use std::time::Duration;

use peer_link::forwarder::Event;
use peer_link::frame::Forger;
use peer_link::message::Attribute;
use peer_link::{
    Answering, Attach, Calling, Command, Forwarder, Keys, Limits, Managed, NotBegun, Outcome, Own, Owner,
    Progress, Said, Secret, Welcome,
};

use crate::input::{Input, Seed};

const NOW: Duration = Duration::from_secs(1);
const OWNER: u64 = 2;

fn secret() -> Secret {
    Secret::new(&[7; 32]).expect("32 bytes")
}

fn own() -> Own {
    Own { gateway: 1, instance: 1, channel: 0, owner: OWNER, versions: 1..=1, secret: 1, piece: 4096 }
}

fn limits() -> Limits {
    Limits { piece: 4096, commands: 4, nexuses: 4, unsolicited: 64 }
}

/// The four messages of a handshake, and what both ends have then.
fn shaken() -> ([Vec<u8>; 4], Welcome, Keys) {
    let mut messages: [Vec<u8>; 4] = Default::default();
    let [hello, challenge, proof, accept] = &mut messages;
    let mut calling = Calling::open(own(), &secret(), [1; 32], hello);
    let mut answering = Answering::new();
    answering.advance(&mut &hello[..]).expect("a hello");
    answering.challenge((2, OWNER, 1), &limits(), &secret(), [2; 32], challenge);
    calling.advance(&mut &challenge[..], proof).expect("a challenge");
    answering.advance(&mut &proof[..]).expect("a proof");
    let keys = answering.accept(false, 1_000, accept).expect("proven");
    let welcome = calling.advance(&mut &accept[..], &mut Vec::new()).expect("proven").expect("whole");
    (messages, welcome, keys)
}

/// How a forwarder's hello and proof end at an owner, in pieces of `step`.
fn answer(stream: &[u8], step: usize) -> String {
    let mut answering = Answering::new();
    let mut said = String::new();
    for mut piece in stream.chunks(step) {
        loop {
            match answering.advance(&mut piece) {
                Ok(None) => break,
                Ok(Some(Said::Hello(claim))) => {
                    said += &format!("{claim:?}");
                    answering.challenge((2, OWNER, 1), &limits(), &secret(), [2; 32], &mut Vec::new());
                }
                Ok(Some(Said::Proven)) => return said + "proven",
                Err(error) => return said + &error.to_string(),
            }
        }
        assert!(piece.is_empty());
    }
    said
}

fn call(stream: &[u8], step: usize) -> String {
    let mut out = Vec::new();
    let mut calling = Calling::open(own(), &secret(), [1; 32], &mut out);
    for mut piece in stream.chunks(step) {
        match calling.advance(&mut piece, &mut out) {
            Ok(None) => assert!(piece.is_empty()),
            Ok(Some(welcome)) => return format!("{} {}", welcome.gateway, welcome.token),
            Err(error) => return error.to_string(),
        }
    }
    assert!(out.len() < 1024);
    String::new()
}

/// Byte 0: how many bytes arrive at once; byte 1: to the owner, or to the forwarder.
pub fn handshake(data: &[u8]) {
    let mut input = Input::new(data);
    let (step, to_owner) = (usize::from(input.u8()).max(1), input.bool());
    let stream = input.rest();
    let end = if to_owner { answer } else { call };
    assert_eq!(end(stream, step), end(stream, stream.len().max(1)));
}

/// Both halves of an honest handshake, and refusals.
pub fn handshake_seeds() -> Vec<(&'static str, Seed)> {
    let ([hello, challenge, proof, accept], _, _) = shaken();
    let mut refusal = Vec::new();
    Answering::refuse(peer_link::Reason::NoMember, &mut refusal);
    let seed =
        |step: u8, to_owner: u8, parts: &[&[u8]]| Seed::new().bytes([step, to_owner]).bytes(parts.concat());
    vec![
        ("forwarder", seed(255, 1, &[&hello, &proof])),
        ("forwarder-bytewise", seed(1, 1, &[&hello, &proof])),
        ("owner", seed(99, 0, &[&challenge, &accept])),
        ("refusal", seed(5, 0, &[&refusal])),
        ("refusal-after-challenge", seed(255, 0, &[&challenge, &refusal])),
        ("reflected", seed(255, 0, &[&hello])),
    ]
}

fn nexus() -> Attach {
    Attach {
        itl: 1,
        nexus: 7,
        unit: 3,
        tenure: 1,
        read_only: false,
        new: true,
        generation: 0,
        port: 9,
        transport_id: vec![5, 0, 0, 4, 1, 2, 3, 4],
        initiator: "iqn.a".into(),
        target: "iqn.b".into(),
        principal: None,
        attentions: Vec::new(),
    }
}

fn command() -> Command {
    Command {
        itl: 1,
        generation: 0,
        token: 0,
        tag: 1,
        attribute: Attribute::Simple,
        data_out: 64,
        data_in: 64,
        room: 32,
        cdb: vec![0x28; 10],
    }
}

/// Bit 0 of byte 0: to the owner, or to the forwarder. Then steps: `kind`, body and data of a frame
/// with a right MAC, and what the host does then.
pub fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    if input.bool() { to_owner(&mut input) } else { to_forwarder(&mut input) }
}

/// The host of an owner: begins, moves data and ends as the input says.
fn to_owner(input: &mut Input<'_>) {
    let (_, welcome, keys) = shaken();
    let mut owner = Owner::new(limits());
    let mut connection = owner.connect(NOW, keys, 4096, 1_000);
    let mut forger = Forger::new(welcome.keys);
    let (mut seen, mut begun) = (Vec::new(), Vec::new());
    let mut functions = Vec::new();
    while !input.is_empty() {
        let (kind, body, data) = (input.u8(), input.chunk(), input.chunk());
        let mut bytes = Vec::new();
        forger.forge(kind, body, data, &mut bytes);
        let mut stream = &bytes[..];
        let broken = loop {
            match owner.receive(connection, NOW, &mut stream) {
                Ok(Some(Progress::Command { number, command, unsolicited })) => {
                    assert!((6..=260).contains(&command.cdb.len()) && command.room <= command.data_in);
                    assert!(u64::from(unsolicited) <= command.data_out && unsolicited <= 64);
                    seen.push(number);
                }
                Ok(Some(Progress::Function { number, .. })) => functions.push(number),
                Ok(Some(Progress::Data { number, .. })) => {
                    assert!(seen.contains(&number) || begun.contains(&number));
                }
                Ok(Some(Progress::Attach(attach))) => assert!(attach.fits()),
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(violation) => {
                    assert!(!violation.to_string().is_empty());
                    break true;
                }
            }
        };
        let mut out = Vec::new();
        let act = input.u8();
        match act & 7 {
            0 => {
                for number in seen.iter().filter(|number| owner.begin(**number)).copied().collect::<Vec<_>>()
                {
                    begun.push(number);
                }
                seen.retain(|number| !begun.contains(number));
            }
            1 => seen.drain(..).for_each(|number| owner.refuse(number, NotBegun::Stale)),
            2 => begun.drain(..).for_each(|number| owner.finish(number, Outcome::default())),
            3 => begun.drain(..).for_each(|number| owner.ended(number)),
            4 => functions.drain(..).for_each(|number| owner.managed(number, Managed::Done)),
            5 => drop(owner.clear(1, None)),
            6 => {
                for number in &begun {
                    owner.ask(*number, u64::from(act >> 3));
                    let room = owner.room(*number).min(16) as usize;
                    assert_eq!(owner.data(*number, &[&[1; 16][..room]], &mut out), room > 0);
                }
            }
            _ => {}
        }
        owner.flush(NOW, 1 << 20, &mut out);
        assert!(out.len() < 4096, "the host has said little");
        if broken {
            // The next connection of the same forwarder.
            let (_, welcome, keys) = shaken();
            connection = owner.connect(NOW, keys, 4096, 1_000);
            forger = Forger::new(welcome.keys);
        }
        assert!(owner.begun().all(|number| begun.contains(&number)));
        assert!(owner.nexuses().count() <= 4);
    }
}

fn to_forwarder(input: &mut Input<'_>) {
    let (_, welcome, keys) = shaken();
    let mut forwarder = Forwarder::new(4096);
    let mut out = Vec::new();
    let connection = forwarder.connect(NOW, welcome, &mut out).expect("a first connection");
    forwarder.attach(nexus(), &mut out).expect("room");
    let mut outstanding = vec![forwarder.submit(command(), &[&[7; 8]], &mut out).expect("room")];
    let mut forger = Forger::new(keys);
    while !input.is_empty() {
        let (kind, body, data) = (input.u8(), input.chunk(), input.chunk());
        let mut bytes = Vec::new();
        forger.forge(kind, body, data, &mut bytes);
        let mut stream = &bytes[..];
        loop {
            match forwarder.receive(connection, NOW, &mut stream) {
                Ok(Some(Event::End { number, .. })) => {
                    assert!(outstanding.contains(&number), "a forwarding ends once");
                    outstanding.retain(|other| *other != number);
                }
                Ok(Some(Event::Room { number, end })) => assert!(outstanding.contains(&number) && end <= 64),
                Ok(Some(Event::Data { number, offset, bytes, .. })) => {
                    assert!(outstanding.contains(&number) && offset + bytes.len() as u64 <= 64);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(violation) => {
                    assert!(!violation.to_string().is_empty());
                    assert_eq!(forwarder.fenced(), outstanding, "no end is lost");
                    return;
                }
            }
        }
        match input.u8() & 3 {
            0 => outstanding.extend(forwarder.submit(command(), &[], &mut out)),
            1 => outstanding.iter().for_each(|number| forwarder.room(*number, 64, &mut out)),
            2 => outstanding.iter().for_each(|number| forwarder.abort(*number, &mut out)),
            _ => forwarder.flush(&mut out),
        }
        outstanding.sort_unstable_by_key(|number| number.get() & 0xffff);
    }
}

/// Frames that an honest peer sends, with the host's part behind each.
pub fn frames_seeds() -> Vec<(&'static str, Seed)> {
    let frame = |seed: Seed, kind: u8, body: &[&[u8]], data: &[u8], act: u8| {
        seed.bytes([kind]).chunk(body.concat()).chunk(data).bytes([act])
    };
    let number = |slot: u64, turn: u64| (turn << 16 | slot).to_be_bytes();
    let attach = |itl: u32| {
        let numbers = [&itl.to_be_bytes()[..], &7u64.to_be_bytes(), &3u32.to_be_bytes()].concat();
        let numbers = [numbers, 1u64.to_be_bytes().to_vec()].concat();
        [&numbers[..], b"\x02\0\0\0\0\0\x09\0\x08\x05\0\0\x04abcd\0\x05iqn.a\0\x05iqn.b\0"].concat()
    };
    let command = |slot, turn| {
        let lengths = [64u64, 64, 32].map(u64::to_be_bytes).concat();
        let head = [&number(slot, turn)[..], &[0, 0, 0, 1, 0, 0, 0, 0], &[0; 16], &[0]].concat();
        [&head[..], &lengths, b"\0\x0a\x28\0\0\0\0\x09\0\0\x01\0"].concat()
    };
    let settled = || {
        let seed = frame(Seed::new().bytes([1]), 1, &[&attach(1)], b"", 7);
        frame(seed, 7, &[], b"", 7)
    };
    let room = |slot, turn, end: u64| [&number(slot, turn)[..], &end.to_be_bytes()].concat();
    let run = frame(settled(), 3, &[&command(0, 1)], b"unsolicited", 0);
    let run = frame(run, 16, &[&1_000u64.to_be_bytes()], b"", 0x1f << 3 | 6);
    let run = frame(run, 18, &[&room(0, 1, 11)], b"solicited", 7);
    let run = frame(run, 17, &[&room(0, 1, 64)], b"", 6);
    let run = frame(run, 16, &[&1_000u64.to_be_bytes()], b"", 2);
    let run = frame(run, 3, &[&command(0, 2)], b"", 0);
    let aborted = frame(settled(), 3, &[&command(0, 1)], b"", 7);
    let aborted = frame(aborted, 5, &[&number(0, 1)], b"", 0);
    let aborted = frame(aborted, 3, &[&command(1, 1)], b"", 0);
    let aborted = frame(aborted, 5, &[&number(1, 1)], b"", 3);
    let managed = frame(settled(), 3, &[&command(0, 1)], b"", 0);
    let managed = frame(managed, 4, &[&number(4, 1), &[0, 0, 0, 1, 3]], b"", 5);
    let managed = frame(managed, 200, &[b"newer"], b"data", 3);
    let managed = frame(managed, 16, &[&1_000u64.to_be_bytes()], b"", 4);
    let managed = frame(managed, 2, &[&[0, 0, 0, 1]], b"", 7);
    // A connection that is lost by a violation, and the questions of the next one.
    let lost = frame(settled(), 3, &[&command(0, 1)], b"", 0);
    let lost = frame(lost, 99, &[], b"", 7);
    let lost = frame(lost, 1, &[&attach(1)], b"", 7);
    let lost = frame(lost, 6, &[&number(0, 1)], b"", 7);
    let lost = frame(lost, 6, &[&number(1, 1)], b"", 7);
    let lost = frame(lost, 7, &[], b"", 2);
    let start = || Seed::new().bytes([0]);
    let outcome = |sent: u64, wanted: u64| {
        let numbers = [wanted, 64, sent].map(u64::to_be_bytes).concat();
        [&number(0, 1)[..], &[0], &numbers, b"\0\x03\x72\x06\x29"].concat()
    };
    let moved = frame(start(), 17, &[&room(0, 1, 64)], b"", 1);
    let moved = frame(moved, 18, &[&room(0, 1, 0)], &[7; 64], 3);
    let moved = frame(moved, 32, &[&outcome(64, 64)], b"", 0);
    let told = frame(start(), 36, &[&[0, 0, 0, 1, 0, 0, 0, 1]], b"", 3);
    let told = frame(told, 37, &[&[0, 0, 0, 1, 2, 0x29, 0, 0x2a, 6]], b"", 3);
    let told = frame(told, 38, &[&[0, 0, 0, 3, 0, 1]], b"", 3);
    let told =
        frame(told, 38, &[&[0, 0, 0, 3, 0, 1], &512u32.to_be_bytes(), &2_048u64.to_be_bytes()], b"", 3);
    let told = frame(told, 16, &[&2_000u64.to_be_bytes()], b"", 3);
    let told = frame(told, 33, &[&number(0, 1), &[3]], b"", 0);
    let told = frame(told, 34, &[&number(0, 2)], b"", 2);
    vec![
        ("owner-runs", run),
        ("owner-aborts", aborted),
        ("owner-manages", managed),
        ("owner-after-a-loss", lost),
        ("forwarder-moves-data", moved),
        ("forwarder-is-told", told),
    ]
}
