//! An initiator's session between a hostile target and a driver that submits, pings, logs out and
//! loses its connections. Placed data stays within the requested length and comes in order. PDUs
//! sent are well-formed, within the window, and never carry more data than the commands hold.

use crate::input::{Input, Seed};
use iscsi::initiator::{Command, ConnectionId, Event, Place, Segment, Session, SessionConfig};
use iscsi::keys::{Digest, Params};
use iscsi::login::initiator::Established;
use iscsi::pdu::{
    Bhs, LogoutReason, Lun, NopIn, Opcode, PduRef, RESERVED_TAG, TaskAttribute, TaskManagementFunction,
};
use iscsi::stream;
use std::collections::HashMap;

const STEPS: usize = 300;
const MAX_TASKS: usize = 24;
const READ_MAX: u16 = 2048;
const WRITE_MAX: u16 = 4096;

/// Destination of a read; checks the session's promises for [`Place::place`].
#[derive(Debug)]
struct Area {
    expected: usize,
    received: usize,
}

impl Place<&[u8]> for Area {
    fn place(&mut self, offset: usize, data: &[u8]) {
        assert_eq!(offset, self.received, "in order");
        self.received += data.len();
        assert!(self.received <= self.expected, "within what was asked for");
    }
}

/// Data sent for a command.
#[derive(Debug, Default)]
struct Sent {
    write_len: u32,
    bytes: u32,
}

struct Harness {
    session: Session<Vec<u8>, Area>,
    connections: Vec<ConnectionId>,
    params: Params,
    /// The target's next StatSN of each connection.
    stat_sn: Vec<u32>,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    sent: HashMap<u32, Sent>,
    /// Tags seen, the youngest last.
    tags: Vec<u32>,
}

impl Harness {
    fn new(flags: u8) -> Self {
        let digest = |on| if on { Digest::Crc32c } else { Digest::None };
        let params = Params {
            initial_r2t: flags & 1 != 0,
            immediate_data: flags & 2 == 0,
            header_digest: digest(flags & 4 != 0),
            data_digest: digest(flags & 8 != 0),
            max_outstanding_r2t: if flags & 16 != 0 { 1 } else { 4 },
            max_burst_length: 2048,
            first_burst_length: 1024,
            peer_max_recv_data_segment_length: 512,
            ..Params::default()
        };
        let mut harness = Harness {
            session: Session::new(SessionConfig { max_tasks: MAX_TASKS, first_cmd_sn: 0xffff_fffa }),
            connections: Vec::new(),
            params,
            stat_sn: Vec::new(),
            exp_cmd_sn: 0xffff_fffa,
            max_cmd_sn: 0xffff_fffa_u32.wrapping_add(7),
            sent: HashMap::new(),
            tags: Vec::new(),
        };
        harness.connect(1 + usize::from(flags >> 6));
        harness
    }

    fn connect(&mut self, connections: usize) {
        self.connections.clear();
        self.stat_sn.clear();
        self.sent.clear();
        for cid in 0..connections {
            let login = Established {
                params: self.params.clone(),
                tsih: 1,
                stat_sn: 0xffff_fffe,
                exp_cmd_sn: self.exp_cmd_sn,
                max_cmd_sn: self.max_cmd_sn,
                target_alias: None,
                portal_group_tag: None,
                authenticated: false,
            };
            self.connections.push(self.session.connect(cid as u16, &login));
            self.stat_sn.push(0xffff_ffff);
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let flags = input.u8();
        let read_len = (flags & 1 != 0).then(|| u32::from(input.u16() % READ_MAX));
        let write = (flags & 2 != 0).then(|| vec![0xa5; usize::from(input.u16() % WRITE_MAX)]);
        let cdb = [flags; 32];
        let command = Command {
            lun: Lun::ZERO,
            attribute: TaskAttribute::Simple,
            cdb: if flags & 4 != 0 { &cdb } else { &cdb[..10] },
            write,
            read_len,
            may_repeat: flags & 8 == 0,
        };
        let area = Area { expected: read_len.unwrap_or(0) as usize, received: 0 };
        let _ = self.session.submit(command, area);
        assert!(self.session.len() <= MAX_TASKS);
    }

    fn nothing() -> Area {
        Area { expected: 0, received: 0 }
    }

    /// Cuts a connection's output into PDUs and checks it against the negotiated parameters.
    fn transmit(&mut self, index: usize) {
        let limits = stream::Limits {
            max_data_segment: self.params.peer_max_recv_data_segment_length,
            ..stream::Limits::of_target(&self.params)
        };
        let mut out = Vec::new();
        self.session.transmit(self.connections[index], 16 << 10, &mut out);
        for stream::Owned { bhs, data, .. } in stream::pdus(limits, &out).expect("well-formed PDUs") {
            assert!(bhs.opcode().is_some_and(Opcode::is_from_initiator));
            assert_eq!(bhs.exp_stat_sn(), Some(self.stat_sn[index]));
            if bhs.itt() != RESERVED_TAG {
                self.tags.push(bhs.itt());
            }
            match bhs.view() {
                Some(PduRef::ScsiCommand(command)) => {
                    let open = self.max_cmd_sn.wrapping_sub(command.cmd_sn.get());
                    assert!(open < 0x8000_0000, "within the window");
                    let write_len = if command.write() { command.edtl.get() } else { 0 };
                    let bytes = data.len() as u32;
                    assert!(
                        bytes <= if self.params.immediate_data { self.params.first_burst_length } else { 0 }
                    );
                    self.sent.insert(bhs.itt(), Sent { write_len, bytes });
                }
                Some(PduRef::DataOut(out)) => {
                    let sent = self.sent.get_mut(&bhs.itt()).expect("data of a command that was sent");
                    assert_eq!(out.buffer_offset.get(), sent.bytes, "in order");
                    sent.bytes += data.len() as u32;
                    assert!(sent.bytes <= sent.write_len, "no more than the command holds");
                }
                _ => {}
            }
        }
    }

    /// A target's PDU whose numbers are made likely.
    fn receive(&mut self, index: usize, input: &mut Input<'_>) -> bool {
        let mut bhs = Bhs::from(NopIn::unsolicited());
        let (opcode, flags, shape) = (input.u8(), input.u8(), input.u8());
        let from_target: Vec<_> = Opcode::ALL.iter().filter(|o| !o.is_from_initiator()).collect();
        bhs.opcode_byte = match from_target.get(usize::from(opcode)) {
            Some(known) => known.code(),
            None => opcode & 0x3f,
        };
        bhs.flags = flags;
        let age = usize::from(input.u8());
        let tag = self.tags.iter().rev().nth(age % self.tags.len().max(1)).copied();
        bhs.itt.set(if age == 255 { RESERVED_TAG } else { tag.unwrap_or(age as u32) });
        let stat_sn = if shape & 1 == 0 { self.stat_sn[index] } else { input.u32() };
        let window = input.u8();
        let exp = self.exp_cmd_sn.wrapping_add(u32::from(window & 7));
        let max = self.max_cmd_sn.wrapping_add(u32::from(window >> 3 & 7));
        let ttt = if shape & 2 == 0 { RESERVED_TAG } else { u32::from(input.u8()) };
        let words = [
            ttt,
            stat_sn,
            exp,
            max,
            u32::from(input.u8() % 8),
            u32::from(input.u16() % 4096),
            u32::from(input.u16() % 4096),
        ];
        for (at, word) in words.iter().enumerate() {
            bhs.specific_20[at * 4..at * 4 + 4].copy_from_slice(&word.to_be_bytes());
        }
        let data = input.chunk();
        bhs.set_data_segment_len(data.len());
        let on = self.connections[index];
        let outcome = if shape & 4 != 0 && bhs.opcode() == Some(Opcode::DataIn) {
            // As a driver does that places pieces as they come.
            self.session.expect_data(on, &bhs).and_then(|found| {
                if let Some((key, offset)) = found {
                    let (a, b) = data.split_at(data.len() / 2);
                    self.session.place(key, offset as usize, a);
                    self.session.place(key, offset as usize + a.len(), b);
                }
                self.session.handle(on, &bhs, Segment::Placed)
            })
        } else {
            self.session.handle(on, &bhs, Segment::Here(data))
        };
        let Ok(event) = outcome else { return false };
        // Only accepted values count.
        if max.wrapping_sub(exp.wrapping_sub(1)) < 0x8000_0000 {
            (self.exp_cmd_sn, self.max_cmd_sn) = (exp, max);
        }
        let counts = match bhs.view() {
            Some(PduRef::DataIn(pdu)) => pdu.has_status(),
            Some(PduRef::NopIn(_)) => bhs.itt() != RESERVED_TAG,
            Some(PduRef::ReadyToTransfer(_)) => false,
            _ => true,
        };
        if counts {
            self.stat_sn[index] = stat_sn.wrapping_add(1);
        }
        if let Some(Event::Done(_, area, end)) = event {
            assert_eq!(area.received, end.received as usize);
        }
        true
    }
}

/// One input: how the session is set up, then steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut h = Harness::new(input.u8());
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let index = usize::from(step >> 4) % h.connections.len();
        let on = h.connections[index];
        match step & 0x0f {
            0..=3 => h.submit(&mut input),
            4 => drop(h.session.ping(on, Harness::nothing())),
            5 => drop(h.session.text(on, b"SendTargets=\0".to_vec(), Harness::nothing())),
            6 => drop(h.session.logout(on, LogoutReason::CloseSession, Harness::nothing())),
            7 => {
                let function = TaskManagementFunction::LogicalUnitReset;
                drop(h.session.task_management(on, function, Lun::ZERO, None, Harness::nothing()));
            }
            8 => {
                let connections = h.connections.len();
                h.session.disconnect(h.exp_cmd_sn);
                assert!(h.session.is_disconnected());
                h.max_cmd_sn = h.exp_cmd_sn.wrapping_add(7);
                // Data of commands that are sent again is placed from the start.
                let keys: Vec<_> = h.tags.drain(..).collect();
                for key in keys {
                    h.sent.remove(&key);
                }
                h.session.tokens_mut().for_each(|(_, area)| area.received = 0);
                h.connect(connections);
            }
            9 | 10 => h.transmit(index),
            _ => {
                if !h.receive(index, &mut input) {
                    break;
                }
            }
        }
    }
    let left = h.session.len();
    assert_eq!(h.session.abandon().len(), left);
    assert!(h.session.is_empty());
}

/// A read that ends well, a write by R2T, a text, a reconnect.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let position = |wanted| {
        let mut from_target = Opcode::ALL.iter().filter(|o| !o.is_from_initiator());
        from_target.position(|o| *o == wanted).unwrap_or(0) as u8
    };
    // Opcode, flags, shape, age of the tag, window, then (TTT,) DataSN, offset, last word, data.
    let data_in = |flags, sn, offset: u16, data: &[u8]| {
        let head = [0x0b, position(Opcode::DataIn), flags, 0, 0, 0x09, sn];
        Seed::new().bytes(head).bytes(offset.to_be_bytes()).bytes([0, 0]).chunk(data).into_bytes()
    };
    let r2t = |sn, offset: u16, len: u16| {
        let head = [0x0b, position(Opcode::ReadyToTransfer), 0x80, 2, 0, 0, 7, sn];
        Seed::new()
            .bytes(head)
            .bytes(offset.to_be_bytes())
            .bytes(len.to_be_bytes())
            .bytes([0, 0])
            .into_bytes()
    };
    let response = [0x0b, position(Opcode::ScsiResponse), 0x80, 0, 0, 0x09, 0, 0, 0, 0, 0, 0, 0];
    let submit_read = [0x00, 0x01, 0x04, 0x00];
    let submit_write = [0x00, 0x02, 0x08, 0x00];
    vec![
        (
            "read",
            Seed::new()
                .bytes([0])
                .bytes(submit_read)
                .bytes([0x09])
                .bytes(data_in(0, 0, 0, &[1; 512]))
                .bytes(data_in(0x81, 1, 512, &[2; 512])),
        ),
        (
            "write",
            Seed::new()
                .bytes([0])
                .bytes(submit_write)
                .bytes([0x09])
                .bytes(r2t(0, 1024, 1024))
                .bytes([0x09])
                .bytes(response),
        ),
        (
            "reconnect",
            Seed::new()
                .bytes([0x4c])
                .bytes(submit_read)
                .bytes(submit_write)
                .bytes([0x09, 0x19])
                .bytes(data_in(0, 0, 0, &[1; 100]))
                .bytes([0x08, 0x09, 0x19]),
        ),
        ("everything", Seed::new().bytes([0x80, 4, 5, 6, 7, 0x09, 0x19, 0x29, 0x08])),
    ]
}
