//! Copying memory that others may be writing at the same time.
//!
//! A plain copy of such memory is a data race, which Rust's memory model leaves undefined. These copies are made where
//! the compiler cannot see them (one string instruction on x86-64) or through atomics, so that a race yields mixed bytes
//! and nothing worse.

/// Copies `len` bytes forwards. Either side may be written or read by others meanwhile.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes; the ranges do not overlap, or `dst` starts before `src`.
#[inline]
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges; the direction flag is clear on entry by the ABI. The three registers
    // are declared as changed, and memory is taken as clobbered since `nomem` is not given.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for both ranges; words are only used where both pointers are aligned for them.
    unsafe {
        use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
        const W: usize = size_of::<usize>();
        let mut i = 0;
        if (src as usize) % W == (dst as usize) % W {
            while i < len && (src.add(i) as usize) % W != 0 {
                AtomicU8::from_ptr(dst.add(i))
                    .store(AtomicU8::from_ptr(src.add(i).cast_mut()).load(Relaxed), Relaxed);
                i += 1;
            }
            while i + W <= len {
                let word = AtomicUsize::from_ptr(src.add(i).cast_mut().cast()).load(Relaxed);
                AtomicUsize::from_ptr(dst.add(i).cast()).store(word, Relaxed);
                i += W;
            }
        }
        while i < len {
            AtomicU8::from_ptr(dst.add(i))
                .store(AtomicU8::from_ptr(src.add(i).cast_mut()).load(Relaxed), Relaxed);
            i += 1;
        }
    }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// `dst` is writable for `len` bytes.
#[inline]
pub(crate) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the range; registers and memory as in `copy`.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            in("al") byte,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for the range.
    unsafe {
        use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
        for i in 0..len {
            AtomicU8::from_ptr(dst.add(i)).store(byte, Relaxed);
        }
    }
}
