//! Exposed memory by its key, and its withdrawal. Decides which memory a peer may access and when
//! it may be returned. Posts nothing itself; it returns the operations to post.

use std::collections::HashMap;
use std::rc::Rc;

use runtime::{BufMut, Chain, pool};
use smallvec::SmallVec;

use crate::abi;
use crate::domain::{Domain, Slot, Window};
use crate::error::Error;
use crate::work::Op;

/// Buffers that form one run of bytes, in order. A single one is stored inline.
pub type Buffers = SmallVec<[BufMut; 1]>;

/// The peer's rights to exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// RDMA Write to it.
    Write,
    /// RDMA Read from it.
    Read,
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

/// An address in memory for the other side of a connection: R_Key and virtual address, or STag and
/// tagged offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The key or STag.
    pub stag: u32,
    /// The address in that memory, in bytes. Exposed memory does not begin at 0.
    pub offset: u64,
}

/// Memory that is no longer exposed.
#[derive(Debug, Default)]
pub struct Withdrawn {
    /// The exposed buffers, or copies of the same lengths. Empty for sources and sinks, or if the
    /// pool was exhausted.
    pub buffers: Buffers,
    /// Whether the peer had invalidated it.
    pub invalidated: bool,
    /// Whether some buffers are missing.
    pub busy: bool,
}

/// The memory that the peer accesses.
pub(crate) enum Place {
    /// A pool buffer, through a window.
    Block(BufMut),
    /// Read-only data, through a window; it is held unchanged.
    Data { _data: Chain },
    /// A slot whose bytes are copied to these buffers at the end, if there are any.
    Slot(Rc<Slot>, Buffers),
}

struct Exposure {
    place: Place,
    /// The address of its first byte for the peer.
    origin: u64,
    window: Option<Window>,
    /// Number of exposures under the same key: a sink slot without a window.
    users: u32,
    invalidated: bool,
}

/// All exposures of one connection.
pub(crate) struct Exposures {
    domain: Rc<Domain>,
    known: HashMap<u32, Exposure>,
    windows: Vec<Window>,
    slots: Vec<Rc<Slot>>,
    /// The slot for data of sinks, which is never read.
    sink: Option<Rc<Slot>>,
    /// Bytes of all slots, in use or free. Below: their maximum.
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

    /// Exposes buffers. `post` gets the operation to post before the key is sent to the peer.
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

    /// Exposes memory whose content is never read.
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
        // A window must not be empty.
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
            // Release free slots of other sizes to make room.
            let Some(slot) = self.slots.pop() else { return Err(Error::NoMemory("data of the peer's")) };
            self.slot_bytes -= slot.len();
        }
        let slot = Rc::new(self.domain.slot(size)?);
        self.slot_bytes += size;
        Ok(slot)
    }

    /// A slot for the sink of an RDMA Read, if it must be writable for the peer.
    pub(crate) fn read_sink(&mut self, len: usize) -> Result<Rc<Slot>, Error> {
        self.take_slot(len)
    }

    /// Takes a slot back that no peer can access any more.
    pub(crate) fn give_slot(&mut self, slot: Rc<Slot>) {
        if Rc::strong_count(&slot) == 1 {
            self.slots.push(slot);
        }
    }

    /// Records that the peer has invalidated a key.
    pub(crate) fn invalidated(&mut self, rkey: u32) {
        if let Some(exposure) = self.known.get_mut(&rkey) {
            exposure.invalidated = true;
        }
    }

    /// Ends an exposure. If the peer can still access the memory, its content is copied, and `post`
    /// gets the operation to post. That operation holds the memory until it completes.
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
                // A slot with an invalidated key cannot be reused.
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
                    // The peer may still be writing: then the copy is a mixture.
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

    /// Handles the completion of the operation posted by [`Self::withdraw`].
    pub(crate) fn left(&mut self, leaving: Leaving) {
        self.windows.extend(leaving.window);
        if let Place::Slot(slot, _) = leaving.place {
            self.give_slot(slot);
        }
    }

    /// Unbinds every window, so that the queue pair can be destroyed.
    pub(crate) fn unbind_all(&mut self) {
        for exposure in self.known.values_mut() {
            exposure.window = None;
        }
        self.windows.clear();
    }

    /// The address of an exposure's first byte.
    pub(crate) fn origin(&self, rkey: u32) -> Option<u64> {
        self.known.get(&rkey).map(|exposure| exposure.origin)
    }

    /// Number of exposed keys.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Withdrawn memory that the peer can access until its invalidation completes.
pub(crate) struct Leaving {
    window: Option<Window>,
    place: Place,
}

impl Leaving {
    /// Unbinds its window, so that the queue pair can be destroyed; the memory stays until then.
    pub(crate) fn unbind(&mut self) {
        self.window = None;
    }
}
