//! Protection domains: which memory a device knows, and with which rights. Owns registrations and memory windows, and ends them in
//! the right order; posts nothing.
//!
//! Two kinds of domain, by what the device can do (RFC 5042 asks that a peer reaches what it was given, and no more):
//!
//! - *Windows*: the device binds memory windows of type 2B, as InfiniBand and RoCE devices do. A core has one domain for all of its
//!   connections. The pool's chunks are registered once for local use only, so that their keys are worth nothing to a peer, and
//!   what a peer shall reach is bound to a window that works on that peer's queue pair alone, for as long as it is exposed.
//! - *Bounce*: it does not, or not soundly, or it is iWARP, where the sink of an RDMA Read must be open to the peer's writes. Each
//!   connection has a domain of its own, so that no key of it works for another peer. Local memory is as above; what the peer may reach are
//!   slots, registered apart and kept for the connection's life, and data is copied between them and where it belongs.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use ring::pool::ChunkName;

use crate::abi::{self, Context, DeviceAttr, Mr, Mw, Pd};
use crate::error::Error;
use crate::library::Library;

/// Memory that a device knows, until this is dropped.
pub(crate) struct Registration {
    library: &'static Library,
    raw: NonNull<Mr>,
}

impl Registration {
    pub(crate) fn raw(&self) -> *mut Mr {
        self.raw.as_ptr()
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: valid until `self` is dropped.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: valid until `self` is dropped.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered once, and whoever used its keys has ended its queue pair.
        unsafe { (self.library.ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

/// A memory window of type 2, unbound or bound to a queue pair. Dropping it unbinds it.
pub(crate) struct Window {
    raw: NonNull<Mw>,
}

impl Window {
    pub(crate) fn raw(&self) -> *mut Mw {
        self.raw.as_ptr()
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: valid until `self` is dropped.
        unsafe { self.raw.as_ref().rkey }
    }

    /// The key of the next binding: the lowest eight bits are the program's to choose, and differ from the last time.
    pub(crate) fn next_rkey(&self) -> u32 {
        next_key(self.rkey())
    }
}

/// A key whose lowest eight bits are one more.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated once, on a context that is open as long as its domain is; the operation is there, since
        // `Domain::window` allocated it by its sister.
        unsafe {
            if let Some(dealloc_mw) = (*(*self.raw.as_ptr()).context).ops.dealloc_mw {
                dealloc_mw(self.raw.as_ptr());
            }
        }
    }
}

/// Memory of its own that a peer may reach: see the module.
pub(crate) struct Slot {
    base: NonNull<u8>,
    layout: Layout,
    /// Dropped before the memory is.
    registration: Option<Registration>,
}

impl Slot {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn registration(&self) -> &Registration {
        self.registration.as_ref().unwrap_or_else(|| unreachable!("taken when it is dropped"))
    }

    /// Copies the bytes from `at` on. The device may be writing them: then they are some mixture.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at.checked_add(into.len()).is_some_and(|end| end <= self.len()), "outside of the slot");
        // SAFETY: within the slot, as was checked; nothing lends a reference to a slot's bytes, so `into` lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), into.as_mut_ptr(), into.len()) };
    }

    /// Copies `bytes` to the bytes from `at` on.
    pub(crate) fn write_bytes(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len()), "outside of the slot");
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    /// Copies `from` to the bytes from `at` on.
    pub(crate) fn write(&self, at: usize, from: &ring::Buf) {
        let mut at = at;
        from.for_each_slice(|bytes| {
            self.write_bytes(at, bytes);
            at += bytes.len();
        });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.registration.take());
        // SAFETY: allocated with this layout, and the device knows it no more.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// What a device's limits mean to a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sges: usize,
    pub(crate) work_requests: u32,
    pub(crate) completions: u32,
    /// RDMA Reads of the peer at once.
    pub(crate) ird: u8,
    /// RDMA Reads of ours at once.
    pub(crate) ord: u8,
    /// The flag of a completion that says that its Send has invalidated something.
    pub(crate) invalidated_flag: u32,
}

impl Limits {
    fn of(attributes: &DeviceAttr) -> Self {
        let at_least = |n: i32, least: u32| u32::try_from(n).unwrap_or(0).max(least);
        let reads = |n: i32| u8::try_from(n.clamp(1, 128)).unwrap_or(128);
        Self {
            sges: at_least(attributes.max_sge, 1).min(16) as usize,
            work_requests: at_least(attributes.max_qp_wr, 16),
            completions: at_least(attributes.max_cqe, 32),
            ird: reads(attributes.max_qp_rd_atom),
            ord: reads(attributes.max_qp_init_rd_atom),
            invalidated_flag: if attributes.vendor_id == abi::VENDOR_RXE {
                abi::WC_WITH_INV | abi::WC_WITH_INV_OF_RXE
            } else {
                abi::WC_WITH_INV
            },
        }
    }
}

/// A protection domain, with the pool's chunks as far as they have been used.
pub(crate) struct Domain {
    library: &'static Library,
    context: NonNull<Context>,
    raw: NonNull<Pd>,
    limits: Limits,
    windows: bool,
    iwarp: bool,
    chunks: RefCell<Vec<Option<Registration>>>,
}

thread_local! {
    /// This core's shared domains, by context. They end with their last queue pair.
    static SHARED: RefCell<Vec<Weak<Domain>>> = const { RefCell::new(Vec::new()) };
}

impl Domain {
    /// The domain for a new connection through `context`: the core's, or one of its own. See the module.
    ///
    /// # Safety
    /// The context stays open until the domain has been dropped: the caller keeps an identifier that holds the device.
    pub(crate) unsafe fn for_connection(
        library: &'static Library,
        context: NonNull<Context>,
        unsound_windows: bool,
    ) -> Result<Rc<Self>, Error> {
        // SAFETY: the context is open; its device is valid as long as it is.
        let (attributes, transport) =
            unsafe { (query(library, context.as_ptr())?, (*context.as_ref().device).transport_type) };
        let iwarp = transport == abi::TRANSPORT_IWARP;
        let windows = match unsound_windows {
            true => !iwarp && has_windows(&attributes),
            false => has_sound_windows(&attributes, iwarp),
        };
        let known = || {
            SHARED.with_borrow(|shared| {
                shared.iter().filter_map(Weak::upgrade).find(|domain| domain.context == context)
            })
        };
        if let Some(domain) = windows.then(known).flatten() {
            return Ok(domain);
        }
        // SAFETY: the context is open.
        let raw = unsafe { (library.ibv_alloc_pd)(context.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::call("ibv_alloc_pd"))?;
        let limits = Limits::of(&attributes);
        let domain =
            Rc::new(Self { library, context, raw, limits, windows, iwarp, chunks: RefCell::default() });
        if windows {
            SHARED.with_borrow_mut(|shared| {
                shared.retain(|domain| domain.strong_count() > 0);
                shared.push(Rc::downgrade(&domain));
            });
        }
        Ok(domain)
    }

    pub(crate) fn raw(&self) -> *mut Pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> *mut Context {
        self.context.as_ptr()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether what a peer reaches is bound to windows; else it is a slot.
    pub(crate) fn has_windows(&self) -> bool {
        self.windows
    }

    /// Whether the sink of an RDMA Read is open to the peer's writes, and so must be a slot.
    pub(crate) fn opens_sinks(&self) -> bool {
        self.iwarp
    }

    /// The local key of a chunk of this core's pool, and its registration. Registers it when it is first used.
    pub(crate) fn chunk(&self, chunk: ChunkName) -> Result<(u32, *mut Mr), Error> {
        let index = chunk.index as usize;
        let known = |chunks: &Vec<Option<Registration>>| {
            chunks.get(index).and_then(Option::as_ref).map(|r| (r.lkey(), r.raw()))
        };
        if let Some(known) = known(&self.chunks.borrow()) {
            return Ok(known);
        }
        let access = abi::ACCESS_LOCAL_WRITE | if self.windows { abi::ACCESS_MW_BIND } else { 0 };
        // SAFETY: a chunk is mapped as long as its pool is; the device holds its pages itself while it is registered.
        let registration = unsafe { self.register(chunk.base.as_ptr(), chunk.len, access) }?;
        let mut chunks = self.chunks.borrow_mut();
        if chunks.len() <= index {
            chunks.resize_with(index + 1, || None);
        }
        let known = (registration.lkey(), registration.raw());
        chunks[index] = Some(registration);
        Ok(known)
    }

    /// # Safety
    /// The memory is mapped, and whoever lets the device write it has a right to.
    unsafe fn register(&self, base: *mut u8, len: usize, access: u32) -> Result<Registration, Error> {
        // SAFETY: the domain is there as long as `self`; the rest is the caller's.
        let raw = unsafe { (self.library.ibv_reg_mr)(self.raw(), base.cast::<c_void>(), len, access as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::call("ibv_reg_mr (see `ulimit -l`)"))?;
        Ok(Registration { library: self.library, raw })
    }

    /// New memory that the peer may reach: by its own key without windows, else once a window is bound to it.
    pub(crate) fn slot(&self, len: usize) -> Result<Slot, Error> {
        let Ok(layout) = Layout::from_size_align(len.max(1), 4096) else {
            return Err(Error::NoMemory("a slot"));
        };
        // SAFETY: the layout's size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let mut slot = Slot { base, layout, registration: None };
        let access = abi::ACCESS_LOCAL_WRITE
            | if self.windows {
                abi::ACCESS_MW_BIND
            } else {
                abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ
            };
        // SAFETY: the slot's own memory, which is given back after its registration; nothing lends references to it.
        slot.registration = Some(unsafe { self.register(base.as_ptr(), len.max(1), access) }?);
        Ok(slot)
    }

    /// A new window, bound to nothing.
    pub(crate) fn window(&self) -> Result<Window, Error> {
        // SAFETY: the context and the domain are open.
        let raw = unsafe {
            let alloc_mw = self.context.as_ref().ops.alloc_mw;
            alloc_mw.map_or(std::ptr::null_mut(), |alloc_mw| alloc_mw(self.raw(), abi::MW_TYPE_2))
        };
        NonNull::new(raw).map(|raw| Window { raw }).ok_or_else(|| Error::call("ibv_alloc_mw"))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.chunks.get_mut().clear();
        // SAFETY: all registrations are gone: chunks as of now, slots and windows with the queue pairs that kept the domain.
        unsafe { (self.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Whether windows may be relied on: a device binds them, and holds the peer to their bounds. Linux' rxe looks at those of the
/// memory beneath only (6.1: `check_rkey`), which would open a whole chunk of the pool.
pub(crate) fn has_sound_windows(attributes: &DeviceAttr, iwarp: bool) -> bool {
    !iwarp && has_windows(attributes) && attributes.vendor_id != abi::VENDOR_RXE
}

/// Whether a device binds windows of type 2B.
fn has_windows(attributes: &DeviceAttr) -> bool {
    attributes.max_mw > 0 && attributes.device_cap_flags & abi::DEVICE_MEM_WINDOW_TYPE_2B != 0
}

/// A device's attributes.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn query(library: &Library, context: *mut Context) -> Result<DeviceAttr, Error> {
    let mut attributes = MaybeUninit::<DeviceAttr>::zeroed();
    // SAFETY: the library fills the structure in, whose layout is that of its header; plain numbers, for which zeros do too.
    unsafe {
        let code = (library.ibv_query_device)(context, attributes.as_mut_ptr());
        if code == 0 { Ok(attributes.assume_init()) } else { Err(Error::code("ibv_query_device", code)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_windows_next_key_differs_in_its_lowest_eight_bits_only() {
        assert_eq!(next_key(0x0012_3400), 0x0012_3401);
        assert_eq!(next_key(0x0012_34ff), 0x0012_3400);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }

    #[test]
    fn limits_of_a_device_that_says_nonsense_are_still_usable() {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes: DeviceAttr = unsafe { MaybeUninit::zeroed().assume_init() };
        let limits = Limits::of(&attributes);
        assert!(limits.sges >= 1 && limits.work_requests >= 16 && limits.ird >= 1 && limits.ord >= 1);
        (attributes.max_sge, attributes.max_qp_rd_atom) = (-1, i32::MAX);
        let limits = Limits::of(&attributes);
        assert_eq!((limits.sges, limits.ird), (1, 128));
        assert!(!has_windows(&attributes));
        (attributes.max_mw, attributes.device_cap_flags) = (1024, abi::DEVICE_MEM_WINDOW_TYPE_2B);
        assert!(has_sound_windows(&attributes, false) && !has_sound_windows(&attributes, true));
        attributes.vendor_id = abi::VENDOR_RXE;
        assert!(!has_sound_windows(&attributes, false), "rxe does not hold peers to a window's bounds");
    }
}
