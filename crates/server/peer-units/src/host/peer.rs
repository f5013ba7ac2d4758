//! One channel of one forwarder: its machine, its commands, and its connection.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use device::{Cdb, Execution, LogicalUnit, Outcome, TaskAttribute};
use peer_link::message::Attribute;
use peer_link::{Attach, Command, Keys, NotBegun, Number, Owner, Progress, Time, View, Violation};
use runtime::{Bytes, Chain, Notify, TcpStream, Use};
use scsi::Sense;

use super::Shared;
use super::mover::Mover;
use super::nexus::{self, Key, Local};
use crate::line::{End, HIGH, Line, kept, parts, pause, since};
use crate::unit::Begun;

pub(super) struct Peer {
    pub host: Rc<Shared>,
    pub gateway: u16,
    instance: u64,
    owner: RefCell<Owner>,
    jobs: RefCell<BTreeMap<Number, Rc<Job>>>,
    /// By the forwarder's number.
    nexuses: RefCell<BTreeMap<u32, (Key, Rc<Local>)>>,
    line: RefCell<Option<Rc<Line>>>,
    /// A command has ended.
    ended: Notify,
}

/// A command that has begun.
pub(super) struct Job {
    pub number: Number,
    pub itl: u32,
    pub tag: u64,
    pub local: Rc<Local>,
    pub data_out: u64,
    pub data_in: u64,
    pub flow: RefCell<Flow>,
    waker: RefCell<Option<Waker>>,
    /// Holds the unit open.
    _begun: Begun,
}

/// A command's data.
#[derive(Default)]
pub(super) struct Flow {
    /// Data-Out that has come, and is right.
    pub got: Chain,
    /// Data-Out of a piece that has not come whole.
    unchecked: Chain,
    /// Bytes of Data-Out that the unit has.
    pub taken: u64,
    /// Data-In that waits for room.
    pub waiting: Chain,
    /// Bytes of Data-In that the unit has put.
    pub put: u64,
}

impl Job {
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

impl Peer {
    pub fn new(host: Rc<Shared>, gateway: u16, instance: u64) -> Self {
        let owner = RefCell::new(Owner::new(host.config.limits));
        Self {
            host,
            gateway,
            instance,
            owner,
            jobs: RefCell::default(),
            nexuses: RefCell::default(),
            line: RefCell::default(),
            ended: Notify::default(),
        }
    }

    pub fn remembers(&self) -> bool {
        self.owner.borrow().remembers()
    }

    fn now(&self) -> Time {
        since(self.host.began)
    }

    /// The forwarder has a connection. The one before is lost.
    pub fn connect(
        &self,
        keys: Keys,
        piece: u32,
        token: u64,
        stream: TcpStream,
    ) -> (Rc<Line>, Option<Rc<Line>>) {
        let connection = self.owner.borrow_mut().connect(self.now(), keys, piece, token);
        let line = Line::new(connection, stream);
        let before = self.line.borrow_mut().replace(line.clone());
        self.wake_all();
        (line, before)
    }

    /// A connection is over.
    pub fn disconnected(&self, line: &Line) {
        let is_last = self.owner.borrow().connection() == Some(line.connection);
        if is_last {
            self.owner.borrow_mut().lost();
            self.line.borrow_mut().take();
            self.wake_all();
        }
    }

    /// The forwarder is out of the group: ends its connection, and its nexuses when its commands
    /// have ended.
    pub async fn end(&self) {
        let line = self.line.borrow_mut().take();
        self.owner.borrow_mut().lost();
        if let Some(line) = line {
            line.cut(&"the group has taken the gateway out");
        }
        self.wake_all();
        self.ended.until(|| self.jobs.borrow().is_empty().then_some(())).await;
        self.nexuses.borrow_mut().clear();
    }

    fn wake_all(&self) {
        self.jobs.borrow().values().for_each(|job| job.wake());
    }

    fn wake_line(&self) {
        if let Some(line) = &*self.line.borrow() {
            line.wake();
        }
    }

    /// Whether the command's data still moves. A mover that hears no says that it is lost.
    pub fn moves(&self, job: &Job) -> bool {
        self.owner.borrow_mut().moves(job.number)
    }

    /// Whether more Data-In may be made.
    pub fn has_room(&self, job: &Job, waker: &Waker) -> bool {
        let unsent = self.line.borrow().as_ref().map_or(0, |line| {
            line.left.register(waker);
            line.unsent()
        });
        unsent < HIGH && job.flow.borrow().waiting.is_empty()
    }

    /// Asks for Data-Out up to byte `end`.
    pub fn ask(&self, job: &Job, end: u64) {
        self.owner.borrow_mut().ask(job.number, end);
        self.wake_line();
    }

    /// Sends as much of a command's Data-In as the forwarder has room for.
    pub fn pump(&self, job: &Job) {
        let Some(line) = self.line.borrow().clone() else { return };
        let (mut owner, mut flow) = (self.owner.borrow_mut(), job.flow.borrow_mut());
        while !flow.waiting.is_empty() {
            let most = owner.room(job.number).min(owner.piece().into());
            let len = flow.waiting.len().min(usize::try_from(most).unwrap_or(usize::MAX));
            if len == 0 {
                return;
            }
            let data = flow.waiting.split_to(len);
            let mut head = Vec::new();
            if !owner.data(job.number, &parts(&data), &mut head) {
                invariant::broken!("Data-In for which there was room was not taken");
                return;
            }
            line.push(&head, data);
        }
    }

    fn attach(&self, attach: &Attach) {
        let Attach { itl, nexus, unit, .. } = *attach;
        let key = Key { instance: self.instance, nexus, unit };
        let known = self.host.locals.borrow().get(&key).and_then(std::rc::Weak::upgrade);
        let is_it = |local: &Local| local.itl.read_only == attach.read_only && local.tenure >= attach.tenure;
        let local = match known {
            Some(local) if is_it(&local) => local,
            before => self.new_local(key, attach, before),
        };
        self.nexuses.borrow_mut().insert(itl, (key, local));
        self.look();
    }

    /// A nexus that the host does not know, or that takes the place of the one `before`: it has
    /// another right to write, or another owner has had the unit since.
    fn new_local(&self, key: Key, attach: &Attach, before: Option<Rc<Local>>) -> Rc<Local> {
        let new = || std::sync::Arc::new(nexus::nexus(attach, (self.host.config.nexus_id)()));
        let ports = self.host.ports.borrow().get(&key.unit).cloned();
        let local = Rc::new(Local::new(attach, self.host.nexus_of(&key).unwrap_or_else(new), ports));
        if let Some(served) = self.host.units.borrow().get(&key.unit) {
            local.attach(&served.unit);
        }
        {
            let mut locals = self.host.locals.borrow_mut();
            locals.retain(|_, local| local.strong_count() > 0);
            locals.insert(key, Rc::downgrade(&local));
        }
        if let Some(before) = before {
            before.give_way(&local);
            self.host.peers().iter().for_each(|peer| peer.replace(key, &local));
        }
        local
    }

    /// Uses another nexus of this key from now on. What has begun goes on with the one before.
    fn replace(&self, key: Key, local: &Rc<Local>) {
        for (_, known) in self.nexuses.borrow_mut().values_mut().filter(|(of, _)| *of == key) {
            known.clone_from(local);
        }
    }

    /// Tells the forwarder what its nexuses and their units are now.
    pub fn look(&self) {
        let mut owner = self.owner.borrow_mut();
        for (itl, (key, local)) in &*self.nexuses.borrow() {
            let Some(unit) = local.unit() else { continue };
            owner.attentions(*itl, local.attentions());
            owner.view(View {
                unit: key.unit,
                device_type: unit.device_type(),
                descriptor_sense: unit.descriptor_sense(),
                write_protected: unit.options().read_only,
                block_size: unit.options().block_size,
                blocks: unit.blocks(),
            });
        }
    }

    /// Tells the forwarder what is pending for its nexuses of a unit that is not here any more. The
    /// last look may have missed some.
    pub fn has_left(&self, unit: u32) {
        let mut owner = self.owner.borrow_mut();
        for (itl, (key, local)) in &*self.nexuses.borrow() {
            if key.unit == unit {
                owner.attentions(*itl, local.attentions());
            }
        }
        self.wake_line();
    }

    fn begin(self: &Rc<Self>, number: Number, command: &Command) {
        let refuse = |reason| self.owner.borrow_mut().refuse(number, reason);
        let age = self.now().saturating_sub(Time::from_nanos(command.token));
        if age > self.host.config.fresh {
            return refuse(NotBegun::Stale);
        }
        let Some((key, local)) = self.local(command.itl) else { return refuse(NotBegun::NoNexus) };
        let (Some(cdb), Some(begun)) = (Cdb::new(&command.cdb), self.open(key.unit)) else {
            return refuse(NotBegun::NotOwner);
        };
        if !self.owner.borrow_mut().begin(number) {
            return;
        }
        let job = Rc::new(Job {
            number,
            itl: command.itl,
            tag: command.tag,
            local,
            data_out: command.data_out,
            data_in: command.data_in,
            flow: RefCell::default(),
            waker: RefCell::default(),
            _begun: begun,
        });
        self.jobs.borrow_mut().insert(number, job.clone());
        let Some(unit) = job.local.unit() else {
            // Its registration is another user's.
            return self.finish(&job, Sense::logical_unit_not_supported().into());
        };
        let attribute = match command.attribute {
            Attribute::Simple => TaskAttribute::Simple,
            Attribute::Ordered => TaskAttribute::Ordered,
            Attribute::HeadOfQueue => TaskAttribute::HeadOfQueue,
            Attribute::Aca => TaskAttribute::Aca,
        };
        let command = device::Command {
            cdb,
            attribute,
            nexus: Use::of(&job.local.itl),
            tag: command.tag,
            data_out_len: command.data_out,
            data_in_len: command.data_in,
        };
        match unit.execute(command, Mover::new(self.clone(), job.clone())) {
            Execution::Done(mover, outcome) => {
                drop(mover);
                if job.flow.borrow().waiting.is_empty() {
                    return self.finish(&job, outcome);
                }
                let peer = self.clone();
                runtime::spawn(async move { peer.drain(&job, outcome).await });
            }
            Execution::Running(future) => {
                let peer = self.clone();
                runtime::spawn(async move {
                    let ending = Ending(peer, job);
                    let (mover, outcome) = future.await;
                    drop(mover);
                    ending.0.drain(&ending.1, outcome).await;
                });
            }
        }
    }

    /// Ends a command when its Data-In has been sent, or cannot be any more.
    async fn drain(&self, job: &Job, outcome: Outcome) {
        std::future::poll_fn(|cx| {
            if job.flow.borrow().waiting.is_empty() || !self.moves(job) {
                return Poll::Ready(());
            }
            job.wait(cx.waker());
            Poll::Pending
        })
        .await;
        self.finish(job, outcome);
    }

    fn finish(&self, job: &Job, outcome: Outcome) {
        if self.jobs.borrow_mut().remove(&job.number).is_none() {
            return;
        }
        {
            let mut owner = self.owner.borrow_mut();
            let sense = outcome.sense.map(|sense| sense.emit(true).to_vec()).unwrap_or_default();
            let (wanted_in, wanted_out) = (outcome.wanted_in, outcome.wanted_out);
            let status = outcome.status.code();
            owner.finish(job.number, peer_link::Outcome { status, wanted_in, wanted_out, sense });
            // Another one may have taken its place.
            let local = self.local(job.itl).map_or_else(|| job.local.clone(), |(_, local)| local);
            owner.attentions(job.itl, local.attentions());
        }
        self.ended.notify();
        self.wake_line();
    }

    /// The numbers by which the forwarder knows a nexus.
    pub fn itls_of(&self, itl: &std::sync::Arc<device::ItlNexus>) -> Vec<u32> {
        let nexuses = self.nexuses.borrow();
        let same = nexuses.iter().filter(|(_, (_, local))| std::sync::Arc::ptr_eq(&local.itl, itl));
        same.map(|(number, _)| *number).collect()
    }

    pub fn local(&self, itl: u32) -> Option<(Key, Rc<Local>)> {
        self.nexuses.borrow().get(&itl).cloned()
    }

    /// Holds a unit open, if it is this gateway's.
    pub fn open(&self, unit: u32) -> Option<Begun> {
        self.host.units.borrow().get(&unit).and_then(|served| (served.gate)())
    }

    /// The commands of a nexus that have begun.
    pub fn jobs_of(&self, itl: u32) -> Vec<Rc<Job>> {
        self.jobs.borrow().values().filter(|job| job.itl == itl).cloned().collect()
    }

    /// Clears a nexus, but not the command `except`, and aborts what has begun.
    pub fn clear(&self, itl: u32, except: Option<Number>) -> Vec<Number> {
        let begun = self.owner.borrow_mut().clear(itl, except);
        self.aborted(&begun);
        begun
    }

    /// Aborts one command.
    pub fn abort(&self, number: Number) {
        if self.owner.borrow_mut().abort(number) {
            self.aborted(&[number]);
        }
    }

    fn aborted(&self, numbers: &[Number]) {
        let jobs = self.jobs.borrow();
        numbers.iter().filter_map(|number| jobs.get(number)).for_each(|job| job.wake());
        drop(jobs);
        self.wake_line();
    }

    /// Waits until commands have ended.
    pub async fn over(&self, numbers: &[Number]) {
        let over = || {
            let jobs = self.jobs.borrow();
            numbers.iter().all(|number| !jobs.contains_key(number)).then_some(())
        };
        self.ended.until(over).await;
    }

    pub fn managed(&self, number: Number, result: peer_link::Managed) {
        self.owner.borrow_mut().managed(number, result);
        self.look();
        self.wake_line();
    }
}

impl End for Peer {
    fn take(self: &Rc<Self>, line: &Rc<Line>, bytes: &Bytes) -> Result<(), Violation> {
        let mut input = &bytes[..];
        loop {
            let progress = self.owner.borrow_mut().receive(line.connection, self.now(), &mut input)?;
            let Some(progress) = progress else { return Ok(()) };
            let job = |number: Number| self.jobs.borrow().get(&number).cloned();
            match progress {
                Progress::Attach(attach) => self.attach(&attach),
                Progress::Detach { itl } => {
                    self.nexuses.borrow_mut().remove(&itl);
                }
                Progress::Command { number, command, .. } => self.begin(number, &command),
                Progress::Function { number, itl, function } => {
                    let peer = self.clone();
                    runtime::spawn(
                        async move { super::management::manage(&peer, number, itl, function).await },
                    );
                }
                Progress::Data { number, bytes: data, last, .. } => {
                    let Some(job) = job(number) else { continue };
                    let mut flow = job.flow.borrow_mut();
                    flow.unchecked.push(kept(bytes, data, input.len()));
                    if last {
                        let whole = std::mem::take(&mut flow.unchecked);
                        flow.got.append(whole);
                        drop(flow);
                        job.wake();
                    }
                }
                Progress::Room { number } => {
                    if let Some(job) = job(number) {
                        self.pump(&job);
                        job.wake();
                    }
                }
                Progress::Abort { number } => {
                    if let Some(job) = job(number) {
                        job.wake();
                    }
                }
                Progress::Beat { .. } | Progress::Settled => {}
            }
        }
    }

    fn fill(&self, out: &mut Vec<u8>) {
        self.owner.borrow_mut().flush(self.now(), HIGH, out);
    }

    fn tick(self: &Rc<Self>) -> Result<Duration, Violation> {
        // Attentions may come without a command of their nexus.
        self.look();
        let mut owner = self.owner.borrow_mut();
        owner.tick(self.now())?;
        Ok(pause(self.now(), owner.due()))
    }
}

/// Ends a command whose unit panics.
struct Ending(Rc<Peer>, Rc<Job>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.finish(&self.1, Sense::internal_target_failure().into());
        }
    }
}
