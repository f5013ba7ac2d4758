//! The options of a run against an NFS server.

use std::time::Duration;

/// The options of a run against an NFS server.
#[derive(Clone, Debug)]
pub struct ShareOptions {
    /// Host name or address, without brackets.
    pub host: String,
    /// Whether NFS is spoken over RDMA, by software iWARP. MOUNT and the portmapper may be elsewhere,
    /// over TCP.
    pub rdma: bool,
    /// Port of NFS.
    pub port: u16,
    /// The export: bytes of a path that begins with `/`.
    pub path: Vec<u8>,
    /// Whether to check version 3.
    pub v3: bool,
    /// The highest minor version of version 4 to check: 1 or 2; `None` for no check of version 4.
    pub minor: Option<u32>,
    /// User ID of the calls.
    pub uid: u32,
    /// Group ID of the calls.
    pub gid: u32,
    /// Timeout for a reply.
    pub answer_within: Duration,
    /// Timeout for a whole check.
    pub check_within: Duration,
}

impl ShareOptions {
    /// A run of all checks, as root, with the usual time limits.
    pub fn new(host: &str, port: u16, path: &[u8]) -> Self {
        Self {
            host: host.to_owned(),
            rdma: false,
            port,
            path: path.to_vec(),
            v3: true,
            minor: Some(2),
            uid: 0,
            gid: 0,
            answer_within: Duration::from_secs(5),
            check_within: Duration::from_secs(30),
        }
    }

    /// The export's URL.
    pub(crate) fn url(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let scheme = if self.rdma { "nfs+rdma" } else { "nfs" };
        format!("{scheme}://{host}:{}{}", self.port, String::from_utf8_lossy(&self.path))
    }

    /// Components of the path.
    pub(crate) fn components(&self) -> Vec<&[u8]> {
        self.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect()
    }
}
