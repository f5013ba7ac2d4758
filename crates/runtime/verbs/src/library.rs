//! Loads libibverbs.so.1 and librdmacm.so.1, once per process, and holds their functions. Does not
//! interpret them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi::{
    CmEvent, CmId, CompChannel, ConnParam, Context, Cq, Device, DeviceAttr, EventChannel, Mr, Pd, QpInitAttr,
};
use crate::error::LoadError;

/// Defines [`Library`] and the lookup of each of its functions.
macro_rules! functions {
    ($($library:ident { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions of both libraries. They are thread-safe, and stay loaded until the process
        /// ends.
        pub(crate) struct Library {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Library {
            fn open() -> Result<Self, LoadError> {
                $(let $library = Shared::open(stringify!($library))?;)*
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
                })
            }
        }
    };
}

functions! {
    libibverbs {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
        ibv_free_device_list: fn(*mut *mut Device);
        ibv_get_device_name: fn(*mut Device) -> *const c_char;
        ibv_open_device: fn(*mut Device) -> *mut Context;
        ibv_close_device: fn(*mut Context) -> c_int;
        ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
        ibv_dealloc_pd: fn(*mut Pd) -> c_int;
        ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr: fn(*mut Mr) -> c_int;
        ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
        ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_destroy_cq: fn(*mut Cq) -> c_int;
        ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut Cq, c_uint);
        ibv_wc_status_str: fn(c_int) -> *const c_char;
    }
    librdmacm {
        rdma_create_event_channel: fn() -> *mut EventChannel;
        rdma_destroy_event_channel: fn(*mut EventChannel);
        rdma_create_id: fn(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id: fn(*mut CmId) -> c_int;
        rdma_bind_addr: fn(*mut CmId, *mut libc::sockaddr) -> c_int;
        rdma_resolve_addr: fn(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut CmId, c_int) -> c_int;
        rdma_create_qp: fn(*mut CmId, *mut Pd, *mut QpInitAttr) -> c_int;
        rdma_destroy_qp: fn(*mut CmId);
        rdma_connect: fn(*mut CmId, *mut ConnParam) -> c_int;
        rdma_listen: fn(*mut CmId, c_int) -> c_int;
        rdma_accept: fn(*mut CmId, *mut ConnParam) -> c_int;
        rdma_reject: fn(*mut CmId, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut CmId) -> c_int;
        rdma_get_cm_event: fn(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event: fn(*mut CmEvent) -> c_int;
        rdma_migrate_id: fn(*mut CmId, *mut EventChannel) -> c_int;
    }
}

/// The libraries, loaded by the first caller.
///
/// # Errors
/// A library is not installed or lacks a function; every later call returns the same error.
pub(crate) fn library() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| Library::open().inspect(|_| lock_memory_freely()));
    opened.as_ref().map_err(Clone::clone)
}

/// Raises this process's limit of locked memory as far as allowed: registered memory is locked, and
/// some devices (siw) enforce the limit even for root. If the limit cannot be raised, a
/// registration that exceeds it reports that.
fn lock_memory_freely() {
    let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structures outlive the calls.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const all) != 0 {
            let mut limit = all;
            if libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit);
            }
        }
    }
}

/// A shared library that is never unloaded.
struct Shared {
    file: &'static str,
    handle: *mut c_void,
}

impl Shared {
    /// Opens a library by its name without the file extension.
    fn open(name: &str) -> Result<Self, LoadError> {
        match name {
            "libibverbs" => Self::open_file(c"libibverbs.so.1"),
            _ => Self::open_file(c"librdmacm.so.1"),
        }
    }

    fn open_file(file: &'static CStr) -> Result<Self, LoadError> {
        let library = file.to_str().unwrap_or("a library");
        // SAFETY: the name ends with a zero. The library's constructors are those of rdma-core,
        // which do not call back. It is never closed, so its symbols stay valid.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(LoadError::Library { library, why: last_error() });
        }
        Ok(Self { file: library, handle })
    }

    /// The address of a function; `name` ends with a zero.
    fn function(&self, name: &'static str) -> Result<*mut c_void, LoadError> {
        // SAFETY: the handle is open and the name ends with a zero.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr().cast()) };
        if address.is_null() {
            return Err(LoadError::Function { library: self.file, function: name.trim_end_matches('\0') });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_installed_is_named_with_what_to_install() {
        let error = Shared::open_file(c"librdmacm-which-nobody-has.so.1").err().expect("it is not there");
        let said = error.to_string();
        assert!(
            said.starts_with("librdmacm-which-nobody-has.so.1 is not there: install rdma-core"),
            "{said}"
        );
    }

    #[test]
    fn a_library_without_a_function_is_named_with_the_function() {
        let shared = Shared::open_file(c"libc.so.6").expect("every program here has it");
        assert!(shared.function("malloc\0").is_ok());
        let error = shared.function("ibv_of_the_future\0").expect_err("it has none");
        assert_eq!(
            error.to_string(),
            "libc.so.6 has no function ibv_of_the_future: install a newer rdma-core"
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
