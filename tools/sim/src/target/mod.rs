//! The target: accepts links, runs login, and drives `iscsi::target` and the disk unit as a server does. It can be killed
//! at any moment and started anew over what its medium has kept.

mod connection;
mod landing;
mod login;
mod management;
mod mover;
mod output;
mod payload;
mod reassign;
mod session;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::iser::Control;
use backing::BlockStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::frame::{Cut, Cutter, FrameError, MAX_HEADER_LEN, MAX_TRAILER_LEN};
use iscsi::keys::DigestChoice;
use iscsi::login::target::{LoginError, TargetLogin};
use iscsi::pdu::{Bhs, Opcode, RESERVED_TAG};
use iscsi::text::LOGIN_SEGMENT_LEN;

use crate::clock::{Clock, Micros, SECOND};
use crate::executor::{Executor, Signal};
use crate::iser;
use crate::network::{LinkId, Network, Received, Side};
use crate::random::Rng;
use crate::rdma::{Fault, Happening, Pair, Setup, Sink};
use crate::trace::{Trace, note};
use connection::Connection;
use landing::{Arriving, Fetched};
use output::Output;
use payload::{Pieces, Segment};
use session::Session;

/// Time for a login.
const LOGIN_TIME: Micros = 30 * SECOND;

const LOGIN_CUTTER: Cutter = Cutter {
    header_digest: false,
    data_digest: false,
    max_data_segment: LOGIN_SEGMENT_LEN as u32,
    max_ahs: 0,
};

/// What a target is told to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Depth of a session's command window.
    pub queue_depth: u32,
    /// MaxRecvDataSegmentLength.
    pub max_recv_data_segment: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// FirstBurstLength.
    pub first_burst: u32,
    /// MaxOutstandingR2T.
    pub max_r2t: u16,
    /// MaxConnections.
    pub connections: u16,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// Header digests.
    pub header_digest: DigestChoice,
    /// Data digests.
    pub data_digest: DigestChoice,
    /// Bytes queued to a peer beyond which it is not listened to.
    pub send_high_water: usize,
    /// Silence before a ping.
    pub nop_interval: Duration,
    /// Silence after a ping that ends the connection.
    pub nop_timeout: Duration,
    /// CHAP user and secret that initiators must know.
    pub chap: Option<(String, String)>,
    /// iSER, and how its queue pairs are run.
    pub iser: Option<Setup>,
    /// Bytes of its answer to SendTargets, about.
    pub text_len: usize,
    /// ErrorRecoveryLevel.
    pub level: u8,
    /// DefaultTime2Wait, seconds.
    pub time2wait: u16,
    /// DefaultTime2Retain, seconds.
    pub time2retain: u16,
    /// A pause of a sequence of Data-Out that counts as a loss.
    pub data_timeout: Duration,
    /// Of a thousand PDUs that it receives, how many vanish: with error recovery only.
    pub lost_per_mille: u64,
}

/// The name of the target.
pub const NAME: &str = "iqn.2026-01.example.sim:disk";

/// What the target proves itself with in mutual CHAP.
pub const TARGET_SECRET: &str = "the target's own secret";

/// The answer to SendTargets: as many addresses as fill `len` bytes.
pub fn send_targets(len: usize) -> Vec<u8> {
    let mut text = format!("TargetName={NAME}\0").into_bytes();
    let mut port = 0u32;
    while text.len() < len {
        text.extend_from_slice(format!("TargetAddress=192.0.2.1:{port},1\0").as_bytes());
        port = (port + 1) % 65_536;
    }
    text
}

/// Where a link stands.
enum Phase {
    Login(Box<TargetLogin>),
    /// The session is looked for; nothing is read meanwhile.
    Placing,
    Full(Rc<Connection>, Cutter),
    /// What is queued is sent, then it is closed.
    Closing,
    Over,
}

/// One accepted link.
struct Port {
    link: LinkId,
    phase: RefCell<Phase>,
    input: RefCell<Vec<u8>>,
    /// A PDU whose header has come and whose data comes piece by piece.
    arriving: RefCell<Option<Arriving>>,
    /// What is to be sent, login or not.
    output: Rc<RefCell<Output>>,
    deadline: Micros,
}

/// Why a link is given up.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("opcode {0:#04x} during login")]
    NoLogin(u8),
    #[error("{0}")]
    Refused(LoginError),
    #[error(transparent)]
    Fatal(#[from] iscsi::target::Fatal),
    #[error("no iSER message: {0}")]
    Message(String),
    #[error("the queue pair: {0}")]
    Pair(#[from] Fault),
}

/// The target node.
pub struct Target {
    executor: Executor,
    clock: Rc<Clock>,
    trace: Rc<Trace>,
    network: Rc<RefCell<Network>>,
    rng: RefCell<Rng>,
    settings: Settings,
    options: DiskOptions,
    store: Arc<dyn BlockStore>,
    /// `None` while the target is down.
    unit: RefCell<Option<Arc<DiskUnit>>>,
    ports: RefCell<Vec<Rc<Port>>>,
    sessions: RefCell<BTreeMap<u16, Rc<Session>>>,
    last_tsih: Cell<u16>,
    next_nexus: Cell<u64>,
    /// Rings when a session has ended.
    session_ended: Signal,
    /// When somebody wants to be woken.
    alarms: RefCell<Vec<Micros>>,
    /// Rings at these times.
    alarm: Signal,
    /// What must never happen, and did.
    incident: RefCell<Option<String>>,
    /// Bytes of writes that landed.
    landed: Cell<u64>,
    /// What lands is damaged: a fault that must be found.
    spoils_landings: Cell<bool>,
    /// Data of tasks that are reassigned is damaged: a fault that must be found.
    spoils_moves: Cell<bool>,
}

impl Target {
    /// A target that is up.
    pub fn new(
        settings: Settings,
        options: DiskOptions,
        store: Arc<dyn BlockStore>,
        network: Rc<RefCell<Network>>,
        clock: Rc<Clock>,
        trace: Rc<Trace>,
        rng: Rng,
    ) -> Rc<Self> {
        let target = Rc::new(Self {
            executor: Executor::default(),
            clock,
            trace,
            network,
            rng: RefCell::new(rng),
            settings,
            options,
            store,
            unit: RefCell::default(),
            ports: RefCell::default(),
            sessions: RefCell::default(),
            last_tsih: Cell::new(0),
            next_nexus: Cell::new(0),
            session_ended: Signal::default(),
            alarms: RefCell::default(),
            alarm: Signal::default(),
            incident: RefCell::default(),
            landed: Cell::new(0),
            spoils_landings: Cell::new(false),
            spoils_moves: Cell::new(false),
        });
        target.start();
        target
    }

    /// Starts it over its store.
    pub fn start(&self) {
        match DiskUnit::new(self.store.clone(), self.options.clone(), &Registry::new()) {
            Ok(unit) => *self.unit.borrow_mut() = Some(unit),
            Err(error) => self.report(format!("the unit does not start: {error}")),
        }
        note!(self.trace, "target: up");
    }

    /// Kills it: whatever it was doing is not done, and nobody is told by it. Its links break as `silent` says: without a
    /// word, or by the resets that a kernel sends for a dead process.
    pub fn kill(&self, silent: bool) {
        note!(self.trace, "target: killed{}", if silent { ", silently" } else { "" });
        for port in std::mem::take(&mut *self.ports.borrow_mut()) {
            let mut network = self.network.borrow_mut();
            match silent {
                true => network.vanish(port.link),
                false => network.cut(self.clock.now(), port.link),
            }
        }
        self.executor.kill();
        self.alarms.borrow_mut().clear();
        self.sessions.borrow_mut().clear();
        self.unit.borrow_mut().take();
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.unit.borrow().is_some()
    }

    /// Bytes of writes that landed.
    pub fn landed(&self) -> u64 {
        self.landed.get()
    }

    /// Damages what reads have for their initiators when they move to another connection.
    pub fn spoil_moves(&self) {
        self.spoils_moves.set(true);
    }

    /// Damages what lands.
    pub fn spoil_landings(&self) {
        self.spoils_landings.set(true);
    }

    /// Remembers what must never happen.
    fn report(&self, what: String) {
        note!(self.trace, "target: INCIDENT: {what}");
        self.incident.borrow_mut().get_or_insert(what);
    }

    /// What must never happen, and did.
    pub fn incident(&self) -> Option<String> {
        self.incident.borrow().clone()
    }

    fn unit(&self) -> Option<Arc<DiskUnit>> {
        self.unit.borrow().clone()
    }

    /// Takes what has come, does what can be done, sends what can be sent. Answers whether there was anything.
    pub fn pump(self: &Rc<Self>) -> bool {
        let mut moved = self.accept();
        self.tick();
        let ports = self.ports.borrow().clone();
        for port in &ports {
            moved |= self.pump_port(port);
        }
        moved |= self.executor.run(&self.rng);
        for port in &ports {
            moved |= self.flush(port);
        }
        self.ports.borrow_mut().retain(|port| !matches!(*port.phase.borrow(), Phase::Over));
        moved
    }

    fn accept(&self) -> bool {
        let now = self.clock.now();
        let mut any = false;
        loop {
            let Some(link) = self.network.borrow_mut().accept(now) else { return any };
            any = true;
            if !self.is_up() {
                self.network.borrow_mut().abandon(now, link, Side::Target);
                continue;
            }
            let near_wrap = self.rng.borrow_mut().chance(300);
            let stat_sn = if near_wrap { u32::MAX - self.rng.borrow_mut().below(30) as u32 } else { 1 };
            let output = self.settings.iser.map(|mut setup| {
                setup.seed = std::array::from_fn(|_| self.rng.borrow_mut().bits() as u8);
                Output::over(Pair::answer(setup))
            });
            self.ports.borrow_mut().push(Rc::new(Port {
                link,
                phase: RefCell::new(Phase::Login(Box::new(TargetLogin::new(stat_sn)))),
                input: RefCell::default(),
                arriving: RefCell::default(),
                output: Rc::new(RefCell::new(output.unwrap_or_default())),
                deadline: now + LOGIN_TIME,
            }));
        }
    }

    /// Has [`Self::alarm`] ring then.
    fn alarm_at(&self, at: Micros) {
        let mut alarms = self.alarms.borrow_mut();
        if !alarms.contains(&at) {
            alarms.push(at);
        }
    }

    async fn sleep(&self, time: Micros) {
        let at = self.clock.now() + time;
        self.alarm_at(at);
        self.alarm.until(|| (self.clock.now() >= at).then_some(())).await;
    }

    /// Acts on what is due.
    fn tick(self: &Rc<Self>) {
        let now = self.clock.now();
        let alarms = self.alarms.borrow().len();
        self.alarms.borrow_mut().retain(|at| *at > now);
        if self.alarms.borrow().len() < alarms {
            self.alarm.ring();
        }
        for port in self.ports.borrow().clone() {
            let connection = match &*port.phase.borrow() {
                Phase::Full(connection, _) => Some(connection.clone()),
                Phase::Over => continue,
                _ => None,
            };
            match connection {
                Some(connection) => connection.tick(now),
                None if now >= port.deadline => {
                    note!(self.trace, "target: link {} took too long to log in", port.link.0);
                    self.drop_port(&port);
                }
                None => {}
            }
        }
    }

    /// When [`Self::pump`] has something to do though nothing came.
    pub fn next_event(&self) -> Option<Micros> {
        let ports = self.ports.borrow();
        let due = ports.iter().filter_map(|port| match &*port.phase.borrow() {
            Phase::Login(_) | Phase::Placing | Phase::Closing => Some(port.deadline),
            Phase::Full(connection, _) => connection.next_event(),
            Phase::Over => None,
        });
        due.chain(self.alarms.borrow().iter().copied()).min()
    }

    /// Sends what is queued.
    fn flush(&self, port: &Port) -> bool {
        let mut output = port.output.borrow_mut();
        let mut sent = 0;
        if matches!(&*port.phase.borrow(), Phase::Full(connection, _) if connection.is_lost()) {
            // What units say of tasks that lost their connection is nobody's to read.
            output.bytes.clear();
        }
        output.gather();
        if !output.bytes.is_empty() {
            sent = self.network.borrow_mut().send(self.clock.now(), port.link, Side::Target, &output.bytes);
            output.bytes.drain(..sent);
        }
        let empty = output.len() == 0;
        if let Some(fault) = output.fault() {
            self.report(format!("link {}: {fault}", port.link.0));
        }
        drop(output);
        let closing = match &*port.phase.borrow() {
            Phase::Full(connection, _) => {
                if sent > 0 {
                    connection.sent(empty);
                }
                false
            }
            Phase::Closing => empty,
            _ => false,
        };
        if closing {
            self.network.borrow_mut().close(self.clock.now(), port.link, Side::Target);
            *port.phase.borrow_mut() = Phase::Over;
        }
        sent > 0
    }

    /// Gives a link up that has no session.
    fn drop_port(&self, port: &Port) {
        self.network.borrow_mut().abandon(self.clock.now(), port.link, Side::Target);
        *port.phase.borrow_mut() = Phase::Over;
    }

    fn pump_port(self: &Rc<Self>, port: &Rc<Port>) -> bool {
        let mut moved = self.flush(port);
        loop {
            if let Err(broken) = self.digest(port) {
                self.break_off(port, &broken);
                return true;
            }
            let connection = match &*port.phase.borrow() {
                Phase::Login(_) => None,
                Phase::Full(connection, _) if connection.listens() => Some(connection.clone()),
                _ => return moved,
            };
            let received = self.network.borrow_mut().receive(self.clock.now(), port.link, Side::Target);
            match received {
                Received::Nothing => return moved,
                Received::Bytes(bytes) => {
                    port.input.borrow_mut().extend(bytes);
                    connection.iter().for_each(|connection| connection.heard());
                }
                Received::Closed | Received::Reset => {
                    let clean = received == Received::Closed;
                    note!(self.trace, "target: link {} {received:?}", port.link.0);
                    match connection {
                        Some(connection) => connection.lose(clean),
                        None => self.drop_port(port),
                    }
                    return true;
                }
            }
            moved = true;
        }
    }

    fn break_off(&self, port: &Rc<Port>, broken: &Broken) {
        note!(self.trace, "target: link {} given up: {broken}", port.link.0);
        if matches!(broken, Broken::Refused(_)) {
            return;
        }
        let connection = match &*port.phase.borrow() {
            Phase::Full(connection, _) => Some(connection.clone()),
            _ => None,
        };
        // Digests find a flipped bit, and at ErrorRecoveryLevel 0 the connection ends with it.
        let corrupted = self.network.borrow().corrupted(port.link, Side::Target);
        let found = matches!(broken, Broken::Frame(_) | Broken::Pair(_));
        // The other side may have found one and say so.
        let told = matches!(broken, Broken::Pair(Fault::Theirs(_)))
            && self.network.borrow().corrupted(port.link, Side::Initiator);
        if !(connection.is_some() && (corrupted && found || told)) {
            self.report(format!("link {} broke the protocol: {broken}", port.link.0));
        }
        match connection {
            Some(connection) => connection.lose(false),
            None => self.drop_port(port),
        }
    }

    /// Takes in what a queue pair brings.
    fn digest_rdma(self: &Rc<Self>, port: &Rc<Port>) -> Result<(), Broken> {
        loop {
            let connection = match &*port.phase.borrow() {
                Phase::Login(_) => None,
                Phase::Full(connection, _) if connection.listens() => Some(connection.clone()),
                _ => return Ok(()),
            };
            let fetched = connection.as_ref().map(|connection| Fetched { target: self, connection });
            let sink = fetched.as_ref().map(|fetched| fetched as &dyn Sink);
            let happening = match port.output.borrow_mut().pair() {
                Some(pair) => pair.next(&mut port.input.borrow_mut(), sink)?,
                None => None,
            };
            match (happening, connection) {
                (None, _) => return Ok(()),
                (Some(Happening::Message(bytes, invalidated)), connection) => {
                    if let Some(stag) = invalidated {
                        return Err(Broken::Message(format!("an initiator invalidated {stag:#x}")));
                    }
                    let message = iser::parse(&bytes).map_err(Broken::Message)?;
                    let (bhs, data) = (message.bhs, message.data);
                    match connection {
                        Some(connection) => {
                            connection.on_pdu(&bhs, &message.ahs, Segment(data.into()), message.control)?;
                        }
                        None if bhs.opcode() == Some(Opcode::LoginRequest) => {
                            login::request(self, port, &bhs, &data)?;
                        }
                        None => return Err(Broken::NoLogin(bhs.opcode_code())),
                    }
                }
                (Some(Happening::Read(id, data)), Some(connection)) => {
                    connection.on_read(id, Pieces(data));
                }
                (Some(Happening::Read(..)), None) => {
                    return Err(Broken::Message("a read before login".to_owned()));
                }
            }
        }
    }

    /// Cuts the input into PDUs and acts on them.
    fn digest(self: &Rc<Self>, port: &Rc<Port>) -> Result<(), Broken> {
        if port.output.borrow().reads() {
            return self.digest_rdma(port);
        }
        loop {
            let (cutter, connection) = match &*port.phase.borrow() {
                Phase::Login(_) => (LOGIN_CUTTER, None),
                Phase::Full(connection, cutter) if connection.listens() => {
                    (*cutter, Some(connection.clone()))
                }
                _ => return Ok(()),
            };
            if let Some(connection) = &connection
                && !self.digest_arriving(port, connection)?
            {
                return Ok(());
            }
            let (bhs, ahs, data) = {
                let mut input = port.input.borrow_mut();
                let bound = MAX_HEADER_LEN + cutter.max_data_segment as usize + MAX_TRAILER_LEN;
                let cut = match cutter.cut(&input) {
                    // At error recovery level 0 it ends the connection.
                    Err(FrameError::DataDigest { bhs, consumed, .. })
                        if connection.as_ref().is_some_and(|connection| connection.recovers()) =>
                    {
                        input.drain(..consumed);
                        drop(input);
                        if let Some(connection) = connection {
                            connection.on_damaged(&bhs)?;
                        }
                        continue;
                    }
                    cut => cut?,
                };
                let (bhs, ahs, data, consumed) = match cut {
                    Cut::Pdu { bhs, ahs, data, consumed } => {
                        (*bhs, ahs.to_vec(), input[data].to_vec(), consumed)
                    }
                    Cut::Partial { bhs, ahs, data_offset, data_len, trailer } if !cutter.data_digest => {
                        let Some(connection) =
                            connection.as_ref().filter(|connection| !connection.recovers())
                        else {
                            return Ok(());
                        };
                        let mut arriving = Arriving::new(*bhs, ahs.to_vec(), data_len, trailer);
                        input.drain(..data_offset);
                        drop(input);
                        arriving.begin(connection)?;
                        *port.arriving.borrow_mut() = Some(arriving);
                        continue;
                    }
                    _ => {
                        if input.len() > bound {
                            self.report(format!("{} bytes without a whole PDU", input.len()));
                        }
                        return Ok(());
                    }
                };
                input.drain(..consumed);
                (bhs, ahs, data)
            };
            match connection {
                Some(connection) if connection.recovers() && self.loses(&bhs) => {
                    note!(self.trace, "target: lost on the way: {bhs}")
                }
                Some(connection) => {
                    connection.on_pdu(&bhs, &ahs, Segment(data.into()), Control::default())?;
                }
                None if bhs.opcode() == Some(Opcode::LoginRequest) => {
                    login::request(self, port, &bhs, &data)?;
                }
                None => return Err(Broken::NoLogin(bhs.opcode_code())),
            }
        }
    }

    /// Whether a PDU vanishes before it arrives. Those that are lost are those that either side recovers: a command, its data, a
    /// SNACK, a ping.
    fn loses(&self, bhs: &Bhs) -> bool {
        use Opcode::{DataOut, NopOut, ScsiCommand, SnackRequest};
        let suits = match bhs.opcode() {
            Some(ScsiCommand | DataOut | SnackRequest) => true,
            Some(NopOut) => bhs.itt() != RESERVED_TAG,
            _ => false,
        };
        suits && self.rng.borrow_mut().chance(self.settings.lost_per_mille)
    }

    /// Bytes that one connection may have queued.
    pub fn most_queued(&self, max_transfer: usize) -> usize {
        // Each command in hand may put a chunk after the mark was passed, as it does on a real socket.
        let commands = self.settings.queue_depth as usize + 16;
        // What is sent again is queued beside that.
        let times = if self.settings.level > 0 { 4 } else { 1 };
        self.settings.send_high_water + self.settings.text_len + times * commands * (2 * max_transfer + 4096)
    }

    /// The longest queue to a peer, bytes.
    pub fn longest_queue(&self) -> usize {
        self.ports.borrow().iter().map(|port| port.output.borrow().len()).max().unwrap_or(0)
    }

    /// Sessions, links and futures: all 0 when everybody has left.
    pub fn leftovers(&self) -> (usize, usize, usize) {
        (self.sessions.borrow().len(), self.ports.borrow().len(), self.executor.len())
    }

    /// One line on each link, for a report.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for port in self.ports.borrow().iter() {
            let state = match &*port.phase.borrow() {
                Phase::Login(_) => "login".to_owned(),
                Phase::Placing => "placing".to_owned(),
                Phase::Full(connection, _) => connection.describe(),
                Phase::Closing => "closing".to_owned(),
                Phase::Over => "over".to_owned(),
            };
            let (input, output) = (port.input.borrow().len(), port.output.borrow().len());
            lines.push(format!(
                "target link {}: {state}; input {input} bytes, output {output} bytes",
                port.link.0
            ));
        }
        lines.extend(self.detached().iter().map(|connection| format!("target: {}", connection.describe())));
        lines
    }
}
