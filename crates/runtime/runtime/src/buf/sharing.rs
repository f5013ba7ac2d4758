//! [`Sharing`]: how a region's memory moves to a file in memory (memfd_create(2)) that another process maps.
//!
//! Anonymous memory has huge pages on most systems, and such files have not. So a region's memory is anonymous until it
//! is moved, which happens in place: addresses stay. It takes no more memory than one [`STEP`].

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are moved at a time.
const STEP: usize = 64 << 20;

/// The file of a region, and how much of it the region maps.
#[derive(Default)]
pub(super) struct Sharing {
    file: OnceLock<OwnedFd>,
    /// Bytes from the start of the region that are the file's.
    moved: AtomicUsize,
}

/// Asks the kernel, and returns its error.
fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// A file in memory of `len` bytes that nobody can make shorter.
fn new_file(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string; the descriptor is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"stag".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        OwnedFd::from_raw_fd(check(fd)?)
    };
    let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: both take numbers only.
    unsafe {
        check(libc::ftruncate(file.as_raw_fd(), size))?;
        check(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK))?;
    }
    Ok(file)
}

/// Maps `len` bytes of a file from `offset` on: at `place`, whose pages are replaced, or where the kernel likes.
///
/// # Safety
/// Whole pages of a mapping of the caller's are at `place`, if it is given.
unsafe fn map(file: &OwnedFd, len: usize, offset: usize, place: Option<*mut u8>) -> io::Result<NonNull<u8>> {
    let fixed = if place.is_some() { libc::MAP_FIXED } else { 0 };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
    let place = place.unwrap_or(std::ptr::null_mut());
    // SAFETY: a new mapping touches no existing memory, or the caller's only.
    let ptr = unsafe {
        libc::mmap(place.cast(), len.max(1), access, flags, file.as_raw_fd(), offset as libc::off_t)
    };
    if ptr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: advice about the mapping just made. It may be refused; nothing depends on it.
    unsafe { libc::madvise(ptr, len, libc::MADV_HUGEPAGE) };
    NonNull::new(ptr.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Sharing {
    /// Maps another process's file, which has at least `len` bytes and cannot become shorter.
    pub(super) fn of(file: OwnedFd, len: usize) -> io::Result<(Self, NonNull<u8>)> {
        // SAFETY: takes numbers only.
        let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
        // SAFETY: zeros are a value of the type, and the kernel fills it in.
        let size = unsafe {
            let mut about: libc::stat = std::mem::zeroed();
            check(libc::fstat(file.as_raw_fd(), &raw mut about))?;
            about.st_size
        };
        if seals & libc::F_SEAL_SHRINK == 0 || usize::try_from(size).is_ok_and(|size| size < len) || size < 0
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a file in memory that is too short"));
        }
        // SAFETY: no place is given.
        let base = unsafe { map(&file, len, 0, None)? };
        Ok((Self { file: file.into(), moved: AtomicUsize::new(len) }, base))
    }

    /// The file that the memory is moved to, or was.
    pub(super) fn file(&self, len: usize) -> io::Result<&OwnedFd> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = new_file(len)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Bytes from the start on that are the file's.
    pub(super) fn moved(&self) -> usize {
        self.moved.load(Ordering::Acquire)
    }

    /// Moves the memory at `base`, of `len` bytes, to the file. `used` are offsets and lengths of the bytes that count, in
    /// order; others become zeros. `step` is called after each part.
    ///
    /// # Safety
    /// The memory is a whole mapping of the caller's, and nobody writes to it meanwhile.
    pub(super) unsafe fn move_all(
        &self,
        base: NonNull<u8>,
        len: usize,
        used: impl IntoIterator<Item = (usize, usize)>,
        mut step: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let file = self.file(len)?;
        let mut used = used.into_iter().peekable();
        let mut from = self.moved();
        while from < len {
            let end = from.saturating_add(STEP).min(len);
            while let Some((at, n)) = used.peek().copied().filter(|(at, _)| *at < end) {
                let last = (at + n).min(end);
                if last > at.max(from) {
                    // SAFETY: the range lies within the mapping.
                    unsafe {
                        write_all(file, base.as_ptr().add(at.max(from)), last - at.max(from), at.max(from))?
                    };
                }
                if at + n > end {
                    break;
                }
                used.next();
            }
            // SAFETY: whole pages of the caller's mapping: steps are, and the last ends with the mapping.
            unsafe { map(file, end - from, from, Some(base.as_ptr().add(from)))? };
            self.moved.store(end, Ordering::Release);
            from = end;
            step()?;
        }
        Ok(())
    }

    /// Gives the memory of whole pages of the mapping back, which read as zeros afterwards.
    ///
    /// # Safety
    /// `len` bytes at `start`, which is `at` bytes behind the mapping's begin, are whole pages of it.
    pub(super) unsafe fn punch(&self, start: *mut u8, at: usize, len: usize) -> io::Result<()> {
        let shared = self.moved().saturating_sub(at).min(len);
        let parts = [(0, shared, libc::MADV_REMOVE), (shared, len - shared, libc::MADV_DONTNEED)];
        for (from, len, advice) in parts.into_iter().filter(|(_, len, _)| *len > 0) {
            // SAFETY: the caller's. Other cores and the kernel may use them meanwhile and see either content.
            check(unsafe { libc::madvise(start.add(from).cast(), len, advice) })?;
        }
        Ok(())
    }
}

/// Writes `len` bytes of memory to the file at `at`.
///
/// # Safety
/// The memory is mapped.
unsafe fn write_all(file: &OwnedFd, from: *const u8, len: usize, at: usize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        // SAFETY: the caller's: the kernel reads mapped memory.
        let n = unsafe {
            libc::pwrite(file.as_raw_fd(), from.add(done).cast(), len - done, (at + done) as libc::off_t)
        };
        match usize::try_from(n) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
        }
    }
    Ok(())
}
