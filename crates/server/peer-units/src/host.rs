//! Executes commands that other gateways forward, on units of this gateway. It lives on one core.
//!
//! This file owns the peers and the units. `peer` is one forwarder, `nexus` one of its I_T_L
//! nexuses, `mover` moves a command's data, and `management` ends tasks.

mod management;
mod mover;
mod nexus;
mod peer;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::{Nexus, NexusId, PortGroups};
use disk::unit::DiskUnit;
use peer_link::{Answering, Claim, Keys, Limits, Reason, Said, Secret};
use runtime::{Bytes, Chain, Handle, TcpListener, TcpStream, timeout};

use crate::line::{HANDSHAKE, NoLine, more, say, since};
use crate::unit::Gate;
use management::Aborter;
use nexus::{Key, Local};
use peer::Peer;

/// The most connections whose peers have not proven themselves.
const UNPROVEN: usize = 32;
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    /// The hosts of this thread.
    static HOSTS: RefCell<BTreeMap<u64, Weak<Shared>>> = const { RefCell::new(BTreeMap::new()) };
}

pub struct HostConfig {
    pub gateway: u16,
    /// The first life of the gateway.
    pub instance: u64,
    /// The group's secrets, by number.
    pub secrets: BTreeMap<u32, Secret>,
    /// The versions that it speaks. Forwarders offer none that the group has not agreed on.
    pub versions: RangeInclusive<u16>,
    pub limits: Limits,
    /// A command whose sender last heard this gateway so long ago never begins.
    pub fresh: Duration,
    /// The most forwarders: instances, times their channels.
    pub peers: usize,
    /// Whether the group has this instance of a gateway as a member.
    pub is_member: Box<dyn Fn(u16, u64) -> bool>,
    /// A number for an I_T nexus that no other one of the daemon has.
    pub nexus_id: Box<dyn Fn() -> NexusId>,
}

/// The owner's end of the peer link. Clones share it.
#[derive(Clone)]
pub struct Host(Rc<Shared>);

struct Unit {
    unit: Arc<DiskUnit>,
    gate: Gate,
}

struct Shared {
    config: HostConfig,
    /// The ports of all gateways that lead to each unit.
    ports: RefCell<BTreeMap<u32, Arc<PortGroups>>>,
    /// This life of the gateway.
    instance: Cell<u64>,
    number: u64,
    core: Handle,
    /// When the time of the machines began.
    began: Instant,
    units: RefCell<BTreeMap<u32, Unit>>,
    /// By instance and channel.
    peers: RefCell<BTreeMap<(u64, u16), Rc<Peer>>>,
    /// Forwarders that the group has taken out, until their commands have ended.
    ending: RefCell<Vec<Rc<Peer>>>,
    locals: RefCell<BTreeMap<Key, Weak<Local>>>,
    unproven: Cell<usize>,
}

impl Host {
    /// A host on this core, whose handle is `core`.
    #[must_use]
    pub fn new(config: HostConfig, core: Handle) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Rc::new(Shared {
            instance: Cell::new(config.instance),
            ports: RefCell::default(),
            config,
            number,
            core,
            began: runtime::now(),
            units: RefCell::default(),
            peers: RefCell::default(),
            ending: RefCell::default(),
            locals: RefCell::default(),
            unproven: Cell::new(0),
        });
        HOSTS.with_borrow_mut(|hosts| {
            hosts.retain(|_, host| host.strong_count() > 0);
            hosts.insert(number, Rc::downgrade(&shared));
        });
        Self(shared)
    }

    /// Executes commands of unit `number` from now on. Nexuses that knew another owner keep their
    /// unit attentions.
    pub fn serve_unit(&self, number: u32, unit: Arc<DiskUnit>, gate: Gate) {
        unit.nexuses().set_peers(Arc::new(Aborter { host: self.0.number, core: self.0.core }));
        for local in self.0.locals_of(number) {
            local.attach(&unit);
        }
        self.0.units.borrow_mut().insert(number, Unit { unit, gate });
        self.0.peers().iter().for_each(|peer| peer.look());
    }

    /// Executes no command of unit `number` any more. What has begun ends on its own.
    pub fn stop_unit(&self, number: u32) {
        self.0.units.borrow_mut().remove(&number);
        self.0.locals_of(number).iter().for_each(|local| local.detach());
        self.0.peers().iter().for_each(|peer| peer.has_left(number));
    }

    /// This gateway begins another life, in which it has no unit and knows no forwarder yet.
    pub fn renew(&self, instance: u64) {
        self.0.instance.set(instance);
        let units: Vec<u32> = self.0.units.borrow().keys().copied().collect();
        units.into_iter().for_each(|unit| self.stop_unit(unit));
        let peers = std::mem::take(&mut *self.0.peers.borrow_mut());
        for peer in peers.into_values() {
            runtime::spawn(async move { peer.end().await });
        }
    }

    /// The group has taken an instance out: its connections and nexuses go, once its commands have
    /// ended. [`HostConfig::is_member`] must say so already.
    pub fn forget(&self, instance: u64) {
        let mut gone = Vec::new();
        self.0.peers.borrow_mut().retain(|(of, _), peer| {
            if *of == instance {
                gone.push(peer.clone());
            }
            *of != instance
        });
        for peer in gone {
            self.0.ending.borrow_mut().push(peer.clone());
            let shared = self.0.clone();
            runtime::spawn(async move {
                peer.end().await;
                shared.ending.borrow_mut().retain(|other| !Rc::ptr_eq(other, &peer));
            });
        }
    }

    /// The ports of all gateways that lead to a unit, of which this gateway need not be the owner.
    pub fn add_unit(&self, unit: u32, ports: &Arc<PortGroups>) {
        self.0.ports.borrow_mut().insert(unit, ports.clone());
    }

    /// Forgets the ports of all units but these.
    pub fn keep_units(&self, known: &BTreeSet<u32>) {
        self.0.ports.borrow_mut().retain(|unit, _| known.contains(unit));
    }

    /// Accepts connections for as long as the future is polled.
    pub async fn listen(&self, mut listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    let host = self.clone();
                    runtime::spawn(async move { host.serve(stream).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection of another gateway could be accepted");
                    runtime::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, stream: TcpStream) {
        let from = stream.peer_addr().ok();
        let admitted = {
            let unproven = Unproven::new(&self.0.unproven);
            if self.0.unproven.get() > UNPROVEN {
                tracing::debug!(?from, "too many connections without a proof");
                return;
            }
            let admitted = timeout(HANDSHAKE, self.shake(&stream)).await.unwrap_or(Err(NoLine::Late));
            drop(unproven);
            admitted
        };
        match admitted.and_then(|proven| self.let_in(proven)) {
            Err(error) => {
                tracing::info!(?from, %error, "no connection of another gateway");
                stream.reset();
            }
            Ok(LetIn { claim, peer, keys, token, accept, rest }) => {
                let Claim { gateway, instance, channel, piece, .. } = claim;
                let (connection, before) = peer.connect(keys, piece, token, stream);
                connection.push(&accept, Chain::new());
                if let Some(before) = before {
                    before.cut(&"a newer connection of the same gateway has replaced it");
                }
                let why = connection.run(&peer, rest).await;
                peer.disconnected(&connection);
                tracing::info!(
                    ?from,
                    gateway,
                    instance,
                    channel,
                    why,
                    "a connection of another gateway is over"
                );
            }
        }
    }

    /// Lets a forwarder in that has proven itself, at one moment. The group may have taken it out
    /// since it said hello, or this gateway: its commands are for the life that it has named.
    fn let_in(&self, (claim, answering, rest): Proven) -> Result<LetIn, NoLine> {
        if claim.owner != self.0.instance.get() {
            return Err(NoLine::Refused(Reason::OtherInstance));
        }
        if !(self.0.config.is_member)(claim.gateway, claim.instance) {
            return Err(NoLine::Refused(Reason::NoMember));
        }
        let token = u64::try_from(since(self.0.began).as_nanos()).unwrap_or(u64::MAX);
        let peer = self.peer(&claim);
        let mut accept = Vec::new();
        let keys = answering.accept(peer.remembers(), token, &mut accept).ok_or(NoLine::Closed)?;
        Ok(LetIn { claim, peer, keys, token, accept, rest })
    }

    /// Finds out who has connected.
    async fn shake(&self, stream: &TcpStream) -> Result<Proven, NoLine> {
        let config = &self.0.config;
        let (mut answering, mut out, mut known) = (Answering::new(), Vec::new(), None);
        loop {
            let mut bytes = more(stream).await?;
            loop {
                let mut input = &bytes[..];
                let said = answering.advance(&mut input)?;
                let taken = bytes.len() - input.len();
                bytes.advance(taken);
                match said {
                    None => break,
                    Some(Said::Hello(claim)) => {
                        let (version, secret) = match self.admit(&claim) {
                            Ok(admitted) => admitted,
                            Err(reason) => {
                                Answering::refuse(reason, &mut out);
                                say(stream, &mut out).await?;
                                // What is sent is delivered before the end.
                                let _ = stream.shutdown(std::net::Shutdown::Write);
                                let _ = more(stream).await;
                                return Err(NoLine::Refused(reason));
                            }
                        };
                        let own = (config.gateway, self.0.instance.get(), version);
                        answering.challenge(own, &config.limits, secret, nonce()?, &mut out);
                        known = Some(claim);
                    }
                    Some(Said::Proven) => {
                        let Some(claim) = known else { return Err(NoLine::Closed) };
                        return Ok((claim, answering, bytes));
                    }
                }
                say(stream, &mut out).await?;
            }
        }
    }

    /// The version and the secret for a forwarder that claims to be somebody.
    fn admit(&self, claim: &Claim) -> Result<(u16, &Secret), Reason> {
        let config = &self.0.config;
        let version = Answering::version(claim, &config.versions).ok_or(Reason::Version)?;
        let secret = config.secrets.get(&claim.secret).ok_or(Reason::Secret)?;
        if claim.owner != self.0.instance.get() {
            return Err(Reason::OtherInstance);
        }
        if !(config.is_member)(claim.gateway, claim.instance) {
            return Err(Reason::NoMember);
        }
        // A connection of the new life tells a gateway that its former lives' commands have ended.
        if self.0.has_former_life(claim) {
            return Err(Reason::Busy);
        }
        let peers = self.0.peers.borrow();
        if peers.len() >= config.peers && !peers.contains_key(&(claim.instance, claim.channel)) {
            return Err(Reason::Busy);
        }
        Ok((version, secret))
    }

    /// The forwarder that has proven itself.
    fn peer(&self, claim: &Claim) -> Rc<Peer> {
        let mut peers = self.0.peers.borrow_mut();
        let new = || Rc::new(Peer::new(self.0.clone(), claim.gateway, claim.instance));
        peers.entry((claim.instance, claim.channel)).or_insert_with(new).clone()
    }
}

impl Shared {
    /// Whether commands of another life of the same gateway may be in flight. The group has taken
    /// that life out, so [`Host::forget`] follows if it has not come yet.
    fn has_former_life(&self, claim: &Claim) -> bool {
        let (peers, ending) = (self.peers.borrow(), self.ending.borrow());
        peers.iter().any(|((of, _), peer)| *of != claim.instance && peer.gateway == claim.gateway)
            || ending.iter().any(|peer| peer.gateway == claim.gateway)
    }

    fn peers(&self) -> Vec<Rc<Peer>> {
        self.peers.borrow().values().cloned().collect()
    }

    /// The same, and those that the group has taken out: their commands may still be at work.
    fn executing(&self) -> Vec<Rc<Peer>> {
        let mut all = self.peers();
        all.extend(self.ending.borrow().iter().cloned());
        all
    }

    fn locals_of(&self, unit: u32) -> Vec<Rc<Local>> {
        let locals = self.locals.borrow();
        locals.iter().filter(|(key, _)| key.unit == unit).filter_map(|(_, local)| local.upgrade()).collect()
    }

    /// The I_T nexus of a key, if another unit of the session has it.
    fn nexus_of(&self, key: &Key) -> Option<Arc<Nexus>> {
        let locals = self.locals.borrow();
        let mut same =
            locals.iter().filter(|(other, _)| (other.instance, other.nexus) == (key.instance, key.nexus));
        same.find_map(|(_, local)| local.upgrade().map(|local| local.itl.nexus.clone()))
    }
}

/// A forwarder that has proven its claim, and the bytes that came behind the proof.
type Proven = (Claim, Answering, Bytes);

/// A forwarder that is let in: its keys, and the message that tells it so.
struct LetIn {
    claim: Claim,
    peer: Rc<Peer>,
    keys: Keys,
    token: u64,
    accept: Vec<u8>,
    rest: Bytes,
}

/// Counts a connection without a proof.
struct Unproven<'a>(&'a Cell<usize>);

impl<'a> Unproven<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Unproven<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A host of this thread.
fn host(number: u64) -> Option<Rc<Shared>> {
    HOSTS.with_borrow(|hosts| hosts.get(&number)?.upgrade())
}

pub(crate) fn nonce() -> std::io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    runtime::random(&mut nonce)?;
    Ok(nonce)
}
