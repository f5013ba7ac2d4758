//! An object of a pool: its bytes and attributes, changed by compare-and-set, and watches of it.
//! Everything here blocks, until the OSD answers. `either` documents the calls.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Pool, c_string};
use crate::error::Error;
use crate::library::{Attributes, CREATE_EXCLUSIVE, EQUAL, WriteOp};

/// An object. Clones share it.
#[derive(Clone)]
pub struct Object(Arc<Named>);

struct Named {
    pool: Pool,
    name: CString,
}

/// What was in an object at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// A change of an object, all of it or nothing.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// The attribute that the object must have, with its value; `None`: there must be no object.
    pub expect: Option<(&'a str, &'a [u8])>,
    /// The object's new bytes.
    pub bytes: &'a [u8],
    /// Attributes to set.
    pub set: &'a [(&'a str, &'a [u8])],
    /// Attributes to remove.
    pub remove: &'a [String],
}

/// Called on a thread of librados's after a notification, and with `true` when the watch is lost.
/// Must not wait.
pub type Told = Arc<dyn Fn(bool) + Send + Sync>;

/// A watch of an object, until it is dropped; that blocks.
pub struct Watch {
    object: Object,
    cookie: u64,
    argument: *mut Watcher,
}

/// What the callbacks of a watch need.
struct Watcher {
    object: Object,
    told: Told,
}

// SAFETY: librados allows calls from any thread, and the argument is freed once.
unsafe impl Send for Watch {}

impl Object {
    pub(crate) fn new(pool: Pool, name: &str) -> Result<Self, Error> {
        Ok(Self(Arc::new(Named { pool, name: c_string(name)? })))
    }

    fn check(&self, code: c_int, what: &str) -> Result<(), Error> {
        let name = || self.0.name.to_string_lossy();
        Error::check(code, || format!("the object {} cannot be {what}", name())).map(drop)
    }

    pub fn read(&self, most: usize) -> Result<Option<Content>, Error> {
        let (library, pool) = (self.0.pool.library, self.0.pool.handle);
        let mut bytes = vec![0u8; most + 1];
        let (mut len, mut read, mut listed) = (0, 0, 0);
        let mut attributes: Attributes = std::ptr::null_mut();
        // SAFETY: what the operation fills outlives it: a buffer of this length, and numbers. The
        // iterator is made at once, read after the operation has ended, and ended once.
        let (code, attributes) = unsafe {
            let operation = (library.rados_create_read_op)();
            let buffer = bytes.as_mut_ptr().cast();
            (library.rados_read_op_read)(operation, 0, bytes.len(), buffer, &raw mut len, &raw mut read);
            (library.rados_read_op_getxattrs)(operation, &raw mut attributes, &raw mut listed);
            let code = (library.rados_read_op_operate)(operation, pool, self.0.name.as_ptr(), 0);
            (library.rados_release_read_op)(operation);
            let found = if code < 0 { BTreeMap::new() } else { self.attributes(attributes) };
            (library.rados_getxattrs_end)(attributes);
            (code, found)
        };
        if code == -libc::ENOENT {
            return Ok(None);
        }
        for code in [code, read, listed] {
            self.check(code, "read")?;
        }
        if len > most {
            self.check(-libc::EFBIG, "read")?;
        }
        bytes.truncate(len);
        Ok(Some(Content { bytes, attributes }))
    }

    /// What is left in an iterator.
    ///
    /// # Safety
    /// The iterator's operation has ended, and the iterator has not.
    unsafe fn attributes(&self, iterator: Attributes) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        loop {
            let (mut name, mut value, mut len) = (std::ptr::null(), std::ptr::null(), 0);
            // SAFETY: the caller's; it fills these three.
            let code = unsafe {
                (self.0.pool.library.rados_getxattrs_next)(
                    iterator,
                    &raw mut name,
                    &raw mut value,
                    &raw mut len,
                )
            };
            if code < 0 || name.is_null() {
                return found;
            }
            // SAFETY: the name ends with a zero and the value has this length, until the next call.
            // A value without bytes may be null.
            let (name, value) = unsafe {
                let value = match value.is_null() {
                    true => Vec::new(),
                    false => std::slice::from_raw_parts(value.cast::<u8>(), len).to_vec(),
                };
                (CStr::from_ptr(name).to_string_lossy().into_owned(), value)
            };
            found.insert(name, value);
        }
    }

    /// Carries out what `fill` puts into an operation.
    fn write(&self, fill: impl FnOnce(WriteOp) -> Result<(), Error>) -> Result<c_int, Error> {
        let library = self.0.pool.library;
        // SAFETY: it takes nothing.
        let operation = unsafe { (library.rados_create_write_op)() };
        let filled = fill(operation);
        // SAFETY: the operation is released once; null stands for the time of now.
        unsafe {
            let code = match &filled {
                Ok(()) => (library.rados_write_op_operate)(
                    operation,
                    self.0.pool.handle,
                    self.0.name.as_ptr(),
                    std::ptr::null_mut(),
                    0,
                ),
                Err(_) => 0,
            };
            (library.rados_release_write_op)(operation);
            filled.map(|()| code)
        }
    }

    pub fn set_attribute(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        let (library, name) = (self.0.pool.library, c_string(name)?);
        let code = self.write(|operation| {
            // SAFETY: librados copies the name, which ends with a zero, and the value.
            unsafe {
                (library.rados_write_op_assert_exists)(operation);
                let value_at = value.as_ptr().cast();
                (library.rados_write_op_setxattr)(operation, name.as_ptr(), value_at, value.len());
            }
            Ok(())
        })?;
        self.check(code, "written")
    }

    pub fn change(&self, change: &Change<'_>) -> Result<bool, Error> {
        let library = self.0.pool.library;
        let code = self.write(|operation| {
            let bytes = |value: &[u8]| (value.as_ptr().cast(), value.len());
            // SAFETY: librados copies names, which end with zeros, and values.
            unsafe {
                match change.expect {
                    None => {
                        (library.rados_write_op_create)(operation, CREATE_EXCLUSIVE, std::ptr::null());
                    }
                    Some((name, value)) => {
                        let (name, (value, len)) = (c_string(name)?, bytes(value));
                        (library.rados_write_op_cmpxattr)(operation, name.as_ptr(), EQUAL, value, len);
                    }
                }
                let (content, len) = bytes(change.bytes);
                (library.rados_write_op_write_full)(operation, content, len);
                for (name, value) in change.set {
                    let (name, (value, len)) = (c_string(name)?, bytes(value));
                    (library.rados_write_op_setxattr)(operation, name.as_ptr(), value, len);
                }
                for name in change.remove {
                    let name = c_string(name)?;
                    (library.rados_write_op_rmxattr)(operation, name.as_ptr());
                }
            }
            Ok(())
        })?;
        let unexpected = [libc::ECANCELED, libc::EEXIST, libc::ENOENT].contains(&-code);
        if unexpected {
            return Ok(false);
        }
        self.check(code, "written").map(|()| true)
    }

    pub fn watch(&self, told: Told) -> Result<Watch, Error> {
        let library = self.0.pool.library;
        let argument = Box::into_raw(Box::new(Watcher { object: self.clone(), told }));
        let mut cookie = 0;
        // SAFETY: the name ends with a zero. The callbacks get this argument until the watch has
        // ended, and it lives until then. 0 is the cluster's usual timeout.
        let code = unsafe {
            (library.rados_watch3)(
                self.0.pool.handle,
                self.0.name.as_ptr(),
                &raw mut cookie,
                notified,
                lost,
                0,
                argument.cast(),
            )
        };
        if code < 0 {
            self.0.pool.connection.flush_watches();
            // SAFETY: it came from a box, and no callback has it any more.
            drop(unsafe { Box::from_raw(argument) });
        }
        self.check(code, "watched")?;
        Ok(Watch { object: self.clone(), cookie, argument })
    }

    pub fn notify(&self, limit: Duration) -> Result<(), Error> {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let (pool, none) = (&self.0.pool, std::ptr::null_mut());
        // SAFETY: the name ends with a zero; null stands for no data and for no answers.
        let code = unsafe {
            (pool.library.rados_notify2)(
                pool.handle,
                self.0.name.as_ptr(),
                std::ptr::null(),
                0,
                millis,
                none,
                std::ptr::null_mut(),
            )
        };
        self.check(code, "notified of")
    }
}

impl Watch {
    pub fn check(&self) -> Result<(), Error> {
        let pool = &self.object.0.pool;
        // SAFETY: the watch has not ended.
        let code = unsafe { (pool.library.rados_watch_check)(pool.handle, self.cookie) };
        self.object.check(code, "watched any more")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let pool = &self.object.0.pool;
        // SAFETY: the watch ends once. After the flush no callback has the argument any more, which
        // came from a box.
        unsafe {
            (pool.library.rados_unwatch2)(pool.handle, self.cookie);
            pool.connection.flush_watches();
            drop(Box::from_raw(self.argument));
        }
    }
}

/// librados's callback of a notification.
///
/// # Safety
/// `argument` is the [`Watcher`] of a watch that has not ended.
unsafe extern "C" fn notified(
    argument: *mut c_void,
    notification: u64,
    cookie: u64,
    _: u64,
    _: *mut c_void,
    _: usize,
) {
    // SAFETY: the caller's.
    let watcher = unsafe { &*argument.cast::<Watcher>() };
    (watcher.told)(false);
    let Named { pool, name } = &*watcher.object.0;
    // SAFETY: the name ends with a zero; there is no data. It does not wait.
    unsafe {
        (pool.library.rados_notify_ack)(
            pool.handle,
            name.as_ptr(),
            notification,
            cookie,
            std::ptr::null(),
            0,
        );
    }
}

/// librados's callback of a lost watch.
///
/// # Safety
/// As for [`notified`].
unsafe extern "C" fn lost(argument: *mut c_void, _: u64, _: c_int) {
    // SAFETY: the caller's.
    unsafe { ((*argument.cast::<Watcher>()).told)(true) };
}
