//! Operations on names in the current directory (RFC 8881 §18).

use rpc::xdr::{Chain, Malformed, Reader, Writer, Xdr};
use rpc::{xdr_enum, xdr_struct, xdr_union};

use crate::v4::readdir::Entry;
use crate::v4::{Bitmap, Device, Fattr, Name, Text, Verifier};

xdr_struct! {
    /// `change_info4`: the `change` attribute of a directory around an operation.
    #[derive(Copy, Default)]
    pub struct ChangeInfo {
        /// No other change came between `before` and `after`.
        pub atomic: bool,
        /// Before the operation.
        pub before: u64,
        /// After the operation.
        pub after: u64,
    }

    /// `CREATE4args`: a new object that is no regular file.
    #[derive(Copy)]
    pub struct Create<'a> {
        /// Its type.
        pub kind: CreateType<'a>,
        /// Its name.
        pub name: Name<'a>,
        /// Its attributes.
        pub attributes: Fattr<'a>,
    }

    /// `CREATE4resok`.
    #[derive(Copy)]
    pub struct CreateOk {
        /// The directory's change.
        pub directory: ChangeInfo,
        /// The attributes that were set.
        pub attributes_set: Bitmap,
    }

    /// `READDIR4args`.
    #[derive(Copy)]
    pub struct ReadDir {
        /// The last entry that the client has; 0 at the start.
        pub cookie: u64,
        /// Verifier of the reply that the cookie came with; zero at the start.
        pub verifier: Verifier,
        /// The most bytes of names and cookies; a hint.
        pub dir_count: u32,
        /// The most bytes of `READDIR4resok`.
        pub max_count: u32,
        /// The attributes of each entry.
        pub requested: Bitmap,
    }

    /// `READDIR4resok`. A server writes it with [`readdir`](crate::v4::readdir).
    #[derive(Copy)]
    pub struct ReadDirOk<'a> {
        /// For the next call.
        pub verifier: Verifier,
        /// The entries.
        pub entries: Chain<'a, Entry<'a>>,
        /// No entry comes after these.
        pub eof: bool,
    }

    /// `RENAME4args`.
    #[derive(Copy)]
    pub struct Rename<'a> {
        /// The old name, in the saved directory.
        pub from: Name<'a>,
        /// The new name, in the current directory.
        pub to: Name<'a>,
    }

    /// `RENAME4resok`.
    #[derive(Copy)]
    pub struct Renamed {
        /// The saved directory's change.
        pub from: ChangeInfo,
        /// The current directory's change.
        pub to: ChangeInfo,
    }

    /// `rpcsec_gss_info`.
    #[derive(Copy)]
    pub struct GssInfo<'a> {
        /// The mechanism's object ID.
        pub oid: Text<'a>,
        /// The quality of protection.
        pub qop: u32,
        /// The service.
        pub service: GssService,
    }
}

xdr_union! {
    /// `createtype4`.
    #[derive(Copy)]
    pub enum CreateType<'a> {
        /// A regular file, which CREATE does not create: BADTYPE.
        Regular(()) = 1,
        /// A directory.
        Directory(()) = 2,
        /// A block device.
        Block(Device) = 3,
        /// A character device.
        Character(Device) = 4,
        /// A symbolic link, and its path.
        Symlink(Text<'a>) = 5,
        /// A socket.
        Socket(()) = 6,
        /// A named pipe.
        Fifo(()) = 7,
        /// A directory of named attributes, which CREATE does not create: BADTYPE.
        AttrDir(()) = 8,
        /// A named attribute, which CREATE does not create: BADTYPE.
        NamedAttr(()) = 9,
    }
}

xdr_enum! {
    /// `rpc_gss_svc_t` (RFC 2203 §5.2.2).
    pub enum GssService {
        /// Authentication only.
        None = 1,
        /// Integrity.
        Integrity = 2,
        /// Privacy.
        Privacy = 3,
    }

    /// `secinfo_style4` of SECINFO_NO_NAME.
    pub enum SecInfoStyle {
        /// The current file.
        CurrentFh = 0,
        /// Its parent.
        Parent = 1,
    }
}

/// `secinfo4`: a flavor that the server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecInfo<'a> {
    /// RPCSEC_GSS.
    Gss(GssInfo<'a>),
    /// Another one's number, see [`rpc::auth::Flavor`].
    Flavor(u32),
}

const GSS: u32 = rpc::auth::Flavor::Gss as u32;

impl<'a> Xdr<'a> for SecInfo<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match from.u32()? {
            GSS => Xdr::read(from).map(SecInfo::Gss),
            flavor => Ok(SecInfo::Flavor(flavor)),
        }
    }

    fn write(&self, to: &mut Writer<'_>) {
        match self {
            SecInfo::Gss(info) => {
                to.u32(GSS);
                info.write(to);
            }
            SecInfo::Flavor(flavor) => to.u32(*flavor),
        }
    }
}
