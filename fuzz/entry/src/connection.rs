//! A target's connection in full-feature phase between a hostile initiator and an erratic driver.
//! Every PDU that it sends is cut and checked against RFC 7143: StatSN, the command window, the
//! bounds and the order of data in both directions. Over RDMA ([`run_rdma`]) data moves beside the
//! PDUs, and the connection's requests for it are checked against the same bounds.

use crate::input::{Input, Seed};
use iscsi::frame::Digests;
use iscsi::pdu::{
    AsyncEvent, Bhs, LogoutResult, Opcode, PduRef, RESERVED_TAG, Residual, TaskManagementFunction,
    TaskManagementResult, ahs,
};
use iscsi::sn;
use iscsi::stream;
use iscsi::target::inbound::WriteLimits;
use iscsi::target::{
    Abort, CommandWindow, Completion, Config, Connection, Event, ScsiCommand, TaskKey, Window,
};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

const DEPTH: u32 = 16;
/// Tasks at most: the window's and the immediate ones.
const MAX_TASKS: usize = DEPTH as usize + 16;
const STEPS: usize = 400;
/// RDMA Reads in flight at most.
const MAX_READS: usize = 64;

/// A task as the initiator may know it: the lengths that its command announced, and the data and
/// R2Ts sent for it.
#[derive(Debug, Default)]
struct Seen {
    expected_in: u32,
    expected_out: u32,
    data_in: u32,
    data_sn: u32,
    r2t_sn: u32,
    asked: u32,
    /// Its task, and its RDMA Reads in flight.
    task: Option<TaskKey>,
    reads: usize,
}

struct Harness {
    connection: Connection<Vec<u8>>,
    limits: WriteLimits,
    expects: stream::Limits,
    /// Bytes that the connection has sent and that were not examined yet.
    sent: Vec<u8>,
    stat_sn: u32,
    max_cmd_sn: u32,
    /// Commands that the driver has in hand.
    running: Vec<TaskKey>,
    seen: HashMap<u32, Seen>,
    /// Target Transfer Tags that the connection gave out, the youngest last.
    tags: Vec<u32>,
    rdma: bool,
    /// RDMA Reads in flight: they complete in the order in which they were posted.
    reads: VecDeque<(TaskKey, u32, u32)>,
    now: Instant,
    dead: bool,
    /// Show the PDUs that pass.
    trace: bool,
}

impl Harness {
    fn new(flags: u8, first: u32, rdma: bool) -> Self {
        let limits = WriteLimits {
            max_burst: if flags & 1 != 0 { 512 } else { 4096 },
            first_burst: if flags & 1 != 0 { 512 } else { 1024 },
            max_r2t: if flags & 2 != 0 { 1 } else { 4 },
            initial_r2t: flags & 4 != 0,
            immediate: flags & 8 == 0,
        };
        let (header_digest, data_digest) = (flags & 16 != 0 && !rdma, flags & 32 != 0 && !rdma);
        let peer_max_data_segment = if flags & 64 != 0 { 512 } else { 1024 };
        let now = Instant::now();
        let config = Config {
            cid: 1,
            window: Window::Own(Box::new(CommandWindow::new(first, DEPTH))),
            stat_sn: first,
            queue_depth: DEPTH,
            write: limits,
            peer_max_data_segment,
            header_digest,
            data_digest,
            discovery: flags & 128 != 0,
            rdma,
            nop_interval: Duration::from_secs(10),
            nop_timeout: Duration::from_secs(5),
            recovery: None,
        };
        Self {
            connection: Connection::new(config, now),
            limits,
            expects: stream::Limits {
                digests: Digests { header: header_digest, data: data_digest },
                max_data_segment: peer_max_data_segment,
                ..stream::Limits::LOGIN
            },
            sent: Vec::new(),
            stat_sn: first,
            max_cmd_sn: first.wrapping_add(DEPTH - 1),
            running: Vec::new(),
            seen: HashMap::new(),
            tags: Vec::new(),
            rdma,
            reads: VecDeque::new(),
            now,
            dead: false,
            trace: std::env::var_os("FUZZ_TRACE").is_some(),
        }
    }

    /// A PDU whose numbers are made likely: its opcode, tags and CmdSN come from small bytes.
    /// `early`: if it is one that may be begun before its data has come, it is.
    fn pdu(&mut self, early: bool, input: &mut Input<'_>) {
        let opcodes = Opcode::ALL;
        let mut bhs = Bhs::from(iscsi::pdu::NopOut::ping(0));
        let (opcode, flags) = (input.u8(), input.u8());
        bhs.opcode_byte = match opcodes.get(usize::from(opcode & 0x3f)) {
            Some(known) => known.code(),
            None => opcode & 0x3f,
        } | opcode & 0x40;
        bhs.flags = flags;
        bhs.itt.set(match input.u8() {
            0xff => RESERVED_TAG,
            itt => u32::from(itt % 24),
        });
        let ttt = match input.u8() {
            0 => RESERVED_TAG,
            n => {
                // The youngest is 1.
                let n = usize::from(n) - 1;
                let tag = self.tags.iter().rev().nth(n % self.tags.len().max(1)).copied();
                tag.unwrap_or(n as u32)
            }
        };
        let cmd_sn = self.connection.exp_cmd_sn().wrapping_add_signed(i32::from(input.u8() as i8) / 8);
        let words: [u32; 5] = core::array::from_fn(|_| u32::from(input.u16()));
        let len = usize::from(input.u16() % 2049);
        let area = input.chunk();
        let numbers = [ttt, cmd_sn, 0, words[0], words[1], words[2], words[3]];
        if matches!(bhs.opcode(), Some(Opcode::ScsiCommand)) {
            // Expected length, CmdSN, then the CDB.
            let numbers = [words[0], cmd_sn, 0, words[1], words[2], words[3], words[4]];
            put(&mut bhs, &numbers);
        } else {
            put(&mut bhs, &numbers);
        }
        // Sequence numbers and offsets that are right are much likelier with the low bytes only.
        if matches!(bhs.opcode(), Some(Opcode::DataOut)) {
            let offset = if words[4] & 1 == 0 { self.next_offset(bhs.itt(), words[2]) } else { words[2] };
            put(&mut bhs, &[ttt, 0, 0, 0, words[1] % 8, offset, 0]);
        }
        let area = if area.len() <= ahs::MAX_LEN && area.len() % 4 == 0 && ahs::validate(area).is_ok() {
            area
        } else {
            &[]
        };
        bhs.set_total_ahs_len(area.len());
        bhs.set_data_segment_len(len);
        let data = vec![flags; len];
        if self.trace {
            eprintln!("-> {bhs}");
        }
        if early && len > 0 && self.connection.is_begun_early(&bhs) {
            return self.begin(&bhs, area, data, input);
        }
        let awaited = self.connection.awaits(&bhs);
        let before = awaited.map(|(key, _)| (key, self.connection.data_available(key)));
        match self.connection.handle(&bhs, area, data, self.now, &mut self.sent) {
            Ok(event) => {
                if let Some((key, before)) = before {
                    // The connection must take data that a driver has received in place.
                    assert_eq!(self.connection.data_available(key), before + len, "{bhs}");
                }
                self.event(event);
                self.held();
            }
            Err(fatal) => {
                assert!(!fatal.to_string().is_empty());
                self.dead = true;
            }
        }
    }

    /// A command whose immediate data comes after the driver has done something else.
    fn begin(&mut self, bhs: &Bhs, area: &[u8], data: Vec<u8>, input: &mut Input<'_>) {
        let len = data.len();
        match self.connection.begin(bhs, area, len, self.now, &mut self.sent) {
            Ok(event) => {
                self.event(event);
                self.held();
            }
            Err(_) => self.dead = true,
        }
        for _ in 0..input.u8() % 4 {
            let step = input.u8();
            self.driver(step & 0x7f, input);
        }
        let awaited = self.connection.awaits(bhs);
        if let Some((key, offset)) = awaited {
            assert!(!self.connection.is_aborted(key), "{bhs}");
            assert_eq!((offset, self.connection.data_available(key)), (0, 0), "{bhs}");
        }
        let event = self.connection.rest(data, &mut self.sent);
        if let Some((key, _)) = awaited {
            assert_eq!(self.connection.data_available(key), len, "{bhs}");
        }
        assert_eq!(self.connection.awaits(bhs), None);
        self.event(event);
        self.held();
    }

    /// Offset of a well-behaved initiator's next data: not known here, so one near the requested
    /// offset.
    fn next_offset(&self, itt: u32, hint: u32) -> u32 {
        self.seen.get(&itt).map_or(hint, |seen| seen.asked.saturating_sub(hint % 4096))
    }

    fn held(&mut self) {
        for _ in 0..=2 * MAX_TASKS {
            match self.connection.next_held(&mut self.sent) {
                Ok(None) => return,
                Ok(event) => self.event(event),
                Err(_) => {
                    self.dead = true;
                    return;
                }
            }
        }
        panic!("held commands never end");
    }

    fn event(&mut self, event: Option<Event>) {
        // The PDUs sent so far belong to the tasks known so far.
        self.look();
        match event {
            Some(Event::Command(command)) => self.command(command),
            Some(Event::Data(key)) => assert!(self.connection.has(key)),
            Some(Event::TaskManagement(request)) => {
                let result = match TaskManagementFunction::from_code(request.function) {
                    Some(TaskManagementFunction::AbortTask) => match self.connection.find(request.referenced)
                    {
                        Some(key) => self.abort(key),
                        None if self.connection.skip(request.ref_cmd_sn) => {
                            TaskManagementResult::FunctionComplete
                        }
                        None => TaskManagementResult::TaskDoesNotExist,
                    },
                    Some(_) => TaskManagementResult::FunctionComplete,
                    None => TaskManagementResult::NotSupported,
                };
                self.connection.task_management_response(&request, result, &mut self.sent);
                self.held();
            }
            Some(Event::Text(exchange)) => {
                let reply = vec![b'r'; exchange.text.len().min(1) * usize::from(exchange.lun.0[1]) * 64];
                self.connection.text_response(&exchange, reply, &mut self.sent);
            }
            Some(Event::Logout(request)) => {
                self.connection.logout_response(&request, LogoutResult::Success, &mut self.sent);
            }
            None => {}
        }
        self.look();
    }

    fn command(&mut self, command: ScsiCommand) {
        assert!((16..=ahs::MAX_CDB_LEN).contains(&command.cdb.len()));
        assert!(!self.running.contains(&command.task));
        let itt = self.connection.tasks().find(|(key, _)| *key == command.task).map(|(_, task)| task.itt);
        let itt = itt.expect("a command delivered is in the table");
        let (expected_in, expected_out) = (command.expected_in, command.expected_out);
        let task = Some(command.task);
        self.seen.insert(itt, Seen { expected_in, expected_out, task, ..Seen::default() });
        self.running.push(command.task);
    }

    fn abort(&mut self, key: TaskKey) -> TaskManagementResult {
        self.look();
        if let Some((_, task)) = self.connection.tasks().find(|(other, _)| *other == key) {
            // Nothing more may be sent for it.
            self.seen.remove(&task.itt);
        }
        match self.connection.abort(key) {
            Abort::Gone | Abort::Ended => assert!(!self.connection.has(key)),
            Abort::Running => assert!(self.connection.is_aborted(key)),
        }
        TaskManagementResult::FunctionComplete
    }

    /// Something that a driver, a unit or the clock does.
    fn driver(&mut self, step: u8, input: &mut Input<'_>) {
        let nth = usize::from(input.u8());
        let len = usize::from(input.u16());
        if self.trace {
            eprintln!("   step {step} of task {nth} of {}, {len}", self.running.len());
        }
        let key = self.running.get(nth % self.running.len().max(1)).copied();
        match (step % if self.rdma { 14 } else { 10 }, key) {
            (0 | 1, Some(key)) => {
                self.running.retain(|other| *other != key);
                let sense = (len & 1 != 0).then(|| vec![0x70; 18 + (len >> 8 & 0x3f)].into_boxed_slice());
                let completion = Completion {
                    status: if sense.is_some() { 2 } else { (len >> 1 & 1) as u8 * 0x18 },
                    sense,
                    wanted_in: u64::from(input.u16()),
                    wanted_out: u64::from(input.u16()),
                };
                self.connection.finish(key, completion, &mut self.sent);
            }
            (2 | 3, Some(key)) if self.rdma => self.put(key, len % 5000),
            (2 | 3, Some(key)) => self.connection.put_data(key, vec![0xda; len % 5000], &mut self.sent),
            (4 | 5, Some(key)) => {
                if let Some(will_come) = self.connection.want_data(key, len, &mut self.sent) {
                    assert!(will_come <= len);
                }
            }
            (6, Some(key)) => {
                let available = self.connection.data_available(key);
                let len = len.min(available);
                let mut taken = 0;
                self.connection.take_data(key, len, |data| taken += data.len());
                assert_eq!(taken, len);
                assert_eq!(self.connection.data_available(key), available - len);
            }
            (7, Some(key)) => {
                self.abort(key);
                if !self.connection.has(key) {
                    self.running.retain(|other| *other != key);
                }
            }
            (8, _) => {
                self.now += Duration::from_millis(len as u64);
                let due = self.connection.poll_timeout();
                assert!(due.is_some(), "pings are on");
                self.dead |= self.connection.handle_timeout(self.now, &mut self.sent).is_err();
            }
            (10 | 11, Some(key)) => self.post_reads(key, len),
            (12, Some(key)) if nth > 0xf0 => {
                self.connection.refuse_data_in(key);
                self.seen
                    .values_mut()
                    .filter(|seen| seen.task == Some(key))
                    .for_each(|seen| seen.data_in = 0);
            }
            (10..=13, _) => self.read_done(),
            _ => self.connection.async_message(AsyncEvent::LogoutRequest, [0, 0, 1], &mut self.sent),
        }
        self.look();
        self.held();
    }

    /// An RDMA Write's worth of data-in.
    fn put(&mut self, key: TaskKey, len: usize) {
        let put = self.connection.put(key, len);
        let seen = self.seen.values_mut().find(|seen| seen.task == Some(key));
        if let (Some((offset, len)), Some(seen)) = (put, seen) {
            assert_eq!(offset, seen.data_in);
            seen.data_in += len as u32;
            assert!(seen.data_in <= seen.expected_in);
        }
    }

    /// Posts what RDMA Reads are due, of at most `max` bytes each.
    fn post_reads(&mut self, key: TaskKey, max: usize) {
        while let Some(read) = self.connection.next_read(key, max as u32) {
            let seen = self.seen.values_mut().find(|seen| seen.task == Some(key));
            let seen = seen.expect("a read for a command that was delivered and not answered");
            assert_eq!(read.offset, seen.asked);
            seen.asked += read.len;
            assert!(read.len > 0 && seen.asked <= seen.expected_out);
            seen.reads += 1;
            self.reads.push_back((key, read.at, read.len));
            if self.reads.len() > MAX_READS {
                return;
            }
        }
    }

    /// The oldest RDMA Read is done.
    fn read_done(&mut self) {
        let Some((key, at, len)) = self.reads.pop_front() else { return };
        // Data that a driver places is delivered to the unit next, for a task that still exists.
        let awaited = self.connection.awaits_reads(key).then(|| {
            let seen = self
                .seen
                .values()
                .find(|seen| seen.task == Some(key))
                .expect("it was delivered and not answered");
            assert!(!self.connection.is_aborted(key));
            let (available, left) = (self.connection.data_available(key), self.connection.data_left(key));
            assert_eq!(seen.expected_out - left as u32 + available as u32, at);
            available
        });
        if let Some(seen) = self.seen.values_mut().find(|seen| seen.task == Some(key)) {
            seen.reads -= 1;
        }
        let over = self.connection.read_done(key, vec![0xdb; len as usize], &mut self.sent);
        assert!(!over || !self.connection.has(key));
        if let Some(before) = awaited {
            assert_eq!(self.connection.data_available(key), before + len as usize);
        }
    }

    /// Cuts what the connection sent and holds it against the rules.
    fn look(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        let pdus = stream::pdus(self.expects, &sent);
        for pdu in pdus.expect("the target sends whole PDUs within the initiator's limits") {
            self.rules(&pdu.bhs, pdu.data.len() as u32);
        }
    }

    fn rules(&mut self, bhs: &Bhs, len: u32) {
        if self.trace {
            eprintln!("<- {bhs}");
        }
        assert!(!bhs.immediate() && bhs.opcode().is_some_and(|opcode| !opcode.is_from_initiator()), "{bhs}");
        // Bytes 24, 28 and 32 of every PDU of a target.
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| bhs.bytes()[at + i]));
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = (word(24), word(28), word(32));
        assert!(sn::ge(max_cmd_sn, self.max_cmd_sn), "MaxCmdSN goes back: {bhs}");
        assert!(
            sn::distance(exp_cmd_sn, max_cmd_sn.wrapping_add(1)) <= DEPTH,
            "the window is wider than its depth: {bhs}"
        );
        self.max_cmd_sn = max_cmd_sn;
        let view = bhs.view().expect("checked above");
        // §11.7, §11.8, §11.19: these show the next StatSN, or none; all others take it.
        let takes = match view {
            PduRef::DataIn(data) => data.has_status(),
            PduRef::ReadyToTransfer(_) => false,
            PduRef::NopIn(nop) => nop.itt.get() != RESERVED_TAG,
            _ => true,
        };
        if takes || !matches!(view, PduRef::DataIn(_)) {
            assert_eq!(stat_sn, self.stat_sn, "{bhs}");
        }
        self.stat_sn = self.stat_sn.wrapping_add(u32::from(takes));
        match view {
            PduRef::DataIn(_) | PduRef::ReadyToTransfer(_) if self.rdma => panic!("data in a PDU: {bhs}"),
            PduRef::DataIn(data) => {
                let seen = self.seen.get_mut(&bhs.itt()).expect("data for a command that was delivered");
                assert_eq!(
                    (data.buffer_offset.get(), data.data_sn.get()),
                    (seen.data_in, seen.data_sn),
                    "{bhs}"
                );
                assert!(len > 0);
                seen.data_in += len;
                seen.data_sn += 1;
                assert!(seen.data_in <= seen.expected_in, "{bhs}");
                assert!(!data.has_status() || data.is_final());
                if data.has_status() {
                    assert!(data.residual().is_some());
                    self.seen.remove(&bhs.itt());
                }
            }
            PduRef::ReadyToTransfer(r2t) => {
                assert_ne!(r2t.ttt.get(), RESERVED_TAG);
                self.tags.push(r2t.ttt.get());
                let seen = self.seen.get_mut(&bhs.itt()).expect("an R2T for a command that was delivered");
                let (offset, wanted) = (r2t.buffer_offset.get(), r2t.desired_length.get());
                assert_eq!(r2t.r2t_sn.get(), seen.r2t_sn, "{bhs}");
                assert!((1..=self.limits.max_burst).contains(&wanted), "{bhs}");
                assert!(offset >= seen.asked && offset + wanted <= seen.expected_out, "{bhs}");
                seen.asked = offset + wanted;
                seen.r2t_sn += 1;
            }
            PduRef::ScsiResponse(response) => {
                let residuals = [response.residual(), response.bidi_residual()];
                assert!(residuals.iter().all(Option::is_some), "{bhs}");
                // A refused command was never delivered. Only a delivered one can have an underflow
                // of its announced length.
                if let Some(seen) = self.seen.remove(&bhs.itt()) {
                    assert_eq!(seen.reads, 0, "a response while RDMA Reads are under way: {bhs}");
                    let most = seen.expected_in.max(seen.expected_out);
                    assert!(
                        !residuals.iter().any(|r| matches!(r, Some(Residual::Underflow(n)) if *n > most)),
                        "{bhs}"
                    );
                }
            }
            PduRef::TextResponse(text) => {
                assert!(!(text.is_final() && text.continues()));
                assert_eq!(text.is_final(), text.ttt.get() == RESERVED_TAG, "{bhs}");
                self.tags.push(text.ttt.get());
            }
            PduRef::NopIn(nop) => self.tags.push(nop.ttt.get()),
            PduRef::Reject(_) => assert_eq!(len, 48, "a Reject carries the header of what it rejects"),
            _ => {}
        }
    }
}

fn put(bhs: &mut Bhs, numbers: &[u32; 7]) {
    for (to, number) in bhs.specific_20.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number.to_be_bytes());
    }
}

/// A byte of settings, the first sequence number, then steps: a PDU, or something that the driver
/// does.
pub fn run(data: &[u8]) {
    run_on(data, false);
}

/// The same over RDMA, whose driver posts RDMA Writes and Reads too.
pub fn run_rdma(data: &[u8]) {
    run_on(data, true);
}

fn run_on(data: &[u8], rdma: bool) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let first = if input.bool() { u32::MAX - 3 } else { 7 };
    let mut harness = Harness::new(flags, first, rdma);
    for _ in 0..STEPS {
        if input.is_empty() || harness.dead {
            break;
        }
        match input.u8() {
            step @ 0x80.. => harness.driver(step & 0x7f, &mut input),
            step => harness.pdu(step & 1 != 0, &mut input),
        }
        assert!(harness.connection.tasks().count() <= MAX_TASKS);
    }
    // The connection goes: whatever the driver still runs, it finishes to no effect.
    harness.look();
    harness.connection.forget_reads();
    for key in std::mem::take(&mut harness.running) {
        harness.abort(key);
        harness.connection.finish(key, Completion::default(), &mut harness.sent);
    }
    harness.connection.release_held();
    assert!(harness.sent.is_empty(), "aborted tasks are silent");
}

/// A PDU step: opcode index and flags as bytes, tags, a CmdSN offset, five words, the data's
/// length.
fn pdu(seed: Seed, opcode: Opcode, flags: u8, tags: [u8; 2], ahead: u8, words: [u16; 5], len: u16) -> Seed {
    fields(seed.bytes([0]), opcode, flags, tags, ahead, words, len)
}

fn fields(
    seed: Seed,
    opcode: Opcode,
    flags: u8,
    tags: [u8; 2],
    ahead: u8,
    words: [u16; 5],
    len: u16,
) -> Seed {
    let index = Opcode::ALL.iter().position(|other| *other == opcode).expect("ALL has every opcode");
    let seed = seed.bytes([index as u8, flags]).bytes(tags).bytes([ahead]);
    words
        .iter()
        .fold(seed, |seed, word| seed.bytes(word.to_be_bytes()))
        .bytes(len.to_be_bytes())
        .bytes([0, 0])
}

fn driver(seed: Seed, step: u8, nth: u8, len: u16) -> Seed {
    seed.bytes([0x80 | step, nth]).bytes(len.to_be_bytes())
}

/// Reads, writes with all kinds of data, commands out of order, aborts, text, pings and logouts.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let start = |flags: u8| Seed::new().bytes([flags, 0]);
    let read =
        |seed, itt, ahead| pdu(seed, Opcode::ScsiCommand, 0xc1, [itt, 0], ahead, [4096, 0x2800, 0, 0, 0], 0);
    let write =
        |seed, flags, len| pdu(seed, Opcode::ScsiCommand, flags, [1, 0], 0, [4096, 0x2a00, 0, 0, 0], len);
    let finish = |seed, len: u16| driver(seed, 0, 0, len).bytes([0x10, 0]).bytes([0x10, 0]);
    let out = |seed, flags, ttt, sn, offset, len| {
        pdu(seed, Opcode::DataOut, flags, [1, ttt], 0, [0, sn, offset, 0, 1], len)
    };

    let one_read = finish(driver(driver(read(start(0), 1, 0), 2, 0, 3000), 2, 0, 1096), 0);
    let sense = finish(driver(read(start(0x70), 1, 0), 2, 0, 1500), 0x101);
    let unsolicited = out(out(write(start(0), 0x21, 512), 0, 0, 0, 512, 256), 0x80, 0, 1, 768, 256);
    let unsolicited = driver(driver(unsolicited, 4, 0, 4096), 6, 0, 1024);
    let unsolicited = out(out(unsolicited, 0, 1, 0, 1024, 2048), 0x80, 1, 1, 3072, 1024);
    let solicited = driver(write(start(0x35), 0xa1, 0), 4, 0, 1024);
    let solicited = out(out(solicited, 0x80, 1, 0, 0, 512), 0x80, 1, 0, 512, 512);
    // A write that is begun, and so many steps of the driver before its data comes.
    let begun = |flags, ahead, steps: u8| {
        let words = [2048, 0x2a00, 0, 0, 0];
        let seed = start(0).bytes([1]);
        fields(seed, Opcode::ScsiCommand, flags, [1, 0], ahead, words, 512).bytes([steps])
    };
    let step = |seed: Seed, step, len: u16| seed.bytes([step, 0]).bytes(len.to_be_bytes());
    let begun_and_read = driver(driver(step(begun(0xa1, 0, 1), 4, 2048), 6, 0, 512), 4, 0, 2048);
    let begun_and_ended = step(begun(0xa1, 0, 1), 0, 0).bytes([0x10, 0]).bytes([0x10, 0]);
    let begun_and_aborted = finish(step(begun(0xa1, 0, 1), 7, 0), 0);
    let early = finish(driver(write(start(0), 0xa1, 0), 4, 0, 1024), 0x101);
    let order = finish(read(read(read(start(0), 3, 16), 2, 8), 1, 0), 0);
    let tmf = |seed, function: u8, rtt: u8| {
        pdu(seed, Opcode::TaskManagementRequest, 0x80 | function, [9, rtt], 0, [0; 5], 0)
    };
    let text = pdu(start(0), Opcode::TextRequest, 0x40, [1, 0], 0, [0; 5], 100);
    let text = pdu(text, Opcode::TextRequest, 0x80, [1, 1], 0, [0; 5], 20);
    let nop = pdu(start(0x30), Opcode::NopOut, 0x80, [1, 0], 0, [0; 5], 700);
    let ping = driver(driver(start(0), 8, 0, 10_001), 8, 0, 5000);
    let answered = pdu(driver(start(0), 8, 0, 10_001), Opcode::NopOut, 0x80, [0xff, 1], 0, [0; 5], 0);
    let logout = pdu(start(0), Opcode::LogoutRequest, 0x80, [1, 0], 0, [0; 5], 0);
    let snack = pdu(start(0), Opcode::SnackRequest, 0x80, [1, 0], 0, [0; 5], 0);
    let bidi = pdu(start(0), Opcode::ScsiCommand, 0xe1, [1, 0], 0, [1024, 0x7f00, 0, 0, 0], 0);
    vec![
        ("read", one_read),
        ("read-with-sense", sense),
        ("write-unsolicited", finish(unsolicited, 0)),
        ("write-solicited", finish(solicited, 0)),
        ("write-ends-early", out(early, 0x80, 1, 0, 0, 1024)),
        ("begun", finish(begun_and_read, 0)),
        ("begun-and-ended", begun_and_ended),
        ("begun-and-aborted", begun_and_aborted),
        ("begun-out-of-order", finish(read(begun(0x21, 8, 0), 2, 0), 0)),
        ("write-too-much", write(start(0), 0x21, 2048)),
        ("out-of-order", order),
        ("abort-running", finish(driver(tmf(read(start(0), 1, 0), 1, 1), 7, 0, 0), 0)),
        ("reset", tmf(read(start(0), 1, 0), 5, 0)),
        ("text", text),
        ("nop", nop),
        ("ping-unanswered", ping),
        ("ping-answered", answered),
        ("logout", logout),
        ("snack", snack),
        ("discovery", read(start(0x80), 1, 0)),
        ("bidirectional", finish(driver(driver(bidi, 2, 0, 10), 4, 0, 1024), 0)),
        ("duplicate-tag", read(read(start(0), 1, 0), 1, 0)),
    ]
}

/// Reads and writes whose data moves by RDMA, ends that wait for RDMA Reads, aborts, and memory
/// that is not named.
pub fn rdma_seeds() -> Vec<(&'static str, Seed)> {
    let start = || Seed::new().bytes([0, 0]);
    let read = |seed| pdu(seed, Opcode::ScsiCommand, 0xc1, [1, 0], 0, [4096, 0x2800, 0, 0, 0], 0);
    let write = |seed, len| pdu(seed, Opcode::ScsiCommand, 0xa1, [1, 0], 0, [4096, 0x2a00, 0, 0, 0], len);
    let open = |seed| pdu(seed, Opcode::ScsiCommand, 0x21, [1, 0], 0, [4096, 0x2a00, 0, 0, 0], 512);
    let bidi = |seed| pdu(seed, Opcode::ScsiCommand, 0xe1, [1, 0], 0, [1024, 0x7f00, 0, 0, 0], 0);
    let abort = |seed| pdu(seed, Opcode::TaskManagementRequest, 0x81, [9, 1], 0, [0; 5], 0);
    let out = |seed, sn, offset| pdu(seed, Opcode::DataOut, 0x80, [1, 0], 0, [0, sn, offset, 0, 1], 512);
    let finish = |seed| driver(seed, 0, 0, 0).bytes([0x10, 0]).bytes([0x10, 0]);
    let want = |seed| driver(driver(seed, 4, 0, 4096), 10, 0, 1500);
    let done = |seed| driver(seed, 13, 0, 0);
    let all = |seed| done(done(done(seed)));
    vec![
        ("rdma-read", finish(driver(driver(read(start()), 2, 0, 3000), 2, 0, 1096))),
        ("rdma-write", finish(driver(all(want(write(start(), 0))), 6, 0, 4096))),
        ("immediate", finish(driver(all(want(write(start(), 700))), 6, 0, 4096))),
        ("unsolicited", finish(all(driver(out(want(open(start())), 0, 512), 10, 0, 900)))),
        ("ends-early", all(finish(want(write(start(), 0))))),
        ("aborted", all(finish(abort(want(write(start(), 0)))))),
        ("aborted-first", finish(all(abort(want(write(start(), 0)))))),
        ("bidirectional", finish(all(want(driver(bidi(start()), 2, 0, 10))))),
        ("no-memory", finish(driver(read(start()), 12, 0xff, 0))),
        ("lost", want(write(start(), 0))),
    ]
}
