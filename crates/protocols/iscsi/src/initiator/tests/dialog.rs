//! Sessions of several connections with our own target: the data is correct, and every task ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::keys::Digest;
use crate::target::inbound::WriteLimits;
use crate::target::{self, Connection, SharedWindow, Window};

/// Our target: connections that share a window, and a disk.
struct Target {
    connections: Vec<(Connection<Vec<u8>>, Vec<u8>)>,
    disk: Vec<u8>,
    limits: Limits,
    now: Instant,
    running: Vec<(usize, target::ScsiCommand)>,
}

impl Target {
    fn new(params: &Params, connections: usize, depth: u32, disk: usize) -> Self {
        let window = Arc::new(SharedWindow::new(100, depth));
        let now = Instant::now();
        let digests = params.digests();
        let make = |cid| {
            let config = target::Config {
                cid,
                window: Window::Shared(window.clone()),
                stat_sn: 10,
                queue_depth: depth,
                write: WriteLimits {
                    max_burst: params.max_burst_length,
                    first_burst: params.first_burst_length,
                    max_r2t: params.max_outstanding_r2t,
                    initial_r2t: params.initial_r2t,
                    immediate: params.immediate_data,
                },
                peer_max_data_segment: params.max_recv_data_segment_length,
                header_digest: digests.header,
                data_digest: digests.data,
                discovery: false,
                rdma: false,
                nop_interval: Duration::ZERO,
                nop_timeout: Duration::ZERO,
                recovery: None,
            };
            (Connection::new(config, now), Vec::new())
        };
        Target {
            connections: (0..connections as u16).map(make).collect(),
            disk: (0..disk).map(|i| (i / 7) as u8).collect(),
            limits: Limits {
                max_data_segment: params.peer_max_recv_data_segment_length,
                ..Limits::of_target(params)
            },
            now,
            running: Vec::new(),
        }
    }

    fn receive(&mut self, index: usize, bytes: &[u8]) {
        for pdu in stream::pdus(self.limits, bytes).expect("well-formed PDUs") {
            let (connection, out) = &mut self.connections[index];
            let event = connection.handle(&pdu.bhs, &pdu.ahs, pdu.data, self.now, out).unwrap();
            self.take(index, event);
            for i in 0..self.connections.len() {
                loop {
                    let (connection, out) = &mut self.connections[i];
                    let Some(event) = connection.next_held(out).unwrap() else { break };
                    self.take(i, Some(event));
                }
            }
        }
    }

    fn take(&mut self, index: usize, event: Option<target::Event>) {
        match event {
            Some(target::Event::Command(command)) => {
                let (connection, out) = &mut self.connections[index];
                if command.expected_out > 0 {
                    connection.want_data(command.task, command.expected_out as usize, out).unwrap();
                }
                self.running.push((index, command));
            }
            Some(target::Event::Data(_)) | None => {}
            other => panic!("{other:?}"),
        }
        self.run();
    }

    /// Runs commands with complete data: bytes 2 to 5 of the CDB are an offset, 6 to 9 a length.
    fn run(&mut self) {
        let mut waiting = Vec::new();
        for (index, command) in std::mem::take(&mut self.running) {
            let (connection, out) = &mut self.connections[index];
            let word = |at: usize| u32::from_be_bytes(command.cdb[at..at + 4].try_into().unwrap()) as usize;
            let (offset, len) = (word(2), word(6));
            let mut end = target::Completion::default();
            if command.cdb[0] == 0x2a {
                if connection.data_available(command.task) < command.expected_out as usize {
                    waiting.push((index, command));
                    continue;
                }
                let mut at = offset;
                let disk = &mut self.disk;
                connection.take_data(command.task, command.expected_out as usize, |data: Vec<u8>| {
                    disk[at..at + data.len()].copy_from_slice(&data);
                    at += data.len();
                });
                end.wanted_out = len as u64;
            } else {
                connection.put_data(command.task, self.disk[offset..offset + len].to_vec(), out);
                end.wanted_in = len as u64;
            }
            connection.finish(command.task, end, out);
        }
        self.running.extend(waiting);
    }
}

#[derive(Debug, Clone)]
struct Work {
    write: bool,
    offset: u32,
    len: u32,
}

fn any_params() -> impl Strategy<Value = Params> {
    let lengths = (512u32..4000, 512u32..4000, 512u32..9000, 512u32..9000);
    (lengths, 1u16..4, any::<[bool; 4]>()).prop_map(|(l, r2t, b)| Params {
        max_recv_data_segment_length: l.0,
        peer_max_recv_data_segment_length: l.1,
        max_burst_length: l.2,
        first_burst_length: l.3.min(l.2),
        max_outstanding_r2t: r2t,
        initial_r2t: b[0],
        immediate_data: b[1],
        header_digest: if b[2] { Digest::Crc32c } else { Digest::None },
        data_digest: if b[3] { Digest::Crc32c } else { Digest::None },
        ..Params::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn commands_move_the_right_bytes_whatever_was_negotiated(
        params in any_params(),
        connections in 1usize..4,
        depth in 1u32..12,
        work in proptest::collection::vec(
            (any::<bool>(), 0u32..40_000, 0u32..12_000).prop_map(|(write, offset, len)| Work { write, offset, len }), 1..24),
        turns in proptest::collection::vec(any::<u8>(), 64),
        part in 1usize..20_000,
    ) {
        let mut target = Target::new(&params, connections, depth, 64 << 10);
        let mut s: Plain = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
        for cid in 0..connections {
            let mut login = established(params.clone());
            login.max_cmd_sn = 100 + depth - 1;
            s.connect(cid as u16, &login);
        }
        let limits = Limits::of_initiator(&params);
        let mut model = target.disk.clone();
        let mut expected = std::collections::HashMap::new();
        for (n, w) in work.iter().enumerate() {
            let mut cdb = [0u8; 10];
            cdb[0] = if w.write { 0x2a } else { 0x28 };
            cdb[2..6].copy_from_slice(&w.offset.to_be_bytes());
            cdb[6..10].copy_from_slice(&w.len.to_be_bytes());
            let range = w.offset as usize..(w.offset + w.len) as usize;
            // Tasks run in the order of their numbers, except that a write waits for its data. So
            // the test runs one command at a time, in the order of the model.
            let data = w.write.then(|| vec![n as u8 ^ 0xa5; w.len as usize]);
            let command = Command {
                lun: Lun::ZERO, attribute: TaskAttribute::Simple, cdb: &cdb, may_repeat: true,
                read_len: (!w.write).then_some(w.len), write: data.clone(),
            };
            let key = s.submit(command, Vec::new()).unwrap();
            let mut ended = false;
            let mut idle = 0;
            let mut turn = turns.iter().cycle().skip(n);
            while !ended {
                let mut moved = false;
                for _ in 0..connections {
                    let on = *turn.next().unwrap() as usize % connections;
                    let mut bytes = Vec::new();
                    s.transmit(ConnectionId(on), part, &mut bytes);
                    moved |= !bytes.is_empty();
                    target.receive(on, &bytes);
                }
                for on in 0..connections {
                    let bytes = std::mem::take(&mut target.connections[on].1);
                    moved |= !bytes.is_empty();
                    for pdu in stream::pdus(limits, &bytes).expect("well-formed PDUs") {
                        let event = s.handle(ConnectionId(on), &pdu.bhs, Segment::Here(&pdu.data));
                        match event.expect("a target that keeps the rules") {
                            Some(Event::Done(done, data, end)) => {
                                prop_assert_eq!(done, key);
                                prop_assert_eq!((end.status, end.residual), (0, Residual::Exact));
                                expected.insert(n, data);
                                ended = true;
                            }
                            None => {}
                            other => prop_assert!(false, "{other:?}"),
                        }
                    }
                }
                idle = if moved { 0 } else { idle + 1 };
                prop_assert!(idle < 200, "nothing moves");
            }
            if let Some(data) = data {
                model[range].copy_from_slice(&data);
            } else {
                prop_assert_eq!(&expected[&n][..], &model[range]);
            }
        }
        prop_assert_eq!(target.disk, model);
        prop_assert!(s.is_empty());
    }

    #[test]
    fn many_commands_at_once_all_end_over_any_number_of_connections(
        params in any_params(), connections in 1usize..4, depth in 1u32..12, count in 1usize..48,
    ) {
        let mut target = Target::new(&params, connections, depth, 64 << 10);
        let mut s: Plain = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
        for cid in 0..connections {
            let mut login = established(params.clone());
            login.max_cmd_sn = 100 + depth - 1;
            s.connect(cid as u16, &login);
        }
        let limits = Limits::of_initiator(&params);
        // Each command has its own kilobyte, so that the order is irrelevant.
        let mut keys = std::collections::HashMap::new();
        for n in 0..count as u32 {
            let mut cdb = [0u8; 10];
            cdb[0] = if n % 2 == 0 { 0x2a } else { 0x28 };
            cdb[2..6].copy_from_slice(&(n * 1024).to_be_bytes());
            cdb[6..10].copy_from_slice(&1024u32.to_be_bytes());
            let write = (n % 2 == 0).then(|| vec![n as u8; 1024]);
            let read_len = write.is_none().then_some(1024);
            let command = Command { lun: Lun::ZERO, attribute: TaskAttribute::Simple, cdb: &cdb, may_repeat: true, read_len, write };
            keys.insert(s.submit(command, Vec::new()).unwrap(), n);
        }
        let before = target.disk.clone();
        let mut rounds = 0;
        while !s.is_empty() {
            for on in 0..connections {
                let mut bytes = Vec::new();
                s.transmit(ConnectionId(on), usize::MAX, &mut bytes);
                target.receive(on, &bytes);
                let bytes = std::mem::take(&mut target.connections[on].1);
                for pdu in stream::pdus(limits, &bytes).expect("well-formed PDUs") {
                    if let Some(Event::Done(key, data, end)) = s.handle(ConnectionId(on), &pdu.bhs, Segment::Here(&pdu.data)).unwrap() {
                        let n = keys.remove(&key).expect("ends once");
                        prop_assert_eq!(end.status, 0);
                        if n % 2 == 1 {
                            let at = n as usize * 1024;
                            prop_assert_eq!(&data[..], &before[at..at + 1024]);
                        }
                    }
                }
            }
            rounds += 1;
            prop_assert!(rounds < 1000, "nothing moves");
        }
        for n in (0..count).step_by(2) {
            prop_assert!(target.disk[n * 1024..(n + 1) * 1024].iter().all(|b| *b == n as u8));
        }
    }
}
