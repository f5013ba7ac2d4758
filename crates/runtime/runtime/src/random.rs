//! Random bytes: the system's, or in a simulated world those of its seed.

use std::io;

/// Fills `bytes` with random ones, fit for secrets outside of a simulated world.
///
/// # Errors
/// Those of getrandom(2).
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    if crate::sim::fill(bytes) {
        return Ok(());
    }
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the slice may be written for its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => done += got,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
