//! The core's pool: page-aligned blocks of 4 KiB to 1 MiB, and the headers that count references to
//! any memory.
//!
//! Each thread has its own pool, made when it is first used; no runtime is needed. Blocks are
//! carved from 2 MiB chunks that are mapped when they are needed, and free blocks are used again
//! last-in first-out, while they are still in the cache. A chunk whose blocks are all free can be
//! carved anew for another size when the limit is reached, so the limit bounds the mapped memory.
//! Every block has its own header for life, which makes allocating one a pop from a list.
//!
//! A pool outlives its thread as long as any of its headers is in use.

use std::alloc::Layout;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::BufMut;
use super::region::{self, Held};

/// Alignment of every block, in bytes.
pub(crate) const ALIGN: usize = 4096;
/// The longest block, in bytes. Longer data takes several blocks: [`alloc_many`].
pub const MAX_ALLOC: usize = 1 << 20;
/// Default of the most bytes that a core's pool maps ([`set_limit`]): 256 MiB.
pub(crate) const DEFAULT_LIMIT: usize = 256 << 20;

const CHUNK: usize = 2 << 20;
const CLASSES: usize = 9;
const HEADERS_PER_SLAB: usize = 64;

/// Use of a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stats {
    /// In blocks that are held.
    pub in_use: usize,
    /// The largest value that `in_use` has had.
    pub high_water: usize,
    /// Mapped, whether in use or free.
    pub mapped: usize,
    /// Upper bound of `mapped`.
    pub limit: usize,
    /// Number of times that a task had to wait for a block, since none was left.
    pub waits: u64,
}

/// One chunk of this core's pool: the unit in which a ring or a device registers the pool's memory,
/// once each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkName {
    /// Number of the chunk for the pool's life, counted from 0.
    pub index: u32,
    /// Address of the chunk for the pool's life.
    pub base: NonNull<u8>,
    /// Bytes.
    pub len: usize,
}

/// Memory that a header keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No memory: the header is spare.
    Spare,
    /// A block of its pool.
    Block,
    /// An allocation of the global allocator.
    Heap,
    /// A region's mapping.
    Region,
}

/// Counts the references to one piece of memory. Lives in its pool's slabs and never moves.
pub(super) struct Header {
    refs: Cell<usize>,
    kind: Cell<Kind>,
    /// For a block: its size is `4096 << class`.
    class: Cell<u8>,
    /// For a block: the index of its chunk.
    chunk: Cell<u32>,
    base: Cell<NonNull<u8>>,
    /// For a heap allocation: its size.
    heap_len: Cell<usize>,
    /// The next free header of the same list.
    next: Cell<Option<NonNull<Header>>>,
    pool: NonNull<Pool>,
    /// For a region: its mapping.
    region: UnsafeCell<Option<Held>>,
}

impl Header {
    #[inline]
    pub(super) fn kind(&self) -> Kind {
        self.kind.get()
    }

    #[inline]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base.get()
    }

    /// Size of a block.
    pub(super) fn capacity(&self) -> usize {
        ALIGN << self.class.get()
    }

    /// The chunk of a block.
    pub(super) fn chunk_name(&self) -> Option<ChunkName> {
        if self.kind.get() != Kind::Block {
            return None;
        }
        // SAFETY: a pool lives until all of its headers are back.
        let chunks = unsafe { self.pool.as_ref() }.chunks.borrow();
        let index = self.chunk.get();
        chunks.get(index as usize).map(|chunk| ChunkName { index, base: chunk.base, len: CHUNK })
    }

    pub(super) fn mapping(&self) -> Option<&Held> {
        // SAFETY: only written when the header is taken and when its last reference goes; a `&self`
        // borrow cannot span either, as the borrower holds a reference.
        unsafe { (*self.region.get()).as_ref() }
    }

    /// Adds a reference.
    #[inline]
    pub(super) fn retain(&self) {
        let refs = self.refs.get();
        if refs == usize::MAX {
            // Only leaking that many clones gets here; continuing would free memory in use.
            std::process::abort();
        }
        self.refs.set(refs + 1);
    }

    /// Removes a reference; the last one returns the memory.
    ///
    /// # Safety
    /// The caller owns a reference and gives it up.
    #[inline]
    pub(super) unsafe fn release(this: NonNull<Self>) {
        // SAFETY: the caller's reference keeps the header alive until here.
        let header = unsafe { this.as_ref() };
        let refs = header.refs.get();
        header.refs.set(refs - 1);
        if refs == 1 {
            let pool = header.pool;
            // SAFETY: a pool lives until all of its headers are back.
            unsafe { pool.as_ref() }.put_back(this);
            // SAFETY: this header's share of the pool goes with its last reference.
            unsafe { Pool::leave(pool) };
        }
    }
}

struct Chunk {
    base: NonNull<u8>,
    class: u8,
    /// Blocks of it that are free.
    free: u32,
}

struct Waiter {
    ticket: u64,
    /// Whether it was woken for available memory and has not taken it yet.
    told: bool,
    waker: Waker,
}

struct Pool {
    /// Free blocks by class.
    free: [Cell<Option<NonNull<Header>>>; CLASSES],
    /// Headers without memory.
    spare: Cell<Option<NonNull<Header>>>,
    slabs: RefCell<Vec<NonNull<Header>>>,
    chunks: RefCell<Vec<Chunk>>,
    stats: Cell<Stats>,
    /// Headers in use, plus one for the thread. The pool ends with the last.
    shares: Cell<usize>,
    /// This core's header for each region it sliced, by the mapping's number.
    regions: RefCell<Vec<Option<NonNull<Header>>>>,
    /// [`region::closed_count`] when `regions` was last checked.
    closed_seen: Cell<usize>,
    waiters: RefCell<VecDeque<Waiter>>,
    next_ticket: Cell<u64>,
}

/// The thread's share of its pool.
struct Current(NonNull<Pool>);

thread_local! {
    static CURRENT: Current = Current(Pool::create(1));
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: the thread's share keeps the pool alive until `leave`.
        let regions = unsafe { self.0.as_ref() }.regions.take();
        for header in regions.into_iter().flatten() {
            // SAFETY: the cache owned one reference of each.
            unsafe { Header::release(header) };
        }
        // SAFETY: the thread's own share, given up once.
        unsafe { Pool::leave(self.0) };
    }
}

/// Runs `f` on this thread's pool, or on a new one when the thread is ending and its own is gone.
#[inline]
fn with<R>(f: impl FnOnce(&Pool) -> R) -> R {
    let mut f = Some(f);
    // SAFETY: the thread's share keeps the pool alive.
    let done = CURRENT.try_with(|current| f.take().map(|f| f(unsafe { current.0.as_ref() })));
    if let Ok(Some(result)) = done {
        return result;
    }
    let f = f.take().expect("only taken when it ran");
    let pool = Pool::create(1);
    // SAFETY: the share that it was created with keeps it alive over the call, and is then given
    // up.
    unsafe {
        let result = f(pool.as_ref());
        Pool::leave(pool);
        result
    }
}

impl Pool {
    fn create(shares: usize) -> NonNull<Self> {
        let pool = Box::new(Self {
            free: Default::default(),
            spare: Cell::new(None),
            slabs: RefCell::default(),
            chunks: RefCell::default(),
            stats: Cell::new(Stats { limit: DEFAULT_LIMIT, ..Stats::default() }),
            shares: Cell::new(shares),
            regions: RefCell::default(),
            closed_seen: Cell::new(0),
            waiters: RefCell::default(),
            next_ticket: Cell::new(0),
        });
        NonNull::from(Box::leak(pool))
    }

    /// Gives up a share, and with the last one the pool.
    ///
    /// # Safety
    /// The caller owns a share and uses the pool no more.
    #[inline]
    unsafe fn leave(this: NonNull<Self>) {
        // SAFETY: the caller's share keeps the pool alive until here.
        let pool = unsafe { this.as_ref() };
        let shares = pool.shares.get() - 1;
        pool.shares.set(shares);
        if shares == 0 {
            // SAFETY: it came from `Box::leak`, and no share is left.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }

    fn join(&self) {
        self.shares.set(self.shares.get() + 1);
    }

    /// A header without memory, with one reference and a share of the pool.
    fn take_spare(&self) -> NonNull<Header> {
        if self.spare.get().is_none() {
            self.add_slab();
        }
        let Some(header) = self.spare.get() else { unreachable!("a slab was added") };
        // SAFETY: headers of this pool live as long as it does.
        let h = unsafe { header.as_ref() };
        self.spare.set(h.next.take());
        h.refs.set(1);
        self.join();
        header
    }

    fn add_slab(&self) {
        let pool = NonNull::from(self);
        let slab: Vec<Header> = (0..HEADERS_PER_SLAB)
            .map(|_| Header {
                refs: Cell::new(0),
                kind: Cell::new(Kind::Spare),
                class: Cell::new(0),
                chunk: Cell::new(0),
                base: Cell::new(NonNull::dangling()),
                heap_len: Cell::new(0),
                next: Cell::new(None),
                pool,
                region: UnsafeCell::new(None),
            })
            .collect();
        let slab: &'static mut [Header] = Box::leak(slab.into_boxed_slice());
        let first = NonNull::from(slab).cast::<Header>();
        self.slabs.borrow_mut().push(first);
        for i in 0..HEADERS_PER_SLAB {
            // SAFETY: within the slab just made.
            let header = unsafe { first.add(i) };
            self.push(&self.spare, header);
        }
    }

    /// Puts a header at the front of a list.
    fn push(&self, list: &Cell<Option<NonNull<Header>>>, header: NonNull<Header>) {
        // SAFETY: headers of this pool live as long as it does.
        unsafe { header.as_ref() }.next.set(list.get());
        list.set(Some(header));
    }

    /// Called when the last reference of a header has gone.
    fn put_back(&self, header: NonNull<Header>) {
        // SAFETY: headers of this pool live as long as it does.
        let h = unsafe { header.as_ref() };
        match h.kind.get() {
            Kind::Block => {
                let class = h.class.get();
                if let Some(chunk) = self.chunks.borrow_mut().get_mut(h.chunk.get() as usize) {
                    chunk.free += 1;
                }
                let mut stats = self.stats.get();
                stats.in_use -= ALIGN << class;
                self.stats.set(stats);
                self.push(&self.free[usize::from(class)], header);
                self.tell_waiter();
                return;
            }
            Kind::Heap => {
                // SAFETY: base and length are those of the vector that `heap_header` took over, and
                // its bytes have no user left.
                unsafe {
                    let layout = Layout::from_size_align_unchecked(h.heap_len.get(), 1);
                    std::alloc::dealloc(h.base.get().as_ptr(), layout);
                }
            }
            Kind::Region => {
                // SAFETY: the last reference has gone, so no borrow of the mapping is alive.
                drop(unsafe { (*h.region.get()).take() });
            }
            Kind::Spare => {}
        }
        h.kind.set(Kind::Spare);
        self.push(&self.spare, header);
    }

    /// A block of at least `len` bytes with one reference.
    #[inline]
    fn take_block(&self, len: usize) -> Option<NonNull<Header>> {
        let class = class_of(len)?;
        let list = self.free.get(class)?;
        if list.get().is_none() && !self.carve(class) {
            return None;
        }
        let header = list.get()?;
        // SAFETY: headers of this pool live as long as it does.
        let h = unsafe { header.as_ref() };
        list.set(h.next.take());
        h.refs.set(1);
        self.join();
        if let Some(chunk) = self.chunks.borrow_mut().get_mut(h.chunk.get() as usize) {
            chunk.free -= 1;
        }
        let mut stats = self.stats.get();
        stats.in_use += ALIGN << class;
        stats.high_water = stats.high_water.max(stats.in_use);
        self.stats.set(stats);
        Some(header)
    }

    /// Makes a chunk's worth of free blocks of `class`: from a new chunk, or from one that is
    /// wholly free.
    #[cold]
    fn carve(&self, class: usize) -> bool {
        let mut chunks = self.chunks.borrow_mut();
        let stats = self.stats.get();
        let (index, base) = if stats.mapped + CHUNK <= stats.limit {
            let Ok(base) = region::map(CHUNK) else { return false };
            chunks.push(Chunk { base, class: 0, free: 0 });
            self.stats.set(Stats { mapped: stats.mapped + CHUNK, ..stats });
            (chunks.len() - 1, base)
        } else {
            let whole =
                |c: &Chunk| c.free as usize == CHUNK / (ALIGN << c.class) && usize::from(c.class) != class;
            let Some(index) = chunks.iter().position(whole) else { return false };
            self.uncarve(index, chunks[index].class);
            (index, chunks[index].base)
        };
        let (size, count) = (ALIGN << class, CHUNK / (ALIGN << class));
        chunks[index].class = class as u8;
        chunks[index].free = count as u32;
        for i in (0..count).rev() {
            if self.spare.get().is_none() {
                self.add_slab();
            }
            let Some(header) = self.spare.get() else { return false };
            // SAFETY: headers of this pool live as long as it does, and the block lies within the
            // chunk.
            let (h, block) = unsafe { (header.as_ref(), base.add(i * size)) };
            self.spare.set(h.next.take());
            h.kind.set(Kind::Block);
            h.class.set(class as u8);
            h.chunk.set(index as u32);
            h.base.set(block);
            self.push(&self.free[class], header);
        }
        true
    }

    /// Takes the blocks of a wholly free chunk out of its class's list; their headers become spare.
    fn uncarve(&self, index: usize, class: u8) {
        let list = &self.free[usize::from(class)];
        let mut rest = list.take();
        let mut kept = None;
        while let Some(header) = rest {
            // SAFETY: headers of this pool live as long as it does.
            let h = unsafe { header.as_ref() };
            rest = h.next.take();
            if h.chunk.get() as usize == index {
                h.kind.set(Kind::Spare);
                self.push(&self.spare, header);
            } else {
                h.next.set(kept);
                kept = Some(header);
            }
        }
        list.set(kept);
    }

    /// Wakes the first waiter that has not been woken yet, when a block came back.
    #[inline]
    fn tell_waiter(&self) {
        if self.waiters.borrow().is_empty() {
            return;
        }
        let waker = self.waiters.borrow_mut().front_mut().filter(|w| !w.told).map(|w| {
            w.told = true;
            w.waker.clone()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll_wait(&self, ticket: &mut Option<u64>, len: usize, cx: &mut Context<'_>) -> Poll<NonNull<Header>> {
        let first = match *ticket {
            None => self.waiters.borrow().is_empty(),
            Some(t) => self.waiters.borrow().front().is_some_and(|w| w.ticket == t),
        };
        if first {
            if let Some(header) = self.take_block(len) {
                if let Some(t) = ticket.take() {
                    self.waiters.borrow_mut().retain(|w| w.ticket != t);
                    self.tell_waiter();
                }
                return Poll::Ready(header);
            }
        }
        let mut waiters = self.waiters.borrow_mut();
        match *ticket {
            Some(t) => {
                if let Some(w) = waiters.iter_mut().find(|w| w.ticket == t) {
                    w.told = false;
                    w.waker.clone_from(cx.waker());
                }
            }
            None => {
                let t = self.next_ticket.get();
                self.next_ticket.set(t + 1);
                *ticket = Some(t);
                let stats = self.stats.get();
                self.stats.set(Stats { waits: stats.waits + 1, ..stats });
                waiters.push_back(Waiter { ticket: t, told: false, waker: cx.waker().clone() });
            }
        }
        Poll::Pending
    }

    fn leave_queue(&self, ticket: u64) {
        self.waiters.borrow_mut().retain(|w| w.ticket != ticket);
        self.tell_waiter();
    }

    /// This core's header for a mapping, with a reference for the caller.
    fn region_header(&self, mapping: &Held) -> NonNull<Header> {
        if self.closed_seen.get() != region::closed_count() {
            self.release_closed();
        }
        let number = mapping.number();
        let known = self.regions.borrow().get(number).copied().flatten();
        let header = known.unwrap_or_else(|| {
            let header = self.take_spare();
            // SAFETY: headers of this pool live as long as it does; this one is ours alone.
            let h = unsafe { header.as_ref() };
            h.kind.set(Kind::Region);
            // SAFETY: as above; no other code has the header yet.
            unsafe { *h.region.get() = Some(Arc::clone(mapping)) };
            let mut regions = self.regions.borrow_mut();
            if regions.len() <= number {
                regions.resize(number + 1, None);
            }
            regions[number] = Some(header);
            drop(regions);
            mapping.hold_here();
            header
        });
        // SAFETY: the cache holds a reference.
        unsafe { header.as_ref() }.retain();
        header
    }

    /// Releases the headers whose regions are gone.
    fn release_closed(&self) {
        self.closed_seen.set(region::closed_count());
        let mut closed = Vec::new();
        for slot in self.regions.borrow_mut().iter_mut() {
            // SAFETY: the cache holds a reference.
            if slot.is_some_and(|h| region::header_is_closed(unsafe { h.as_ref() })) {
                closed.extend(slot.take());
            }
        }
        for header in closed {
            // SAFETY: the cache's reference, taken out of it above.
            unsafe { Header::release(header) };
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for chunk in self.chunks.get_mut().drain(..) {
            // SAFETY: a chunk that `carve` mapped; none of its blocks is in use, since no header
            // is.
            unsafe { region::unmap(chunk.base, CHUNK) };
        }
        for slab in self.slabs.get_mut().drain(..) {
            let slab = NonNull::slice_from_raw_parts(slab, HEADERS_PER_SLAB);
            // SAFETY: a boxed slice that `add_slab` leaked; none of its headers is in use.
            drop(unsafe { Box::from_raw(slab.as_ptr()) });
        }
    }
}

/// The smallest class whose blocks hold `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    (len <= MAX_ALLOC).then(|| len.div_ceil(ALIGN).next_power_of_two().trailing_zeros() as usize)
}

/// Turns a block with one reference into a buffer.
fn buffer(header: NonNull<Header>, len: usize) -> BufMut {
    // SAFETY: `take_block` gave a block of at least `len` bytes with one reference, which goes to
    // the buffer.
    unsafe { BufMut::from_header(header, len) }
}

/// A header for a vector's memory, with one reference for the caller.
///
/// # Safety
/// `ptr` was allocated with `layout`, whose size is not 0, and the caller gives it up.
pub(super) unsafe fn heap_header(ptr: NonNull<u8>, layout: Layout) -> NonNull<Header> {
    with(|pool| {
        let header = pool.take_spare();
        // SAFETY: headers of this pool live as long as it does.
        let h = unsafe { header.as_ref() };
        h.kind.set(Kind::Heap);
        h.base.set(ptr);
        h.heap_len.set(layout.size());
        header
    })
}

/// This core's header for a mapping, with one reference for the caller.
pub(super) fn region_header(mapping: &Held) -> NonNull<Header> {
    with(|pool| pool.region_header(mapping))
}

/// Lets go of regions that were dropped, as far as this core holds them. A runtime does this now
/// and then.
pub(crate) fn release_closed_regions() {
    // Not on a new pool: a thread that is ending has released them already.
    let _ = CURRENT.try_with(|current| {
        // SAFETY: the thread's share keeps the pool alive.
        let pool = unsafe { current.0.as_ref() };
        if pool.closed_seen.get() != region::closed_count() {
            pool.release_closed();
        }
    });
}

/// A buffer of `len` bytes from this core's pool, or `None` if `len` is more than [`MAX_ALLOC`] or
/// the pool has reached its limit. Its bytes are initialised but stale.
#[inline]
pub fn alloc(len: usize) -> Option<BufMut> {
    with(|pool| pool.take_block(len)).map(|header| buffer(header, len))
}

/// Like [`alloc`], filled with zeros.
pub fn alloc_zeroed(len: usize) -> Option<BufMut> {
    let mut buf = alloc(len)?;
    buf.fill(0);
    Some(buf)
}

/// Buffers that hold `len` bytes together, each but the last of [`MAX_ALLOC`]; `None` if not all
/// are there.
pub fn alloc_many(len: usize) -> Option<smallvec::SmallVec<[BufMut; 2]>> {
    let mut bufs = smallvec::SmallVec::new();
    let mut rest = len;
    while rest > 0 {
        let n = rest.min(MAX_ALLOC);
        bufs.push(alloc(n)?);
        rest -= n;
    }
    Some(bufs)
}

/// Waits until [`alloc`] can give `len` bytes; waiters are served in order. `len` is cut to
/// [`MAX_ALLOC`].
pub fn alloc_wait(len: usize) -> AllocWait {
    AllocWait { len: len.min(MAX_ALLOC), ticket: None, _not_send: std::marker::PhantomData }
}

/// The future of [`alloc_wait`].
#[derive(Debug)]
pub struct AllocWait {
    len: usize,
    ticket: Option<u64>,
    /// The ticket belongs to this thread's pool.
    _not_send: std::marker::PhantomData<std::rc::Rc<()>>,
}

impl Future for AllocWait {
    type Output = BufMut;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufMut> {
        let len = self.len;
        with(|pool| pool.poll_wait(&mut self.ticket, len, cx)).map(|header| buffer(header, len))
    }
}

impl Drop for AllocWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            with(|pool| pool.leave_queue(ticket));
        }
    }
}

/// Sets the number of bytes that this core's pool may map. A limit below the mapped bytes stops
/// growth, and returns no memory.
pub fn set_limit(bytes: usize) {
    with(|pool| {
        pool.stats.set(Stats { limit: bytes, ..pool.stats.get() });
        pool.tell_waiter();
    });
}

/// Use of this core's pool.
pub fn stats() -> Stats {
    with(|pool| pool.stats.get())
}
