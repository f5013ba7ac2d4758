//! LUKS: has librbd decrypt an open image by the passphrase that a file holds. Keeps no passphrase.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use zeroize::Zeroizing;

use crate::error::{Error, LoadError};
use crate::library::{Library, RbdImage};

/// The longest passphrase, bytes: LUKS' own limit.
const MAX: usize = 512;
/// `RBD_ENCRYPTION_FORMAT_LUKS2` and `RBD_ENCRYPTION_FORMAT_LUKS1`.
const FORMATS: [c_int; 2] = [1, 0];

/// `rbd_encryption_luks1_format_options_t`, and the same of version 2.
#[repr(C)]
struct Options {
    /// Of an image that is made.
    algorithm: c_int,
    passphrase: *const c_char,
    passphrase_len: usize,
}

/// Has reads, writes and the size of the image be those of what is encrypted in it. Blocks for
/// seconds: a key is made slowly, on purpose.
///
/// # Errors
/// An [`Error`] that says what is wrong with the file, the passphrase or the image.
pub(crate) fn decrypt(library: &Library, image: RbdImage, key_file: &Path) -> Result<(), Error> {
    let Some(load) = library.rbd_encryption_load else {
        let (library, package) = ("librbd.so.1", "librbd1");
        return Err(LoadError::Function { library, package, function: "rbd_encryption_load" }.into());
    };
    let at = key_file.display();
    let passphrase = passphrase(key_file)
        .map_err(|error| Error::Call { what: format!("{at} cannot be read"), errno: errno(&error) })?;
    let options =
        Options { algorithm: 0, passphrase: passphrase.as_ptr().cast(), passphrase_len: passphrase.len() };
    let mut code = -libc::EINVAL;
    for format in FORMATS {
        // SAFETY: the structure is the one of both formats, and lives until the return.
        code = unsafe { load(image, format, (&raw const options).cast(), size_of::<Options>()) };
        // The other version of LUKS is EINVAL.
        if code != -libc::EINVAL {
            break;
        }
    }
    Error::check(code, || match -code {
        libc::EPERM => format!("the passphrase in {at} does not open the image"),
        libc::EINVAL => "the image is not encrypted by `rbd encryption format`".into(),
        _ => "the image cannot be decrypted".into(),
    })
    .map(drop)
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// What a file holds, without a newline at its end, as `rbd encryption format` takes it.
fn passphrase(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    // Room from the beginning: a Vec that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX + 2));
    File::open(path)?.take(MAX as u64 + 2).read_to_end(&mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    match bytes.len() {
        1..=MAX => Ok(bytes),
        _ => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_is_what_the_rbd_tool_takes_from_the_same_file() {
        let path = std::env::temp_dir().join(format!("stag-luks-{}", std::process::id()));
        for (written, taken) in [
            (&b"correct horse"[..], Some(&b"correct horse"[..])),
            (b"correct horse\n", Some(b"correct horse")),
            (b"two\n\n", Some(b"two\n")),
            (b" \r\n", Some(b" \r")),
            (b"", None),
            (b"\n", None),
            (&[b'x'; MAX], Some(&[b'x'; MAX])),
            (&[b'x'; MAX + 1], None),
        ] {
            std::fs::write(&path, written).unwrap();
            assert_eq!(passphrase(&path).ok().as_deref().map(Vec::as_slice), taken);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(passphrase(&path).is_err());
    }
}
