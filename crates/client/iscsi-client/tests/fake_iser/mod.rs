//! An iSER target for tests, on the initiator's thread: a disk in memory behind queue pairs, which
//! lies and violates rules on request. [`proxy`] adds faults that a queue pair cannot produce.

pub mod proxy;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use iscsi::chap::{Credential, Secret};
use iscsi::keys::Offer;
use iscsi::login::target::{Auth, Claim, Directory, Grant, Placement, Refusal, Step, TargetLogin};
use iscsi::pdu::{
    self, Bhs, LoginStatus, LogoutResult, Lun, Opcode, PduRef, RESERVED_TAG, Residual, ResponseCode,
    TaskManagementResult,
};
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout, Limits, PrivateData};
use rdma::{Completion, Crc, Flags, QueuePair, Remote, Stag};
use runtime::{Buf, Chain};
use scsi::{AdditionalSense, Sense, SenseKey};

use crate::fake::{BLOCK, TARGET, execute};

/// A violation of the target, once, for a read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Answers GOOD and transfers nothing.
    NoData,
    /// Answers GOOD and transfers the first half.
    HalfData,
    /// Transfers everything but reports a residual beyond the requested length.
    HugeResidual,
    /// Its response invalidates the STag of another command.
    ForeignStag,
    /// Its response invalidates an STag that does not exist.
    UnknownStag,
    /// Sends Data-In.
    DataIn,
    /// Sends R2T.
    R2t,
    /// Sends HelloReply.
    Hello,
    /// Sends bytes that are not an iSER message.
    Garbage,
    /// Sends a message that ends within its BHS.
    Short,
    /// Sends a response whose data segment is longer than the message.
    Long,
    /// Writes beyond the read's end.
    WriteBeyond,
    /// Writes to an invented STag.
    WildWrite,
    /// Answers, then writes.
    WriteLate,
    /// Reads beyond the write's end.
    ReadBeyond,
    /// Reads memory that it may only write, or the reverse.
    WrongWay,
    /// Sends the same response twice.
    Twice,
    /// Disconnects after half of the transfer.
    Vanish,
}

/// The target's configuration.
#[derive(Clone)]
pub struct Manners {
    /// Whether it invalidates STags with its responses.
    pub invalidates: bool,
    /// Its offer at login, with RDMA.
    pub offer: Offer,
    /// CHAP, if it requires it.
    pub chap: Option<(Credential, Option<Credential>)>,
    /// Policy for the CRC.
    pub crc: Crc,
    /// Commands after which a connection is dropped; 0 for never.
    pub drop_after: u32,
}

impl Default for Manners {
    fn default() -> Self {
        let offer = Offer { first_burst_length: 65_536, ..Offer::default().over_rdma() };
        Manners { invalidates: true, offer, chap: None, crc: Crc::Prefer, drop_after: 0 }
    }
}

pub struct State {
    pub disk: Vec<u8>,
    pub manners: Manners,
    /// Violations for the next reads and writes of blocks.
    pub lies: VecDeque<Lie>,
    pub logins: u32,
    /// Commands run, by opcode.
    pub ran: HashMap<u8, u32>,
    /// Bytes of writes sent with their command. Below: bytes fetched.
    pub immediate: u64,
    pub fetched: u64,
    /// Whether to keep commands without an answer.
    pub deaf: bool,
    pub task_management: u32,
    generation: u32,
    /// The STags of the kept commands.
    known: Vec<Stag>,
}

/// A running target.
pub struct Fake {
    pub state: Rc<RefCell<State>>,
    pub port: u16,
    task: runtime::JoinHandle<()>,
    stopped: Rc<Cell<bool>>,
}

const DEPTH: u32 = 32;

impl Fake {
    pub fn start(manners: Manners, blocks: usize) -> Fake {
        let state = State {
            disk: vec![0; blocks * BLOCK],
            manners,
            lies: VecDeque::new(),
            logins: 0,
            ran: HashMap::new(),
            immediate: 0,
            fetched: 0,
            deaf: false,
            task_management: 0,
            generation: 0,
            known: Vec::new(),
        };
        let state = Rc::new(RefCell::new(state));
        let mut listener = rdma::Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (shared, stopped) = (state.clone(), Rc::new(Cell::new(false)));
        let stop = stopped.clone();
        let task = runtime::spawn(async move {
            loop {
                let Ok(incoming) = listener.accept().await else { continue };
                let (state, stop) = (shared.clone(), stop.clone());
                runtime::spawn(async move {
                    let manners = state.borrow().manners.clone();
                    let options = rdma::Options {
                        receives: 256,
                        receive_size: 96 << 10,
                        crc: manners.crc,
                        ..rdma::Options::default()
                    };
                    assert_eq!(incoming.private_data(), [0x80, 0, 0, 0], "as ib_iser says it");
                    let private_data = PrivateData::new(manners.invalidates).encode();
                    if let Ok(pair) = incoming.accept(&private_data, &options).await {
                        serve(state, pair, stop).await;
                    }
                });
            }
        });
        Fake { state, port, task, stopped }
    }

    pub fn url(&self) -> iscsi_client::Url {
        format!("iser://127.0.0.1:{}/{TARGET}/0", self.port).parse().unwrap()
    }

    pub fn lie(&self, lie: Lie) {
        self.state.borrow_mut().lies.push_back(lie);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
        self.stopped.set(true);
    }
}

struct Open<'a>(&'a Manners);

impl Directory for Open<'_> {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if claim.target.is_some_and(|t| t != TARGET) {
            return Err(Refusal::Status(LoginStatus::NotFound));
        }
        let auth = self.0.chap.as_ref().map_or(Auth::None, |(_, mutual)| Auth::Chap {
            hashes: Vec::new(),
            mutual: mutual.clone(),
            required: true,
        });
        Ok(Grant {
            auth,
            offer: self.0.offer.clone(),
            portal_group_tag: 1,
            alias: None,
            session: None,
            then: None,
        })
    }

    fn secret(&self, _: &Claim<'_>, user: &str) -> Option<Secret> {
        let (credential, _) = self.0.chap.as_ref()?;
        (credential.name == user).then(|| credential.secret.clone())
    }
}

/// A received message.
struct Message {
    control: Control,
    bhs: Bhs,
    data: Vec<u8>,
}

fn parse(message: &Chain) -> Message {
    let bytes = message.to_vec();
    let Ok(Header::Control(control)) = Header::decode(&bytes) else {
        panic!("no control-type PDU: {bytes:x?}")
    };
    let layout = Layout::of(&bytes, bytes.len(), Limits { data: 65_536, ahs: 256 }).expect("a whole PDU");
    Message {
        control,
        bhs: *Bhs::ref_from(&bytes[HEADER_LEN..HEAD_LEN]).expect("48 bytes"),
        data: bytes[layout.data].to_vec(),
    }
}

fn post(pair: &QueuePair, bhs: impl Into<Bhs>, data: &[u8], invalidate: Option<Stag>) {
    let mut bhs = bhs.into();
    bhs.set_data_segment_len(data.len());
    let mut head = Control::default().encode().to_vec();
    head.extend_from_slice(bhs.bytes());
    let mut padded = data.to_vec();
    padded.resize(data.len().next_multiple_of(4), 0);
    pair.post_send(&head, Buf::from(padded).into(), Flags { invalidate, solicited: true }, None);
}

async fn receive(pair: &QueuePair) -> Option<Message> {
    loop {
        match pair.next().await {
            Ok(Completion::Received { message, .. }) => {
                pair.post_receives(1);
                return Some(parse(&message));
            }
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

struct Numbers {
    stat_sn: u32,
    exp_cmd_sn: u32,
}

macro_rules! numbered {
    ($numbers:expr, $pdu:expr) => {{
        let mut pdu = $pdu;
        pdu.stat_sn.set($numbers.stat_sn);
        $numbers.stat_sn = $numbers.stat_sn.wrapping_add(1);
        pdu.exp_cmd_sn.set($numbers.exp_cmd_sn);
        pdu.max_cmd_sn.set($numbers.exp_cmd_sn.wrapping_add(DEPTH - 1));
        pdu
    }};
}

/// A write whose data is being fetched.
struct Fetching {
    message: Message,
    lie: Option<Lie>,
}

/// One connection from its login to its end.
async fn serve(state: Rc<RefCell<State>>, pair: QueuePair, stopped: Rc<Cell<bool>>) {
    let Some(mut numbers) = login(&state, &pair).await else { return };
    let drop_after = state.borrow().manners.drop_after;
    let (generation, mut attention) = {
        let mut state = state.borrow_mut();
        state.generation += 1;
        state.known.clear();
        (state.generation, true)
    };
    let mut fetching = HashMap::new();
    let mut commands = 0;
    loop {
        let completion = match runtime::timeout(Duration::from_millis(20), pair.next()).await {
            Ok(completion) => completion,
            // Reinstatement: there is one initiator with one session.
            Err(_) if stopped.get() || state.borrow().generation != generation => return,
            Err(_) => continue,
        };
        match completion {
            Ok(Completion::Received { message, .. }) => {
                pair.post_receives(1);
                let message = parse(&message);
                if !message.bhs.immediate() {
                    if let Some(cmd_sn) = message.bhs.cmd_sn() {
                        assert_eq!(cmd_sn, numbers.exp_cmd_sn, "one connection keeps the order");
                        numbers.exp_cmd_sn = cmd_sn.wrapping_add(1);
                    }
                }
                if matches!(message.bhs.opcode(), Some(Opcode::ScsiCommand)) {
                    commands += 1;
                    if drop_after != 0 && commands >= drop_after {
                        return;
                    }
                    if !command(&state, &pair, &mut numbers, message, &mut attention, &mut fetching) {
                        return;
                    }
                } else if !other(&state, &pair, &mut numbers, &message) {
                    return;
                }
            }
            Ok(Completion::Read { id, data }) => {
                let Fetching { message, lie } = fetching.remove(&(id as u32)).expect("a read of ours");
                let mut written = message.data.clone();
                written.extend(data.to_vec());
                state.borrow_mut().fetched += data.len() as u64;
                finish(&state, &pair, &mut numbers, &message, &written, lie);
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

async fn login(state: &Rc<RefCell<State>>, pair: &QueuePair) -> Option<Numbers> {
    let mut login = TargetLogin::new(1);
    state.borrow_mut().logins += 1;
    loop {
        let message = receive(pair).await?;
        assert_eq!(message.bhs.opcode(), Some(Opcode::LoginRequest));
        assert_eq!(message.control, Control::default());
        let manners = state.borrow().manners.clone();
        match login.handle(message.bhs.as_login_request(), &message.data, &Open(&manners)) {
            Step::Reply(reply) => post(pair, reply.header, &reply.data, None),
            Step::Close(reply, _) => {
                post(pair, reply.header, &reply.data, None);
                runtime::sleep(Duration::from_millis(50)).await;
                return None;
            }
            Step::Place(outcome) => {
                let placement = Placement {
                    tsih: 1,
                    exp_cmd_sn: outcome.cmd_sn,
                    max_cmd_sn: outcome.cmd_sn.wrapping_add(DEPTH - 1),
                };
                let stat_sn = login.next_stat_sn().wrapping_add(1);
                let reply = login.accept(placement);
                post(pair, reply.header, &reply.data, None);
                return Some(Numbers { stat_sn, exp_cmd_sn: outcome.cmd_sn });
            }
        }
    }
}

/// Handles other PDUs than commands; false ends the connection.
fn other(state: &RefCell<State>, pair: &QueuePair, numbers: &mut Numbers, message: &Message) -> bool {
    match message.bhs.view() {
        Some(PduRef::NopOut(nop)) => {
            if nop.itt.get() != RESERVED_TAG && !state.borrow().deaf {
                post(pair, numbered!(numbers, pdu::NopIn::answer(nop.itt.get())), &message.data, None);
            }
        }
        Some(PduRef::TaskManagementRequest(request)) => {
            state.borrow_mut().task_management += 1;
            let result = TaskManagementResult::FunctionComplete;
            let answer = pdu::TaskManagementResponse::new(request.itt.get(), result);
            post(pair, numbered!(numbers, answer), &[], None);
        }
        Some(PduRef::TextRequest(request)) => {
            let text = format!("TargetName={TARGET}\0TargetAddress=127.0.0.1:3260,1\0");
            let answer = pdu::TextResponse::new(request.itt.get(), RESERVED_TAG);
            post(pair, numbered!(numbers, answer), text.as_bytes(), None);
        }
        Some(PduRef::LogoutRequest(request)) => {
            let answer = pdu::LogoutResponse::new(request.itt.get(), LogoutResult::Success, 0, 0);
            post(pair, numbered!(numbers, answer), &[], None);
        }
        other => panic!("an initiator sends no {other:?} over iSER"),
    }
    true
}

fn remote(remote: iser::Remote) -> Remote {
    Remote { stag: Stag(remote.stag), offset: remote.offset }
}

/// Begins a command; false ends the connection.
fn command(
    state: &Rc<RefCell<State>>,
    pair: &QueuePair,
    numbers: &mut Numbers,
    message: Message,
    attention: &mut bool,
    fetching: &mut HashMap<u32, Fetching>,
) -> bool {
    let Some(PduRef::ScsiCommand(command)) = message.bhs.view() else { panic!("a SCSI command") };
    let (itt, edtl) = (command.itt.get(), command.edtl.get() as usize);
    let expected = if command.write() { edtl } else { 0 };
    assert!(command.is_final(), "nothing unsolicited but immediate data");
    assert!(message.data.len() <= expected);
    let missing = expected - message.data.len();
    assert_eq!(message.control.write.is_some(), missing > 0, "WSV iff there is something to fetch");
    assert_eq!(
        message.control.read.is_some(),
        command.read() && edtl > 0,
        "RSV iff there is something to read"
    );
    let is_io = matches!(command.cdb[0], 0x28 | 0x88 | 0x2a | 0x8a);
    let mut shared = state.borrow_mut();
    *shared.ran.entry(command.cdb[0]).or_default() += 1;
    if shared.deaf {
        shared.known.extend(message.control.read.map(|r| Stag(r.stag)));
        return true;
    }
    shared.immediate += message.data.len() as u64;
    let lie = if is_io { shared.lies.pop_front() } else { None };
    drop(shared);
    if std::mem::take(attention) {
        let sense = Sense::new(SenseKey::UnitAttention, AdditionalSense::new(0x29, 0x07));
        respond_sense(pair, numbers, itt, edtl, &sense, state.borrow().manners.invalidates, &message);
        return true;
    }
    match (lie, message.control.write, message.control.read) {
        (Some(Lie::ReadBeyond), Some(write), _) => pair.post_read(remote(write), missing + 1, 1 << 40),
        (Some(Lie::WrongWay), Some(write), _) => {
            pair.post_write(remote(write), Buf::from(vec![9; 8]).into(), None);
        }
        (Some(Lie::WrongWay), _, Some(read)) => pair.post_read(remote(read), 8, 1 << 40),
        (_, Some(write), _) => {
            pair.post_read(remote(write), missing, itt.into());
            fetching.insert(itt, Fetching { message, lie });
        }
        _ => return finish(state, pair, numbers, &message, &message.data, lie),
    }
    true
}

fn respond_sense(
    pair: &QueuePair,
    numbers: &mut Numbers,
    itt: u32,
    edtl: usize,
    sense: &Sense,
    invalidates: bool,
    message: &Message,
) {
    let mut response = pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 2);
    if edtl > 0 {
        response.set_residual(Residual::Underflow(edtl as u32));
    }
    let sense = sense.emit(false).to_vec();
    let mut data = (sense.len() as u16).to_be_bytes().to_vec();
    data.extend(sense);
    let invalidate = message.control.invalidates().filter(|_| invalidates).map(Stag);
    post(pair, numbered!(numbers, response), &data, invalidate);
}

/// Runs a command whose data has arrived, and answers it; false ends the connection.
fn finish(
    state: &Rc<RefCell<State>>,
    pair: &QueuePair,
    numbers: &mut Numbers,
    message: &Message,
    written: &[u8],
    lie: Option<Lie>,
) -> bool {
    let Some(PduRef::ScsiCommand(command)) = message.bhs.view() else { panic!("a SCSI command") };
    let (itt, edtl) = (command.itt.get(), command.edtl.get());
    let mut shared = state.borrow_mut();
    let invalidates = shared.manners.invalidates;
    let data = match execute(&mut shared.disk, &command.cdb, written) {
        Ok(data) => data,
        Err(sense) => {
            respond_sense(pair, numbers, itt, edtl as usize, &sense, invalidates, message);
            return true;
        }
    };
    let mut response = pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0);
    let mut invalidate = message.control.invalidates().filter(|_| invalidates).map(Stag);
    let mut put = data.clone();
    if let Some(read) = message.control.read {
        let moved = data.len().min(edtl as usize);
        put.truncate(moved);
        if moved < edtl as usize {
            response.set_residual(Residual::Underflow(edtl - moved as u32));
        } else if data.len() > moved {
            response.set_residual(Residual::Overflow((data.len() - moved) as u32));
        }
        let at = remote(read);
        match lie {
            Some(Lie::NoData) => put.clear(),
            Some(Lie::HalfData | Lie::Vanish) => put.truncate(moved / 2),
            Some(Lie::WriteBeyond) => put.push(0),
            Some(Lie::WildWrite) => {
                pair.post_write(Remote { stag: Stag(0x1234_5678), offset: 0 }, Buf::from(put).into(), None);
                return true;
            }
            _ => {}
        }
        // In two writes: a message is not a command.
        let rest = put.split_off(put.len() / 2);
        let further = at.plus(put.len() as u64);
        for (at, part) in [(at, put), (further, rest)] {
            if !part.is_empty() {
                pair.post_write(at, Buf::from(part).into(), None);
            }
        }
    }
    let raw = |bytes: Vec<u8>| pair.post_send(&bytes, Chain::new(), Flags::default(), None);
    match lie {
        Some(Lie::Vanish) => return false,
        Some(Lie::HugeResidual) => response.set_residual(Residual::Underflow(edtl + 1)),
        Some(Lie::ForeignStag) => {
            invalidate = shared.known.pop();
            assert!(invalidate.is_some(), "a command was kept before");
        }
        Some(Lie::UnknownStag) => invalidate = Some(Stag(0x0bad_0bad)),
        Some(Lie::DataIn) => {
            post(pair, pdu::DataIn::new(itt, 0, 0), &data[..data.len().min(64)], None);
        }
        Some(Lie::R2t) => post(pair, pdu::ReadyToTransfer::new(itt, 7, Lun::ZERO, 0, 0, 512), &[], None),
        Some(Lie::Hello) => raw(iser::Hello::new(1).answer(1).encode().to_vec()),
        Some(Lie::Garbage) => raw(vec![0xff; 200]),
        Some(Lie::Short) => raw(Control::default().encode()[..20].to_vec()),
        Some(Lie::Long) => {
            let mut bhs: Bhs = response.into();
            bhs.set_data_segment_len(5000);
            raw([&Control::default().encode()[..], bhs.bytes()].concat());
        }
        _ => {}
    }
    let response = numbered!(numbers, response);
    post(pair, response, &[], invalidate);
    if lie == Some(Lie::Twice) {
        post(pair, response, &[], None);
    }
    if let (Some(Lie::WriteLate), Some(read)) = (lie, message.control.read) {
        pair.post_write(remote(read), Buf::from(vec![0xee; edtl as usize]).into(), None);
    }
    true
}
