//! A target for tests, on the initiator's thread: our protocol crate's target side, a disk in
//! memory, and several connections per session. It injects faults on the wire: tiny pieces, lost
//! connections, corrupted bytes. Its state is open to the test.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iscsi::chap::Secret;
use iscsi::frame::{Digests, emit_pdu};
use iscsi::keys::{Digest, Offer, Params};
use iscsi::login::target::{Auth, Claim, Directory, Grant, Placement, Refusal, Reply, Step, TargetLogin};
use iscsi::pdu::{
    AsyncEvent, LoginStatus, LogoutResult, Opcode, TaskManagementFunction, TaskManagementResult,
};
use iscsi::sn;
use iscsi::stream::{self, Assembler, Limits, Owned};
use iscsi::target::inbound::WriteLimits;
use iscsi::target::{Completion, Config, Connection, Event, ScsiCommand, SharedWindow, Window};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use runtime::{Gather, ListenOptions, TcpListener, TcpStream};
use scsi::data::capacity::ReadCapacity16;
use scsi::data::inquiry::StandardInquiry;
use scsi::data::vpd;
use scsi::{AdditionalSense, Sense, SenseKey};

pub const TARGET: &str = "iqn.2026-01.org.example:fake";
pub const BLOCK: usize = 512;

/// The faults, and their frequency.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Maximum bytes per send.
    pub crumb: usize,
    /// Maximum bytes after which a connection breaks; 0 for never.
    pub break_after: u64,
    /// Maximum bytes after which one byte is corrupted; 0 for never.
    pub garble_after: u64,
    /// One in this many PDUs is lost, in either direction; 0 for none. Only with error recovery.
    pub lose_one_in: u32,
    /// One in this many data segments has a wrong digest, in either direction; 0 for none. Only
    /// with error recovery.
    pub spoil_one_in: u32,
    /// One in this many of the target's headers has a wrong digest, never two in a row; 0 for none.
    /// Only with error recovery.
    pub spoil_header_one_in: u32,
    /// Logins to refuse, by number, from 1.
    pub refuse_logins: std::ops::Range<u32>,
    /// Status of the refusals.
    pub refuse_with: LoginStatus,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            seed: 1,
            crumb: usize::MAX,
            break_after: 0,
            garble_after: 0,
            lose_one_in: 0,
            spoil_one_in: 0,
            spoil_header_one_in: 0,
            refuse_logins: 0..0,
            refuse_with: LoginStatus::OutOfResources,
        }
    }
}

/// One session of the target.
struct Nexus {
    window: Arc<SharedWindow>,
    params: Params,
    /// Whether the unit has a pending unit attention for a new nexus.
    attention: bool,
}

struct Wire {
    connection: Connection<Vec<u8>>,
    out: Vec<u8>,
    tsih: u16,
    waiting: Vec<ScsiCommand>,
    ended: bool,
    logged_out: bool,
    digests: (bool, bool),
    /// Time of the next check for lost PDUs.
    look: std::time::Instant,
}

pub struct State {
    pub disk: Vec<u8>,
    pub faults: Faults,
    pub offer: Offer,
    pub logins: u32,
    /// Commands run, by opcode.
    pub ran: HashMap<u8, u32>,
    nexuses: HashMap<u16, Nexus>,
    wires: HashMap<u32, Wire>,
    next_tsih: u16,
    next_wire: u32,
    /// Depth of the command window.
    pub depth: u32,
    /// PDUs received on a connection after its logout.
    pub late: u32,
    /// Commands with this opcode wait until they are aborted.
    pub hangs: Option<u8>,
    /// So many of the next writes end with MEDIUM ERROR.
    pub failing: u32,
}

/// A running target.
pub struct Fake {
    pub state: Rc<RefCell<State>>,
    pub port: u16,
    task: runtime::JoinHandle<()>,
}

impl Fake {
    pub fn start(faults: Faults, offer: Offer, blocks: usize) -> Fake {
        let state = State {
            disk: vec![0; blocks * BLOCK],
            faults,
            offer,
            logins: 0,
            ran: HashMap::new(),
            nexuses: HashMap::new(),
            wires: HashMap::new(),
            next_tsih: 1,
            next_wire: 1,
            depth: 16,
            late: 0,
            hangs: None,
            failing: 0,
        };
        let state = Rc::new(RefCell::new(state));
        let mut listener =
            TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = state.clone();
        let task = runtime::spawn(async move {
            while let Ok(stream) = listener.accept().await {
                runtime::spawn(serve(shared.clone(), stream));
            }
        });
        Fake { state, port, task }
    }

    pub fn url(&self) -> iscsi_client::Url {
        format!("iscsi://127.0.0.1:{}/{TARGET}/0", self.port).parse().unwrap()
    }

    /// Sends an asynchronous message on every connection.
    pub fn announce(&self, event: AsyncEvent) {
        for wire in self.state.borrow_mut().wires.values_mut() {
            wire.connection.async_message(event, [0, 0, 3], &mut wire.out);
        }
    }

    /// Connections in full-feature phase.
    pub fn connections(&self) -> usize {
        self.state.borrow().wires.values().filter(|w| !w.ended).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
        self.state.borrow_mut().wires.values_mut().for_each(|w| w.ended = true);
    }
}

/// Accepts every login.
struct Open<'a>(&'a State);

impl Directory for Open<'_> {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if claim.target.is_some_and(|t| t != TARGET) {
            return Err(Refusal::Status(LoginStatus::NotFound));
        }
        if self.0.faults.refuse_logins.contains(&self.0.logins) {
            return Err(Refusal::Status(self.0.faults.refuse_with));
        }
        let session = self.0.nexuses.get(&claim.tsih).map(|n| n.params.clone());
        if claim.tsih != 0 && session.is_none() {
            return Err(Refusal::Status(LoginStatus::SessionDoesNotExist));
        }
        Ok(Grant {
            auth: Auth::None,
            offer: self.0.offer.clone(),
            portal_group_tag: 1,
            alias: None,
            session,
            then: None,
        })
    }

    fn secret(&self, _: &Claim<'_>, _: &str) -> Option<Secret> {
        None
    }
}

async fn send_reply(stream: &TcpStream, reply: Reply) -> bool {
    let (mut bytes, mut gather) = (Vec::new(), Gather::new());
    emit_pdu(&mut reply.header.into(), &[], &reply.data, Digests::default(), &mut bytes);
    gather.push_copy(&bytes);
    stream.send(gather).await.0.is_ok()
}

/// Serves one connection from accept to its end.
async fn serve(state: Rc<RefCell<State>>, stream: TcpStream) {
    let stream = Rc::new(stream);
    let mut login = TargetLogin::new(1);
    let mut received = Assembler::new(Limits::LOGIN);
    state.borrow_mut().logins += 1;
    let id = loop {
        let step = match received.next_pdu().expect("a well-formed login") {
            Some(pdu) => {
                assert_eq!(pdu.bhs.opcode(), Some(Opcode::LoginRequest));
                login.handle(pdu.bhs.as_login_request(), &pdu.data, &Open(&state.borrow()))
            }
            None => match stream.recv_some(8192).await {
                Ok(bytes) if !bytes.is_empty() => {
                    received.push(&bytes);
                    continue;
                }
                _ => return,
            },
        };
        match step {
            Step::Reply(reply) => {
                if !send_reply(&stream, reply).await {
                    return;
                }
            }
            Step::Close(reply, _) => {
                send_reply(&stream, reply).await;
                return;
            }
            Step::Place(outcome) => {
                received.set_limits(Limits::of_target(&outcome.params));
                let (placement, id) =
                    place(&mut state.borrow_mut(), &outcome, login.next_stat_sn().wrapping_add(1));
                if !send_reply(&stream, login.accept(placement)).await {
                    return;
                }
                break id;
            }
        }
    };
    let sender = runtime::spawn(send(state.clone(), stream.clone(), id));
    let mut random = SmallRng::seed_from_u64(state.borrow().faults.seed ^ 77 << 32 ^ u64::from(id));
    loop {
        while let Ok(Some(Owned { bhs, ahs, data, .. })) = received.next_pdu() {
            let state = &mut *state.borrow_mut();
            let Some(wire) = state.wires.get_mut(&id) else { return };
            state.late += u32::from(wire.logged_out);
            match fate(&mut random, &state.faults, wire.connection.error_recovery_level(), data.len()) {
                Fate::Well => {
                    let event = wire.connection.handle(&bhs, &ahs, data, runtime::now(), &mut wire.out);
                    take(state, id, event.expect("an initiator that keeps the rules"));
                }
                Fate::Lost => continue,
                Fate::Spoilt => {
                    wire.connection
                        .damaged(&bhs, runtime::now(), &mut wire.out)
                        .expect("a PDU that can be dropped");
                    take(state, id, None);
                }
            }
            for other in state.wires.keys().copied().collect::<Vec<_>>() {
                while let Some(wire) = state.wires.get_mut(&other) {
                    let Some(event) = wire.connection.next_held(&mut wire.out).unwrap() else { break };
                    take(state, other, Some(event));
                }
            }
        }
        match stream.recv_some(64 << 10).await {
            Ok(bytes) if !bytes.is_empty() => received.push(&bytes),
            _ => break,
        }
    }
    if let Some(wire) = state.borrow_mut().wires.get_mut(&id) {
        wire.ended = true;
    }
    let _ = sender.await;
    state.borrow_mut().wires.remove(&id);
}

fn place(state: &mut State, outcome: &iscsi::login::target::Outcome, stat_sn: u32) -> (Placement, u32) {
    let depth = state.depth;
    let tsih = if outcome.tsih == 0 {
        // Reinstatement, since there is one initiator: older sessions end.
        state.wires.values_mut().for_each(|w| w.ended = true);
        state.nexuses.clear();
        let tsih = state.next_tsih;
        state.next_tsih += 1;
        let window = Arc::new(SharedWindow::new(outcome.cmd_sn, depth));
        state.nexuses.insert(tsih, Nexus { window, params: outcome.params.clone(), attention: true });
        tsih
    } else {
        outcome.tsih
    };
    let window = state.nexuses[&tsih].window.clone();
    let p = &outcome.params;
    let digests = (p.header_digest == Digest::Crc32c, p.data_digest == Digest::Crc32c);
    let config = Config {
        cid: outcome.cid,
        window: Window::Shared(window.clone()),
        stat_sn,
        queue_depth: depth,
        write: WriteLimits {
            max_burst: p.max_burst_length,
            first_burst: p.first_burst_length,
            max_r2t: p.max_outstanding_r2t,
            initial_r2t: p.initial_r2t,
            immediate: p.immediate_data,
        },
        peer_max_data_segment: p.peer_max_recv_data_segment_length,
        header_digest: digests.0,
        data_digest: digests.1,
        discovery: false,
        rdma: false,
        nop_interval: Duration::ZERO,
        nop_timeout: Duration::ZERO,
        recovery: (p.error_recovery_level > 0).then_some(iscsi::target::recovery::Limits {
            level: p.error_recovery_level,
            keep_bytes: 64 << 20,
            keep_statuses: 1000,
            data_timeout: Duration::from_millis(200),
        }),
    };
    let id = state.next_wire;
    state.next_wire += 1;
    let connection = Connection::new(config, runtime::now());
    let (out, waiting) = Default::default();
    let look = runtime::now();
    state
        .wires
        .insert(id, Wire { connection, out, tsih, waiting, ended: false, logged_out: false, digests, look });
    let (exp_cmd_sn, max_cmd_sn) = window.numbers();
    (Placement { tsih, exp_cmd_sn, max_cmd_sn }, id)
}

fn take(state: &mut State, id: u32, event: Option<Event>) {
    let Some(wire) = state.wires.get_mut(&id) else { return };
    match event {
        Some(Event::Command(command)) => {
            if command.expected_out > 0 {
                wire.connection.want_data(command.task, command.expected_out as usize, &mut wire.out);
            }
            wire.waiting.push(command);
        }
        Some(Event::TaskManagement(request)) => {
            let tsih = wire.tsih;
            let named = |command: &ScsiCommand| {
                sn::lt(command.cmd_sn, request.cmd_sn)
                    && match TaskManagementFunction::from_code(request.function) {
                        Some(TaskManagementFunction::AbortTask) => command.itt == request.referenced,
                        Some(TaskManagementFunction::TargetWarmReset) => true,
                        _ => command.lun == request.lun,
                    }
            };
            let mut aborted = 0;
            for wire in state.wires.values_mut().filter(|wire| wire.tsih == tsih) {
                let Wire { connection, waiting, out, .. } = wire;
                waiting.retain(|command| {
                    if named(command) {
                        connection.abort(command.task);
                        connection.finish(command.task, Completion::default(), out);
                        aborted += 1;
                    }
                    !named(command)
                });
            }
            let single = request.function == TaskManagementFunction::AbortTask.code();
            let result = match single && aborted == 0 {
                true => TaskManagementResult::TaskDoesNotExist,
                false => TaskManagementResult::FunctionComplete,
            };
            let Some(wire) = state.wires.get_mut(&id) else { return };
            wire.connection.task_management_response(&request, result, &mut wire.out);
        }
        Some(Event::Logout(request)) => {
            wire.logged_out = true;
            wire.connection.logout_response(&request, LogoutResult::Success, &mut wire.out);
        }
        Some(Event::Text(text)) => wire.connection.text_response(&text, Vec::new(), &mut wire.out),
        Some(Event::Data(_)) | None => {}
    }
    let Some(wire) = state.wires.get_mut(&id) else { return };
    let mut waiting = std::mem::take(&mut wire.waiting);
    waiting.retain(|command| !run(state, id, command));
    if let Some(wire) = state.wires.get_mut(&id) {
        wire.waiting = waiting;
    }
}

/// Runs a command if its data has arrived.
fn run(state: &mut State, id: u32, command: &ScsiCommand) -> bool {
    let State { disk, ran, nexuses, wires, hangs, failing, .. } = state;
    if command.cdb.first() == hangs.as_ref() {
        return false;
    }
    let Some(wire) = wires.get_mut(&id) else { return true };
    if wire.connection.data_available(command.task) < command.expected_out as usize {
        return false;
    }
    let mut written = Vec::new();
    wire.connection.take_data(command.task, command.expected_out as usize, |d: Vec<u8>| written.extend(d));
    *ran.entry(command.cdb[0]).or_default() += 1;
    let attention = nexuses.get_mut(&wire.tsih).is_some_and(|n| std::mem::take(&mut n.attention));
    let fails = *failing > 0 && matches!(command.cdb[0], 0x2a | 0x8a);
    let answer = if attention {
        Err(Sense::new(SenseKey::UnitAttention, AdditionalSense::new(0x29, 0x07)))
    } else if fails {
        *failing -= 1;
        Err(Sense::new(SenseKey::MediumError, AdditionalSense::new(0x0c, 0x00)))
    } else {
        execute(disk, &command.cdb, &written)
    };
    let (connection, out) = (&mut wire.connection, &mut wire.out);
    let mut end = Completion { wanted_out: u64::from(command.expected_out), ..Completion::default() };
    match answer {
        Ok(data) => {
            end.wanted_in = data.len() as u64;
            connection.put_data(command.task, data, out);
        }
        Err(sense) => {
            end.status = 2;
            end.sense = Some(sense.emit(false).to_vec().into());
        }
    }
    connection.finish(command.task, end, out);
    true
}

pub fn execute(disk: &mut [u8], cdb: &[u8], written: &[u8]) -> Result<Vec<u8>, Sense> {
    let be = |r: std::ops::Range<usize>| cdb[r].iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let (lba, blocks) = match cdb[0] {
        0x28 | 0x2a => (be(2..6), be(7..9)),
        0x88 | 0x8a => (be(2..10), be(10..14)),
        0x89 => (be(2..10), be(13..14)),
        _ => (0, 0),
    };
    let range = lba * BLOCK..(lba + blocks) * BLOCK;
    let area = disk.get(range.clone()).ok_or_else(Sense::lba_out_of_range)?;
    match cdb[0] {
        0x00 | 0x35 => Ok(Vec::new()),
        0x12 if cdb[1] & 1 == 0 => Ok(StandardInquiry::disk("STAG", "fake", "1", false).emit()),
        0x12 if cdb[2] == 0 => Ok(vpd::emit(0, 0, &[0])),
        0x9e => {
            let last_lba = (disk.len() / BLOCK - 1) as u64;
            let capacity = ReadCapacity16 {
                last_lba,
                block_len: BLOCK as u32,
                physical_exponent: 0,
                lowest_aligned: 0,
                provisioning: false,
                deallocated_is_zero: false,
            };
            Ok(capacity.emit().to_vec())
        }
        0x28 | 0x88 => Ok(area.to_vec()),
        0x2a | 0x8a => {
            disk[range].copy_from_slice(written);
            Ok(Vec::new())
        }
        0x89 => {
            let (old, new) = written.split_at(blocks * BLOCK);
            if area != old {
                return Err(Sense::miscompare(0));
            }
            disk[range].copy_from_slice(new);
            Ok(Vec::new())
        }
        _ => Err(Sense::invalid_opcode()),
    }
}

/// The fault for a PDU.
enum Fate {
    Well,
    Lost,
    Spoilt,
}

fn fate(random: &mut SmallRng, faults: &Faults, level: u8, data_len: usize) -> Fate {
    let one_in = |random: &mut SmallRng, n: u32| level > 0 && n > 0 && random.random_range(0..n) == 0;
    if one_in(random, faults.lose_one_in) {
        Fate::Lost
    } else if data_len > 0 && one_in(random, faults.spoil_one_in) {
        Fate::Spoilt
    } else {
        Fate::Well
    }
}

/// Drops and corrupts some of the PDUs in `bytes`.
fn mistreat(bytes: &mut Vec<u8>, random: &mut SmallRng, faults: &Faults, wire: &Wire) {
    let level = wire.connection.error_recovery_level();
    let faultless = [faults.lose_one_in, faults.spoil_one_in, faults.spoil_header_one_in] == [0; 3];
    if level == 0 || faultless {
        return;
    }
    let mut spoilt = true;
    let (header_digest, data_digest) = wire.digests;
    let digests = Digests { header: header_digest, data: data_digest };
    let limits = Limits { digests, max_data_segment: 1 << 24, ..Limits::LOGIN };
    let (mut left, mut at) = (Vec::new(), 0);
    for pdu in stream::pdus(limits, bytes).expect("whole PDUs") {
        let end = at + limits.pdu_len(&pdu.bhs);
        let data_end = end - pdu.trailer.len();
        let data = data_end - pdu.data.len()..data_end;
        let one_in = faults.spoil_header_one_in;
        spoilt = header_digest && !spoilt && one_in > 0 && random.random_range(0..one_in) == 0;
        if spoilt {
            // Targets send no AHS: the digest follows the 48 bytes of the header.
            bytes[at + 48 + random.random_range(0..4)] ^= 1 << random.random_range(0..8);
            left.extend_from_slice(&bytes[at..end]);
            at = end;
            continue;
        }
        match fate(random, faults, level, if data_digest { data.len() } else { 0 }) {
            Fate::Well => left.extend_from_slice(&bytes[at..end]),
            Fate::Lost => {}
            Fate::Spoilt => {
                bytes[random.random_range(data)] ^= 1 << random.random_range(0..8);
                left.extend_from_slice(&bytes[at..end]);
            }
        }
        at = end;
    }
    *bytes = left;
}

/// Sends a connection's PDUs, with the configured faults.
async fn send(state: Rc<RefCell<State>>, stream: Rc<TcpStream>, id: u32) {
    let faults = state.borrow().faults.clone();
    let mut random = SmallRng::seed_from_u64(faults.seed ^ u64::from(id) << 32);
    let some =
        |random: &mut SmallRng, most: u64| if most == 0 { u64::MAX } else { random.random_range(0..most) };
    let break_at = some(&mut random, faults.break_after);
    let garble_at = some(&mut random, faults.garble_after);
    let mut sent = 0u64;
    let mut gather = Gather::new();
    loop {
        let (mut bytes, ended) = match state.borrow_mut().wires.get_mut(&id) {
            Some(wire) => {
                if runtime::now() >= wire.look && wire.connection.error_recovery_level() > 0 {
                    wire.look = runtime::now() + Duration::from_millis(40);
                    wire.connection.recover(runtime::now(), &mut wire.out);
                }
                let mut bytes = std::mem::take(&mut wire.out);
                mistreat(&mut bytes, &mut random, &faults, wire);
                (bytes, wire.ended)
            }
            None => break,
        };
        if let Some(at) = garble_at.checked_sub(sent).filter(|at| *at < bytes.len() as u64) {
            let digests = state.borrow().wires[&id].digests;
            assert_eq!(digests, (true, true), "only digests can tell");
            bytes[at as usize] ^= 1 << random.random_range(0..8);
        }
        let broken = break_at.checked_sub(sent).filter(|at| *at < bytes.len() as u64);
        if let Some(at) = broken {
            bytes.truncate(at as usize);
        }
        sent += bytes.len() as u64;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = faults.crumb.min(rest.len());
            let n = if faults.crumb == usize::MAX { most } else { random.random_range(1..=most) };
            gather.push_copy(&rest[..n]);
            let (done, back) = stream.send(gather).await;
            gather = back;
            if done.is_err() {
                return;
            }
            rest = &rest[n..];
            if faults.crumb != usize::MAX && random.random_range(0..8) == 0 {
                // Lets the other side see a piece alone.
                runtime::yield_now().await;
            }
        }
        if broken.is_some() || ended {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
        runtime::sleep(Duration::from_micros(100)).await;
    }
}

/// Several tasks read and write areas of their own, and compare every read with their last write.
pub async fn churn(disk: &iscsi_client::Disk, tasks: u64, rounds: u32, seed: u64) {
    let area = disk.blocks() / tasks;
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let disk = disk.clone();
            runtime::spawn(async move {
                let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(1000) + task);
                let first = task * area;
                let mut model = vec![0u8; area as usize * BLOCK];
                for _ in 0..rounds {
                    let at = random.random_range(0..area);
                    let blocks = random.random_range(1..=(area - at).min(300)) as u32;
                    let range = at as usize * BLOCK..(at as usize + blocks as usize) * BLOCK;
                    if random.random() {
                        random.fill(&mut model[range.clone()]);
                        disk.write(first + at, runtime::Buf::from(model[range].to_vec()))
                            .await
                            .expect("a write");
                    } else {
                        let data = disk.read(first + at, blocks).await.expect("a read");
                        assert!(data.to_vec() == model[range], "task {task} reads what it wrote");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}
