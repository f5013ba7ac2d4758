//! The link of this core to one life of a gateway that owns units. It connects again when its
//! connection is lost, while a unit is the owner's or a command has no end. The machine stays until
//! the owner is fenced: the owner remembers its numbers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use device::ItlNexus;
use peer_link::forwarder::Event;
use peer_link::message::Attach;
use peer_link::{
    Calling, Command, Final, Forwarder, Function, Number, Own, Principal, Refused, Time, Violation, Welcome,
};
use runtime::{Bytes, Chain, TcpStream, timeout};

use super::GroupUnit;
use crate::host::nonce;
use crate::line::{End, HANDSHAKE, Line, NoLine, kept, more, parts, pause, say, since};
use crate::peers::{Life, LinkId, OwnerAt, Peers};

/// Pauses between tries to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a try to connect may take.
const CONNECT: Duration = Duration::from_secs(1);
/// How often it is looked what the group says of the owner, and which sessions have gone.
const LOOK: Duration = Duration::from_millis(100);

thread_local! {
    /// The links of this core.
    static LINKS: RefCell<Vec<Rc<Link>>> = const { RefCell::new(Vec::new()) };
}

/// The end of a forwarding.
#[derive(Debug)]
pub(super) enum Over {
    /// The owner's word.
    Said(Final),
    /// It may have been executed, and is not any more: the owner is fenced, or has let the next
    /// life of this gateway in.
    Fenced,
    /// This gateway has left the group. The owner may still execute it, and does not tell.
    Left,
}

/// A forwarding without an end.
#[derive(Default)]
pub(super) struct Op {
    pub flow: RefCell<Flow>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
pub(super) struct Flow {
    itl: u32,
    /// Up to which byte Data-Out may be sent.
    pub may_send: u64,
    /// Data-In that has come, and is right.
    pub got: Chain,
    /// Data-In of a piece that has not come whole.
    unchecked: Chain,
    /// Its nexus was cleared: it is aborted if it has begun.
    pub cleared: bool,
    pub over: Option<Over>,
}

impl Op {
    pub fn wait(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        match &mut *slot {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A unit as a session sees it, and [`Peers::tenure`] of the unit when the owner was told of both.
type Seen = (Arc<GroupUnit>, Arc<ItlNexus>, u64);

pub(super) struct Link {
    peers: Arc<Peers>,
    at: OwnerAt,
    /// This gateway's life, and its number.
    life: (u64, Life),
    /// When the machine's time began.
    began: Instant,
    forwarder: RefCell<Forwarder>,
    ops: RefCell<BTreeMap<Number, Rc<Op>>>,
    /// Nexuses at the owner, by the machine's number.
    nexuses: RefCell<BTreeMap<u32, Seen>>,
    line: RefCell<Option<Rc<Line>>>,
    /// Nothing is forwarded any more.
    over: Cell<bool>,
    /// A former life waits for a connection.
    awaited: Cell<bool>,
}

/// Nexuses of this core may have gone.
pub(super) fn look() {
    let links = LINKS.with_borrow(Vec::clone);
    links.iter().for_each(|link| link.detach_gone());
}

impl Link {
    /// This core's link to an owner.
    pub fn of(peers: &Arc<Peers>, at: OwnerAt) -> Rc<Self> {
        let life = peers.life();
        let is_same =
            |link: &Rc<Self>| Arc::ptr_eq(&link.peers, peers) && (link.at, link.life.0) == (at, life.0);
        let is_it = |link: &Rc<Self>| is_same(link) && !link.over.get();
        if let Some(link) = LINKS.with_borrow(|links| links.iter().find(|link| is_it(link)).cloned()) {
            return link;
        }
        let link = Rc::new(Self {
            peers: peers.clone(),
            at,
            life,
            began: runtime::now(),
            forwarder: RefCell::new(Forwarder::new(peers.config.piece)),
            ops: RefCell::default(),
            nexuses: RefCell::default(),
            line: RefCell::default(),
            over: Cell::new(false),
            awaited: Cell::new(false),
        });
        LINKS.with_borrow_mut(|links| links.push(link.clone()));
        runtime::spawn(link.clone().serve());
        runtime::spawn(link.clone().watch());
        link
    }

    pub fn is_connected(&self) -> bool {
        self.line.borrow().is_some()
    }

    /// Connects, serves, and connects again until it is over.
    async fn serve(self: Rc<Self>) {
        let mut wait = FIRST_PAUSE;
        let mut told = String::new();
        let id: LinkId = (self.life.0, self.at.instance, runtime::current_core());
        while !self.over.get() {
            if !self.is_wanted() {
                self.peers.link_is(id, None);
                runtime::sleep(LOOK).await;
                continue;
            }
            let why = match self.connect().await {
                Ok((line, rest)) => {
                    (wait, told) = (FIRST_PAUSE, String::new());
                    self.peers.link_is(id, Some(true));
                    let why = line.run(&self, rest).await;
                    self.forwarder.borrow_mut().lost();
                    self.line.borrow_mut().take();
                    // Data of a lost connection goes on over no other one.
                    self.ops.borrow().values().for_each(|op| op.flow.borrow_mut().unchecked = Chain::new());
                    why
                }
                Err(error) => error.to_string(),
            };
            self.peers.link_is(id, Some(false));
            if why != told {
                tracing::warn!(owner = %self.at.address, why, "no connection to the owner of units");
                told = why;
            }
            runtime::sleep(wait).await;
            wait = (2 * wait).min(LONGEST_PAUSE);
        }
        self.peers.link_is(id, None);
    }

    /// Ends what has no end when the owner is fenced, and a connection that nothing needs.
    async fn watch(self: Rc<Self>) {
        while !self.peers.is_over(self.life.0, self.at.instance) {
            if !self.is_wanted() {
                self.cut("no unit is the owner's any more");
            }
            self.detach_gone();
            runtime::sleep(LOOK).await;
        }
        self.over.set(true);
        LINKS.with_borrow_mut(|links| links.retain(|link| !Rc::ptr_eq(link, &self)));
        self.cut("the owner is fenced, or this gateway is out of the group");
        let has_end = self.ops.borrow().is_empty() || self.are_over().await;
        for op in std::mem::take(&mut *self.ops.borrow_mut()).into_values() {
            op.flow.borrow_mut().over = Some(if has_end { Over::Fenced } else { Over::Left });
            op.wake();
        }
    }

    /// Waits until the owner has ended all commands that this life has forwarded. Returns false if
    /// this gateway will not learn that.
    async fn are_over(&self) -> bool {
        loop {
            if self.peers.is_fenced(self.at.instance) {
                return true;
            }
            if self.peers.has_left() {
                return false;
            }
            // An owner that lives lets the next life in when it is done with this one.
            let next = Self::of(&self.peers, self.at);
            if next.life.0 != self.life.0 && next.is_connected() {
                next.awaited.set(false);
                return true;
            }
            next.awaited.set(true);
            runtime::sleep(LOOK).await;
        }
    }

    fn cut(&self, why: &str) {
        if let Some(line) = &*self.line.borrow() {
            line.cut(&why);
        }
    }

    /// Whether a unit is the owner's, or a command has no end.
    fn is_wanted(&self) -> bool {
        self.awaited.get() || !self.ops.borrow().is_empty() || self.peers.is_owner(self.at.instance)
    }

    async fn connect(self: &Rc<Self>) -> Result<(Rc<Line>, Bytes), NoLine> {
        let stream = TcpStream::connect(self.at.address, CONNECT).await?;
        let shaken = timeout(HANDSHAKE, self.shake(&stream)).await.unwrap_or(Err(NoLine::Late));
        let (welcome, rest) = match shaken {
            Ok(shaken) => shaken,
            Err(error) => {
                stream.reset();
                return Err(error);
            }
        };
        let mut out = Vec::new();
        let connection = self.forwarder.borrow_mut().connect(since(self.began), welcome, &mut out)?;
        let line = Line::new(connection, stream);
        line.push(&out, Chain::new());
        *self.line.borrow_mut() = Some(line.clone());
        Ok((line, rest))
    }

    async fn shake(&self, stream: &TcpStream) -> Result<(Welcome, Bytes), NoLine> {
        let (config, instance) = (&self.peers.config, self.life.1.instance);
        let (_, life) = self.peers.life();
        let own = Own {
            gateway: config.gateway,
            instance,
            channel: u16::try_from(runtime::current_core()).unwrap_or(u16::MAX),
            owner: self.at.instance,
            versions: life.versions.clone(),
            secret: life.secret.0,
            piece: config.piece,
        };
        let mut out = Vec::new();
        let mut calling = Calling::open(own, &life.secret.1, nonce()?, &mut out);
        loop {
            say(stream, &mut out).await?;
            let mut bytes = more(stream).await?;
            let mut input = &bytes[..];
            let welcome = calling.advance(&mut input, &mut out)?;
            let taken = bytes.len() - input.len();
            bytes.advance(taken);
            if let Some(welcome) = welcome {
                return Ok((welcome, bytes));
            }
        }
    }

    fn now(&self) -> Time {
        since(self.began)
    }

    /// Sends what a call of the machine has made, and the data behind it.
    fn push(&self, head: &[u8], data: Chain) {
        if let Some(line) = &*self.line.borrow() {
            line.push(head, data);
        }
    }

    /// The owner's nexus of a session and a unit.
    pub fn itl(&self, unit: &Arc<GroupUnit>, nexus: &Arc<ItlNexus>) -> Result<u32, Refused> {
        let tenure = self.peers.tenure(unit.number);
        let known = {
            let nexuses = self.nexuses.borrow();
            let mut same = nexuses.iter().filter(|(_, (_, known, _))| Arc::ptr_eq(known, nexus));
            same.next().map(|(itl, (.., since))| (*itl, *since))
        };
        match known {
            Some((itl, since)) if since == tenure => return Ok(itl),
            // Another owner may have changed its attentions since: this one has to hear them.
            Some((itl, _)) => self.detach(itl)?,
            None => {}
        }
        // Its session has gone, or has another right to write since.
        if !unit.nexuses.is_attached(nexus) {
            return Err(Refused::Gone);
        }
        let before = unit.kept(nexus.nexus.id);
        let principal = nexus
            .nexus
            .principal
            .as_ref()
            .map(|principal| Principal { user: principal.user.clone(), credential: principal.credential });
        let attach = Attach {
            itl: 0,
            nexus: nexus.nexus.id.0,
            unit: unit.number,
            tenure,
            read_only: nexus.read_only,
            new: before.is_none(),
            generation: 0,
            port: nexus.nexus.target_port,
            transport_id: nexus.nexus.transport_id.clone(),
            initiator: nexus.nexus.initiator.clone(),
            target: nexus.nexus.target.clone(),
            principal,
            attentions: before.unwrap_or_default(),
        };
        let mut out = Vec::new();
        let itl = self.forwarder.borrow_mut().attach(attach, &mut out)?;
        self.push(&out, Chain::new());
        self.nexuses.borrow_mut().insert(itl, (unit.clone(), nexus.clone(), tenure));
        Ok(itl)
    }

    /// Detaches nexuses that have gone, and those whose unit has had another owner.
    fn detach_gone(&self) {
        let gone: Vec<u32> = {
            let nexuses = self.nexuses.borrow();
            let has_gone = |(unit, nexus, since): &Seen| {
                !unit.nexuses.is_attached(nexus) || self.peers.tenure(unit.number) != *since
            };
            nexuses.iter().filter(|(_, seen)| has_gone(seen)).map(|(itl, _)| *itl).collect()
        };
        for itl in gone {
            // It is tried again while it has commands.
            let _ = self.detach(itl);
        }
    }

    /// Detaches a nexus that has no commands.
    fn detach(&self, itl: u32) -> Result<(), Refused> {
        let mut out = Vec::new();
        self.forwarder.borrow_mut().detach(itl, &mut out)?;
        self.nexuses.borrow_mut().remove(&itl);
        self.push(&out, Chain::new());
        Ok(())
    }

    /// How many unsolicited bytes the next command may have.
    pub fn unsolicited_room(&self) -> usize {
        self.forwarder.borrow().unsolicited_room() as usize
    }

    /// The most bytes of one message of Data-Out.
    pub fn piece(&self) -> u64 {
        self.forwarder.borrow().piece().into()
    }

    /// Forwards a command with the first bytes of its Data-Out.
    pub fn submit(&self, command: Command, data: Chain) -> Result<(Number, Rc<Op>), Refused> {
        let (itl, may_send) = (command.itl, data.len() as u64);
        let mut out = Vec::new();
        let number = self.forwarder.borrow_mut().submit(command, &parts(&data), &mut out)?;
        self.push(&out, data);
        Ok((number, self.expect(number, itl, may_send)))
    }

    pub fn manage(&self, itl: u32, function: Function) -> Result<Rc<Op>, Refused> {
        let mut out = Vec::new();
        let number = self.forwarder.borrow_mut().manage(itl, function, &mut out)?;
        self.push(&out, Chain::new());
        Ok(self.expect(number, itl, 0))
    }

    fn expect(&self, number: Number, itl: u32, may_send: u64) -> Rc<Op> {
        let op =
            Rc::new(Op { flow: RefCell::new(Flow { itl, may_send, ..Flow::default() }), ..Op::default() });
        self.ops.borrow_mut().insert(number, op.clone());
        op
    }

    /// Sends more of a command's Data-Out. A lost connection drops it.
    pub fn data(&self, number: Number, data: Chain) {
        let mut out = Vec::new();
        if self.forwarder.borrow_mut().data(number, &parts(&data), &mut out).is_ok() {
            self.push(&out, data);
        }
    }

    /// There is room for Data-In up to byte `end`.
    pub fn room(&self, number: Number, end: u64) {
        let mut out = Vec::new();
        self.forwarder.borrow_mut().room(number, end, &mut out);
        self.push(&out, Chain::new());
    }

    pub fn abort(&self, number: Number) {
        let mut out = Vec::new();
        self.forwarder.borrow_mut().abort(number, &mut out);
        self.push(&out, Chain::new());
    }

    fn event(&self, event: Event<'_>, kept_data: impl FnOnce(&[u8]) -> runtime::Buf) {
        let op = |number: Number| self.ops.borrow().get(&number).cloned();
        match event {
            Event::Room { number, end } => {
                if let Some(op) = op(number) {
                    op.flow.borrow_mut().may_send = end;
                    op.wake();
                }
            }
            Event::Data { number, bytes, last, .. } => {
                let Some(op) = op(number) else { return };
                let mut flow = op.flow.borrow_mut();
                flow.unchecked.push(kept_data(bytes));
                if last {
                    let whole = std::mem::take(&mut flow.unchecked);
                    flow.got.append(whole);
                    drop(flow);
                    op.wake();
                }
            }
            Event::End { number, end } => {
                let Some(op) = self.ops.borrow_mut().remove(&number) else { return };
                op.flow.borrow_mut().over = Some(Over::Said(end));
                op.wake();
            }
            Event::Cleared { itl } => {
                for op in self.ops.borrow().values() {
                    let mut flow = op.flow.borrow_mut();
                    flow.cleared |= flow.itl == itl;
                }
            }
            Event::Attentions { itl, attentions } => {
                if let Some((unit, nexus, tenure)) = self.nexuses.borrow().get(&itl) {
                    unit.keep(nexus.nexus.id, *tenure, attentions);
                }
            }
            Event::View(view) => {
                let nexuses = self.nexuses.borrow();
                for (unit, ..) in nexuses.values().filter(|(unit, ..)| unit.number == view.unit) {
                    unit.see(view);
                }
            }
        }
    }
}

impl End for Link {
    fn take(self: &Rc<Self>, line: &Rc<Line>, bytes: &Bytes) -> Result<(), Violation> {
        let mut input = &bytes[..];
        loop {
            let event = self.forwarder.borrow_mut().receive(line.connection, self.now(), &mut input)?;
            let Some(event) = event else { return Ok(()) };
            let left = input.len();
            self.event(event, |data| kept(bytes, data, left));
        }
    }

    fn fill(&self, out: &mut Vec<u8>) {
        self.forwarder.borrow_mut().flush(out);
    }

    fn tick(self: &Rc<Self>) -> Result<Duration, Violation> {
        let now = self.now();
        let mut forwarder = self.forwarder.borrow_mut();
        forwarder.tick(now)?;
        Ok(pause(now, forwarder.due()))
    }
}
