//! Authentication of RPC (RFC 5531 §8): flavors, AUTH_NONE and AUTH_SYS (appendix A).

use arrayvec::ArrayVec;

use crate::message::AuthStat;
use crate::xdr::{self, Opaque};
use crate::{xdr_enum, xdr_struct};

/// The longest body of a credential or verifier, bytes (RFC 5531 §8.2).
pub const MAX_AUTH_BODY: usize = 400;
/// The longest machine name of AUTH_SYS, bytes (RFC 5531 appendix A).
pub const MAX_MACHINE_NAME: usize = 255;
/// The most supplementary groups of AUTH_SYS (RFC 5531 appendix A).
pub const MAX_GROUPS: usize = 16;
/// Body of the verifier that accepts TLS on a connection (RFC 9289 §4.1).
pub const STARTTLS: &[u8] = b"STARTTLS";

xdr_enum! {
    /// The known flavors (RFC 5531 §8.2, RFC 2203, RFC 9289).
    pub enum Flavor {
        /// AUTH_NONE: no identity.
        None = 0,
        /// AUTH_SYS: an identity that the client claims.
        Sys = 1,
        /// AUTH_SHORT: a server's shorthand for AUTH_SYS.
        Short = 2,
        /// AUTH_DH, obsolete.
        Dh = 3,
        /// RPCSEC_GSS (RFC 2203).
        Gss = 6,
        /// AUTH_TLS, a probe for TLS (RFC 9289 §4.1).
        Tls = 7,
    }
}

xdr_struct! {
    /// A credential or verifier, `opaque_auth` (RFC 5531 §8.2).
    #[derive(Copy)]
    pub struct OpaqueAuth<'a> {
        /// The flavor's number; [`Flavor`] has those that are known.
        pub flavor: u32,
        /// The flavor's own data.
        pub body: Opaque<'a, MAX_AUTH_BODY>,
    }

    /// The credential of AUTH_SYS, `authsys_parms` (RFC 5531 appendix A).
    pub struct AuthSys<'a> {
        /// An arbitrary number of the client's.
        pub stamp: u32,
        /// The client's name for itself.
        pub machine: Opaque<'a, MAX_MACHINE_NAME>,
        /// The effective user ID.
        pub uid: u32,
        /// The effective group ID.
        pub gid: u32,
        /// Supplementary groups.
        pub gids: ArrayVec<u32, MAX_GROUPS>,
    }
}

/// A decoded credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential<'a> {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys<'a>),
    /// Another flavor.
    Other(OpaqueAuth<'a>),
}

impl<'a> OpaqueAuth<'a> {
    /// AUTH_NONE: the credential of a call without an identity, and the usual verifier.
    pub const NONE: Self = OpaqueAuth { flavor: Flavor::None as u32, body: Opaque::EMPTY };

    /// The credential. The body of AUTH_NONE is ignored (RFC 5531 §10.1).
    ///
    /// # Errors
    /// [`AuthStat::BadCred`] if the body does not fit the flavor.
    pub fn credential(&self) -> Result<Credential<'a>, AuthStat> {
        match Flavor::from_code(self.flavor) {
            Some(Flavor::None) => Ok(Credential::None),
            Some(Flavor::Sys) => {
                xdr::decode(self.body.bytes()).map(Credential::Sys).map_err(|_| AuthStat::BadCred)
            }
            _ => Ok(Credential::Other(*self)),
        }
    }
}

impl AuthSys<'_> {
    /// The credential, with its body in `buffer`.
    pub fn auth<'b>(&self, buffer: &'b mut Vec<u8>) -> OpaqueAuth<'b> {
        buffer.clear();
        xdr::Xdr::write(self, &mut xdr::Writer::new(buffer));
        // 4 + 4 + 256 + 4 + 4 + 4 + 64 bytes at most, so the body always fits.
        OpaqueAuth { flavor: Flavor::Sys.code(), body: Opaque::new(buffer).unwrap_or(Opaque::EMPTY) }
    }
}
