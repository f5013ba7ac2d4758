//! The header of each PDU (RFC 4171 §5.1), the functions (§5.6, §5.7) and the status codes (§5.4).

use crate::Malformed;

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 12;
/// The only version of iSNSP.
pub(crate) const VERSION: u16 = 1;

/// Bits of the Flags field (RFC 4171 §5.1.4).
pub mod flags {
    /// The sender is a client.
    pub const CLIENT: u16 = 0x8000;
    /// The sender is a server.
    pub const SERVER: u16 = 0x4000;
    /// An authentication block follows the payload.
    pub const AUTHENTICATION: u16 = 0x2000;
    /// DevAttrReg: replaces the earlier registration.
    pub const REPLACE: u16 = 0x1000;
    /// The message's last PDU.
    pub const LAST: u16 = 0x0800;
    /// The message's first PDU.
    pub const FIRST: u16 = 0x0400;
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$vdoc:meta])* $variant:ident = $code:literal => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// The value with this code.
            pub fn from_code(code: $int) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// The code on the wire.
            pub fn code(self) -> $int {
                match self { $(Self::$variant => $code,)* }
            }

            /// The name in messages.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

codes! {
    /// The function of a request. A response also has [`RESPONSE`] set.
    Function: u16 {
        /// Registers a device's attributes.
        DevAttrReg = 0x0001 => "DevAttrReg",
        /// Queries attributes.
        DevAttrQry = 0x0002 => "DevAttrQry",
        /// Queries the next object.
        DevGetNext = 0x0003 => "DevGetNext",
        /// Deregisters.
        DevDereg = 0x0004 => "DevDereg",
        /// Subscribes to change notifications.
        ScnReg = 0x0005 => "SCNReg",
        /// Ends a subscription.
        ScnDereg = 0x0006 => "SCNDereg",
        /// Requests that the server notify others of a change.
        ScnEvent = 0x0007 => "SCNEvent",
        /// Notifies of a change.
        Scn = 0x0008 => "SCN",
        /// Entity Status Inquiry: the server checks that a portal is alive.
        Esi = 0x000d => "ESI",
        /// The server announces that it is alive.
        Heartbeat = 0x000e => "Heartbeat",
    }
}

/// The bit of a function that makes it a response.
pub const RESPONSE: u16 = 0x8000;

codes! {
    /// The status of a response.
    Status: u32 {
        /// The request succeeded.
        Success = 0 => "successful",
        /// Failed for an unknown reason.
        Unknown = 1 => "unknown error",
        /// The message is malformed.
        Format = 2 => "message format error",
        /// The registration is invalid.
        InvalidRegistration = 3 => "invalid registration",
        /// The query is invalid.
        InvalidQuery = 5 => "invalid query",
        /// The source is not registered.
        SourceUnknown = 6 => "source unknown",
        /// The message has no source.
        SourceAbsent = 7 => "source absent",
        /// The source is not authorized.
        SourceUnauthorized = 8 => "source unauthorized",
        /// There is no such object.
        NoSuchEntry = 9 => "no such entry",
        /// The version is not supported.
        Version = 10 => "version not supported",
        /// The server failed.
        Internal = 11 => "internal error",
        /// The server is busy.
        Busy = 12 => "busy",
        /// An option is not understood.
        Option = 13 => "option not understood",
        /// The update is invalid.
        InvalidUpdate = 14 => "invalid update",
        /// The message is not supported.
        NotSupported = 15 => "message not supported",
        /// The event was rejected.
        ScnEventRejected = 16 => "SCN event rejected",
        /// The subscription to events was rejected.
        ScnRegistrationRejected = 17 => "SCN registration rejected",
        /// An attribute is not implemented.
        AttributeNotImplemented = 18 => "attribute not implemented",
        /// The server cannot send ESI.
        EsiNotAvailable = 21 => "ESI not available",
        /// The deregistration is invalid.
        InvalidDeregistration = 22 => "invalid deregistration",
        /// The feature is not supported.
        FeatureNotSupported = 23 => "registration feature not supported",
    }
}

/// A PDU's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The function; a response has [`RESPONSE`] set.
    pub function: u16,
    /// Bytes of the payload, a multiple of 4.
    pub length: u16,
    /// [`flags`].
    pub flags: u16,
    /// Matches a response to its request.
    pub transaction: u16,
    /// The PDU's number in its message, from 0.
    pub sequence: u16,
}

impl Header {
    /// Reads a header; `None` if there are too few bytes.
    ///
    /// # Errors
    /// [`Malformed`] for another version or an invalid length.
    pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
        let Some(bytes) = bytes.get(..HEADER_LEN) else { return Ok(None) };
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if word(0) != VERSION {
            return Err(Malformed::Version(word(0)));
        }
        if word(4) % 4 != 0 {
            return Err(Malformed::Length);
        }
        Ok(Some(Header {
            function: word(2),
            length: word(4),
            flags: word(6),
            transaction: word(8),
            sequence: word(10),
        }))
    }

    /// Appends the header to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        for word in [VERSION, self.function, self.length, self.flags, self.transaction, self.sequence] {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }
}
