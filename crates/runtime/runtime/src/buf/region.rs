//! [`Region`]: memory that all cores share, such as a memory disk, or the page cache's pages of a
//! file.
//!
//! Nothing here ever creates a reference to a region's bytes: they are copied by [`super::racy`] or
//! handed to the kernel by pointer.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::pool::{self, Header};
use super::{Buf, racy};
use crate::copies::count_copy;
use crate::fs::File;
use crate::runtime::{Address, Core};

/// An offset and a length that do not lie within a region; or bytes of a file's region that the
/// file does not have any more or that its medium failed to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range lies outside of the region")]
pub struct OutOfRange;

impl From<OutOfRange> for io::Error {
    fn from(error: OutOfRange) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Counts closed regions: a core that sees it change checks whether it holds one of them.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

/// Number of regions that were closed so far.
pub(super) fn closed_count() -> usize {
    CLOSED.load(Ordering::Acquire)
}

/// Regions from this length on, bytes, are in no processor's cache as a whole.
const LARGER_THAN_CACHES: usize = 64 << 20;
/// Shorter copies than this, bytes, end before their method matters.
const SHORTEST_STREAM: usize = 2 << 10;

/// Copies of up to this many bytes begin so many bytes behind the start of a page: `rep movsb` to a
/// page's start takes 80 ns longer for 4 KiB on AMD's processors (218 and 139 ns from the third
/// cache, 681 and 597 ns from memory).
const SHORT: usize = 4 << 10;
const SKEW: usize = 64;

/// Small numbers for mappings, reused only after the last header of the old one has gone.
static NUMBERS: Mutex<(usize, Vec<usize>)> = Mutex::new((0, Vec::new()));

/// Lock between the writers of a region, so that a socket can copy a part of it while no writer
/// changes it ([`Region::set_guard`]).
pub trait Guard: Send + Sync {
    /// Keeps `len` bytes from `at` on from being changed until [`Self::release`]; for the time of
    /// one system call. Returns false, at once, while a writer changes one of them or is about to.
    fn hold(&self, at: usize, len: usize) -> bool;

    /// Releases the bytes that [`Self::hold`] held.
    fn release(&self, at: usize, len: usize);

    /// Completes when no writer was changing the bytes. One may be changing them again.
    fn settled(&self, at: usize, len: usize) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}

/// The pages, kept alive by the region and by each core that has sliced it.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    number: usize,
    closed: AtomicBool,
    backing: Backing,
    /// Whether the kernel reports to this process which pages are in memory.
    told: bool,
    guard: OnceLock<Arc<dyn Guard>>,
    view: Option<View>,
}

/// Data of a view besides the address and length within its region.
struct View {
    /// Owns the pages.
    _whole: Arc<Mapping>,
    /// The cores that hold a header of it, to be told when it is closed.
    holders: Mutex<Vec<Address>>,
}

/// Memory behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// Memory of its own.
    Memory,
    /// A file's pages, and whether sockets may send them by reference.
    File { lent: bool },
}

// SAFETY: the pages are only touched through `racy` and by the kernel, which any thread may do at
// any time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        Ok(Self::with(map(len)?, len, Backing::Memory, true))
    }

    fn with(base: NonNull<u8>, len: usize, backing: Backing, told: bool) -> Self {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.1.pop().unwrap_or_else(|| {
            numbers.0 += 1;
            numbers.0 - 1
        });
        let (closed, guard) = (AtomicBool::new(false), OnceLock::new());
        Self { base, len, number, closed, backing, told, guard, view: None }
    }

    /// Registers this core as a holder of a header of it.
    pub(super) fn hold_here(&self) {
        let Some(view) = &self.view else { return };
        if let Some(address) = Core::with_current(|core| core.map(|core| core.address())) {
            view.holders.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        }
    }

    /// Whether a socket may send its pages by reference.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.backing, Backing::Memory | Backing::File { lent: true })
    }

    /// The guard, and the offset in the region that `ptr` points to.
    pub(super) fn guard(&self, ptr: *const u8) -> Option<(&dyn Guard, usize)> {
        let guard = self.guard.get()?;
        Some((&**guard, (ptr as usize).wrapping_sub(self.base.as_ptr() as usize)))
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.view.is_none() {
            // SAFETY: exactly what `map` returned, and the last owner has gone.
            unsafe { unmap(self.base, self.len) };
        }
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).1.push(self.number);
    }
}

/// Maps zeros, without reserving memory for them.
pub(crate) fn map(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing
    // memory.
    let ptr = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len.max(1),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if ptr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: advice about the mapping just made. It may be refused; nothing depends on it.
    unsafe { libc::madvise(ptr, len, libc::MADV_HUGEPAGE) };
    NonNull::new(ptr.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// Unmaps memory of [`map`].
///
/// # Safety
/// `map(len)` returned `base`, and nothing uses the pages any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's.
    unsafe { libc::munmap(base.as_ptr().cast(), len.max(1)) };
}

fn page_size() -> usize {
    // SAFETY: sysconf only reads.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps the first `len` bytes of a file, shared with all of its users.
fn map_file(file: &File, len: usize, writable: bool) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let ptr = unsafe {
        libc::mmap(std::ptr::null_mut(), len.max(1), access, libc::MAP_SHARED, file.fd().as_raw_fd(), 0)
    };
    if ptr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(ptr.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// Zero-filled memory of a fixed length that any core reads and writes at any time, or the pages of
/// a file ([`Self::of_file`]). Pages are allocated when they are first written. When two writers,
/// or a reader and a writer, meet on the same bytes, the result is a mixture of both.
///
/// The memory is given back once the `Region` has been dropped, the last [`Buf`] of it has gone,
/// and each core that ever sliced it has run once more.
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// Maps `len` bytes.
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { mapping: Arc::new(Mapping::new(len)?) }))
    }

    /// The same memory, whose slices are counted apart: [`LastUse`] tells when those of this view
    /// have gone. Cores that sleep are told when a view is dropped, so it ends as soon as its last
    /// slice does.
    pub fn view(&self) -> Self {
        let Mapping { base, len, backing, told, .. } = *self.mapping;
        let mut mapping = Mapping::with(base, len, backing, told);
        mapping.view = Some(View { _whole: Arc::clone(&self.mapping), holders: Mutex::default() });
        Self { mapping: Arc::new(mapping) }
    }

    /// A handle that tells whether the last slice has been dropped.
    pub fn last_use(&self) -> LastUse {
        LastUse(Arc::downgrade(&self.mapping))
    }

    /// Maps the first `len` bytes of `file`: writes to the region change the file, and the other
    /// way round. With `lent`, sockets may send the page cache's own pages, which others may change
    /// until the peer has them.
    ///
    /// A page that is not in memory is fetched when it is touched, and the thread that touches it
    /// waits. If the file has become shorter, or its medium fails, [`Self::touch`] and all copies
    /// report it; a send fails with EFAULT. The first call of a process installs a handler for
    /// SIGBUS, which passes on signals that are not its own.
    ///
    /// # Errors
    /// Those of mmap(2); `Unsupported` where bus errors cannot be survived (anywhere but on
    /// x86-64).
    pub fn of_file(file: &File, len: usize, writable: bool, lent: bool) -> io::Result<Arc<Self>> {
        racy::survive_bus_errors()?;
        // For a file that the process neither owns nor may write, mincore(2) reports all pages as
        // resident.
        let told = writable || file.is_own()?;
        let base = map_file(file, len, writable)?;
        let mapping = Mapping::with(base, len, Backing::File { lent }, told);
        Ok(Arc::new(Self { mapping: Arc::new(mapping) }))
    }

    /// Whether all pages of a range are in memory, as the kernel reports without fetching any.
    /// False if it does not report that.
    pub fn is_resident(&self, at: usize, len: usize) -> bool {
        const MOST: usize = 64;
        let page = page_size();
        let first = at / page * page;
        let Some(end) = at.checked_add(len) else { return false };
        let mut from = first;
        while from < end {
            let mut pages = [0u8; MOST];
            let pages = &mut pages[..(end - from).div_ceil(page).min(MOST)];
            if self.resident_pages(from, pages).is_err() || pages.contains(&0) {
                return false;
            }
            from += pages.len() * page;
        }
        true
    }

    /// Residency of the pages from `at` on, the start of a page: 1 for each page that is in memory,
    /// 0 for each that is not, as the kernel reports without fetching any. One system call.
    ///
    /// # Errors
    /// Those of mincore(2); `InvalidInput` if not all of the pages lie within the region;
    /// `PermissionDenied` for a file that this process neither owns nor opened for writing, for
    /// which the kernel does not report residency.
    pub fn resident_pages(&self, at: usize, pages: &mut [u8]) -> io::Result<()> {
        if !self.mapping.told {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let page = page_size();
        let whole = self.mapping.len.next_multiple_of(page);
        let len = pages.len() * page;
        if at % page != 0 || at.checked_add(len).is_none_or(|end| end > whole) {
            return Err(OutOfRange.into());
        }
        // SAFETY: the mapping has that many pages from there on, the last of which may be used in
        // part only; the vector has a byte for each.
        let rc = unsafe {
            let start = self.mapping.base.as_ptr().add(at);
            libc::mincore(start.cast(), len, pages.as_mut_ptr())
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // The other bits are undefined.
        pages.iter_mut().for_each(|page| *page &= 1);
        Ok(())
    }

    /// Touches every page of a range, so that the next user finds it in memory.
    ///
    /// # Errors
    /// When a page is not available: the file has become shorter, or its medium fails.
    #[inline]
    pub fn touch(&self, at: usize, len: usize) -> Result<(), OutOfRange> {
        const STEP: usize = 4096;
        let start = self.at(at, len)?;
        let mut byte = [0u8];
        let mut offset = 0;
        while offset < len {
            // SAFETY: the offset lies within the range, which was checked; the byte is this
            // function's own.
            if !unsafe { racy::copy_out(start.as_ptr().add(offset), &mut byte) } {
                return Err(OutOfRange);
            }
            // The first byte of each further page.
            offset += STEP - (at + offset) % STEP;
        }
        Ok(())
    }

    /// Sends short slices under `guard` from now on ([`crate::Gather::push_lent`]). False if there
    /// is one already, which stays, or if these are a file's pages, which may be gone when they are
    /// sent.
    pub fn set_guard(&self, guard: Arc<dyn Guard>) -> bool {
        self.mapping.backing == Backing::Memory && self.mapping.guard.set(guard).is_ok()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of `at`, once `at..at+len` is known to lie within the region.
    fn at(&self, at: usize, len: usize) -> Result<NonNull<u8>, OutOfRange> {
        let end = at.checked_add(len).ok_or(OutOfRange)?;
        if end > self.mapping.len {
            return Err(OutOfRange);
        }
        // SAFETY: `at` is at most the mapping's length.
        Ok(unsafe { self.mapping.base.add(at) })
    }

    /// Whether a copy to there goes past the caches: the memory is too large to be in one before,
    /// or useful in one afterwards. A file's pages are the kernel's, which may want them soon.
    #[inline]
    fn is_streamed(&self, dst: *const u8, len: usize) -> bool {
        len >= SHORTEST_STREAM
            && (dst as usize | len) % racy::STREAMED == 0
            && self.mapping.len >= LARGER_THAN_CACHES
            && self.mapping.backing == Backing::Memory
    }

    /// Copies the bytes from `at` on to `dst`.
    pub fn read_into(&self, at: usize, dst: &mut [u8]) -> Result<(), OutOfRange> {
        let src = self.at(at, dst.len())?;
        count_copy(dst.len());
        // SAFETY: the range was checked, and no `&mut [u8]` can name a region's memory.
        unsafe { whole(racy::copy_out(src.as_ptr(), dst)) }
    }

    /// Prefetches `len` bytes from `at` on into the processor's cache, for a copy soon. Does
    /// nothing outside of the region.
    #[inline]
    pub fn prefetch(&self, at: usize, len: usize) {
        if let Ok(src) = self.at(at, len) {
            racy::prefetch_early(src.as_ptr(), len);
        }
    }

    /// Copies `len` bytes from `at` on to a buffer of this core. `None`: there is no buffer, or the
    /// bytes are not there.
    #[inline]
    pub fn copy(&self, at: usize, len: usize) -> Option<Buf> {
        let skew = if len <= SHORT { SKEW } else { 0 };
        let mut copy = pool::alloc(len + skew)?;
        self.read_into(at, &mut copy[skew..]).ok()?;
        let mut buf = copy.freeze();
        buf.advance(skew);
        Some(buf)
    }

    /// Copies `src` to the bytes from `at` on.
    pub fn write_from(&self, at: usize, src: &[u8]) -> Result<(), OutOfRange> {
        let dst = self.at(at, src.len())?;
        count_copy(src.len());
        // SAFETY: the range was checked, and no `&[u8]` can name a region's memory.
        unsafe { whole(racy::copy_in(src.as_ptr(), dst.as_ptr(), src.len())) }
    }

    /// Copies `src`, which may be a slice of this or another region, to the bytes from `at` on.
    /// Overlapping ranges end up as if `src` had been copied aside first.
    pub fn write_buf(&self, at: usize, src: &Buf) -> Result<(), OutOfRange> {
        let (len, from) = (src.len(), src.as_ptr());
        let dst = self.at(at, len)?.as_ptr();
        count_copy(len);
        if self.is_streamed(dst, len) && !src.is_region() {
            // SAFETY: both ranges were checked, alignment and length too; they do not overlap,
            // since the source is no region's.
            return unsafe { whole(racy::stream(from, dst, len)) };
        }
        if (dst as usize).wrapping_sub(from as usize) >= len {
            // SAFETY: both ranges were checked; they do not overlap, or `dst` starts before `from`.
            return unsafe {
                whole(if src.is_region() {
                    racy::copy(from, dst, len)
                } else {
                    racy::copy_in(from, dst, len)
                })
            };
        }
        // The destination starts within the source: piecewise from the end.
        let mut piece = [0u8; 4096];
        let mut end = len;
        while end > 0 {
            let n = piece.len().min(end);
            end -= n;
            // SAFETY: `end..end+n` lies within both ranges, and the piece is this function's own.
            unsafe {
                whole(racy::copy_out(from.add(end), &mut piece[..n]))?;
                whole(racy::copy_in(piece.as_ptr(), dst.add(end), n))?;
            }
        }
        Ok(())
    }

    /// Whether `buf` names the very bytes from `at` on: writing it there would change nothing.
    #[inline]
    pub fn is_at(&self, at: usize, buf: &Buf) -> bool {
        self.at(at, buf.len()).is_ok_and(|place| std::ptr::eq(place.as_ptr(), buf.as_ptr()))
    }

    /// Sets `len` bytes to `byte`.
    pub fn fill(&self, at: usize, len: usize, byte: u8) -> Result<(), OutOfRange> {
        let dst = self.at(at, len)?;
        // SAFETY: the range was checked.
        unsafe { whole(racy::fill(dst.as_ptr(), byte, len)) }
    }

    /// Makes a range zeros and gives its whole pages back to the system. `Unsupported` of a file's
    /// region: the file itself has to be asked.
    pub fn punch(&self, at: usize, len: usize) -> io::Result<()> {
        if self.mapping.backing != Backing::Memory {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let start = self.at(at, len)?.as_ptr();
        let page = page_size();
        let first = (at.next_multiple_of(page)).min(at + len);
        let last = ((at + len) / page * page).max(first);
        self.fill(at, first - at, 0)?;
        self.fill(last, at + len - last, 0)?;
        if last > first {
            // SAFETY: `first..last` are whole pages of this private anonymous mapping; they read as
            // zeros afterwards. Other cores and the kernel may use them meanwhile and see either
            // content.
            let rc =
                unsafe { libc::madvise(start.add(first - at).cast(), last - first, libc::MADV_DONTNEED) };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Names `len` bytes from `at` on, without a copy. The `Buf` reads as the region does when it
    /// is read.
    pub fn slice(&self, at: usize, len: usize) -> Result<Buf, OutOfRange> {
        let ptr = self.at(at, len)?;
        let header = pool::region_header(&self.mapping);
        // SAFETY: the range was checked, the header keeps the mapping alive, and its reference is
        // given to the `Buf`.
        Ok(unsafe { Buf::from_header(ptr, len, header) })
    }

    /// Designates `len` bytes from `at` on for an operation to fill, such as a receive.
    pub fn destination(&self, at: usize, len: usize) -> Result<RegionRange, OutOfRange> {
        Ok(RegionRange(self.slice(at, len)?))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.mapping.closed.store(true, Ordering::Release);
        CLOSED.fetch_add(1, Ordering::AcqRel);
        pool::release_closed_regions();
        let Some(view) = &self.mapping.view else { return };
        for holder in std::mem::take(&mut *view.holders.lock().unwrap_or_else(PoisonError::into_inner)) {
            // A core that has gone has released it.
            let _ = holder.run(Box::new(pool::release_closed_regions));
        }
    }
}

/// Reports when a region or view, and all slices of it, have been dropped.
#[derive(Debug)]
pub struct LastUse(Weak<Mapping>);

impl LastUse {
    /// Whether the last use is over: no slice of that region or view uses the memory any more.
    pub fn is_over(&self) -> bool {
        let over = self.0.strong_count() == 0;
        // All uses have happened before: each ended by releasing its share with `Release`.
        fence(Ordering::Acquire);
        over
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({})", self.len())
    }
}

/// A part of a region that an operation may fill. Write-only: once filled, [`Region::slice`] names
/// the bytes.
pub struct RegionRange(Buf);

impl RegionRange {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Splits off the first `n` bytes and keeps the rest. Panics if `n` is more than there are.
    pub fn split_to(&mut self, n: usize) -> Self {
        Self(self.0.split_to(n))
    }

    /// Copies `src` to the start. Panics if `src` is longer.
    pub fn write(&mut self, src: &[u8]) {
        assert!(src.len() <= self.len(), "{} bytes into {}", src.len(), self.len());
        count_copy(src.len());
        // SAFETY: the range is mapped and long enough, and no `&[u8]` can name a region's memory.
        let all = unsafe { racy::copy_in(src.as_ptr(), self.as_mut_ptr(), src.len()) };
        assert!(all, "a bus error");
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_ptr().cast_mut()
    }
}

impl fmt::Debug for RegionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionRange({})", self.len())
    }
}

/// Result of a copy.
fn whole(all: bool) -> Result<(), OutOfRange> {
    if all { Ok(()) } else { Err(OutOfRange) }
}

/// A region's entry in a core's header.
pub(super) type Held = Arc<Mapping>;

/// Whether `header` names a mapping whose region is gone.
pub(super) fn header_is_closed(header: &Header) -> bool {
    header.mapping().is_some_and(|m| m.is_closed())
}
