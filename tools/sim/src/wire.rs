//! Reads each PDU that the links of a world carry, loses some of them, and checks the numbers of
//! the server's PDUs.
//!
//! [`sim::set_middlebox`] puts it on the links, so neither the server nor the client knows of it.
//! It touches only connections that agreed on an ErrorRecoveryLevel of 1 or 2: there the other end
//! must notice, and repair the damage. It does not read iSER.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iscsi::frame::{Digests, trailer_len};
use iscsi::pdu::{BHS_LEN, Bhs, Opcode, PduRef, RESERVED_TAG, Stage, TaskManagementFunction, ahs};
use iscsi::stream::{Limits, Step};
use iscsi::{sn, text};
use runtime::sim;

use crate::plan::Losses;
use crate::random::Rng;

/// The longest command that is repeated, bytes.
const REPEATED: usize = 4096;
/// Statuses whose retransmissions are compared.
const KEPT: usize = 4096;

/// The reader of all links of a world.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Mutex<State>>);

struct State {
    losses: Losses,
    /// Damaged PDUs per thousand, of those with data and no digest.
    damaged: u64,
    rng: Rng,
    /// The deepest command window that a session may have.
    depth: u32,
    loud: bool,
    links: BTreeMap<usize, Link>,
    /// Parameters agreed at the first login of a session, by TSIH: later connections do not repeat
    /// them.
    sessions: BTreeMap<u16, Agreed>,
    touched: u64,
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Passes,
    Lost,
    /// A bit flips this many bytes before its end.
    Damaged(usize),
}

/// One direction of a link.
struct Way {
    pdus: iscsi::Stream,
    /// The bytes of an incomplete header.
    header: Vec<u8>,
    /// Bytes of the PDU that are still to come.
    left: usize,
    fate: Fate,
    /// The PDU so far, if it is read or repeated.
    copy: Option<Vec<u8>>,
    /// PDUs to come before a command is repeated.
    pause: usize,
    /// The command to repeat.
    again: Option<Vec<u8>>,
}

impl Default for Way {
    fn default() -> Self {
        let (fate, copy, again) = Default::default();
        let pdus = iscsi::Stream::new(Limits { max_data_segment: 1 << 24, ..Limits::LOGIN });
        Self { pdus, header: Vec::new(), left: 0, fate, copy, pause: 0, again }
    }
}

/// PDUs that a task has received, by DataSN or R2TSN, as offset and length.
#[derive(Default)]
struct Task {
    cmd_sn: u32,
    /// It came from another connection, whose numbers are unknown here.
    reassigned: bool,
    data: Vec<(u32, u32)>,
    r2ts: Vec<(u32, u32)>,
    /// Bytes of Data-In since the last F bit.
    sequence: u32,
}

/// Parameters of all connections of a session.
#[derive(Clone, Copy)]
struct Agreed {
    /// ErrorRecoveryLevel as each side offered it.
    level: [u8; 2],
    max_burst: u32,
}

impl Default for Agreed {
    fn default() -> Self {
        Self { level: [0; 2], max_burst: 262_144 }
    }
}

#[derive(Default)]
struct Link {
    up: Way,
    down: Way,
    /// The login is over.
    full: bool,
    header_digest: bool,
    data_digest: bool,
    agreed: Agreed,
    /// The TSIH of the login request; 0 for a new session.
    joins: u16,
    /// The StatSN of the next status.
    next_status: Option<u32>,
    /// Task tags by StatSN.
    statuses: BTreeMap<u32, u32>,
    window: Option<(u32, u32)>,
    tasks: BTreeMap<u32, Task>,
}

impl Wire {
    /// Puts it on all links of this world. `loud` prints each header.
    pub(crate) fn install(losses: Losses, rng: Rng, depth: u32, loud: bool) -> Self {
        let (links, sessions, touched, wrong) = (BTreeMap::new(), BTreeMap::new(), 0, None);
        let state = State { losses, damaged: 0, rng, depth, loud, links, sessions, touched, wrong };
        let wire = Self(Arc::new(Mutex::new(state)));
        let theirs = wire.clone();
        sim::set_middlebox(Box::new(move |link, up, bytes| theirs.lock().carry(link, up, &bytes)));
        wire
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Damages `per_mille` PDUs with data per thousand, on connections whose digests do not detect
    /// it.
    pub(crate) fn damage(&self, per_mille: u64) {
        self.lock().damaged = per_mille;
    }

    /// Sessions may have windows of this depth, too.
    pub(crate) fn deepen(&self, depth: u32) {
        let mut state = self.lock();
        state.depth = state.depth.max(depth);
    }

    /// The first rule that the server broke, and how.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.lock().wrong.clone()
    }

    /// PDUs that were lost, damaged or repeated.
    pub(crate) fn touched(&self) -> u64 {
        self.lock().touched
    }
}

impl State {
    /// Carries the bytes that one end has sent. Returns those that the other end gets.
    fn carry(&mut self, number: usize, up: bool, bytes: &[u8]) -> Vec<u8> {
        let mut link = self.links.remove(&number).unwrap_or_default();
        let mut out = Vec::with_capacity(bytes.len());
        let mut input = bytes;
        while !input.is_empty() {
            let way = if up { &mut link.up } else { &mut link.down };
            let before = input;
            let bhs = match way.pdus.step(&mut input) {
                Ok(Step::Payload { bhs, offset, here, .. }) => {
                    let bhs = (offset == 0).then_some(*bhs);
                    way.pdus.took(&input[..here]);
                    input = &input[here..];
                    bhs
                }
                Ok(Step::Pdu(pdu)) => Some(*pdu.bhs),
                Ok(_) => None,
                Err(error) => {
                    // The other end judges a peer that breaks the framing.
                    self.wrong.get_or_insert(format!("link {number}: {error}"));
                    break;
                }
            };
            let passed = &before[..before.len() - input.len()];
            match bhs {
                // The stream names data that has not begun to come again.
                Some(bhs) if way.left == 0 => self.begin(number, &mut link, up, &bhs, &mut out),
                None if way.left == 0 => {
                    way.header.extend_from_slice(passed);
                    continue;
                }
                _ => {}
            }
            let way = if up { &mut link.up } else { &mut link.down };
            let header = std::mem::take(&mut way.header);
            way.take(&header, &mut out);
            way.take(passed, &mut out);
            if way.left == 0 {
                self.end(&mut link, up);
            }
        }
        self.links.insert(number, link);
        out
    }

    /// A PDU has ended. Learns from those of a login.
    fn end(&mut self, link: &mut Link, up: bool) {
        let way = if up { &mut link.up } else { &mut link.down };
        let Some(copy) = way.copy.take() else { return };
        if link.full {
            way.again = Some(copy);
            return;
        }
        let Some(bhs) = Bhs::ref_from(&copy) else { return };
        let data = copy.get(BHS_LEN..BHS_LEN + bhs.data_segment_len() as usize).unwrap_or_default();
        text::Pairs::new(data).flatten().for_each(|pair| link.learn(pair.key, pair.value, up));
        match bhs.view() {
            Some(PduRef::LoginRequest(request)) => link.joins = request.tsih.get(),
            Some(PduRef::LoginResponse(response))
                if response.transit() && response.next_stage() == Some(Stage::FullFeaturePhase) =>
            {
                link.full = true;
                let digests = Digests { header: link.header_digest, data: link.data_digest };
                for way in [&mut link.up, &mut link.down] {
                    way.pdus.set_limits(Limits { digests, max_ahs: ahs::MAX_LEN, ..*way.pdus.limits() });
                }
                match self.sessions.get(&link.joins).filter(|_| link.joins != 0) {
                    Some(agreed) => link.agreed = *agreed,
                    None => drop(self.sessions.insert(response.tsih.get(), link.agreed)),
                }
            }
            _ => {}
        }
    }

    /// Reads a header, and decides the fate of its PDU.
    fn begin(&mut self, number: usize, link: &mut Link, up: bool, bhs: &Bhs, out: &mut Vec<u8>) {
        if up {
            link.see_request(bhs);
        } else if let Err(what) = link.see_answer(bhs, self.depth) {
            self.wrong.get_or_insert(format!("link {number}: {what}: {bhs}"));
        }
        let fate = self.fate(link, up, bhs);
        let repeats = up && fate == Fate::Passes && self.repeats(link, bhs);
        if self.loud {
            let to = if up { "server" } else { "client" };
            let again = if repeats { ", and comes again" } else { "" };
            eprintln!("link {number} to the {to}: {fate:?}{again}: {bhs}");
        }
        let way = if up { &mut link.up } else { &mut link.down };
        if let Some(again) = way.again.take_if(|_| way.pause == 0) {
            out.extend(again);
        }
        way.pause = if repeats { self.rng.index(4) } else { way.pause.saturating_sub(1) };
        way.fate = fate;
        way.left = way.pdus.limits().pdu_len(bhs);
        way.copy = (!link.full || repeats).then(Vec::new);
    }

    /// Only PDUs that either end recovers are lost: those with a number that reveals the loss, and
    /// those that are requested again.
    fn fate(&mut self, link: &Link, up: bool, bhs: &Bhs) -> Fate {
        use Opcode::{
            DataIn, DataOut, NopIn, NopOut, ReadyToTransfer, ScsiCommand, ScsiResponse, SnackRequest,
            TaskManagementResponse, TextResponse,
        };
        let data = bhs.data_segment_len() as usize;
        let bare = matches!(bhs.opcode(), Some(DataIn | DataOut)) && data > 0 && !link.data_digest;
        if bare && self.damaged > 0 && self.rng.chance(self.damaged) {
            return Fate::Damaged(self.rng.index(data) + trailer_len(data, false));
        }
        let per_mille = if up { self.losses.up } else { self.losses.down };
        if !link.recovers() || per_mille == 0 {
            return Fate::Passes;
        }
        let suits = match bhs.opcode() {
            Some(ScsiCommand | DataOut | SnackRequest) => true,
            Some(DataIn | ScsiResponse | ReadyToTransfer | TaskManagementResponse | TextResponse) => true,
            Some(NopOut | NopIn) => bhs.itt() != RESERVED_TAG,
            _ => false,
        };
        if !suits || !self.rng.chance(per_mille) {
            return Fate::Passes;
        }
        self.touched += 1;
        if link.data_digest && data > 0 && self.rng.chance(500) {
            return Fate::Damaged(self.rng.index(data) + trailer_len(data, true));
        }
        Fate::Lost
    }

    /// Whether to repeat a command.
    fn repeats(&mut self, link: &Link, bhs: &Bhs) -> bool {
        let suits = link.recovers()
            && bhs.opcode() == Some(Opcode::ScsiCommand)
            && !bhs.immediate()
            && (bhs.data_segment_len() as usize) < REPEATED;
        let repeats = suits && self.rng.chance(self.losses.repeated);
        self.touched += u64::from(repeats);
        repeats
    }
}

impl Way {
    /// Takes bytes of the PDU.
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if let Some(copy) = &mut self.copy {
            copy.extend_from_slice(bytes);
        }
        if self.fate != Fate::Lost {
            out.extend_from_slice(bytes);
        }
        if let Fate::Damaged(before_end) = self.fate
            && (self.left - bytes.len()..self.left).contains(&before_end)
        {
            let at = out.len() - (before_end + 1 - (self.left - bytes.len()));
            out[at] ^= 0x10;
        }
        self.left -= bytes.len();
    }
}

impl Link {
    /// Whether it agreed on error recovery.
    fn recovers(&self) -> bool {
        self.full && self.agreed.level.iter().all(|level| *level > 0)
    }

    /// A key of the login, from one side.
    fn learn(&mut self, key: &str, value: &str, up: bool) {
        match key {
            "HeaderDigest" => self.header_digest = value == "CRC32C",
            "DataDigest" => self.data_digest = value == "CRC32C",
            "ErrorRecoveryLevel" => self.agreed.level[usize::from(up)] = value.parse().unwrap_or(0),
            "MaxBurstLength" => {
                let said = value.parse().unwrap_or(self.agreed.max_burst);
                self.agreed.max_burst = if up { said } else { said.min(self.agreed.max_burst) };
            }
            _ => {}
        }
    }

    fn see_request(&mut self, bhs: &Bhs) {
        match bhs.view() {
            Some(PduRef::ScsiCommand(command)) => {
                let (itt, cmd_sn) = (bhs.itt(), command.cmd_sn.get());
                // A retry is the same task.
                if self.tasks.get(&itt).is_none_or(|task| task.cmd_sn != cmd_sn || bhs.immediate()) {
                    self.tasks.insert(itt, Task { cmd_sn, ..Task::default() });
                }
            }
            Some(PduRef::TaskManagementRequest(request))
                if request.function() == Some(TaskManagementFunction::TaskReassign) =>
            {
                let task = Task { reassigned: true, ..Task::default() };
                self.tasks.insert(request.referenced_task_tag.get(), task);
            }
            _ => {}
        }
    }

    /// Checks a PDU of the server's.
    fn see_answer(&mut self, bhs: &Bhs, depth: u32) -> Result<(), String> {
        let word = |at: usize| {
            let bytes = &bhs.specific_20[at - 20..at - 16];
            u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        // RFC 7143 §4.2.2.1: the window only goes forward, and keeps its depth.
        let (exp, max) = (word(28), word(32));
        if self.full {
            if self.window.is_some_and(|(e, m)| sn::lt(exp, e) || sn::lt(max, m)) {
                return Err(format!("the window went back from {:?}", self.window));
            }
            if max.wrapping_sub(exp).wrapping_add(1) > depth {
                return Err(format!("the window is deeper than {depth}"));
            }
            self.window = Some((exp, max));
        }
        let recovers = self.recovers();
        self.see_status(bhs, word(24), recovers)?;
        let (itt, len) = (bhs.itt(), bhs.data_segment_len());
        let (data, (number, offset, len)) = match bhs.view() {
            Some(PduRef::DataIn(data)) => (true, (data.data_sn.get(), data.buffer_offset.get(), len)),
            Some(PduRef::ReadyToTransfer(r2t)) => {
                (false, (r2t.r2t_sn.get(), r2t.buffer_offset.get(), r2t.desired_length.get()))
            }
            _ => return Ok(()),
        };
        // §4.2.2.3: on the connection of its command.
        let Some(task) = self.tasks.get_mut(&itt) else { return Err("no task of this connection".into()) };
        if task.reassigned {
            return Ok(());
        }
        let seen = if data { &mut task.data } else { &mut task.r2ts };
        // §4.2.2.4: numbers without holes. A repeated PDU equals the earlier one.
        if let Some(before) = seen.get(number as usize) {
            let same = if *before == (offset, len) { Ok(()) } else { Err(format!("it was {before:?}")) };
            return if recovers { same } else { Err("the number was used".into()) };
        }
        if seen.len() != number as usize {
            return Err(format!("{} comes next", seen.len()));
        }
        if data && seen.last().is_some_and(|(at, len)| at + len != offset) {
            return Err("a hole in the data".into());
        }
        seen.push((offset, len));
        if len > self.agreed.max_burst {
            return Err(format!("more than MaxBurstLength, {}", self.agreed.max_burst));
        }
        if data {
            // §13.13: a sequence is no longer than MaxBurstLength.
            task.sequence += len;
            if task.sequence > self.agreed.max_burst {
                return Err(format!("a sequence of {} bytes", task.sequence));
            }
            if bhs.is_final() {
                task.sequence = 0;
            }
        }
        Ok(())
    }

    /// RFC 7143 §4.2.2.2: StatSN has no holes, and a number has one status.
    fn see_status(&mut self, bhs: &Bhs, stat_sn: u32, recovers: bool) -> Result<(), String> {
        use Opcode::{
            AsyncMessage, LoginResponse, LogoutResponse, Reject, ScsiResponse, TaskManagementResponse,
            TextResponse,
        };
        let itt = bhs.itt();
        let numbered = match (bhs.opcode(), bhs.view()) {
            (_, Some(PduRef::DataIn(data))) => data.has_status(),
            (Some(Opcode::NopIn), _) => itt != RESERVED_TAG,
            (Some(ScsiResponse | TaskManagementResponse | TextResponse | LogoutResponse), _) => true,
            (Some(AsyncMessage | Reject | LoginResponse), _) => true,
            _ => false,
        };
        if !numbered {
            return Ok(());
        }
        let next = *self.next_status.get_or_insert(stat_sn);
        if stat_sn == next {
            self.next_status = Some(sn::next(next));
            self.statuses.insert(stat_sn, itt);
            if self.statuses.len() > KEPT {
                self.statuses.remove(&stat_sn.wrapping_sub(KEPT as u32));
            }
            return Ok(());
        }
        match self.statuses.get(&stat_sn) {
            Some(before) if recovers && *before == itt => Ok(()),
            Some(before) => Err(format!("the StatSN is of task {before:#x}")),
            None => Err(format!("StatSN {next} comes next")),
        }
    }
}
