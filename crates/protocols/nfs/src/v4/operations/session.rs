//! Clients, sessions and their connections, and stateids as such (RFC 8881 §18.33 to §18.51).

use rpc::auth::AuthSys;
use rpc::xdr::List;
use rpc::{xdr_struct, xdr_union};

use super::names::GssService;
use crate::v4::{
    Bitmap, ChannelFromClient, ChannelFromServer, ClientId, ClientOwner, OwnerId, SessionId, Text, Time,
};

xdr_struct! {
    /// `BACKCHANNEL_CTL4args`.
    #[derive(Copy)]
    pub struct BackchannelCtl<'a> {
        /// The client's program number of callbacks.
        pub program: u32,
        /// Credentials that the server may use for them.
        pub security: List<'a, CallbackSecurity<'a>>,
    }

    /// `gss_cb_handles4`.
    #[derive(Copy)]
    pub struct GssHandles<'a> {
        /// The service.
        pub service: GssService,
        /// The context's handle, from the server.
        pub from_server: Text<'a>,
        /// The context's handle, from the client.
        pub from_client: Text<'a>,
    }

    /// `BIND_CONN_TO_SESSION4args`.
    #[derive(Copy)]
    pub struct BindConnToSession {
        /// The session.
        pub session: SessionId,
        /// Channels that the client requests for the connection.
        pub direction: ChannelFromClient,
        /// The connection steps up to RDMA.
        pub rdma: bool,
    }

    /// `BIND_CONN_TO_SESSION4resok`.
    #[derive(Copy)]
    pub struct BindConnToSessionOk {
        /// The session.
        pub session: SessionId,
        /// Channels to which the connection was bound.
        pub direction: ChannelFromServer,
        /// The connection steps up to RDMA.
        pub rdma: bool,
    }

    /// `state_protect_ops4`.
    #[derive(Copy, Default)]
    pub struct ProtectedOperations {
        /// Operations that need the machine's credential or the SSV.
        pub must_enforce: Bitmap,
        /// Operations that may use it.
        pub must_allow: Bitmap,
    }

    /// `ssv_sp_parms4`.
    #[derive(Copy)]
    pub struct SsvParameters<'a> {
        /// The operations.
        pub operations: ProtectedOperations,
        /// Object IDs of the hash algorithms.
        pub hashes: List<'a, Text<'a>>,
        /// Object IDs of the encryption algorithms.
        pub ciphers: List<'a, Text<'a>>,
        /// Versions of the SSV to keep.
        pub window: u32,
        /// GSS handles to make.
        pub handles: u32,
    }

    /// `ssv_prot_info4`.
    #[derive(Copy)]
    pub struct SsvInfo<'a> {
        /// The operations.
        pub operations: ProtectedOperations,
        /// Index of the hash algorithm.
        pub hash: u32,
        /// Index of the encryption algorithm.
        pub cipher: u32,
        /// Length of the SSV, bytes.
        pub length: u32,
        /// Versions of the SSV to keep.
        pub window: u32,
        /// GSS handles.
        pub handles: List<'a, Text<'a>>,
    }

    /// `nfs_impl_id4`: an implementation's name, of use for diagnosis only.
    #[derive(Copy)]
    pub struct ImplId<'a> {
        /// Domain of its maker.
        pub domain: Text<'a>,
        /// Product and version.
        pub name: Text<'a>,
        /// When it was built.
        pub date: Time,
    }

    /// `EXCHANGE_ID4args`.
    #[derive(Copy)]
    pub struct ExchangeId<'a> {
        /// The client's owner ID and verifier.
        pub client: ClientOwner<'a>,
        /// Bits of [`exchange_id`](crate::v4::flags::exchange_id).
        pub flags: u32,
        /// Requested protection of its state.
        pub protect: StateProtect<'a>,
        /// Its implementation.
        pub implementation: Option<ImplId<'a>>,
    }

    /// `server_owner4`. Servers of equal owners share their state (RFC 8881 §2.10.5).
    #[derive(Copy)]
    pub struct ServerOwner<'a> {
        /// Equal, with `major`: sessions can have connections to both.
        pub minor: u64,
        /// Equal: client IDs can be the same on both.
        pub major: OwnerId<'a>,
    }

    /// `EXCHANGE_ID4resok`.
    #[derive(Copy)]
    pub struct ExchangeIdOk<'a> {
        /// The client's ID.
        pub client: ClientId,
        /// The sequence of the next CREATE_SESSION.
        pub sequence: u32,
        /// Bits of [`exchange_id`](crate::v4::flags::exchange_id).
        pub flags: u32,
        /// Protection of the state.
        pub protect: StateProtected<'a>,
        /// The server's owner.
        pub server: ServerOwner<'a>,
        /// Scope in which handles, owners and stateids mean the same.
        pub scope: OwnerId<'a>,
        /// The server's implementation.
        pub implementation: Option<ImplId<'a>>,
    }

    /// `channel_attrs4`: limits of a session's channel.
    #[derive(Copy, Default)]
    pub struct Channel {
        /// Padding of headers, bytes.
        pub header_padding: u32,
        /// The longest request, bytes, with its RPC header.
        pub max_request: u32,
        /// The longest reply, bytes, with its RPC header.
        pub max_response: u32,
        /// The longest reply that is cached, bytes, with its RPC header.
        pub max_response_cached: u32,
        /// The most operations of a COMPOUND.
        pub max_operations: u32,
        /// Slots.
        pub max_requests: u32,
        /// Depth of inbound RDMA reads. Ignored but on RDMA.
        pub rdma_ird: Option<u32>,
    }

    /// `CREATE_SESSION4args`.
    #[derive(Copy)]
    pub struct CreateSession<'a> {
        /// The client's ID.
        pub client: ClientId,
        /// The sequence ID of EXCHANGE_ID's reply, and one more for each call since.
        pub sequence: u32,
        /// Bits of [`create_session`](crate::v4::flags::create_session).
        pub flags: u32,
        /// The fore channel.
        pub fore: Channel,
        /// The backchannel.
        pub back: Channel,
        /// The client's program number of callbacks.
        pub program: u32,
        /// Credentials that the server may use for them.
        pub security: List<'a, CallbackSecurity<'a>>,
    }

    /// `CREATE_SESSION4resok`.
    #[derive(Copy)]
    pub struct CreateSessionOk {
        /// The session.
        pub session: SessionId,
        /// The sequence ID of the call.
        pub sequence: u32,
        /// Bits of [`create_session`](crate::v4::flags::create_session).
        pub flags: u32,
        /// The fore channel.
        pub fore: Channel,
        /// The backchannel.
        pub back: Channel,
    }

    /// `SEQUENCE4args`.
    #[derive(Copy)]
    pub struct Sequence {
        /// The session.
        pub session: SessionId,
        /// One more than the slot's last; the same in a retry.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// The highest slot with a call outstanding.
        pub highest_slot: u32,
        /// Keep the reply for a retry.
        pub cache: bool,
    }

    /// `SEQUENCE4resok`.
    #[derive(Copy)]
    pub struct SequenceOk {
        /// The session.
        pub session: SessionId,
        /// The sequence ID of the call.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// The highest slot that the server takes.
        pub highest_slot: u32,
        /// The highest slot that the client should use.
        pub target_highest_slot: u32,
        /// Bits of [`sequence_status`](crate::v4::flags::sequence_status).
        pub status_flags: u32,
    }
}

xdr_union! {
    /// `callback_sec_parms4`.
    pub enum CallbackSecurity<'a> {
        /// AUTH_NONE.
        None(()) = 0,
        /// AUTH_SYS.
        Sys(AuthSys<'a>) = 1,
        /// RPCSEC_GSS.
        Gss(GssHandles<'a>) = 6,
    }

    /// `state_protect4_a`.
    #[derive(Copy)]
    pub enum StateProtect<'a> {
        /// SP4_NONE.
        None(()) = 0,
        /// SP4_MACH_CRED.
        MachCred(ProtectedOperations) = 1,
        /// SP4_SSV.
        Ssv(SsvParameters<'a>) = 2,
    }

    /// `state_protect4_r`.
    #[derive(Copy)]
    pub enum StateProtected<'a> {
        /// SP4_NONE.
        None(()) = 0,
        /// SP4_MACH_CRED.
        MachCred(ProtectedOperations) = 1,
        /// SP4_SSV.
        Ssv(SsvInfo<'a>) = 2,
    }
}
