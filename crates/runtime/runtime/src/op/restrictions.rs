//! Operations that a ring accepts: those that this crate submits, and no others.
//!
//! System call filters do not see operations of a ring. The kernel restricts a ring to this list
//! instead (`IORING_REGISTER_RESTRICTIONS`), so that code that gets hold of the queue can neither
//! open files nor rename them. An operation that is missing here fails with EACCES: add it to the
//! list when you submit it.

use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};

/// Operations that may be submitted.
const OPERATIONS: [u8; 17] = [
    opcode::Nop::CODE,
    opcode::Accept::CODE,
    opcode::Connect::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
    opcode::Close::CODE,
];

/// Registrations that are allowed (`enum io_uring_register_op` of the kernel's ABI).
const REGISTRATIONS: [u8; 6] = [
    15, // IORING_REGISTER_BUFFERS2
    16, // IORING_REGISTER_BUFFERS_UPDATE
    20, // IORING_REGISTER_RING_FDS
    21, // IORING_UNREGISTER_RING_FDS
    22, // IORING_REGISTER_PBUF_RING
    23, // IORING_UNREGISTER_PBUF_RING
];

/// The flags that entries may have.
const FLAGS: squeue::Flags = squeue::Flags::SKIP_SUCCESS.union(squeue::Flags::BUFFER_SELECT);

/// Restricts a ring that was set up disabled, and enables it.
pub(super) fn apply(ring: &IoUring) -> io::Result<()> {
    let operations = OPERATIONS.into_iter().map(Restriction::sqe_op);
    let registrations = REGISTRATIONS.into_iter().map(Restriction::register_op);
    let flags = Restriction::sqe_flags_allowed(FLAGS.bits());
    let mut all: Vec<Restriction> = operations.chain(registrations).chain([flags]).collect();
    let submitter = ring.submitter();
    submitter.register_restrictions(&mut all)?;
    submitter.register_enable_rings()
}
