//! One initiator on a path with a rate: how much of the path its session fills, in simulated time, and what it changes of itself to
//! do so.
//!
//! The session is the one that is shipped, the target that of the other worlds, and what decides is
//! [`iscsi_client::tune::governor`]. Nothing goes wrong here, and nothing is checked but that every command ends well.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use backing::model::ModelStore;
use disk::unit::DiskOptions;
use iscsi::frame::{Cut, Cutter, Digests, emit_pdu};
use iscsi::initiator::{Command, ConnectionId, Event, Place, Segment, Session, SessionConfig};
use iscsi::keys::{Offer, Params};
use iscsi::login::initiator::{Config, InitiatorLogin, Request, Step};
use iscsi::pdu::{Bhs, Isid, Lun, TaskAttribute};
use iscsi::text::LOGIN_SEGMENT_LEN;
use iscsi_client::tune::governor::{Bounds, Governor, Sample};
use scsi::cdb::build::{self, Flags};

use crate::clock::{Clock, MS, Micros, SECOND};
use crate::network::{LinkId, Network, Quality, Received, Side};
use crate::random::Rng;
use crate::target::{NAME, Settings, Target};
use crate::trace::Trace;

/// Bytes of the unit, and of its blocks.
const UNIT: (usize, u32) = (8 << 20, 4096);
/// Bytes queued on a link beyond which no more is put there.
const BATCH: usize = 64 << 10;
/// Rounds at one moment of time.
const MOST_ROUNDS: u32 = 1_000_000;

/// What the path is like.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bytes a second in each direction, of all links together.
    pub rate: u64,
    /// Round trip.
    pub rtt: Micros,
    /// Bytes that one link can have on their way in a direction: what its sockets' buffers are to a connection.
    pub window: usize,
}

/// What the initiator does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// It writes; else it reads.
    pub write: bool,
    /// Bytes of a command.
    pub io: u32,
    /// Commands that its user has under way, which wait for the session as far as it does not give them to the target.
    pub depth: usize,
    /// The target demands R2Ts for all data (InitialR2T=Yes).
    pub initial_r2t: bool,
    /// The session tunes itself; else it gives the target so many commands at a time.
    pub limit: Option<usize>,
    /// Simulated time.
    pub time: Micros,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes a second over the second half of the time.
    pub rate: f64,
    /// Commands that the target was given at a time at the end.
    pub commands: usize,
    /// Connections at the end.
    pub connections: usize,
    /// How often something was changed.
    pub changes: u64,
    /// How often that was taken back.
    pub reverted: u64,
    /// Commands that ended.
    pub ended: u64,
}

/// What the session keeps with a task.
#[derive(Debug)]
enum Token {
    Io,
    /// A ping, and when it was sent.
    Ping(Micros),
}

impl Place<&[u8]> for Token {
    fn place(&mut self, _: usize, _: &[u8]) {}
}

struct Link {
    id: LinkId,
    cid: u16,
    /// While it logs in.
    login: Option<Box<InitiatorLogin>>,
    on: Option<ConnectionId>,
    cutter: Cutter,
    input: Vec<u8>,
    output: Vec<u8>,
}

struct World {
    path: Path,
    work: Work,
    clock: Rc<Clock>,
    network: Rc<RefCell<Network>>,
    target: Rc<Target>,
    session: Session<Vec<u8>, Token>,
    links: Vec<Link>,
    tsih: u16,
    governor: Option<Governor>,
    /// What the governor has seen up to then.
    sampled: Micros,
    next_sample: Micros,
    rtt: Option<Duration>,
    next_lba: u64,
    data: Vec<u8>,
    bytes: u64,
    bytes_at_sample: u64,
    bytes_at_half: Option<u64>,
    ended: u64,
}

/// Runs it.
///
/// # Errors
/// A command or a login that failed, and time that stands still.
pub fn run(path: Path, work: Work, seed: u64) -> Result<Outcome, String> {
    let mut world = World::new(path, work, seed);
    world.dial();
    for _ in 0..u64::MAX {
        world.settle()?;
        let now = world.clock.now();
        if now >= work.time / 2 {
            world.bytes_at_half.get_or_insert(world.bytes);
        }
        if now >= work.time {
            break;
        }
        let next = [
            world.network.borrow().next_event(now),
            world.target.next_event(),
            Some(world.next_sample),
            Some(work.time / 2),
            Some(work.time),
        ];
        let next = next.into_iter().flatten().filter(|at| *at > now).min();
        world.clock.advance_to(next.ok_or("nothing will ever happen again")?);
    }
    let moved = world.bytes - world.bytes_at_half.unwrap_or(0);
    let (changes, reverted) = world.governor.as_ref().map_or((0, 0), Governor::changes);
    Ok(Outcome {
        rate: moved as f64 * SECOND as f64 / (work.time / 2) as f64,
        commands: world.governor.as_ref().map_or(work.limit.unwrap_or(0), |g| g.decision().commands),
        connections: world.links.iter().filter(|link| link.on.is_some()).count(),
        changes,
        reverted,
        ended: world.ended,
    })
}

impl World {
    fn new(path: Path, work: Work, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let clock = Rc::new(Clock::default());
        let trace = Rc::new(Trace::new(clock.clone(), false));
        let mut network = Network::new(rng.fork());
        network.set_rate(path.rate);
        let network = Rc::new(RefCell::new(network));
        let settings = Settings {
            queue_depth: 256,
            max_recv_data_segment: 262_144,
            max_burst: 1 << 20,
            first_burst: 262_144,
            max_r2t: 8,
            connections: 4,
            initial_r2t: work.initial_r2t,
            immediate_data: !work.initial_r2t,
            header_digest: iscsi::keys::DigestChoice::Never,
            data_digest: iscsi::keys::DigestChoice::Never,
            send_high_water: 1 << 20,
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::from_secs(60),
            chap: None,
            iser: None,
            text_len: 0,
            level: 0,
            time2wait: 0,
            time2retain: 0,
            data_timeout: Duration::from_secs(60),
            lost_per_mille: 0,
        };
        let disk = DiskOptions { block_size: UNIT.1, ..DiskOptions::default() };
        let store = Arc::new(ModelStore::new(UNIT.0, 512));
        let target =
            Target::new(settings, disk, store, network.clone(), clock.clone(), trace.clone(), rng.fork());
        let config = SessionConfig { max_tasks: work.depth + 16, first_cmd_sn: 1 };
        let mut session = Session::new(config);
        if let Some(limit) = work.limit {
            session.limit_outstanding(limit);
        }
        Self {
            path,
            work,
            clock,
            network,
            target,
            session,
            links: Vec::new(),
            tsih: 0,
            governor: None,
            sampled: 0,
            next_sample: MS,
            rtt: None,
            next_lba: 0,
            data: vec![0xa5; work.io as usize],
            bytes: 0,
            bytes_at_sample: 0,
            bytes_at_half: None,
            ended: 0,
        }
    }

    /// Does what there is to do at this moment.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MOST_ROUNDS {
            let now = self.clock.now();
            self.network.borrow_mut().deliver(now);
            let mut moved = self.target.pump();
            moved |= self.receive()?;
            self.submit()?;
            self.govern();
            moved |= self.transmit();
            if let Some(incident) = self.target.incident() {
                return Err(incident);
            }
            if !moved {
                return Ok(());
            }
        }
        Err("there is no end of things to do at one moment".to_owned())
    }

    /// Makes a link and begins its login.
    fn dial(&mut self) {
        let segment = (1448, 1448);
        let half = self.path.rtt / 2;
        let quality =
            Quality { latency: (half, half), segment, window: self.path.window, stalls: 0, stall: 0 };
        let id = self.network.borrow_mut().connect(self.clock.now(), quality);
        let cid = self.links.len() as u16;
        let mut login = InitiatorLogin::new(Config {
            initiator: "iqn.2026-01.example.sim:wan".to_owned(),
            alias: None,
            target: Some(NAME.to_owned()),
            isid: Isid::random([1, 2, 3], 7),
            tsih: self.tsih,
            cid,
            cmd_sn: self.session.cmd_sn(),
            itt: 7,
            chap: None,
            offer: Offer {
                max_recv_data_segment_length: 262_144,
                max_connections: 4,
                initial_r2t: false,
                immediate_data: true,
                max_burst_length: 1 << 20,
                first_burst_length: 262_144,
                max_outstanding_r2t: 8,
                ..Offer::default()
            },
            session: (self.tsih != 0).then(|| self.session.params().clone()),
            skip_security: true,
        });
        let mut output = Vec::new();
        emit_login(login.start(), &mut output);
        let cutter = Cutter {
            header_digest: false,
            data_digest: false,
            max_data_segment: LOGIN_SEGMENT_LEN as u32,
            max_ahs: 0,
        };
        let login = Some(Box::new(login));
        self.links.push(Link { id, cid, login, on: None, cutter, input: Vec::new(), output });
    }

    /// Keeps as many commands as the user wants.
    fn submit(&mut self) -> Result<(), String> {
        let blocks = self.work.io / UNIT.1;
        let places = UNIT.0 as u64 / u64::from(self.work.io);
        while self.tsih != 0 && self.session.len() < self.work.depth {
            let lba = self.next_lba % places * u64::from(blocks);
            self.next_lba += 1;
            let flags = Flags::default();
            let cdb = if self.work.write {
                build::write(lba, blocks, flags)
            } else {
                build::read(lba, blocks, flags)
            };
            let command = Command {
                lun: Lun::ZERO,
                attribute: TaskAttribute::Simple,
                cdb: &cdb,
                write: self.work.write.then(|| self.data.clone()),
                read_len: (!self.work.write).then_some(self.work.io),
                may_repeat: true,
            };
            self.session.submit(command, Token::Io).map_err(|_| "the session takes no command")?;
        }
        Ok(())
    }

    /// What the pilot of a real session does at each interval.
    fn govern(&mut self) {
        let now = self.clock.now();
        if self.tsih == 0 || self.work.limit.is_some() || now < self.next_sample {
            return;
        }
        let params = self.session.params();
        let first_burst = if params.initial_r2t { 0 } else { params.first_burst_length };
        let most_connections = params.max_connections;
        let governor = self.governor.get_or_insert_with(|| {
            Governor::new(Bounds {
                least_commands: 4,
                most_commands: self.work.depth,
                least_connections: 1,
                most_connections,
                unsolicited: (0, 0),
                first_burst,
                send_buffer: (0, 0),
            })
        });
        let connections = self.links.iter().filter(|link| link.on.is_some()).count();
        let sample = Sample {
            time: Duration::from_micros(now - self.sampled),
            bytes: self.bytes - self.bytes_at_sample,
            limited: self.session.take_limited(),
            rtt: self.rtt.take(),
            connections: connections as u16,
            reach: self.path.window as u64,
            waited: 0.0,
        };
        governor.observe(&sample);
        let decision = governor.decision();
        self.session.limit_outstanding(decision.commands);
        (self.sampled, self.bytes_at_sample) = (now, self.bytes);
        self.next_sample = now + governor.interval().as_micros() as Micros;
        if let Some(on) = self.links.iter().find_map(|link| link.on) {
            // A full table is no reason to stop.
            let _ = self.session.ping(on, Token::Ping(now));
        }
        if usize::from(decision.connections) > self.links.len() {
            self.dial();
        }
    }

    fn receive(&mut self) -> Result<bool, String> {
        let mut any = false;
        for at in 0..self.links.len() {
            loop {
                let now = self.clock.now();
                let received = self.network.borrow_mut().receive(now, self.links[at].id, Side::Initiator);
                match received {
                    Received::Nothing => break,
                    Received::Bytes(bytes) => self.links[at].input.extend(bytes),
                    end => return Err(format!("link {at}: {end:?}")),
                }
                any = true;
                self.read(at)?;
            }
        }
        Ok(any)
    }

    /// Handles the PDUs that are whole.
    fn read(&mut self, at: usize) -> Result<(), String> {
        let mut done = 0;
        loop {
            let link = &mut self.links[at];
            let cut = link.cutter.cut(&link.input[done..]).map_err(|error| error.to_string())?;
            let Cut::Pdu { bhs, data, consumed, .. } = cut else { break };
            let (bhs, data) = (*bhs, link.input[done..][data].to_vec());
            done += consumed;
            match link.on {
                None => self.login_pdu(at, &bhs, &data)?,
                Some(on) => {
                    let event = self.session.handle(on, &bhs, Segment::Here(&data[..]));
                    match event.map_err(|error| error.to_string())? {
                        Some(Event::Done(_, Token::Io, completion)) if completion.status == 0 => {
                            self.bytes += u64::from(self.work.io);
                            self.ended += 1;
                        }
                        // The new nexus's unit attention, in place of its first command.
                        Some(Event::Done(_, Token::Io, completion)) if is_attention(&completion.sense) => {}
                        Some(Event::Pong(_, Token::Ping(since))) => {
                            let rtt = Duration::from_micros(self.clock.now() - since);
                            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
                        }
                        None => {}
                        Some(event) => return Err(format!("{event:?}")),
                    }
                }
            }
        }
        self.links[at].input.drain(..done);
        Ok(())
    }

    fn login_pdu(&mut self, at: usize, bhs: &Bhs, data: &[u8]) -> Result<(), String> {
        let link = &mut self.links[at];
        let Some(login) = &mut link.login else { return Err("a PDU before the login".to_owned()) };
        match login.handle(bhs.as_login_response(), data).map_err(|error| error.to_string())? {
            Step::Send(request) => emit_login(request, &mut link.output),
            Step::Done(established) => {
                link.login = None;
                link.cutter = cutter(&established.params);
                link.on = Some(self.session.connect(link.cid, &established));
                self.tsih = established.tsih;
            }
            Step::Moved { .. } => return Err("moved".to_owned()),
        }
        Ok(())
    }

    fn transmit(&mut self) -> bool {
        let (now, mut any) = (self.clock.now(), false);
        for link in &mut self.links {
            loop {
                if let Some(on) = link.on
                    && link.output.len() < BATCH
                {
                    self.session.transmit(on, BATCH, &mut link.output);
                }
                let sent = self.network.borrow_mut().send(now, link.id, Side::Initiator, &link.output);
                link.output.drain(..sent);
                any |= sent > 0;
                if sent == 0 {
                    break;
                }
            }
        }
        any
    }
}

fn is_attention(sense: &[u8]) -> bool {
    scsi::Sense::parse(sense).is_some_and(|sense| sense.key == scsi::SenseKey::UnitAttention)
}

fn cutter(params: &Params) -> Cutter {
    Cutter {
        header_digest: false,
        data_digest: false,
        max_data_segment: params.max_recv_data_segment_length,
        max_ahs: 0,
    }
}

fn emit_login(request: Request, into: &mut Vec<u8>) {
    let mut header: Bhs = request.header.into();
    emit_pdu(&mut header, &[], &request.data, Digests { header: false, data: false }, into);
}
