//! The monitors and OSDs: a queue of what arrives when, and the state of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use runtime::sim::{Chance, Machine, chance, on_machine};
use runtime::{Receiver, RecvTimeoutError, Sender, channel};

use crate::object::Told;

/// Number of OSDs. The first one has the group's object.
pub const OSDS: usize = 4;
/// Bytes of one object of an image.
pub(super) const OBJECT: u64 = 4096;
/// The machine of the cluster.
const MACHINE: Machine = Machine(255);

/// The clusters of all worlds, by the path of their ceph.conf.
static CLUSTERS: Mutex<BTreeMap<PathBuf, Sender<Message>>> = Mutex::new(BTreeMap::new());
static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn clusters() -> MutexGuard<'static, BTreeMap<PathBuf, Sender<Message>>> {
    CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster of this world, until it is dropped.
pub struct Cluster {
    conf: PathBuf,
    tell: Sender<Message>,
}

/// A write takes effect.
#[derive(Debug)]
pub struct Landing<'a> {
    pub image: &'a str,
    /// The client that has sent it.
    pub from: &'a str,
    /// The client is on the blocklist, and the OSD's map is too old to show that.
    pub is_listed: bool,
    /// The client that has read or written this object last.
    pub after: Option<&'a str>,
    /// The client that has read the image's metadata last while it had the lock: it executes the
    /// image's commands, or is about to.
    pub owner: Option<&'a str>,
    pub at: u64,
    pub data: &'a [u8],
}

/// Receives each write as it takes effect, on the cluster's thread. Must not wait.
pub type Observer = Box<dyn FnMut(&Landing<'_>) + Send>;

/// A message to the cluster's thread.
pub(super) enum Message {
    Request(Request),
    Act(Box<dyn FnOnce(&mut State) + Send>),
    End,
}

/// The recipient of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Osd(usize),
    Monitors,
}

/// Carries a request out, or takes the error instead, and makes its reply.
pub(super) type Act = Box<dyn FnOnce(&mut State, Result<(), i32>) -> Reply + Send>;
type Reply = Box<dyn FnOnce() + Send>;

pub(super) struct Request {
    pub from: String,
    pub to: Place,
    /// The client learns the newest map by the reply.
    pub learns: bool,
    pub act: Act,
}

enum Event {
    Arrives { epoch: u32, request: Request },
    Replies { to: String, epoch: u32, reply: Reply },
    OsdMap { osd: usize, epoch: u32 },
    ClientMap { client: String, epoch: u32 },
    Notified { watch: u64 },
}

pub(super) struct Peer {
    machine: Machine,
    epoch: u32,
    /// Its process was killed.
    is_dead: bool,
}

#[derive(Default)]
pub(super) struct Stored {
    pub bytes: Vec<u8>,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

pub(super) struct ImageState {
    pub bytes: Vec<u8>,
    /// The last client that read or wrote each object.
    users: BTreeMap<u64, String>,
    pub lock: Option<String>,
    owner: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

pub(super) struct Watcher {
    pub client: String,
    pub object: String,
    pub told: Told,
    pub is_lost: Arc<AtomicBool>,
}

pub(super) struct State {
    chance: Chance,
    queue: BTreeMap<(Instant, u64), Event>,
    events: u64,
    pub epoch: u32,
    blocklist: BTreeMap<String, u32>,
    osds: [u32; OSDS],
    pub clients: BTreeMap<String, Peer>,
    pub objects: BTreeMap<String, Stored>,
    pub images: BTreeMap<String, ImageState>,
    pub watchers: BTreeMap<u64, Watcher>,
    numbers: u64,
    refuses: bool,
    tells_maps: bool,
    observer: Option<Observer>,
    /// End of the time in which some operations of OSDs take long.
    slow: Instant,
    /// Ends of the pauses of each OSD and of the monitors.
    stopped: [Instant; OSDS],
    silent: Instant,
    /// Ends of cuts: of messages from a machine (`true`), or to it.
    cuts: BTreeMap<(Machine, bool), Instant>,
}

impl Cluster {
    /// A cluster with these images, of so many zeros.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(images: &[(&str, usize)]) -> std::io::Result<Self> {
        let conf = PathBuf::from(format!("model-{}.conf", NUMBERS.fetch_add(1, Ordering::Relaxed)));
        let (tell, told) = channel();
        let zeros = |size: usize| ImageState {
            bytes: vec![0; size],
            users: BTreeMap::new(),
            lock: None,
            owner: None,
            metadata: BTreeMap::new(),
        };
        let images = images.iter().map(|(name, size)| ((*name).to_owned(), zeros(*size)));
        let now = runtime::clock();
        let state = State {
            chance: Chance::new(chance()),
            queue: BTreeMap::new(),
            events: 0,
            epoch: 1,
            blocklist: BTreeMap::new(),
            osds: [1; OSDS],
            clients: BTreeMap::new(),
            objects: BTreeMap::new(),
            images: images.collect(),
            watchers: BTreeMap::new(),
            numbers: 0,
            refuses: true,
            tells_maps: true,
            observer: None,
            slow: now,
            stopped: [now; OSDS],
            silent: now,
            cuts: BTreeMap::new(),
        };
        on_machine(MACHINE, || runtime::thread("cluster", move || state.run(&told)))?;
        clusters().insert(conf.clone(), tell.clone());
        Ok(Self { conf, tell })
    }

    /// The ceph.conf by which clients reach it. The user's name is the number of their machine.
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    fn act(&self, act: impl FnOnce(&mut State) + Send + 'static) {
        // The thread lives as long as this.
        let _ = self.tell.send(Message::Act(Box::new(act)));
    }

    /// Calls `observer` for each write.
    pub fn observe(&self, observer: Observer) {
        self.act(|state| state.observer = Some(observer));
    }

    /// Some operations take up to 8 s for a while.
    pub fn slow(&self, duration: Duration) {
        self.act(move |state| state.slow = runtime::clock() + duration);
    }

    /// An OSD does nothing for a while.
    pub fn stop_osd(&self, osd: usize, duration: Duration) {
        self.act(move |state| {
            if let Some(until) = state.stopped.get_mut(osd) {
                *until = runtime::clock() + duration;
            }
        });
    }

    /// The monitors do nothing for a while.
    pub fn silence(&self, duration: Duration) {
        self.act(move |state| state.silent = runtime::clock() + duration);
    }

    /// Delays the messages that a machine sends, or those that it receives, until `duration` is
    /// over.
    pub fn cut(&self, machine: Machine, sends: bool, duration: Duration) {
        self.act(move |state| _ = state.cuts.insert((machine, sends), runtime::clock() + duration));
    }

    /// The watches of a machine's clients are lost.
    pub fn lose_watches(&self, machine: Machine) {
        self.act(move |state| {
            let clients = state.clients_of(machine);
            state.watchers.retain(|_, watcher| {
                let is_lost = clients.contains(&watcher.client);
                if is_lost {
                    watcher.is_lost.store(true, Ordering::Release);
                    (watcher.told)(true);
                }
                !is_lost
            });
        });
    }

    /// Plants a mistake that must be found: OSDs ignore the blocklist.
    pub fn never_refuse(&self) {
        self.act(|state| state.refuses = false);
    }

    /// Plants a mistake that must be found: clients that wait for the newest map do not get it.
    pub fn tell_no_maps(&self) {
        self.act(|state| state.tells_maps = false);
    }

    /// Kills the processes of a machine. Each operation in flight is lost or still carried out.
    pub fn kill(&self, machine: Machine) {
        self.act(move |state| state.kill(machine));
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.act(|state| {
            let now = runtime::clock();
            (state.slow, state.silent, state.stopped) = (now, now, [now; OSDS]);
            state.cuts.clear();
        });
    }

    /// The content of an image. Blocks.
    #[must_use]
    pub fn content(&self, image: &str) -> Vec<u8> {
        let ((say, hear), image) = (channel(), image.to_owned());
        self.act(move |state| {
            let bytes = state.images.get(&image).map(|image| image.bytes.clone());
            // It is waited for.
            let _ = say.send(bytes.unwrap_or_default());
        });
        hear.recv().unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        clusters().remove(&self.conf);
        let _ = self.tell.send(Message::End);
    }
}

/// The cluster of a ceph.conf, if it is a model.
pub(super) fn find(conf: Option<&Path>) -> Option<Sender<Message>> {
    clusters().get(conf?).cloned()
}

/// The OSD of a part of an image: its header, or an object.
pub(super) fn osd(image: &str, object: Option<u64>) -> usize {
    let name: u64 = image.bytes().map(u64::from).sum();
    (name + object.map_or(0, |object| object + 1)) as usize % OSDS
}

impl ImageState {
    /// A client reads a key of the metadata.
    pub(super) fn look_up(&mut self, from: &str, key: &str) -> Option<String> {
        if self.lock.as_deref() == Some(from) {
            self.owner = Some(from.to_owned());
        }
        self.metadata.get(key).cloned()
    }
}

impl State {
    fn run(mut self, told: &Receiver<Message>) {
        loop {
            self.happens();
            let next = self.queue.keys().next().map(|(at, _)| at.saturating_duration_since(runtime::clock()));
            let message = match next {
                Some(wait) => told.recv_timeout(wait),
                None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(Message::Request(request)) => self.sent(request),
                Ok(Message::Act(act)) => act(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A client connects: its address.
    pub(super) fn connects(&mut self, machine: Machine) -> String {
        let address = format!("192.0.2.{}:0/{}", machine.0, self.number());
        self.clients.insert(address.clone(), Peer { machine, epoch: self.epoch, is_dead: false });
        address
    }

    fn clients_of(&self, machine: Machine) -> BTreeSet<String> {
        let of = |(_, peer): &(&String, &Peer)| peer.machine == machine;
        self.clients.iter().filter(of).map(|(address, _)| address.clone()).collect()
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.chance.within(from..to))
    }

    /// One way between a client and the cluster, the work included.
    fn way(&mut self, to: Place) -> Duration {
        let is_slow = runtime::clock() < self.slow && self.chance.within(0..5) == 0;
        match to {
            Place::Monitors => self.micros(25_000, 500_000),
            Place::Osd(_) if is_slow => self.micros(200_000, 8_000_000),
            Place::Osd(_) if self.chance.within(0..50) == 0 => self.micros(1_000, 60_000),
            Place::Osd(_) => self.micros(50, 600),
        }
    }

    fn cut(&self, client: &str, sends: bool) -> Instant {
        let cut = self.clients.get(client).and_then(|peer| self.cuts.get(&(peer.machine, sends)));
        cut.copied().unwrap_or_else(runtime::clock)
    }

    fn sent(&mut self, request: Request) {
        let Some(peer) = self.clients.get(&request.from).filter(|peer| !peer.is_dead) else {
            return (request.act)(self, Err(libc::ESHUTDOWN))();
        };
        let epoch = peer.epoch;
        let at = runtime::clock() + self.way(request.to);
        let at = at.max(self.cut(&request.from, true));
        self.at(at, Event::Arrives { epoch, request });
    }

    fn kill(&mut self, machine: Machine) {
        let clients = self.clients_of(machine);
        self.clients.values_mut().filter(|peer| peer.machine == machine).for_each(|peer| peer.is_dead = true);
        for (at, event) in std::mem::take(&mut self.queue) {
            match event {
                // Lost with the machine.
                Event::Arrives { request, .. }
                    if clients.contains(&request.from) && self.chance.within(0..2) == 0 =>
                {
                    (request.act)(self, Err(libc::ESHUTDOWN))();
                }
                Event::Replies { to, reply, .. } if clients.contains(&to) => reply(),
                event => drop(self.queue.insert(at, event)),
            }
        }
    }

    /// Carries out the events that are due.
    fn happens(&mut self) {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= runtime::clock()) {
            match entry.remove() {
                Event::Arrives { epoch, request } => self.arrives(epoch, request),
                Event::Replies { to, epoch, reply } => {
                    self.learns(&to, epoch);
                    reply();
                }
                Event::OsdMap { osd, epoch } => self.osds[osd] = self.osds[osd].max(epoch),
                Event::ClientMap { client, epoch } => self.learns(&client, epoch),
                Event::Notified { watch } => {
                    let living = |client| self.clients.get(client).is_some_and(|peer| !peer.is_dead);
                    if let Some(watcher) = self.watchers.get(&watch).filter(|it| living(&it.client)) {
                        (watcher.told)(false);
                    }
                }
            }
        }
    }

    fn learns(&mut self, client: &str, epoch: u32) {
        if let Some(peer) = self.clients.get_mut(client) {
            peer.epoch = peer.epoch.max(epoch);
        }
    }

    fn arrives(&mut self, epoch: u32, request: Request) {
        let now = runtime::clock();
        let waits = match request.to {
            Place::Osd(osd) => self.stopped[osd],
            Place::Monitors => self.silent,
        };
        if waits > now {
            return self.at(waits, Event::Arrives { epoch, request });
        }
        let (verdict, known) = match request.to {
            Place::Osd(osd) => {
                self.osds[osd] = self.osds[osd].max(epoch);
                (self.verdict(&request.from, osd), self.osds[osd])
            }
            Place::Monitors => (Ok(()), if request.learns && self.tells_maps { self.epoch } else { 0 }),
        };
        let Request { from, to, act, .. } = request;
        let reply = act(self, verdict);
        let at = (now + self.way(to)).max(self.cut(&from, false));
        self.at(at, Event::Replies { to: from, epoch: known, reply });
    }

    fn verdict(&self, client: &str, osd: usize) -> Result<(), i32> {
        let listed = self.blocklist.get(client).is_some_and(|entry| *entry <= self.osds[osd]);
        if listed && self.refuses { Err(libc::ESHUTDOWN) } else { Ok(()) }
    }

    /// The monitors make entries: the epoch with all of them.
    pub(super) fn blocklist(&mut self, addresses: &[String]) -> u32 {
        for address in addresses {
            self.epoch += 1;
            self.blocklist.entry(address.clone()).or_insert(self.epoch);
        }
        let (epoch, now) = (self.epoch, runtime::clock());
        for osd in 0..OSDS {
            let at = now + self.micros(1_000, 10_000_000);
            self.at(at, Event::OsdMap { osd, epoch });
        }
        for client in self.clients.keys().cloned().collect::<Vec<_>>() {
            let at = now + self.micros(1_000, 10_000_000);
            self.at(at, Event::ClientMap { client, epoch });
        }
        epoch
    }

    /// Most watchers of an object hear of it.
    pub(super) fn notify(&mut self, object: &str) {
        let watches = self.watchers.iter().filter(|(_, watcher)| watcher.object == object);
        let watches: Vec<(u64, String)> = watches.map(|(number, it)| (*number, it.client.clone())).collect();
        for (watch, client) in watches {
            if self.chance.within(0..10) > 0 {
                let at = runtime::clock() + self.way(Place::Osd(0));
                let at = at.max(self.cut(&client, false));
                self.at(at, Event::Notified { watch });
            }
        }
    }

    /// Reads a range of one object for a client.
    pub(super) fn reads(&mut self, image: &str, from: &str, at: u64, len: usize) -> Result<Vec<u8>, i32> {
        let state = self.images.get_mut(image).ok_or(libc::ENOENT)?;
        state.users.insert(at / OBJECT, from.to_owned());
        let end = (at as usize + len).min(state.bytes.len());
        Ok(state.bytes.get(at as usize..end).unwrap_or_default().to_vec())
    }

    /// A write takes effect.
    pub(super) fn lands(&mut self, image: &str, from: &str, at: u64, data: &[u8]) -> Result<(), i32> {
        let is_listed = self.blocklist.contains_key(from);
        let state = self.images.get_mut(image).ok_or(libc::ENOENT)?;
        let place = state.bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..data.len()));
        place.ok_or(libc::EINVAL)?.copy_from_slice(data);
        let before = state.users.insert(at / OBJECT, from.to_owned());
        if let Some(observer) = &mut self.observer {
            let (after, owner) = (before.as_deref(), state.owner.as_deref());
            observer(&Landing { image, from, is_listed, after, owner, at, data });
        }
        Ok(())
    }
}
