//! One operation of librbd, from its submission to its completion on the core that submitted.
//!
//! The operation owns its memory and its permit, which keeps its image, until librbd has called
//! back. So a dropped future leaves nothing that librbd could still use.

use std::ffi::{c_int, c_void};
use std::io;
use std::time::Duration;

use runtime::{Completer, Foreign, timeout};
use smallvec::SmallVec;

use crate::library::{self, Completion, Library};

/// The pieces of memory of a read or write. librbd reads the list until the completion.
pub(crate) type Vectors = SmallVec<[libc::iovec; 4]>;

struct Held<T, K> {
    vectors: Vectors,
    memory: T,
    _keep: K,
}

/// Starts an operation by `submit`, and waits for its end: a count and its memory, or its error.
/// After `limit` the error is ETIMEDOUT, and the operation may still be carried out. `keep` is
/// dropped after the completion.
///
/// `submit` fills the list of vectors if it needs them, starts the operation with a completion, and
/// returns the function's result. What it gives to librbd is either in the vectors, or memory that
/// the `T` owns.
pub(crate) async fn call<T: 'static, K: 'static>(
    library: &'static Library,
    keep: K,
    limit: Duration,
    memory: T,
    submit: impl FnOnce(&mut Vectors, &mut T, Completion) -> c_int,
) -> io::Result<(usize, T)> {
    let held = Held { vectors: Vectors::new(), memory, _keep: keep };
    let operation = Foreign::start(held, |held, completer| {
        let argument = completer.into_raw();
        let mut completion = std::ptr::null_mut();
        // SAFETY: the callback takes this argument, once.
        let made = unsafe { (library.rbd_aio_create_completion)(argument, completed, &raw mut completion) };
        let started = match made {
            0 => submit(&mut held.vectors, &mut held.memory, completion),
            error => error,
        };
        if started < 0 {
            // SAFETY: librbd calls back for operations alone that it has started.
            unsafe {
                if made == 0 {
                    (library.rbd_aio_release)(completion);
                }
                Completer::from_raw(argument).complete(started);
            }
        }
    });
    let unknown = |_| io::Error::from_raw_os_error(libc::ETIMEDOUT);
    let (result, held) = timeout(limit, operation).await.map_err(unknown)?;
    match usize::try_from(result) {
        Ok(count) => Ok((count, held.memory)),
        Err(_) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
    }
}

/// librbd's callback, on a thread of its own.
///
/// # Safety
/// `argument` came from [`Completer::into_raw`], and librbd calls once.
unsafe extern "C" fn completed(completion: Completion, argument: *mut c_void) {
    // SAFETY: the caller's.
    let completer = unsafe { Completer::from_raw(argument) };
    // It was loaded before any operation was started.
    let Ok(library) = library::library() else { return };
    // SAFETY: the completion is librbd's, has ended, and is not used afterwards.
    let result = unsafe {
        let result = (library.rbd_aio_get_return_value)(completion);
        (library.rbd_aio_release)(completion);
        result
    };
    completer.complete(i32::try_from(result).unwrap_or(i32::MAX));
}
