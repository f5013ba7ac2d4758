//! A connection to a cluster, and a pool of it. Everything here blocks.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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
const SETTINGS: [(&CStr, &CStr); 7] = [
    // A cache of this client makes FUA a lie.
    (c"rbd_cache", c"false"),
    (c"rbd_persistent_cache_mode", c"disabled"),
    // librbd's own threads send operations, and may block, not the core that starts them.
    (c"rbd_non_blocking_aio", c"true"),
    // Memory that is sent may change.
    (c"rbd_disable_zero_copy_writes", c"true"),
    // Who takes the lock of a dead client makes sure that nothing of it arrives later.
    (c"rbd_blocklist_on_break_lock", c"true"),
    // Seconds: opening an image fails if no monitor answers.
    (c"rados_mon_op_timeout", c"30"),
    (c"client_mount_timeout", c"30"),
];
/// How long an operation that was given up may keep its memory.
const LEFT_BEHIND: Duration = Duration::from_secs(30);

/// A connected `rados_t`.
pub(crate) struct Connection {
    pub(crate) library: &'static Library,
    cluster: library::Cluster,
}

/// A `rados_ioctx_t`. Its connection outlives it.
pub(crate) struct Pool {
    pub(crate) library: &'static Library,
    pub(crate) handle: library::Pool,
    pub(crate) connection: Arc<Connection>,
}

// SAFETY: librados allows calls from any thread, several at a time.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}
// SAFETY: as above.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// `name` as C takes it.
pub(crate) fn c_string(name: &str) -> Result<CString, Error> {
    CString::new(name).map_err(|_| Error::Name(name.to_owned()))
}

/// What is in a buffer that a call has filled, up to its first zero.
pub(crate) fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// The value that a setting of an image must have, if `found` is another one.
pub(crate) fn needed(name: &str, found: &str) -> Option<&'static str> {
    let (_, needed) = SETTINGS.into_iter().find(|(setting, _)| setting.to_bytes() == name.as_bytes())?;
    let needed = needed.to_str().unwrap_or_default();
    // A number is a truth, too.
    let truth = found.parse::<i64>().map(|number| if number == 0 { "false" } else { "true" });
    let is_same = found.eq_ignore_ascii_case(needed) || truth == Ok(needed);
    (!is_same).then_some(needed)
}

/// Connections of this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Waits until this process has no connection to a cluster any more, at most for `patience`. A
/// process that ends while threads of librados still work may crash.
pub fn wait_until_closed(patience: Duration) -> bool {
    let deadline = runtime::clock() + patience;
    while OPEN.load(Ordering::Acquire) > 0 && runtime::clock() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    OPEN.load(Ordering::Acquire) == 0
}

impl Connection {
    /// Connects. Operations end with ETIMEDOUT some time after `op_timeout`, when those who have
    /// started them no longer wait. They may still be carried out. Without one they wait for ever.
    pub(crate) fn open(
        library: &'static Library,
        login: &Login,
        op_timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let this = Self::make(library, login, op_timeout)?;
        // SAFETY: the cluster is configured.
        let connected = unsafe { (library.rados_connect)(this.cluster) };
        Error::check(connected, || {
            let user = login.user.as_deref().unwrap_or("admin");
            format!(
                "client.{user} cannot connect to the cluster (its keyring, and the monitors of its ceph.conf?)"
            )
        })?;
        Ok(this)
    }

    /// A client that has its settings, and is not connected.
    fn make(library: &'static Library, login: &Login, op_timeout: Option<Duration>) -> Result<Self, Error> {
        let user = login.user.as_deref().unwrap_or("admin");
        let name = c_string(&format!("client.{user}"))?;
        let mut cluster = std::ptr::null_mut();
        // SAFETY: the names end with zeros; the handle is written before it is read.
        let made = unsafe { (library.rados_create2)(&raw mut cluster, c"ceph".as_ptr(), name.as_ptr(), 0) };
        Error::check(made, || format!("there is no client of the name client.{user}"))?;
        OPEN.fetch_add(1, Ordering::AcqRel);
        let this = Self { library, cluster };
        this.configure(login, op_timeout)?;
        Ok(this)
    }

    fn configure(&self, login: &Login, op_timeout: Option<Duration>) -> Result<(), Error> {
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
        let seconds = op_timeout.map_or(0, |limit| (limit + LEFT_BEHIND).as_secs());
        let seconds = c_string(&seconds.to_string())?;
        for (name, value) in SETTINGS.into_iter().chain([(c"rados_osd_op_timeout", seconds.as_c_str())]) {
            // SAFETY: both end with zeros.
            let set = unsafe { (library.rados_conf_set)(cluster, name.as_ptr(), value.as_ptr()) };
            Error::check(set, || format!("{} cannot be set", name.to_string_lossy()))?;
        }
        Ok(())
    }

    /// The address by which the cluster knows this connection and no other: with its nonce.
    pub(crate) fn address(&self) -> Result<String, Error> {
        let mut found = std::ptr::null_mut();
        // SAFETY: it fills the pointer.
        let code = unsafe { (self.library.rados_getaddrs)(self.cluster, &raw mut found) };
        Error::check(code, || "this client's own address is not known".into())?;
        // SAFETY: it is a string that librados has allocated by malloc, and leaves to the caller.
        let addresses = unsafe {
            let text = CStr::from_ptr(found).to_string_lossy().into_owned();
            libc::free(found.cast());
            text
        };
        with_nonce(&addresses).map(str::to_owned).ok_or(Error::NoNonce(addresses))
    }

    /// Keeps the client at `address` from the cluster, and waits until this connection knows of it:
    /// an OSD carries out no later operation of this connection before it refuses those of the
    /// other.
    pub(crate) fn fence(&self, address: &str) -> Result<(), Error> {
        // 0 is the cluster's usual time: an hour.
        self.blocklist(address, 0)?;
        self.await_map()
    }

    /// Puts the client at `address` on the blocklist for so many seconds.
    pub(crate) fn blocklist(&self, address: &str, seconds: u32) -> Result<(), Error> {
        // Without a nonce it would be all clients of this machine.
        let address = with_nonce(address).ok_or_else(|| Error::NoNonce(address.to_owned()))?;
        let c_address = c_string(address)?;
        // SAFETY: the address ends with a zero, and is not changed.
        let added = unsafe {
            (self.library.rados_blocklist_add)(self.cluster, c_address.as_ptr().cast_mut(), seconds)
        };
        Error::check(added, || format!("{address} cannot be put on the blocklist")).map(drop)
    }

    /// Waits until this connection has the OSD map that the monitors have now.
    pub(crate) fn await_map(&self) -> Result<(), Error> {
        // SAFETY: it waits.
        let waited = unsafe { (self.library.rados_wait_for_latest_osdmap)(self.cluster) };
        Error::check(waited, || "the cluster's newest map has not come".into()).map(drop)
    }

    /// The epoch of the OSD map that the monitors have now.
    pub(crate) fn epoch(&self) -> Result<u32, Error> {
        let told = self.ask_monitors(c"{\"prefix\": \"osd stat\", \"format\": \"json\"}")?;
        epoch_in(&told).ok_or_else(|| Error::Call {
            what: format!("the monitors tell no epoch of the OSD map: {told}"),
            errno: libc::EPROTO,
        })
    }

    /// The monitors' answer to a command, which is JSON.
    pub(crate) fn ask_monitors(&self, command: &CStr) -> Result<String, Error> {
        let (mut words, mut answer, mut len) = (command.as_ptr(), std::ptr::null_mut(), 0);
        // SAFETY: the one command ends with a zero; it fills the answer; null stands for nothing.
        let code = unsafe {
            (self.library.rados_mon_command)(
                self.cluster,
                &raw mut words,
                1,
                std::ptr::null(),
                0,
                &raw mut answer,
                &raw mut len,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        Error::check(code, || format!("the monitors do not answer {}", command.to_string_lossy()))?;
        if answer.is_null() {
            return Ok(String::new());
        }
        // SAFETY: librados has allocated so many bytes, and leaves them to the caller.
        unsafe {
            let bytes = std::slice::from_raw_parts(answer.cast::<u8>(), len);
            let text = String::from_utf8_lossy(bytes).into_owned();
            (self.library.rados_buffer_free)(answer);
            Ok(text)
        }
    }

    /// Returns when no callback of a watch that was ended runs any more.
    pub(crate) fn flush_watches(&self) {
        // SAFETY: it waits.
        unsafe { (self.library.rados_watch_flush)(self.cluster) };
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
        OPEN.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pool {
    pub(crate) fn open(
        connection: Arc<Connection>,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<Self, Error> {
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

/// An address without the version of its protocol.
pub fn plain(address: &str) -> &str {
    ["v1:", "v2:", "any:"].iter().find_map(|version| address.strip_prefix(version)).unwrap_or(address)
}

/// The epoch in the answer to `osd stat`.
fn epoch_in(told: &str) -> Option<u32> {
    let rest = told.split_once("\"epoch\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The first of a client's addresses, which share a nonce, as the blocklist takes it; `None`
/// without a nonce.
fn with_nonce(addresses: &str) -> Option<&str> {
    let list = addresses.strip_prefix("[v").and_then(|_| addresses.strip_prefix('[')?.strip_suffix(']'));
    let first = plain(list.unwrap_or(addresses).split(',').next()?);
    let (_, nonce) = first.rsplit_once('/')?;
    nonce.parse::<u64>().ok().filter(|nonce| *nonce != 0).map(|_| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ceph_conf_changes_what_a_gateway_rests_on() {
        // Without Ceph's libraries the suite `ceph` still has a ceph.conf that spoils all of it.
        let Ok(library) = library::library() else { return };
        let conf = std::env::temp_dir().join(format!("stag-ceph-conf-{}", std::process::id()));
        let spoilt = "[client]\nrbd_cache = true\nrbd_persistent_cache_mode = ssd\n\
                      rbd_non_blocking_aio = false\nrbd_disable_zero_copy_writes = false\n\
                      rbd_blocklist_on_break_lock = false\nrados_mon_op_timeout = 0\n\
                      client_mount_timeout = 300\nrados_osd_op_timeout = 0\n";
        std::fs::write(&conf, spoilt).unwrap();
        let login = Login { user: None, conf: Some(conf.clone()) };
        let made = Connection::make(library, &login, Some(Duration::from_secs(3))).unwrap();
        std::fs::remove_file(&conf).unwrap();
        for (name, value) in SETTINGS.into_iter().chain([(c"rados_osd_op_timeout", c"33")]) {
            let (found, value) = (library::setting(made.cluster, name), value.to_str().unwrap());
            let same_number = found.parse::<f64>().is_ok_and(|found| Ok(found) == value.parse());
            assert!(found == value || same_number, "{name:?} is {found}");
        }
    }

    #[test]
    fn an_image_has_no_setting_that_a_gateway_rests_on() {
        for (name, found, value) in [
            ("rbd_cache", "true", Some("false")),
            ("rbd_cache", "1", Some("false")),
            ("rbd_cache", "False", None),
            ("rbd_cache", "0", None),
            ("rbd_blocklist_on_break_lock", "false", Some("true")),
            ("rbd_blocklist_on_break_lock", "2", None),
            ("rbd_persistent_cache_mode", "rwl", Some("disabled")),
            ("rbd_persistent_cache_mode", "disabled", None),
            ("rbd_qos_iops_limit", "5", None),
        ] {
            assert_eq!(needed(name, found), value, "{name} = {found}");
        }
    }

    #[test]
    fn the_epoch_is_found_in_what_monitors_tell() {
        assert_eq!(epoch_in("\n{\"epoch\":12,\"num_osds\":3}"), Some(12));
        assert_eq!(epoch_in("{\"num_osds\": 3, \"epoch\" : 7}"), Some(7));
        for told in ["", "{}", "{\"epoch\":\"x\"}", "{\"epoch\":99999999999}"] {
            assert_eq!(epoch_in(told), None, "{told}");
        }
    }

    #[test]
    fn an_address_without_a_nonce_is_never_fenced() {
        for (addresses, one) in [
            ("v2:192.0.2.1:0/77", Some("192.0.2.1:0/77")),
            ("192.0.2.1:0/77", Some("192.0.2.1:0/77")),
            ("[v2:192.0.2.1:0/77,v1:192.0.2.1:0/77]", Some("192.0.2.1:0/77")),
            ("v2:[2001:db8::1]:0/77", Some("[2001:db8::1]:0/77")),
            ("[v2:[2001:db8::1]:0/77,v1:[2001:db8::1]:0/77]", Some("[2001:db8::1]:0/77")),
            ("192.0.2.1:0/0", None),
            ("192.0.2.1:0", None),
            ("192.0.2.1", None),
            ("192.0.2.0/24x", None),
            ("-", None),
            ("", None),
        ] {
            assert_eq!(with_nonce(addresses), one, "{addresses}");
        }
    }
}
