//! The structures and constants of libibverbs.so.1 and librdmacm.so.1 that this crate uses, as in
//! their public headers (`infiniband/verbs.h`, `rdma/rdma_cma.h`). This ABI has been stable since
//! rdma-core began, and only grows at the ends of structures. Only declarations, and tests that
//! their layouts equal those of the C compiler. This file calls nothing.
//!
//! Structures that only the library allocates end here after the last used field.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, its beginning.
#[repr(C)]
pub(crate) struct Device {
    ops: [*mut c_void; 2],
    node_type: c_int,
    /// [`TRANSPORT_IWARP`] or another value.
    pub(crate) transport_type: c_int,
}

/// `IBV_TRANSPORT_IWARP`.
pub(crate) const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_context_ops`: the functions that the headers' inline functions call. Members that
/// programs must not call are opaque.
#[repr(C)]
pub(crate) struct ContextOps {
    before_alloc_mw: [*mut c_void; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    bind_mw: *mut c_void,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    create_cq: *mut c_void,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    before_post_send: [*mut c_void; 12],
    pub(crate) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(crate) post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after_post_recv: [*mut c_void; 5],
}

/// `struct ibv_context`, its beginning.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttr {
    fw_ver: [c_char; 64],
    /// In network byte order.
    pub(crate) node_guid: u64,
    sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    pub(crate) vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(crate) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    atomic_cap: c_int,
    max_ee: c_int,
    max_rdd: c_int,
    pub(crate) max_mw: c_int,
    rest_of_limits: [c_int; 11],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
}

/// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`.
pub(crate) const DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
/// `IBV_MW_TYPE_2`.
pub(crate) const MW_TYPE_2: c_int = 2;

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    context: *mut Context,
    handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) context: *mut Context,
    pd: *mut Pd,
    pub(crate) rkey: u32,
    handle: u32,
    kind: c_int,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MwBindInfo {
    pub(crate) mr: *mut Mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: c_uint,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`, with the union members for reliable connections.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// `invalidate_rkey`, or immediate data.
    pub(crate) invalidate_rkey: u32,
    /// `wr.rdma.remote_addr`.
    pub(crate) remote_addr: u64,
    /// `wr.rdma.rkey`.
    pub(crate) rkey: u32,
    pub(crate) rest_of_wr: [u32; 5],
    pub(crate) qp_type: u32,
    /// `bind_mw`.
    pub(crate) mw: *mut Mw,
    /// `bind_mw.rkey`.
    pub(crate) mw_rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}

impl SendWr {
    /// All zeros: an RDMA Write without data.
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        invalidate_rkey: 0,
        remote_addr: 0,
        rkey: 0,
        rest_of_wr: [0; 5],
        qp_type: 0,
        mw: std::ptr::null_mut(),
        mw_rkey: 0,
        bind_info: MwBindInfo { mr: std::ptr::null_mut(), addr: 0, length: 0, access: 0 },
    };
}

pub(crate) const WR_RDMA_WRITE: c_int = 0;
pub(crate) const WR_SEND: c_int = 2;
pub(crate) const WR_RDMA_READ: c_int = 4;
pub(crate) const WR_LOCAL_INV: c_int = 7;
pub(crate) const WR_BIND_MW: c_int = 8;
pub(crate) const WR_SEND_WITH_INV: c_int = 9;

pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const SEND_SOLICITED: c_uint = 1 << 2;

pub(crate) const ACCESS_LOCAL_WRITE: c_uint = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
pub(crate) const ACCESS_REMOTE_READ: c_uint = 1 << 2;
pub(crate) const ACCESS_MW_BIND: c_uint = 1 << 4;

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// `invalidated_rkey`, or immediate data.
    pub(crate) invalidated_rkey: u32,
    qp_num: u32,
    src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

impl Wc {
    /// All zeros.
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        status: 0,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        invalidated_rkey: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
}

pub(crate) const WC_SUCCESS: c_int = 0;
pub(crate) const WC_WR_FLUSH_ERR: c_int = 5;
/// `IBV_WC_WITH_INV`.
pub(crate) const WC_WITH_INV: c_uint = 1 << 3;
/// `IB_WC_WITH_INVALIDATE`, the kernel's value of the same flag, which Linux' rxe passes to user
/// space unchanged.
pub(crate) const WC_WITH_INV_OF_RXE: c_uint = 1 << 2;
/// The vendor's ID of Linux' rxe.
pub(crate) const VENDOR_RXE: u32 = 0xff_ffff;

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `IBV_QPT_RC`.
pub(crate) const QPT_RC: c_int = 2;

/// `struct ibv_qp`, its beginning.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
}

/// `struct ibv_cq`, its beginning.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
}

/// `struct ibv_comp_channel`, its beginning.
#[repr(C)]
pub(crate) struct CompChannel {
    context: *mut Context,
    pub(crate) fd: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `struct rdma_cm_id`, its beginning: up to the first address of its route and the second.
#[repr(C)]
pub(crate) struct CmId {
    pub(crate) verbs: *mut Context,
    pub(crate) channel: *mut EventChannel,
    context: *mut c_void,
    pub(crate) qp: *mut Qp,
    pub(crate) src_addr: libc::sockaddr_storage,
    pub(crate) dst_addr: libc::sockaddr_storage,
}

/// `RDMA_PS_TCP`.
pub(crate) const PS_TCP: c_int = 0x0106;

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `struct rdma_cm_event`, with the union member for connections. The library allocates it, so its
/// end does not matter.
#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) id: *mut CmId,
    pub(crate) listen_id: *mut CmId,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) conn: ConnParam,
}

/// `enum rdma_cm_event_type`, the values for connections.
pub(crate) mod event {
    use std::ffi::c_int;
    pub(crate) const ADDR_RESOLVED: c_int = 0;
    pub(crate) const ADDR_ERROR: c_int = 1;
    pub(crate) const ROUTE_RESOLVED: c_int = 2;
    pub(crate) const ROUTE_ERROR: c_int = 3;
    pub(crate) const CONNECT_REQUEST: c_int = 4;
    pub(crate) const CONNECT_ERROR: c_int = 6;
    pub(crate) const UNREACHABLE: c_int = 7;
    pub(crate) const REJECTED: c_int = 8;
    pub(crate) const ESTABLISHED: c_int = 9;
    pub(crate) const DISCONNECTED: c_int = 10;
    pub(crate) const DEVICE_REMOVAL: c_int = 11;
    pub(crate) const ADDR_CHANGE: c_int = 14;
    pub(crate) const TIMEWAIT_EXIT: c_int = 15;
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// The numbers come from a C compiler on x86-64 and on aarch64 (LP64), with rdma-core 44's
    /// headers.
    #[test]
    fn structures_that_the_library_reads_have_the_layout_of_its_headers() {
        assert_eq!(size_of::<Sge>(), 16);
        assert_eq!(size_of::<SendWr>(), 128);
        assert_eq!(offset_of!(SendWr, invalidate_rkey), 36);
        assert_eq!(offset_of!(SendWr, remote_addr), 40);
        assert_eq!(offset_of!(SendWr, rkey), 48);
        assert_eq!(offset_of!(SendWr, qp_type), 72);
        assert_eq!(offset_of!(SendWr, mw), 80);
        assert_eq!(offset_of!(SendWr, mw_rkey), 88);
        assert_eq!(offset_of!(SendWr, bind_info), 96);
        assert_eq!(size_of::<MwBindInfo>(), 32);
        assert_eq!(size_of::<RecvWr>(), 32);
        assert_eq!(size_of::<QpCap>(), 20);
        assert_eq!(size_of::<QpInitAttr>(), 64);
        assert_eq!(offset_of!(QpInitAttr, cap), 32);
        assert_eq!(offset_of!(QpInitAttr, qp_type), 52);
        assert_eq!(size_of::<ConnParam>(), 24);
        assert_eq!(offset_of!(ConnParam, private_data_len), 8);
        assert_eq!(offset_of!(ConnParam, responder_resources), 9);
        assert_eq!(offset_of!(ConnParam, initiator_depth), 10);
        assert_eq!(offset_of!(ConnParam, rnr_retry_count), 13);
        assert_eq!(offset_of!(ConnParam, qp_num), 16);
    }

    #[test]
    fn structures_that_the_library_writes_have_the_layout_of_its_headers() {
        assert_eq!(size_of::<DeviceAttr>(), 232);
        assert_eq!(offset_of!(DeviceAttr, max_qp), 108);
        assert_eq!(offset_of!(DeviceAttr, device_cap_flags), 116);
        assert_eq!(offset_of!(DeviceAttr, max_sge), 120);
        assert_eq!(offset_of!(DeviceAttr, max_qp_rd_atom), 144);
        assert_eq!(offset_of!(DeviceAttr, max_qp_init_rd_atom), 156);
        assert_eq!(offset_of!(DeviceAttr, max_mw), 176);
        assert_eq!(offset_of!(DeviceAttr, phys_port_cnt), 227);
        assert_eq!(size_of::<Wc>(), 48);
        assert_eq!(offset_of!(Wc, byte_len), 20);
        assert_eq!(offset_of!(Wc, invalidated_rkey), 24);
        assert_eq!(offset_of!(Wc, wc_flags), 36);
    }

    #[test]
    fn structures_of_the_library_have_the_field_offsets_of_its_headers() {
        assert_eq!(offset_of!(Device, transport_type), 20);
        assert_eq!(size_of::<ContextOps>(), 256);
        let ops = offset_of!(Context, ops);
        assert_eq!(ops, 8);
        assert_eq!(ops + offset_of!(ContextOps, alloc_mw), 64);
        assert_eq!(ops + offset_of!(ContextOps, dealloc_mw), 80);
        assert_eq!(ops + offset_of!(ContextOps, poll_cq), 96);
        assert_eq!(ops + offset_of!(ContextOps, req_notify_cq), 104);
        assert_eq!(ops + offset_of!(ContextOps, post_send), 208);
        assert_eq!(ops + offset_of!(ContextOps, post_recv), 216);
        assert_eq!(offset_of!(Context, cmd_fd), 264);
        assert_eq!(offset_of!(Context, num_comp_vectors), 272);
        assert_eq!(offset_of!(Mr, lkey), 36);
        assert_eq!(offset_of!(Mr, rkey), 40);
        assert_eq!(offset_of!(Mw, rkey), 16);
        assert_eq!(offset_of!(CompChannel, fd), 8);
        assert_eq!(offset_of!(CmId, verbs), 0);
        assert_eq!(offset_of!(CmId, channel), 8);
        assert_eq!(offset_of!(CmId, qp), 24);
        assert_eq!(offset_of!(CmId, src_addr), 32);
        assert_eq!(offset_of!(CmId, dst_addr), 160);
        assert_eq!(offset_of!(CmEvent, listen_id), 8);
        assert_eq!(offset_of!(CmEvent, event), 16);
        assert_eq!(offset_of!(CmEvent, status), 20);
        assert_eq!(offset_of!(CmEvent, conn), 24);
    }
}
