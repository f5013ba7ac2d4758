//! A connection to a cluster, and a pool of it. Everything here blocks.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;

use crate::error::Error;
use crate::library::{self, Library};

/// As whom to reach which cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The client's name without `client.`; `None` for admin.
    pub user: Option<String>,
    /// The cluster's ceph.conf; `None` for $CEPH_CONF, /etc/ceph/ceph.conf and the other usual
    /// places.
    pub conf: Option<PathBuf>,
}

/// Settings that no ceph.conf may change.
const SETTINGS: [(&CStr, &CStr); 6] = [
    // A cache of this client makes FUA a lie.
    (c"rbd_cache", c"false"),
    // Memory that is sent may change.
    (c"rbd_disable_zero_copy_writes", c"true"),
    // Who takes the lock of a dead client makes sure that nothing of it arrives later.
    (c"rbd_blocklist_on_break_lock", c"true"),
    // An operation ends with its result. One that ended by a timeout may still be carried out.
    (c"rados_osd_op_timeout", c"0"),
    // Seconds: opening an image fails if no monitor answers.
    (c"rados_mon_op_timeout", c"30"),
    (c"client_mount_timeout", c"30"),
];

/// A connected `rados_t`.
pub(crate) struct Connection {
    library: &'static Library,
    cluster: library::Cluster,
}

/// A `rados_ioctx_t`. Its connection outlives it.
pub(crate) struct Pool {
    library: &'static Library,
    pub(crate) handle: library::Pool,
    pub(crate) connection: Connection,
}

// SAFETY: librados allows calls from any thread.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Send for Pool {}

/// `name` as C takes it.
pub(crate) fn c_string(name: &str) -> Result<CString, Error> {
    CString::new(name).map_err(|_| Error::Name(name.to_owned()))
}

/// What is in a buffer that a call has filled, up to its first zero.
pub(crate) fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

impl Connection {
    pub(crate) fn open(library: &'static Library, login: &Login) -> Result<Self, Error> {
        let user = login.user.as_deref().unwrap_or("admin");
        let name = c_string(&format!("client.{user}"))?;
        let mut cluster = std::ptr::null_mut();
        // SAFETY: the names end with zeros; the handle is written before it is read.
        let made = unsafe { (library.rados_create2)(&raw mut cluster, c"ceph".as_ptr(), name.as_ptr(), 0) };
        Error::check(made, || format!("there is no client of the name client.{user}"))?;
        let this = Self { library, cluster };
        this.configure(login)?;
        // SAFETY: the cluster is configured.
        let connected = unsafe { (library.rados_connect)(cluster) };
        Error::check(connected, || {
            format!(
                "client.{user} cannot connect to the cluster (its keyring, and the monitors of its ceph.conf?)"
            )
        })?;
        Ok(this)
    }

    fn configure(&self, login: &Login) -> Result<(), Error> {
        let path = login.conf.as_ref().map(|path| c_string(&path.to_string_lossy())).transpose()?;
        let (library, cluster) = (self.library, self.cluster);
        let file = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        // SAFETY: the path is null or ends with a zero.
        let read = unsafe { (library.rados_conf_read_file)(cluster, file) };
        // $CEPH_ARGS may name the monitors without a file.
        if read != -libc::ENOENT || path.is_some() {
            Error::check(read, || match &login.conf {
                Some(path) => format!("{} cannot be read", path.display()),
                None => "ceph.conf cannot be read".into(),
            })?;
        }
        // SAFETY: null stands for $CEPH_ARGS.
        let parsed = unsafe { (library.rados_conf_parse_env)(cluster, std::ptr::null()) };
        Error::check(parsed, || "$CEPH_ARGS cannot be read".into())?;
        for (name, value) in SETTINGS {
            // SAFETY: both end with zeros.
            let set = unsafe { (library.rados_conf_set)(cluster, name.as_ptr(), value.as_ptr()) };
            Error::check(set, || format!("{} cannot be set", name.to_string_lossy()))?;
        }
        Ok(())
    }

    /// The cluster's id.
    pub(crate) fn fsid(&self) -> Result<String, Error> {
        let mut buffer = [0u8; 64];
        // SAFETY: the length is the buffer's.
        let len = unsafe {
            (self.library.rados_cluster_fsid)(self.cluster, buffer.as_mut_ptr().cast(), buffer.len())
        };
        Error::check(len, || "the cluster's id is not known".into())?;
        Ok(text(&buffer))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handle afterwards; pools and images of it are gone.
        unsafe { (self.library.rados_shutdown)(self.cluster) };
    }
}

impl Pool {
    pub(crate) fn open(connection: Connection, name: &str, namespace: Option<&str>) -> Result<Self, Error> {
        let library = connection.library;
        let c_name = c_string(name)?;
        let namespace = namespace.map(c_string).transpose()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the name ends with a zero; the handle is written before it is read.
        let made =
            unsafe { (library.rados_ioctx_create)(connection.cluster, c_name.as_ptr(), &raw mut handle) };
        Error::check(made, || format!("pool {name} cannot be opened"))?;
        let this = Self { library, handle, connection };
        if let Some(namespace) = namespace {
            // SAFETY: the name ends with a zero.
            unsafe { (library.rados_ioctx_set_namespace)(handle, namespace.as_ptr().cast::<c_char>()) };
        }
        if let Some(full_try) = library.rados_set_pool_full_try {
            // A full pool fails writes, instead of holding them.
            // SAFETY: the pool is open.
            unsafe { full_try(handle) };
        }
        Ok(this)
    }

    pub(crate) fn id(&self) -> i64 {
        // SAFETY: the pool is open.
        unsafe { (self.library.rados_ioctx_get_id)(self.handle) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handle afterwards; images of it are gone.
        unsafe { (self.library.rados_ioctx_destroy)(self.handle) };
    }
}
