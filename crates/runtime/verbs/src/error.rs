//! Errors, by who must act on them.

use std::io;

/// Why rdma-core cannot be used on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A shared library is not installed, or does not load.
    #[error("{library} is not there: install rdma-core ({why})")]
    Library {
        /// File name of the library.
        library: &'static str,
        /// The dynamic loader's message.
        why: String,
    },
    /// A shared library is too old, or another library of that name.
    #[error("{library} has no function {function}: install a newer rdma-core")]
    Function {
        /// File name of the library.
        library: &'static str,
        /// Name of the function.
        function: &'static str,
    },
}

/// An error of a device, a connection or one of its operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// rdma-core cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel does not support RDMA connections.
    #[error(
        "no RDMA device is up ({0}): `rdma link` lists them, /dev/infiniband/rdma_cm comes with the kernel module rdma_ucm"
    )]
    NoDevice(#[source] io::Error),
    /// A call of the library failed.
    #[error("{call}: {source}")]
    Call { call: &'static str, source: io::Error },
    /// No route to the peer through an RDMA device.
    #[error("the peer's address cannot be reached over RDMA (status {status})")]
    NoRoute {
        /// The connection manager's status, mostly a negative errno.
        status: i32,
    },
    /// The peer rejected the connection.
    #[error("the peer rejected the connection (reason {reason})")]
    Rejected {
        /// The connection manager's reason: the REJ's code for InfiniBand; a negative errno for
        /// iWARP.
        reason: i32,
        /// The peer's private data; may be padded with zeros.
        private_data: Vec<u8>,
    },
    /// No answer from the peer's address.
    #[error("the peer does not answer (status {status})")]
    Unreachable {
        /// The connection manager's status.
        status: i32,
    },
    /// The connection ended, by the peer or by [`crate::QueuePair::disconnect`].
    #[error("the connection has ended")]
    Disconnected,
    #[error("the RDMA device was removed")]
    DeviceRemoved,
    /// One of our operations failed, and the queue pair with it.
    #[error("{operation} failed: {status}")]
    Operation {
        /// Name of the operation.
        operation: &'static str,
        /// The device's status text.
        status: String,
    },
    /// A value above the limit of the library, the device or the options.
    #[error("{what}: {asked} is more than {limit}")]
    TooMuch {
        /// Name of the value.
        what: &'static str,
        asked: usize,
        limit: usize,
    },
    /// The core's pool, or the memory that may be registered, is exhausted.
    #[error("no memory is left for {0}")]
    NoMemory(&'static str),
    /// The memory is not exposed, or no longer.
    #[error("steering tag {0:#010x} names nothing here")]
    UnknownStag(u32),
}

impl Error {
    /// The error of a call that just failed and set errno.
    pub(crate) fn call(call: &'static str) -> Self {
        Self::Call { call, source: io::Error::last_os_error() }
    }

    /// Like [`Self::call`], for a call that returns its errno.
    pub(crate) fn code(call: &'static str, code: i32) -> Self {
        Self::Call { call, source: io::Error::from_raw_os_error(code) }
    }
}
