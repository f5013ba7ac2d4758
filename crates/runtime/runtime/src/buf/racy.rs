//! Copies of memory that others may write at the same time, or that may lose the file behind it.
//!
//! A plain copy of such memory is a data race, which Rust's memory model leaves undefined. The
//! compiler cannot see into these copies (one string instruction on x86-64); elsewhere they use
//! atomics. So a race yields mixed bytes and nothing worse. Each function states which side others
//! may write, since only that side may be accessed by atomics.
//!
//! A mapped file that is cut short, or whose medium fails, answers an access with SIGBUS.
//! [`survive_bus_errors`] installs a handler that ends the current copy instead of the process:
//! while a copy runs, its thread stores the address at which to continue, and the handler jumps
//! there. Any other SIGBUS goes to the previous handler.

#[cfg(target_arch = "x86_64")]
mod guard {
    use std::cell::Cell;
    use std::io;
    use std::sync::{Mutex, OnceLock, PoisonError};

    thread_local! {
        /// Address at which the copy of this thread continues after a bus error; 0 without a copy.
        pub(super) static RESUME: Cell<usize> = const { Cell::new(0) };
    }

    /// The previous handler of SIGBUS.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    /// Runs on the thread that caused the bus error, at the instruction that caused it.
    extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let resume = RESUME.get();
        // SAFETY: the kernel passes valid pointers to both; the context is a `ucontext_t`, with
        // whose registers the thread continues when this returns. A code above 0 means that the
        // kernel sent the signal, for this access.
        unsafe {
            if resume != 0 && (*info).si_code > 0 {
                let context = context.cast::<libc::ucontext_t>();
                (*context).uc_mcontext.gregs[libc::REG_RIP as usize] = resume as libc::greg_t;
                return;
            }
        }
        let Some(before) = BEFORE.get() else { return };
        match before.sa_sigaction {
            // Returns to the same access, which ends the process.
            // SAFETY: an action that was in force before; sigaction may be called by a handler.
            libc::SIG_DFL | libc::SIG_IGN => unsafe {
                libc::sigaction(signal, before, std::ptr::null_mut());
            },
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: SA_SIGINFO guarantees a function of this type.
                let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: without SA_SIGINFO it is a function of this type.
                let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
                handler(signal);
            }
        }
    }

    pub(crate) fn survive_bus_errors() -> io::Result<()> {
        static INSTALLING: Mutex<()> = Mutex::new(());
        let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        if BEFORE.get().is_some() {
            return Ok(());
        }
        // SAFETY: plain numbers, for which zeros are valid; both structures outlive the calls. The
        // handler does nothing that a handler may not do: it reads a thread-local without a
        // destructor and sets a register.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            // Set before the handler can run.
            let _ = BEFORE.set(before);
            if libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// From now on a bus error within [`copy`] or [`fill`] ends that copy and nothing else.
#[cfg(target_arch = "x86_64")]
pub(crate) use guard::survive_bus_errors;

/// `Unsupported`: here a bus error ends the process.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn survive_bus_errors() -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Copies `len` bytes forwards. Either side may be written or read by others meanwhile. False if a
/// bus error ended it after some of them.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes; the ranges do not overlap, or `dst` starts
/// before `src`.
#[inline]
#[must_use]
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges; the direction flag is clear on entry by the ABI.
    // All registers that change are declared, and memory is taken as clobbered since `nomem` is not
    // given. A bus error continues at the label with the registers as they were in the middle of
    // the copy: then some of `rcx` is left.
    unsafe {
        let left: usize;
        let resume = guard::RESUME.with(std::cell::Cell::as_ptr);
        std::arch::asm!(
            "lea {after}, [rip + 2f]",
            "mov qword ptr [{resume}], {after}",
            "rep movsb",
            "2:",
            "mov qword ptr [{resume}], 0",
            resume = in(reg) resume,
            after = out(reg) _,
            inout("rcx") len => left,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
        left == 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        portable::copy(portable::Shared(src.cast_mut()), portable::Shared(dst), len);
        true
    }
}

/// [`copy`] to memory without other users, as `&mut` states.
///
/// # Safety
/// `src` is readable for as many bytes, and is not in `dst`.
#[inline]
#[must_use]
pub(crate) unsafe fn copy_out(src: *const u8, dst: &mut [u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for one range, the reference for the other.
    unsafe {
        copy(src, dst.as_mut_ptr(), dst.len())
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above.
    unsafe {
        portable::copy(portable::Shared(src.cast_mut()), portable::Own(dst.as_mut_ptr()), dst.len());
        true
    }
}

/// [`copy`] from memory without writers: memory behind a `&` may be read, but not by atomics.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, the ranges do not overlap, and `src` is
/// not written meanwhile.
#[inline]
#[must_use]
pub(crate) unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's.
    unsafe {
        copy(src, dst, len)
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    unsafe {
        portable::copy(portable::Own(src.cast_mut()), portable::Shared(dst), len);
        true
    }
}

/// Copies in plain Rust. Memory that others may write meanwhile is read and written by relaxed
/// atomics, a word at a time where both sides have words at the same places. Memory of this thread
/// alone is accessed plainly.
#[cfg(any(not(target_arch = "x86_64"), test))]
mod portable {
    use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

    const WORD: usize = size_of::<usize>();

    /// One side of a copy.
    pub(super) trait Side: Copy {
        /// Its first byte.
        fn start(self) -> *mut u8;
        /// # Safety
        /// The byte, or the aligned word, `at` bytes behind the start is readable.
        unsafe fn byte(self, at: usize) -> u8;
        /// # Safety
        /// As of [`Self::byte`].
        unsafe fn word(self, at: usize) -> usize;
        /// # Safety
        /// The byte, or the aligned word, `at` bytes behind the start is writable.
        unsafe fn set_byte(self, at: usize, value: u8);
        /// # Safety
        /// As of [`Self::set_byte`].
        unsafe fn set_word(self, at: usize, value: usize);
    }

    /// Memory that others may read and write.
    #[derive(Clone, Copy)]
    pub(super) struct Shared(pub *mut u8);

    impl Side for Shared {
        fn start(self) -> *mut u8 {
            self.0
        }
        unsafe fn byte(self, at: usize) -> u8 {
            // SAFETY: the caller's; others use atomics too.
            unsafe { AtomicU8::from_ptr(self.0.add(at)).load(Relaxed) }
        }
        unsafe fn word(self, at: usize) -> usize {
            // SAFETY: as above.
            unsafe { AtomicUsize::from_ptr(self.0.add(at).cast()).load(Relaxed) }
        }
        unsafe fn set_byte(self, at: usize, value: u8) {
            // SAFETY: as above.
            unsafe { AtomicU8::from_ptr(self.0.add(at)).store(value, Relaxed) }
        }
        unsafe fn set_word(self, at: usize, value: usize) {
            // SAFETY: as above.
            unsafe { AtomicUsize::from_ptr(self.0.add(at).cast()).store(value, Relaxed) }
        }
    }

    /// Memory without writers other than this thread.
    #[derive(Clone, Copy)]
    pub(super) struct Own(pub *mut u8);

    impl Side for Own {
        fn start(self) -> *mut u8 {
            self.0
        }
        unsafe fn byte(self, at: usize) -> u8 {
            // SAFETY: the caller's.
            unsafe { self.0.add(at).read() }
        }
        unsafe fn word(self, at: usize) -> usize {
            // SAFETY: as above.
            unsafe { self.0.add(at).cast::<usize>().read() }
        }
        unsafe fn set_byte(self, at: usize, value: u8) {
            // SAFETY: as above.
            unsafe { self.0.add(at).write(value) }
        }
        unsafe fn set_word(self, at: usize, value: usize) {
            // SAFETY: as above.
            unsafe { self.0.add(at).cast::<usize>().write(value) }
        }
    }

    /// Copies `len` bytes forwards.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes.
    pub(super) unsafe fn copy(src: impl Side, dst: impl Side, len: usize) {
        let (from, to) = (src.start() as usize, dst.start() as usize);
        let mut at = 0;
        // SAFETY: the caller vouches for both ranges; words are only used where both pointers are
        // aligned for them.
        unsafe {
            if from % WORD == to % WORD {
                while at < len && (from + at) % WORD != 0 {
                    dst.set_byte(at, src.byte(at));
                    at += 1;
                }
                while at + WORD <= len {
                    dst.set_word(at, src.word(at));
                    at += WORD;
                }
            }
            while at < len {
                dst.set_byte(at, src.byte(at));
                at += 1;
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn bytes_arrive_whatever_their_places() {
            let from: Vec<u8> = (0..64).collect();
            for (at, to, len) in [(0, 0, 64), (0, 0, 0), (1, 1, 40), (1, 2, 40), (8, 0, 33), (3, 11, 5)] {
                let mut shared = [0u8; 64];
                let mut own = [0u8; 64];
                // SAFETY: all ranges lie within the arrays, and the source is only read.
                unsafe {
                    let memory = Shared(shared.as_mut_ptr());
                    copy(Own(from[at..].as_ptr().cast_mut()), Shared(memory.0.add(to)), len);
                    copy(Shared(memory.0.add(to)), Own(own[to..].as_mut_ptr()), len);
                }
                assert_eq!(own[to..to + len], from[at..at + len]);
                assert!(own[..to].iter().chain(&own[to + len..]).all(|byte| *byte == 0));
            }
        }
    }
}

/// Bytes to which [`stream`] copies in one step; the destination's alignment, and what the length
/// is a multiple of.
pub(crate) const STREAMED: usize = 64;

#[cfg(target_arch = "x86_64")]
mod fence {
    use std::arch::x86_64::_mm_sfence;
    use std::cell::Cell;

    /// When the fence of this thread's copies past the caches is made.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Fence {
        /// With each copy.
        AtOnce,
        /// By [`settle`], should a copy be made before.
        Later,
        /// By [`settle`]: copies were made.
        Due,
    }

    thread_local! {
        static FENCE: Cell<Fence> = const { Cell::new(Fence::AtOnce) };
    }

    fn now() {
        // SAFETY: part of SSE, which is part of x86-64; it touches no memory.
        unsafe { _mm_sfence() }
    }

    pub(super) fn after_stream() {
        match FENCE.get() {
            Fence::AtOnce => now(),
            Fence::Later | Fence::Due => FENCE.set(Fence::Due),
        }
    }

    pub(crate) fn put_off(later: bool) {
        settle();
        FENCE.set(if later { Fence::Later } else { Fence::AtOnce });
    }

    #[inline]
    pub(crate) fn settle() {
        if FENCE.get() == Fence::Due {
            now();
            FENCE.set(Fence::Later);
        }
    }
}

/// `put_off(true)`: from now on [`settle`] makes one fence for all copies past the caches
/// ([`stream`]) that this thread has made since the last call. A fence waits until all of them are
/// in memory, a third of the time of a copy of 4 KiB.
///
/// Until then other threads may see later stores of this thread before the copied bytes. A thread
/// announces them to another by a locked instruction: a message to another core, the kernel's lock
/// of a socket or a ring. That instruction waits for them as the fence does (Intel SDM volume 3
/// §13.3.1). Plain stores do not wait, not even atomic ones. So the thread has to call [`settle`]
/// before it waits for anything, as a core's loop does.
#[cfg(target_arch = "x86_64")]
pub(crate) use fence::{put_off, settle};

/// No fence to put off: here all copies are atomic stores that go through the caches.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn put_off(_later: bool) {}

/// No fence to make up for.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn settle() {}

/// [`copy`] past the caches: the destination's lines are not fetched to be overwritten, which
/// halves the time where they are in no cache, and are in none afterwards.
///
/// # Safety
/// As of [`copy_in`]. `dst` and `len` are multiples of [`STREAMED`], and `len` is not 0.
#[inline]
#[must_use]
pub(crate) unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) -> bool {
    debug_assert!(len > 0 && len % STREAMED == 0 && dst as usize % STREAMED == 0);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges and their alignment. SSE2 is part of x86-64. All
    // registers that change are declared, and memory is taken as clobbered. A bus error continues
    // at the label `3` with the registers as they were when a step began: then some of `len` is
    // left. The fence, now or later, makes these stores visible before all that follow, as plain
    // ones would be.
    let left = unsafe {
        let left: usize;
        let resume = guard::RESUME.with(std::cell::Cell::as_ptr);
        std::arch::asm!(
            "lea {after}, [rip + 3f]",
            "mov qword ptr [{resume}], {after}",
            "2:",
            "movdqu {a}, xmmword ptr [{src}]",
            "movdqu {b}, xmmword ptr [{src} + 16]",
            "movdqu {c}, xmmword ptr [{src} + 32]",
            "movdqu {d}, xmmword ptr [{src} + 48]",
            "movntdq xmmword ptr [{dst}], {a}",
            "movntdq xmmword ptr [{dst} + 16], {b}",
            "movntdq xmmword ptr [{dst} + 32], {c}",
            "movntdq xmmword ptr [{dst} + 48], {d}",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {len}, 64",
            "jnz 2b",
            "3:",
            "mov qword ptr [{resume}], 0",
            resume = in(reg) resume,
            after = out(reg) _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            len = inout(reg) len => left,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
        left
    };
    #[cfg(target_arch = "x86_64")]
    {
        fence::after_stream();
        left == 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    unsafe {
        copy_in(src, dst, len)
    }
}

/// Prefetches the lines of `len` bytes into the cache. They need not exist.
#[inline]
pub(crate) fn prefetch(ptr: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(64) {
        // SAFETY: a hint that touches nothing, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(ptr.wrapping_add(at).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (ptr, len);
}

/// As [`prefetch`], for bytes that are needed some commands later. They go to the second level of
/// the cache, which can have more lines outstanding. Few lines go to the first.
#[inline]
pub(crate) fn prefetch_early(ptr: *const u8, len: usize) {
    /// Bytes that do not evict others from the first level. Measured: 512 bytes gain more there, 4
    /// KiB less.
    const FEW: usize = 1024;
    if len <= FEW {
        return prefetch(ptr, len);
    }
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(64) {
        // SAFETY: a hint that touches nothing, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(ptr.wrapping_add(at).cast());
        }
    }
}

/// Sets `len` bytes to `byte`. False if a bus error ended it after some of them.
///
/// # Safety
/// `dst` is writable for `len` bytes.
#[inline]
#[must_use]
pub(crate) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the range; registers, memory and bus errors as in `copy`.
    unsafe {
        let left: usize;
        let resume = guard::RESUME.with(std::cell::Cell::as_ptr);
        std::arch::asm!(
            "lea {after}, [rip + 2f]",
            "mov qword ptr [{resume}], {after}",
            "rep stosb",
            "2:",
            "mov qword ptr [{resume}], 0",
            resume = in(reg) resume,
            after = out(reg) _,
            inout("rcx") len => left,
            inout("rdi") dst => _,
            in("al") byte,
            options(nostack, preserves_flags)
        );
        left == 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for the range.
    unsafe {
        use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
        for i in 0..len {
            AtomicU8::from_ptr(dst.add(i)).store(byte, Relaxed);
        }
        true
    }
}
