//! Loads librados.so.2 and librbd.so.1, once per process, and holds their functions. Does not
//! interpret them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::error::LoadError;

/// `rados_t`.
pub(crate) type Cluster = *mut c_void;
/// `rados_ioctx_t`.
pub(crate) type Pool = *mut c_void;
/// `rados_read_op_t`.
pub(crate) type ReadOp = *mut c_void;
/// `rados_write_op_t`.
pub(crate) type WriteOp = *mut c_void;
/// `rados_xattrs_iter_t`.
pub(crate) type Attributes = *mut c_void;
/// `rados_watchcb2_t`: the argument, the notification, the watch, who notifies, and its data.
pub(crate) type Notified = unsafe extern "C" fn(*mut c_void, u64, u64, u64, *mut c_void, usize);
/// `rados_watcherrcb_t`: the argument, the watch, and an error.
pub(crate) type WatchLost = unsafe extern "C" fn(*mut c_void, u64, c_int);

/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub(crate) const CREATE_EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub(crate) const EQUAL: u8 = 1;
/// `rbd_image_t`.
pub(crate) type RbdImage = *mut c_void;
/// `rbd_completion_t`.
pub(crate) type Completion = *mut c_void;
/// `rbd_callback_t`.
pub(crate) type Callback = unsafe extern "C" fn(Completion, *mut c_void);

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const EXCLUSIVE: c_int = 0;
/// `rbd_update_callback_t`.
pub(crate) type Updated = unsafe extern "C" fn(*mut c_void);
/// The callback of `rbd_diff_iterate2`: an offset, a length, and whether there is data.
pub(crate) type Differs = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_FAST_DIFF`.
pub(crate) const FEATURE_FAST_DIFF: u64 = 1 << 4;
/// `RBD_FLAG_OBJECT_MAP_INVALID` and `RBD_FLAG_FAST_DIFF_INVALID`.
pub(crate) const FLAGS_INVALID: u64 = 3;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the zeros take room.
pub(crate) const THICK: c_int = 1;

/// `rbd_image_info_t`.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub(crate) size: u64,
    pub(crate) object_size: u64,
    objects: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

impl ImageInfo {
    pub(crate) const EMPTY: Self = Self {
        size: 0,
        object_size: 0,
        objects: 0,
        order: 0,
        block_name_prefix: [0; 24],
        parent_pool: 0,
        parent_name: [0; 96],
    };
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    /// `rbd_config_source_t`: [`CLIENT`], or the pool's or the image's own.
    pub(crate) source: c_int,
}

impl ConfigOption {
    pub(crate) const EMPTY: Self =
        Self { name: std::ptr::null_mut(), value: std::ptr::null_mut(), source: CLIENT };
}

/// `RBD_CONFIG_SOURCE_CONFIG`.
pub(crate) const CLIENT: c_int = 0;

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    id: i64,
    cookie: u64,
}

impl Watcher {
    pub(crate) const EMPTY: Self = Self { address: std::ptr::null_mut(), id: 0, cookie: 0 };
}

/// Defines [`Library`] and the lookup of each of its functions: all those of the first list, and
/// those of the others that there are.
macro_rules! functions {
    (
        needed { $($library:ident { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })* }
        $(perhaps $newer:ident { $($new:ident: fn($($input:ty),*) $(-> $output:ty)?;)* })*
    ) => {
        /// The functions of both libraries. They are thread-safe, and stay loaded until the process
        /// ends.
        pub(crate) struct Library {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
            $($(pub(crate) $new: Option<unsafe extern "C" fn($($input),*) $(-> $output)?>,)*)*
        }

        impl Library {
            fn open() -> Result<Self, LoadError> {
                $(let $library = Shared::open(&Named::of(stringify!($library)))?;)*
                Ok(Self {
                    $($(
                        // SAFETY: the symbol is a function with exactly this prototype in the
                        // library's public header; the library's major version guarantees that ABI.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                $library.function(concat!(stringify!($name), "\0"))?,
                            )
                        },
                    )*)*
                    $($(
                        // SAFETY: as above.
                        $new: $newer.function(concat!(stringify!($new), "\0")).ok().map(|address| unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($input),*) $(-> $output)?>(address)
                        }),
                    )*)*
                })
            }
        }
    };
}

functions! {
    needed {
        librados {
            rados_create2: fn(*mut Cluster, *const c_char, *const c_char, u64) -> c_int;
            rados_conf_read_file: fn(Cluster, *const c_char) -> c_int;
            rados_conf_parse_env: fn(Cluster, *const c_char) -> c_int;
            rados_conf_set: fn(Cluster, *const c_char, *const c_char) -> c_int;
            rados_connect: fn(Cluster) -> c_int;
            rados_shutdown: fn(Cluster);
            rados_cluster_fsid: fn(Cluster, *mut c_char, usize) -> c_int;
            rados_getaddrs: fn(Cluster, *mut *mut c_char) -> c_int;
            rados_blocklist_add: fn(Cluster, *mut c_char, u32) -> c_int;
            rados_wait_for_latest_osdmap: fn(Cluster) -> c_int;
            rados_ioctx_create: fn(Cluster, *const c_char, *mut Pool) -> c_int;
            rados_ioctx_destroy: fn(Pool);
            rados_ioctx_set_namespace: fn(Pool, *const c_char);
            rados_ioctx_get_id: fn(Pool) -> i64;
            rados_mon_command: fn(Cluster, *mut *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
            rados_buffer_free: fn(*mut c_char);
            rados_create_read_op: fn() -> ReadOp;
            rados_release_read_op: fn(ReadOp);
            rados_read_op_read: fn(ReadOp, u64, usize, *mut c_char, *mut usize, *mut c_int);
            rados_read_op_getxattrs: fn(ReadOp, *mut Attributes, *mut c_int);
            rados_read_op_operate: fn(ReadOp, Pool, *const c_char, c_int) -> c_int;
            rados_getxattrs_next: fn(Attributes, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
            rados_getxattrs_end: fn(Attributes);
            rados_create_write_op: fn() -> WriteOp;
            rados_release_write_op: fn(WriteOp);
            rados_write_op_assert_exists: fn(WriteOp);
            rados_write_op_create: fn(WriteOp, c_int, *const c_char);
            rados_write_op_cmpxattr: fn(WriteOp, *const c_char, u8, *const c_char, usize);
            rados_write_op_setxattr: fn(WriteOp, *const c_char, *const c_char, usize);
            rados_write_op_rmxattr: fn(WriteOp, *const c_char);
            rados_write_op_write_full: fn(WriteOp, *const c_char, usize);
            rados_write_op_operate: fn(WriteOp, Pool, *const c_char, *mut libc::time_t, c_int) -> c_int;
            rados_watch3: fn(Pool, *const c_char, *mut u64, Notified, WatchLost, u32, *mut c_void) -> c_int;
            rados_watch_check: fn(Pool, u64) -> c_int;
            rados_unwatch2: fn(Pool, u64) -> c_int;
            rados_watch_flush: fn(Cluster) -> c_int;
            rados_notify2: fn(Pool, *const c_char, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
            rados_notify_ack: fn(Pool, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
            rados_list_lockers: fn(
                Pool, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize,
                *mut c_char, *mut usize, *mut c_char, *mut usize
            ) -> isize;
            rados_break_lock: fn(Pool, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
        }
        librbd {
            rbd_open: fn(Pool, *const c_char, *mut RbdImage, *const c_char) -> c_int;
            rbd_open_read_only: fn(Pool, *const c_char, *mut RbdImage, *const c_char) -> c_int;
            rbd_close: fn(RbdImage) -> c_int;
            rbd_stat: fn(RbdImage, *mut ImageInfo, usize) -> c_int;
            rbd_get_id: fn(RbdImage, *mut c_char, usize) -> c_int;
            rbd_get_features: fn(RbdImage, *mut u64) -> c_int;
            rbd_get_flags: fn(RbdImage, *mut u64) -> c_int;
            rbd_get_size: fn(RbdImage, *mut u64) -> c_int;
            rbd_get_stripe_unit: fn(RbdImage, *mut u64) -> c_int;
            rbd_get_stripe_count: fn(RbdImage, *mut u64) -> c_int;
            rbd_get_data_pool_id: fn(RbdImage) -> i64;
            rbd_update_watch: fn(RbdImage, *mut u64, Updated, *mut c_void) -> c_int;
            rbd_update_unwatch: fn(RbdImage, u64) -> c_int;
            rbd_diff_iterate2: fn(RbdImage, *const c_char, u64, u64, u8, u8, Differs, *mut c_void) -> c_int;
            rbd_snap_get_id: fn(RbdImage, *const c_char, *mut u64) -> c_int;
            rbd_lock_acquire: fn(RbdImage, c_int) -> c_int;
            rbd_lock_release: fn(RbdImage) -> c_int;
            rbd_lock_break: fn(RbdImage, c_int, *const c_char) -> c_int;
            rbd_lock_get_owners: fn(RbdImage, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
            rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize);
            rbd_watchers_list: fn(RbdImage, *mut Watcher, *mut usize) -> c_int;
            rbd_watchers_list_cleanup: fn(*mut Watcher, usize);
            rbd_config_image_list: fn(RbdImage, *mut ConfigOption, *mut c_int) -> c_int;
            rbd_config_image_list_cleanup: fn(*mut ConfigOption, c_int);
            rbd_metadata_get: fn(RbdImage, *const c_char, *mut c_char, *mut usize) -> c_int;
            rbd_metadata_set: fn(RbdImage, *const c_char, *const c_char) -> c_int;
            rbd_aio_create_completion: fn(*mut c_void, Callback, *mut Completion) -> c_int;
            rbd_aio_release: fn(Completion);
            rbd_aio_get_return_value: fn(Completion) -> isize;
            rbd_aio_readv: fn(RbdImage, *const libc::iovec, c_int, u64, Completion) -> c_int;
            rbd_aio_writev: fn(RbdImage, *const libc::iovec, c_int, u64, Completion) -> c_int;
            rbd_aio_write_zeroes: fn(RbdImage, u64, usize, Completion, c_int, c_int) -> c_int;
            rbd_aio_flush: fn(RbdImage, Completion) -> c_int;
        }
    }
    perhaps librados {
        rados_set_pool_full_try: fn(Pool);
    }
    perhaps librbd {
        rbd_encryption_load: fn(RbdImage, c_int, *const c_void, usize) -> c_int;
    }
}

/// The libraries, loaded by the first caller.
///
/// # Errors
/// A library is not installed or lacks a function; every later call returns the same error.
pub(crate) fn library() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(Clone::clone)
}

/// The file of a library, and the package that has it.
struct Named {
    file: &'static CStr,
    package: &'static str,
}

impl Named {
    /// A library by its name without the file extension.
    fn of(name: &str) -> Self {
        match name {
            "librados" => Self { file: c"librados.so.2", package: "librados2" },
            _ => Self { file: c"librbd.so.1", package: "librbd1" },
        }
    }
}

/// A shared library that is never unloaded.
struct Shared {
    file: &'static str,
    package: &'static str,
    handle: *mut c_void,
}

impl Shared {
    fn open(named: &Named) -> Result<Self, LoadError> {
        let (library, package) = (named.file.to_str().unwrap_or("a library"), named.package);
        // SAFETY: the name ends with a zero. The library's constructors are those of Ceph, which do
        // not call back. It is never closed, so its symbols stay valid.
        let handle = unsafe { libc::dlopen(named.file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(LoadError::Library { library, package, why: last_error() });
        }
        Ok(Self { file: library, package, handle })
    }

    /// The address of a function; `name` ends with a zero.
    fn function(&self, name: &'static str) -> Result<*mut c_void, LoadError> {
        // SAFETY: the handle is open and the name ends with a zero.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr().cast()) };
        if address.is_null() {
            let function = name.trim_end_matches('\0');
            return Err(LoadError::Function { library: self.file, package: self.package, function });
        }
        Ok(address)
    }
}

/// The dynamic loader's message about its latest failure.
fn last_error() -> String {
    // SAFETY: the message belongs to this thread until the loader's next call, and ends with a
    // zero.
    unsafe {
        let message = libc::dlerror();
        if message.is_null() { String::new() } else { CStr::from_ptr(message).to_string_lossy().into_owned() }
    }
}

/// The value of a setting of a client.
#[cfg(test)]
pub(crate) fn setting(cluster: Cluster, name: &CStr) -> String {
    type Get = unsafe extern "C" fn(Cluster, *const c_char, *mut c_char, usize) -> c_int;
    let librados = Shared::open(&Named::of("librados")).unwrap();
    let mut value = [0u8; 64];
    // SAFETY: the symbol is a function with this prototype; the name ends with a zero, and the
    // length is the buffer's.
    let code = unsafe {
        let get: Get = std::mem::transmute(librados.function("rados_conf_get\0").unwrap());
        get(cluster, name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    assert_eq!(code, 0, "{name:?}");
    CStr::from_bytes_until_nul(&value).unwrap().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_installed_is_named_with_its_package() {
        let named = Named { file: c"librbd-which-nobody-has.so.1", package: "librbd1" };
        let said = Shared::open(&named).err().expect("it is not there").to_string();
        assert!(said.starts_with("librbd-which-nobody-has.so.1 is not there: install librbd1"), "{said}");
    }

    #[test]
    fn a_library_without_a_function_is_named_with_the_function() {
        let named = Named { file: c"libc.so.6", package: "libc6" };
        let shared = Shared::open(&named).expect("every program here has it");
        assert!(shared.function("malloc\0").is_ok());
        let error = shared.function("rbd_of_the_future\0").expect_err("it has none");
        assert_eq!(
            error.to_string(),
            "libc.so.6 has no function rbd_of_the_future: install a newer libc6 (Ceph 16 or later)"
        );
    }

    #[test]
    fn loading_gives_the_same_answer_each_time_and_never_panics() {
        match (library(), library()) {
            (Ok(one), Ok(other)) => assert!(std::ptr::eq(one, other)),
            (Err(one), Err(other)) => {
                assert_eq!(one, other);
                assert!(one.to_string().contains("install"), "{one}");
            }
            _ => panic!("loaded once and not the next time"),
        }
    }
}
