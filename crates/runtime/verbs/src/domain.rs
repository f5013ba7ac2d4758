//! Protection domains: the memory registered with a device, and its rights. Owns registrations and
//! memory windows, and destroys them in the right order; posts nothing.
//!
//! There are two kinds of domain, depending on the device. RFC 5042 requires that a peer can access
//! exactly the memory that it was given.
//!
//! - *Windows*: the device binds memory windows of type 2B, as InfiniBand and RoCE devices do. A
//!   core has one domain for all of its connections. The pool's chunks are registered once, for
//!   local use only, so their keys are useless to a peer. Memory for a peer is bound to a window of
//!   that peer's queue pair alone, for as long as it is exposed.
//! - *Bounce*: the device has no such windows, or does not enforce their bounds. Or it is iWARP,
//!   where the sink of an RDMA Read must be writable for the peer. Each connection has its own
//!   domain, so its keys do not work for another peer. Local memory is as above. Memory for the
//!   peer is a slot, registered separately for the connection's lifetime. Data is copied between
//!   slots and buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use runtime::pool::ChunkName;

use crate::abi::{self, Context, DeviceAttr, Mr, Mw, Pd};
use crate::error::Error;
use crate::library::Library;

/// Memory registered with a device, until this is dropped.
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
        // SAFETY: registered once; all queue pairs that used its keys are destroyed.
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

    /// The key of the next binding: the program chooses the lowest eight bits, which differ from
    /// the last binding.
    pub(crate) fn next_rkey(&self) -> u32 {
        next_key(self.rkey())
    }
}

/// A key with its lowest eight bits incremented.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated once, on a context that stays open while its domain exists. The
        // operation exists, since `Domain::window` used its counterpart to allocate it.
        unsafe {
            if let Some(dealloc_mw) = (*(*self.raw.as_ptr()).context).ops.dealloc_mw {
                dealloc_mw(self.raw.as_ptr());
            }
        }
    }
}

/// Separate memory that a peer may access: see the module.
pub(crate) struct Slot {
    base: NonNull<u8>,
    layout: Layout,
    /// Dropped before the memory.
    registration: Option<Registration>,
}

impl Slot {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn registration(&self) -> &Registration {
        self.registration.as_ref().unwrap_or_else(|| unreachable!("taken when it is dropped"))
    }

    /// Copies the bytes from `at` on. If the device is writing them, the result is a mixture.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at.checked_add(into.len()).is_some_and(|end| end <= self.len()), "outside of the slot");
        // SAFETY: within the slot, as checked above. No reference to a slot's bytes exists, so
        // `into` does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), into.as_mut_ptr(), into.len()) };
    }

    /// Copies `bytes` into the slot from `at` on.
    pub(crate) fn write_bytes(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len()), "outside of the slot");
        // SAFETY: within the slot, as checked above; `bytes` does not overlap, as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    /// Copies `from` into the slot from `at` on.
    pub(crate) fn write(&self, at: usize, from: &runtime::Buf) {
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
        // SAFETY: allocated with this layout; the registration has been removed.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A device's limits for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sges: usize,
    pub(crate) work_requests: u32,
    pub(crate) completions: u32,
    /// Maximum outstanding RDMA Reads of the peer.
    pub(crate) ird: u8,
    /// Maximum outstanding RDMA Reads of this side.
    pub(crate) ord: u8,
    /// The flag of a completion whose Send invalidated a key.
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

/// A protection domain, with the registered chunks of the pool.
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
    /// This core's shared domains, by context. Each ends with its last queue pair.
    static SHARED: RefCell<Vec<Weak<Domain>>> = const { RefCell::new(Vec::new()) };
}

impl Domain {
    /// The domain for a new connection through `context`: the core's, or a separate one. See the
    /// module.
    ///
    /// # Safety
    /// The context must stay open until the domain is dropped: the caller keeps an identifier that
    /// holds the device.
    pub(crate) unsafe fn for_connection(
        library: &'static Library,
        context: NonNull<Context>,
        unsound_windows: bool,
    ) -> Result<Rc<Self>, Error> {
        // SAFETY: the context is open; its device is valid meanwhile.
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

    /// Whether memory for a peer is bound to windows; otherwise it is in slots.
    pub(crate) fn has_windows(&self) -> bool {
        self.windows
    }

    /// Whether the sink of an RDMA Read is writable for the peer, and so must be a slot.
    pub(crate) fn opens_sinks(&self) -> bool {
        self.iwarp
    }

    /// The local key of a chunk of this core's pool, and its registration. Registers the chunk at
    /// its first use.
    pub(crate) fn chunk(&self, chunk: ChunkName) -> Result<(u32, *mut Mr), Error> {
        let index = chunk.index as usize;
        let known = |chunks: &Vec<Option<Registration>>| {
            chunks.get(index).and_then(Option::as_ref).map(|r| (r.lkey(), r.raw()))
        };
        if let Some(known) = known(&self.chunks.borrow()) {
            return Ok(known);
        }
        let access = abi::ACCESS_LOCAL_WRITE | if self.windows { abi::ACCESS_MW_BIND } else { 0 };
        // SAFETY: a chunk stays mapped as long as its pool; the device pins its pages while it is
        // registered.
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
    /// The memory is mapped, and the caller may let the device write it.
    unsafe fn register(&self, base: *mut u8, len: usize, access: u32) -> Result<Registration, Error> {
        // SAFETY: the domain exists as long as `self`; the caller guarantees the rest.
        let raw = unsafe { (self.library.ibv_reg_mr)(self.raw(), base.cast::<c_void>(), len, access as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::call("ibv_reg_mr (see `ulimit -l`)"))?;
        Ok(Registration { library: self.library, raw })
    }

    /// New memory for the peer. Without windows the peer uses its own key, otherwise the key of a
    /// window bound to it.
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
        // SAFETY: the slot's own memory, which is freed after its registration; no references to it
        // exist.
        slot.registration = Some(unsafe { self.register(base.as_ptr(), len.max(1), access) }?);
        Ok(slot)
    }

    /// A new, unbound window.
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
        // SAFETY: all registrations are gone: the chunks' now, those of slots and windows with the
        // queue pairs that held the domain.
        unsafe { (self.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Whether windows are safe: the device binds them, and enforces their bounds. Linux' rxe checks
/// only the bounds of the underlying memory (6.1: `check_rkey`), which would expose a whole chunk
/// of the pool.
pub(crate) fn has_sound_windows(attributes: &DeviceAttr, iwarp: bool) -> bool {
    !iwarp && has_windows(attributes) && attributes.vendor_id != abi::VENDOR_RXE
}

/// Whether a device supports windows of type 2B.
fn has_windows(attributes: &DeviceAttr) -> bool {
    attributes.max_mw > 0 && attributes.device_cap_flags & abi::DEVICE_MEM_WINDOW_TYPE_2B != 0
}

/// A device's attributes.
///
/// # Safety
/// The context must be open.
pub(crate) unsafe fn query(library: &Library, context: *mut Context) -> Result<DeviceAttr, Error> {
    let mut attributes = MaybeUninit::<DeviceAttr>::zeroed();
    // SAFETY: the library fills the structure, whose layout is that of its header. It has only
    // integers, so zeros are valid too.
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
        // SAFETY: the structure has only integers, for which zeros are valid.
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
