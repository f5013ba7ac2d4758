//! The device's objects of one connection: identifier, completion queue and channel, queue pair.
//! Creates them, calls through them, and destroys them in the right order; knows no work.

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use crate::abi::{self, CompChannel, Cq, QpCap, QpInitAttr, RecvWr, SendWr, Wc};
use crate::cm::{Id, check, set_nonblocking};
use crate::domain::Domain;
use crate::error::Error;
use crate::library::Library;
use crate::options::Options;

/// See the module. The domain is dropped before the identifier, which keeps the device's context
/// open.
pub(crate) struct Endpoint {
    library: &'static Library,
    domain: Rc<Domain>,
    id: Id,
    channel: NonNull<CompChannel>,
    cq: NonNull<Cq>,
    /// True until the connection ends.
    has_queue_pair: bool,
}

impl Endpoint {
    /// Creates the queues for a connection through `id`, with the options' numbers of sends and
    /// receives, or the device's maximum. Returns the endpoint and both numbers.
    pub(crate) fn new(id: Id, options: &Options) -> Result<(Self, u32, u32), Error> {
        let library = id.library();
        // SAFETY: the identifier holds the device, and is in the same structure as the domain,
        // which is dropped first.
        let domain = unsafe { Domain::for_connection(library, id.context()?, options.unsound_windows) }?;
        let limits = domain.limits();
        let sends = options.sends.clamp(4, limits.work_requests.min(4096));
        let receives = options.receives.clamp(1, limits.work_requests.min(16 << 10));
        let entries = (sends + receives + 2).min(limits.completions);
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(domain.context()) };
        let channel = NonNull::new(channel).ok_or_else(|| Error::call("ibv_create_comp_channel"))?;
        // SAFETY: the channel was just created on this context.
        let cq = unsafe {
            (library.ibv_create_cq)(domain.context(), entries as i32, ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = Error::call("ibv_create_cq");
            // SAFETY: the channel was created above and is not in use.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let mut endpoint = Self { library, domain, id, channel, cq, has_queue_pair: false };
        let mut attributes = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: limits.sges as u32,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: identifier, domain and completion queue belong to one context and outlive the
        // queue pair.
        let rc = unsafe {
            (library.rdma_create_qp)(endpoint.id.raw(), endpoint.domain.raw(), &raw mut attributes)
        };
        check("rdma_create_qp", rc)?;
        endpoint.has_queue_pair = true;
        let fd = endpoint.completion_fd().try_clone_to_owned();
        set_nonblocking(&fd.map_err(|source| Error::Call { call: "dup", source })?)?;
        Ok((endpoint, sends, receives))
    }

    pub(crate) fn domain(&self) -> &Rc<Domain> {
        &self.domain
    }

    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    /// Readable when there is a completion after a call of [`Self::arm`].
    pub(crate) fn completion_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self` exists, and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Destroys the queue pair: afterwards the device no longer accesses its memory.
    pub(crate) fn destroy_queue_pair(&mut self) {
        if std::mem::take(&mut self.has_queue_pair) {
            // SAFETY: the queue pair was created on this identifier, and is destroyed once.
            unsafe { (self.library.rdma_destroy_qp)(self.id.raw()) };
        }
    }

    fn queue_pair(&self) -> Result<*mut abi::Qp, Error> {
        // SAFETY: the identifier is valid.
        if self.has_queue_pair { Ok(unsafe { (*self.id.raw()).qp }) } else { Err(Error::Disconnected) }
    }

    /// The functions that the headers call through the context.
    fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context is open as long as the identifier exists, and its table does not
        // change.
        unsafe { &(*self.domain.context()).ops }
    }

    /// Posts a list of work requests.
    ///
    /// # Safety
    /// The list and its elements are valid. The referenced memory is registered for this domain and
    /// stays until its completion or [`Self::destroy_queue_pair`].
    pub(crate) unsafe fn post_send(&self, list: *mut SendWr) -> Result<(), Error> {
        let queue_pair = self.queue_pair()?;
        let Some(post_send) = self.ops().post_send else { return Err(unsupported("ibv_post_send")) };
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees a valid list; the queue pair exists.
        let code = unsafe { post_send(queue_pair, list, &raw mut bad) };
        if code == 0 { Ok(()) } else { Err(Error::code("ibv_post_send", code)) }
    }

    /// Posts a list of receives.
    ///
    /// # Safety
    /// As for [`Self::post_send`].
    pub(crate) unsafe fn post_recv(&self, list: *mut RecvWr) -> Result<(), Error> {
        let queue_pair = self.queue_pair()?;
        let Some(post_recv) = self.ops().post_recv else { return Err(unsupported("ibv_post_recv")) };
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees a valid list; the queue pair exists.
        let code = unsafe { post_recv(queue_pair, list, &raw mut bad) };
        if code == 0 { Ok(()) } else { Err(Error::code("ibv_post_recv", code)) }
    }

    /// Takes completions; returns their number.
    pub(crate) fn poll(&self, into: &mut [Wc]) -> Result<usize, Error> {
        let Some(poll_cq) = self.ops().poll_cq else { return Err(unsupported("ibv_poll_cq")) };
        // SAFETY: the queue exists as long as `self`; `into` has room for the requested number.
        let n = unsafe { poll_cq(self.cq.as_ptr(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(n).map_err(|_| Error::code("ibv_poll_cq", n.wrapping_neg()))
    }

    /// Makes the channel readable at the next completion.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        let Some(notify) = self.ops().req_notify_cq else { return Err(unsupported("ibv_req_notify_cq")) };
        // SAFETY: the queue exists as long as `self`.
        let code = unsafe { notify(self.cq.as_ptr(), 0) };
        if code == 0 { Ok(()) } else { Err(Error::code("ibv_req_notify_cq", code)) }
    }

    /// Takes the channel's pending event. Returns whether there was one.
    pub(crate) fn take_event(&self) -> bool {
        let (mut cq, mut context): (*mut Cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open and does not block; events of its only queue are acknowledged
        // when taken.
        unsafe {
            let taken =
                (self.library.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context) == 0;
            if taken {
                (self.library.ibv_ack_cq_events)(cq, 1);
            }
            taken
        }
    }

    /// The text of a completion's status.
    pub(crate) fn status(&self, wc: &Wc) -> String {
        // SAFETY: the library's texts are static, and end with a zero.
        let text = unsafe {
            let text = (self.library.ibv_wc_status_str)(wc.status);
            if text.is_null() { "?".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        format!("{text} (status {}, vendor's {:#x})", wc.status, wc.vendor_err)
    }
}

fn unsupported(call: &'static str) -> Error {
    Error::Call { call, source: io::ErrorKind::Unsupported.into() }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.destroy_queue_pair();
        // SAFETY: the queue pair is destroyed and the queue's events were acknowledged when taken.
        // Each object is destroyed once, the channel last.
        unsafe {
            (self.library.ibv_destroy_cq)(self.cq.as_ptr());
            (self.library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
