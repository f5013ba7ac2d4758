//! The exclusive lock as it lies in an image's header, for a caller that has fenced the lock's
//! client already. librbd would fence it once more, and monitors let a second change wait for the
//! first: up to a second.

use std::ffi::{CStr, CString, c_char, c_int};

use crate::connection::{Pool, plain, text};
use crate::error::Error;

/// The lock's name in the header.
const NAME: &CStr = c"rbd_lock";
/// Bytes for all that is told of the lock's owner: an exclusive lock has one.
const ROOM: usize = 512;

/// Removes the lock from the header if the client at `address` has it; the cluster must refuse
/// that client already. Blocks.
pub(crate) fn remove(pool: &Pool, header: &CStr, address: &str) -> Result<(), Error> {
    let library = pool.library;
    let (mut exclusive, mut tag, mut clients, mut cookies, mut addresses) =
        (0, Text::new(), Text::new(), Text::new(), Text::new());
    // SAFETY: names end with zeros, and each buffer has room for its length.
    let code = unsafe {
        (library.rados_list_lockers)(
            pool.handle,
            header.as_ptr(),
            NAME.as_ptr(),
            &raw mut exclusive,
            tag.room(),
            &raw mut tag.len,
            clients.room(),
            &raw mut clients.len,
            cookies.room(),
            &raw mut cookies.len,
            addresses.room(),
            &raw mut addresses.len,
        )
    };
    let failed = || "the image's exclusive lock cannot be broken".into();
    // A number of lockers, or of an error.
    let code = c_int::try_from(code).unwrap_or(-libc::EOVERFLOW);
    if code == -libc::ENOENT {
        return Ok(());
    }
    if Error::check(code, failed)? == 0 || plain(&addresses.first()) != plain(address) {
        return Ok(());
    }
    let (client, cookie) = (clients.c_first(), cookies.c_first());
    // SAFETY: all names end with zeros.
    let code = unsafe {
        (library.rados_break_lock)(
            pool.handle,
            header.as_ptr(),
            NAME.as_ptr(),
            client.as_ptr(),
            cookie.as_ptr(),
        )
    };
    match code {
        // It was another one's in the meantime, or nobody's.
        code if code == -libc::ENOENT => Ok(()),
        code => Error::check(code, failed).map(drop),
    }
}

/// A buffer that librados fills with strings, each of which ends with a zero.
struct Text {
    bytes: [u8; ROOM],
    len: usize,
}

impl Text {
    fn new() -> Self {
        Self { bytes: [0; ROOM], len: ROOM }
    }

    fn room(&mut self) -> *mut c_char {
        self.bytes.as_mut_ptr().cast()
    }

    fn first(&self) -> String {
        text(&self.bytes)
    }

    fn c_first(&self) -> CString {
        CStr::from_bytes_until_nul(&self.bytes).map(CStr::to_owned).unwrap_or_default()
    }
}
