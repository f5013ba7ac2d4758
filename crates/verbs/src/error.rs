//! What can go wrong, by who must do something about it.

use std::io;

/// Why rdma-core cannot be used on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A shared library is not installed, or does not load.
    #[error("{library} is not there: install rdma-core ({why})")]
    Library {
        /// Its file name.
        library: &'static str,
        /// What the dynamic loader said.
        why: String,
    },
    /// A shared library is too old or not what its name says.
    #[error("{library} has no function {function}: install a newer rdma-core")]
    Function {
        /// Its file name.
        library: &'static str,
        /// The function's name.
        function: &'static str,
    },
}

/// What went wrong with a device, a connection or one of its operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// rdma-core cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel offers no RDMA connections.
    #[error(
        "no RDMA device is up ({0}): `rdma link` lists them, /dev/infiniband/rdma_cm comes with the kernel module rdma_ucm"
    )]
    NoDevice(#[source] io::Error),
    /// A call of the library failed.
    #[error("{call}: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
    /// No route to the peer through an RDMA device.
    #[error("the peer's address cannot be reached over RDMA (status {status})")]
    NoRoute {
        /// The connection manager's status, mostly a negative errno.
        status: i32,
    },
    /// The peer did not take the connection.
    #[error("the peer rejected the connection (reason {reason})")]
    Rejected {
        /// The connection manager's reason: of InfiniBand, the REJ's code; of iWARP, a negative errno.
        reason: i32,
        /// What the peer said about it; may be padded with zeros.
        private_data: Vec<u8>,
    },
    /// Nobody answered at the peer's address.
    #[error("the peer does not answer (status {status})")]
    Unreachable {
        /// The connection manager's status.
        status: i32,
    },
    /// The connection ended, by the peer or by [`crate::QueuePair::disconnect`].
    #[error("the connection has ended")]
    Disconnected,
    /// The device has gone.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
    /// One of our operations failed, and the queue pair with it.
    #[error("{operation} failed: {status}")]
    Operation {
        /// What was asked.
        operation: &'static str,
        /// What the device said about it.
        status: String,
    },
    /// More was asked than the library, the device or the options allow.
    #[error("{what}: {asked} is more than {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How much was asked.
        asked: usize,
        /// How much there may be.
        limit: usize,
    },
    /// No memory for it in the core's pool, or among what may be registered.
    #[error("no memory is left for {0}")]
    NoMemory(&'static str),
    /// Memory that is not exposed, or is not any more.
    #[error("steering tag {0:#010x} names nothing here")]
    UnknownStag(u32),
}

impl Error {
    /// The error of a call that has just failed, and left its errno.
    pub(crate) fn call(call: &'static str) -> Self {
        Self::Call { call, source: io::Error::last_os_error() }
    }

    /// As [`Self::call`], of a call that returns its errno.
    pub(crate) fn code(call: &'static str, code: i32) -> Self {
        Self::Call { call, source: io::Error::from_raw_os_error(code) }
    }
}
