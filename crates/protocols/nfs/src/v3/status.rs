//! The outcome of a procedure, and its errors, `nfsstat3` (RFC 1813 §2.6).

use rpc::xdr::{Malformed, Reader, Writer, Xdr};
use rpc::xdr_enum;

/// The result of a procedure, a union over its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<T, F = (), S = Status> {
    /// OK.
    Ok(T),
    /// The error, and what an error's results have.
    Err(S, F),
}

/// A status, and what follows it if it is OK or an error: the form of every result.
impl<'a, T: Xdr<'a>, F: Xdr<'a>, S: Xdr<'a>> Xdr<'a> for Outcome<T, F, S> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut ahead = *from;
        if ahead.u32()? == 0 {
            *from = ahead;
            return T::read(from).map(Outcome::Ok);
        }
        Ok(Outcome::Err(S::read(from)?, F::read(from)?))
    }

    fn write(&self, to: &mut Writer<'_>) {
        match self {
            Outcome::Ok(value) => {
                to.u32(0);
                value.write(to);
            }
            Outcome::Err(status, rest) => {
                status.write(to);
                rest.write(to);
            }
        }
    }
}

xdr_enum! {
    /// Errors, `nfsstat3` without NFS3_OK.
    pub enum Status {
        /// Not owner.
        Perm = 1,
        /// No such file or directory.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// No such device or address.
        NxIo = 6,
        /// Permission denied.
        Acces = 13,
        /// The file exists.
        Exist = 17,
        /// A hard link across devices.
        XDev = 18,
        /// No such device.
        NoDev = 19,
        /// Not a directory.
        NotDir = 20,
        /// A directory where none may be.
        IsDir = 21,
        /// Invalid or unsupported argument.
        Inval = 22,
        /// The file would be too large.
        FBig = 27,
        /// No space is left.
        NoSpc = 28,
        /// A read-only file system.
        RoFs = 30,
        /// Too many hard links.
        MLink = 31,
        /// The name is too long.
        NameTooLong = 63,
        /// The directory is not empty.
        NotEmpty = 66,
        /// The quota is exceeded.
        DQuot = 69,
        /// The handle's file does not exist any more.
        Stale = 70,
        /// Too many levels of remote in the path.
        Remote = 71,
        /// The handle is malformed.
        BadHandle = 10001,
        /// SETATTR: the guard's time differs.
        NotSync = 10002,
        /// READDIR: the cookie is stale.
        BadCookie = 10003,
        /// The operation is not supported.
        NotSupp = 10004,
        /// The buffer or request is too small.
        TooSmall = 10005,
        /// The server failed in another way.
        ServerFault = 10006,
        /// The file type is not supported.
        BadType = 10007,
        /// Try again later.
        Jukebox = 10008,
    }
}
