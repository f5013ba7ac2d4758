//! RPC messages (RFC 5531 §9): calls, and replies in all their states.
//!
//! ```text
//! call:  xid | 0 | 2 | program | version | procedure | credential | verifier | arguments
//! reply: xid | 1 | 0 accepted | verifier | accept_stat | results, or low and high
//!        xid | 1 | 1 denied | reject_stat | low and high, or auth_stat
//! ```

use crate::auth::OpaqueAuth;
use crate::xdr::{Malformed, Reader, Writer, Xdr};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// The only version of RPC.
pub const RPC_VERSION: u32 = 2;
const CALL: u32 = 0;
const REPLY: u32 = 1;

/// The header of a call; its arguments follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Matches the reply; the same in a retransmission.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Identity of the caller.
    pub credential: OpaqueAuth<'a>,
    /// Proof of that identity.
    pub verifier: OpaqueAuth<'a>,
}

/// The header of a reply; the results follow if it is [`AcceptStat::Success`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// XID of the call.
    pub xid: u32,
    /// Outcome of the call.
    pub body: ReplyBody<'a>,
}

xdr_struct! {
    /// A range of supported versions.
    #[derive(Copy)]
    pub struct Versions {
        /// The lowest.
        pub low: u32,
        /// The highest.
        pub high: u32,
    }

    /// A reply of a server that took the call, `accepted_reply`.
    #[derive(Copy)]
    pub struct Accepted<'a> {
        /// Proof of the server's identity.
        pub verifier: OpaqueAuth<'a>,
        /// Outcome of the call.
        pub stat: AcceptStat,
    }
}

xdr_union! {
    /// `reply_body`.
    #[derive(Copy)]
    pub enum ReplyBody<'a> {
        /// MSG_ACCEPTED.
        Accepted(Accepted<'a>) = 0,
        /// MSG_DENIED.
        Denied(RejectStat) = 1,
    }

    /// `accept_stat`, and what follows it.
    #[derive(Copy)]
    pub enum AcceptStat {
        /// The results follow.
        Success(()) = 0,
        /// The program is not served here.
        ProgUnavail(()) = 1,
        /// The program is served in these versions.
        ProgMismatch(Versions) = 2,
        /// The program's version has no such procedure.
        ProcUnavail(()) = 3,
        /// The arguments cannot be decoded.
        GarbageArgs(()) = 4,
        /// The server cannot execute the call.
        SystemErr(()) = 5,
    }

    /// `reject_stat`, and what follows it.
    #[derive(Copy)]
    pub enum RejectStat {
        /// RPC is served in these versions.
        RpcMismatch(Versions) = 0,
        /// The call's credential or verifier is refused.
        AuthError(AuthStat) = 1,
    }
}

xdr_enum! {
    /// Why authentication failed, `auth_stat` (RFC 5531 §9, RFC 2203 §5.1).
    pub enum AuthStat {
        /// No failure.
        Ok = 0,
        /// The credential is malformed.
        BadCred = 1,
        /// The client must begin a new session.
        RejectedCred = 2,
        /// The verifier is malformed.
        BadVerf = 3,
        /// The verifier expired or was replayed.
        RejectedVerf = 4,
        /// The flavor is too weak for this server.
        TooWeak = 5,
        /// At the client: the reply's verifier is invalid.
        InvalidResp = 6,
        /// Another reason.
        Failed = 7,
        /// A Kerberos error.
        KerbGeneric = 8,
        /// The credential expired.
        TimeExpire = 9,
        /// A problem with the ticket file.
        TktFile = 10,
        /// The authenticator cannot be decoded.
        Decode = 11,
        /// The ticket has the wrong network address.
        NetAddr = 12,
        /// RPCSEC_GSS: no credentials for this user.
        GssCredProblem = 13,
        /// RPCSEC_GSS: the context is unknown; make a new one.
        GssCtxProblem = 14,
    }
}

/// Why a received call has no usable header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCall {
    /// No call at all. There is nothing to reply to: drop the connection.
    #[error("not an RPC call: {0}")]
    Malformed(#[from] Malformed),
    /// A call that can only be denied.
    #[error("the call with XID {xid:08x} must be denied: {stat:?}")]
    Denied {
        /// XID of the call.
        xid: u32,
        /// The reason.
        stat: RejectStat,
    },
}

impl BadCall {
    /// The reply, if there can be one.
    pub fn reply(&self) -> Option<Reply<'static>> {
        match *self {
            BadCall::Malformed(_) => None,
            BadCall::Denied { xid, stat } => Some(Reply { xid, body: ReplyBody::Denied(stat) }),
        }
    }
}

impl<'a> Call<'a> {
    /// Reads a call's header; `from` is at its arguments afterwards.
    ///
    /// # Errors
    /// [`BadCall`]. A call of another version of RPC, or with a malformed credential or verifier,
    /// has a reply.
    pub fn read(from: &mut Reader<'a>) -> Result<Self, BadCall> {
        let xid = from.u32()?;
        match from.u32()? {
            CALL => {}
            value => return Err(Malformed::Unknown { what: "msg_type", value }.into()),
        }
        if from.u32()? != RPC_VERSION {
            let stat = RejectStat::RpcMismatch(Versions { low: RPC_VERSION, high: RPC_VERSION });
            return Err(BadCall::Denied { xid, stat });
        }
        let (program, version, procedure) = (from.u32()?, from.u32()?, from.u32()?);
        let denied = |stat| move |_| BadCall::Denied { xid, stat: RejectStat::AuthError(stat) };
        let credential = OpaqueAuth::read(from).map_err(denied(AuthStat::BadCred))?;
        let verifier = OpaqueAuth::read(from).map_err(denied(AuthStat::BadVerf))?;
        Ok(Call { xid, program, version, procedure, credential, verifier })
    }

    /// Appends the header.
    pub fn write(&self, to: &mut Writer<'_>) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            to.u32(word);
        }
        self.credential.write(to);
        self.verifier.write(to);
    }
}

impl<'a> Reply<'a> {
    /// A reply to an accepted call, with the verifier AUTH_NONE.
    pub fn accepted(xid: u32, stat: AcceptStat) -> Self {
        Reply { xid, body: ReplyBody::Accepted(Accepted { verifier: OpaqueAuth::NONE, stat }) }
    }

    /// A reply to a refused credential or verifier.
    pub fn auth_error(xid: u32, stat: AuthStat) -> Self {
        Reply { xid, body: ReplyBody::Denied(RejectStat::AuthError(stat)) }
    }

    /// Reads a reply's header; `from` is at its results afterwards.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let xid = from.u32()?;
        match from.u32()? {
            REPLY => Ok(Reply { xid, body: ReplyBody::read(from)? }),
            value => Err(Malformed::Unknown { what: "msg_type", value }),
        }
    }

    /// Appends the header.
    pub fn write(&self, to: &mut Writer<'_>) {
        to.u32(self.xid);
        to.u32(REPLY);
        self.body.write(to);
    }

    /// Whether the results follow.
    pub fn is_success(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted(Accepted { stat: AcceptStat::Success(()), .. }))
    }
}

/// Header at the start of a record. Where both sides call, as with NFSv4.1's back channel, a
/// connection carries both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A call; its arguments follow.
    Call(Call<'a>),
    /// A reply; its results may follow.
    Reply(Reply<'a>),
}

impl<'a> Message<'a> {
    /// Reads a header.
    ///
    /// # Errors
    /// [`BadCall`].
    pub fn read(from: &mut Reader<'a>) -> Result<Self, BadCall> {
        let mut ahead = *from;
        ahead.u32()?;
        match ahead.u32()? {
            REPLY => Ok(Message::Reply(Reply::read(from)?)),
            _ => Call::read(from).map(Message::Call),
        }
    }
}
