//! Memory that the peer may reach, by its key, and how it comes back. Decides which memory that is and whether it may be given back;
//! posts nothing itself, but says what must be posted.

use std::collections::HashMap;
use std::rc::Rc;

use ring::{BufMut, Chain, pool};
use smallvec::SmallVec;

use crate::abi;
use crate::domain::{Domain, Slot, Window};
use crate::error::Error;
use crate::work::Op;

/// Buffers that make one run of bytes, in order. One is held in place.
pub type Buffers = SmallVec<[BufMut; 1]>;

/// What the peer may do with exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// RDMA Write to it.
    Write,
    /// RDMA Read from it.
    Read,
    /// Both.
    ReadWrite,
}

impl Rights {
    fn access(self) -> u32 {
        match self {
            Self::Write => abi::ACCESS_REMOTE_WRITE,
            Self::Read => abi::ACCESS_REMOTE_READ,
            Self::ReadWrite => abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ,
        }
    }
}

/// A place in memory, as the other side of a connection knows it: R_Key and virtual address, or STag and tagged offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which memory.
    pub stag: u32,
    /// Where in it. What is exposed here does not begin at 0.
    pub offset: u64,
}

/// Memory that is not exposed any more.
#[derive(Debug, Default)]
pub struct Withdrawn {
    /// The buffers that were exposed, or others of their lengths with what they held. None for sources and sinks, or where the
    /// pool had none left.
    pub buffers: Buffers,
    /// The peer had invalidated it.
    pub invalidated: bool,
    /// Some buffers are missing.
    pub busy: bool,
}

/// What the peer reaches.
pub(crate) enum Place {
    /// A pool buffer, through a window.
    Block(BufMut),
    /// Data that is only read, through a window; it stays as it is.
    Data { _data: Chain },
    /// A slot whose bytes go to these buffers in the end, if there are any.
    Slot(Rc<Slot>, Buffers),
}

struct Exposure {
    place: Place,
    /// Where it begins, as the peer knows it.
    origin: u64,
    window: Option<Window>,
    /// How often it is exposed under the same key: a slot without window that nobody looks at.
    users: u32,
    invalidated: bool,
}

/// Everything that one connection exposes.
pub(crate) struct Exposures {
    domain: Rc<Domain>,
    known: HashMap<u32, Exposure>,
    windows: Vec<Window>,
    slots: Vec<Rc<Slot>>,
    /// Where writes go that nobody looks at.
    sink: Option<Rc<Slot>>,
    /// Bytes in slots, in use or free, and how many there may be.
    slot_bytes: usize,
    slot_limit: usize,
    most: usize,
}

/// The shortest slot, in bytes.
const LEAST_SLOT: usize = 64 << 10;

impl Exposures {
    pub(crate) fn new(domain: Rc<Domain>, most: usize, slot_limit: usize) -> Self {
        Self {
            domain,
            known: HashMap::new(),
            windows: Vec::new(),
            slots: Vec::new(),
            sink: None,
            slot_bytes: 0,
            slot_limit,
            most,
        }
    }

    /// Exposes buffers; `post` is told what must be posted before the peer hears of it.
    pub(crate) fn expose(
        &mut self,
        mut buffers: Buffers,
        rights: Rights,
        post: impl FnOnce(Op),
    ) -> Result<Remote, Error> {
        let len = buffers.iter().map(BufMut::len).sum();
        self.check_room()?;
        match (self.domain.has_windows(), buffers.len()) {
            (true, 1) => {
                let Some(mut buffer) = buffers.pop() else { return Err(Error::NoMemory("nothing")) };
                let Some(chunk) = buffer.chunk() else { return Err(Error::NoMemory("a window")) };
                let (_, mr) = self.domain.chunk(chunk)?;
                let address = buffer.as_mut_ptr() as u64;
                self.bind(Place::Block(buffer), mr, address, len, rights, post)
            }
            _ => {
                let slot = self.take_slot(len)?;
                if rights != Rights::Write {
                    let mut at = 0;
                    for buffer in &buffers {
                        slot.write_bytes(at, buffer);
                        at += buffer.len();
                    }
                }
                self.expose_slot(slot, buffers, len, rights, post)
            }
        }
    }

    /// Exposes data for the peer to read.
    pub(crate) fn expose_source(&mut self, data: Chain, post: impl FnOnce(Op)) -> Result<Remote, Error> {
        let len = data.len();
        self.check_room()?;
        if let ([only], true) = (data.bufs(), self.domain.has_windows()) {
            if let Some(chunk) = only.chunk() {
                let (_, mr) = self.domain.chunk(chunk)?;
                let address = only.as_ptr() as u64;
                return self.bind(Place::Data { _data: data }, mr, address, len, Rights::Read, post);
            }
        }
        let slot = self.take_slot(len)?;
        let mut at = 0;
        for buf in &data {
            slot.write(at, buf);
            at += buf.len();
        }
        self.expose_slot(slot, Buffers::new(), len, Rights::Read, post)
    }

    /// Exposes memory whose content nobody will look at.
    pub(crate) fn expose_sink(&mut self, len: usize, post: impl FnOnce(Op)) -> Result<Remote, Error> {
        self.check_room()?;
        let slot = match &self.sink {
            Some(slot) if slot.len() >= len => Rc::clone(slot),
            _ => {
                let slot = self.take_slot(len)?;
                self.sink = Some(Rc::clone(&slot));
                slot
            }
        };
        self.expose_slot(slot, Buffers::new(), len, Rights::Write, post)
    }

    fn check_room(&self) -> Result<(), Error> {
        if self.known.len() >= self.most {
            return Err(Error::TooMuch {
                what: "memory exposed at once",
                asked: self.most + 1,
                limit: self.most,
            });
        }
        Ok(())
    }

    fn expose_slot(
        &mut self,
        slot: Rc<Slot>,
        buffers: Buffers,
        len: usize,
        rights: Rights,
        post: impl FnOnce(Op),
    ) -> Result<Remote, Error> {
        let (address, rkey, mr) = (slot.address(), slot.registration().rkey(), slot.registration().raw());
        if self.domain.has_windows() {
            return self.bind(Place::Slot(slot, buffers), mr, address, len, rights, post);
        }
        let place = Place::Slot(slot, buffers);
        let new = Exposure { place, origin: address, window: None, users: 0, invalidated: false };
        self.known.entry(rkey).or_insert(new).users += 1;
        Ok(Remote { stag: rkey, offset: address })
    }

    fn bind(
        &mut self,
        place: Place,
        mr: *mut abi::Mr,
        address: u64,
        len: usize,
        rights: Rights,
        post: impl FnOnce(Op),
    ) -> Result<Remote, Error> {
        let window = match self.windows.pop() {
            Some(window) => window,
            None => self.domain.window()?,
        };
        let rkey = window.next_rkey();
        // A window over nothing is no window.
        let info = abi::MwBindInfo { mr, addr: address, length: len.max(1) as u64, access: rights.access() };
        post(Op::Bind { window: window.raw(), rkey, info });
        let exposure =
            Exposure { place, origin: address, window: Some(window), users: 1, invalidated: false };
        self.known.insert(rkey, exposure);
        Ok(Remote { stag: rkey, offset: address })
    }

    fn take_slot(&mut self, len: usize) -> Result<Rc<Slot>, Error> {
        let size = len.max(LEAST_SLOT).next_power_of_two();
        let fits = |slot: &Rc<Slot>| slot.len() >= size && slot.len() <= size * 2;
        if let Some(found) = self.slots.iter().position(fits) {
            return Ok(self.slots.swap_remove(found));
        }
        while self.slot_bytes + size > self.slot_limit {
            // Free ones of other sizes make room.
            let Some(slot) = self.slots.pop() else { return Err(Error::NoMemory("data of the peer's")) };
            self.slot_bytes -= slot.len();
        }
        let slot = Rc::new(self.domain.slot(size)?);
        self.slot_bytes += size;
        Ok(slot)
    }

    /// A slot for the sink of an RDMA Read, where that must be open to the peer.
    pub(crate) fn read_sink(&mut self, len: usize) -> Result<Rc<Slot>, Error> {
        self.take_slot(len)
    }

    /// Takes a slot back that nobody reaches any more.
    pub(crate) fn give_slot(&mut self, slot: Rc<Slot>) {
        if Rc::strong_count(&slot) == 1 {
            self.slots.push(slot);
        }
    }

    /// The peer has invalidated a key.
    pub(crate) fn invalidated(&mut self, rkey: u32) {
        if let Some(exposure) = self.known.get_mut(&rkey) {
            exposure.invalidated = true;
        }
    }

    /// Ends an exposure. Where the peer can still reach the memory, what it holds is copied, and `post` is told what to
    /// post; the memory itself goes along with that, until it is done.
    pub(crate) fn withdraw(
        &mut self,
        rkey: u32,
        dead: bool,
        post: impl FnOnce(Op, Leaving),
    ) -> Result<Withdrawn, Error> {
        let exposure = self.known.get_mut(&rkey).ok_or(Error::UnknownStag(rkey))?;
        exposure.users = exposure.users.saturating_sub(1);
        if exposure.users > 0 {
            return Ok(Withdrawn { invalidated: exposure.invalidated, ..Withdrawn::default() });
        }
        let Some(exposure) = self.known.remove(&rkey) else { return Err(Error::UnknownStag(rkey)) };
        let Exposure { place, window, invalidated, .. } = exposure;
        let mut withdrawn = Withdrawn { invalidated, ..Withdrawn::default() };
        let place = match place {
            Place::Slot(slot, mut buffers) => {
                let mut at = 0;
                for buffer in &mut buffers {
                    let len = buffer.len();
                    slot.read(at, &mut buffer[..len]);
                    at += len;
                }
                withdrawn.buffers = buffers;
                Place::Slot(slot, Buffers::new())
            }
            place => place,
        };
        let reachable = window.is_some() && !invalidated && !dead;
        if !reachable {
            match place {
                Place::Block(buffer) => withdrawn.buffers.push(buffer),
                // A slot's key that was invalidated is of no more use.
                Place::Slot(slot, _) if window.is_none() && invalidated => self.forget_slot(&slot),
                Place::Slot(slot, _) => self.give_slot(slot),
                Place::Data { .. } => {}
            }
            self.windows.extend(window);
            return Ok(withdrawn);
        }
        if let Place::Block(buffer) = &place {
            match pool::alloc(buffer.len()) {
                Some(mut copy) => {
                    // The peer may still write: then it is some mixture.
                    copy.copy_from_slice(buffer);
                    withdrawn.buffers.push(copy);
                }
                None => withdrawn.busy = true,
            }
        }
        let Some(window) = window else { return Ok(withdrawn) };
        post(Op::Invalidate { rkey }, Leaving { window: Some(window), place });
        Ok(withdrawn)
    }

    fn forget_slot(&mut self, slot: &Rc<Slot>) {
        self.slot_bytes -= slot.len();
        if self.sink.as_ref().is_some_and(|sink| Rc::ptr_eq(sink, slot)) {
            self.sink = None;
        }
    }

    /// What [`Self::withdraw`] had posted is done.
    pub(crate) fn left(&mut self, leaving: Leaving) {
        self.windows.extend(leaving.window);
        if let Place::Slot(slot, _) = leaving.place {
            self.give_slot(slot);
        }
    }

    /// Unbinds every window, so that the queue pair can go.
    pub(crate) fn unbind_all(&mut self) {
        for exposure in self.known.values_mut() {
            exposure.window = None;
        }
        self.windows.clear();
    }

    /// Where an exposure begins.
    pub(crate) fn origin(&self, rkey: u32) -> Option<u64> {
        self.known.get(&rkey).map(|exposure| exposure.origin)
    }

    /// How many keys are exposed.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Memory that was withdrawn and that the peer can reach until its invalidation is done.
pub(crate) struct Leaving {
    window: Option<Window>,
    place: Place,
}

impl Leaving {
    /// Unbinds its window, so that the queue pair can go; the memory stays until that has gone.
    pub(crate) fn unbind(&mut self) {
        self.window = None;
    }
}
