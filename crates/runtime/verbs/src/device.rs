//! The RDMA devices of the machine, for display. Opens each device briefly; connections do not use
//! this file.

use std::ffi::CStr;

use crate::abi;
use crate::domain;
use crate::error::Error;
use crate::library::library;

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name in `rdma link`.
    pub name: String,
    /// GUID of its node, 0 if the device cannot be opened.
    pub guid: u64,
    /// Whether it is iWARP; otherwise it is InfiniBand or RoCE.
    pub iwarp: bool,
    /// Whether it exposes memory by windows of type 2B, without a copy.
    pub windows: bool,
    /// Maximum number of queue pairs.
    pub queue_pairs: u32,
    /// Maximum outstanding RDMA Reads per queue pair.
    pub reads: u32,
}

/// All devices of the machine.
///
/// # Errors
/// rdma-core is not installed ([`Error::Load`]), or the kernel has no RDMA support.
pub fn devices() -> Result<Vec<Device>, Error> {
    let library = library()?;
    let mut count = 0;
    // SAFETY: the library sets the count and returns a list, which is freed below.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(Error::NoDevice(std::io::Error::last_os_error()));
    }
    let mut devices = Vec::new();
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices, valid until it is freed. A name ends with a zero.
        // The context is used only while it is open.
        let device = unsafe {
            let raw = *list.add(i);
            let name = (library.ibv_get_device_name)(raw);
            let name = if name.is_null() { "?".into() } else { CStr::from_ptr(name).to_string_lossy() };
            let context = (library.ibv_open_device)(raw);
            let attributes = if context.is_null() { None } else { domain::query(library, context).ok() };
            if !context.is_null() {
                (library.ibv_close_device)(context);
            }
            let iwarp = (*raw).transport_type == abi::TRANSPORT_IWARP;
            Device {
                name: name.into_owned(),
                guid: attributes.map_or(0, |a| u64::from_be(a.node_guid)),
                iwarp,
                windows: attributes.is_some_and(|a| domain::has_sound_windows(&a, iwarp)),
                queue_pairs: attributes.map_or(0, |a| u32::try_from(a.max_qp).unwrap_or(0)),
                reads: attributes.map_or(0, |a| u32::try_from(a.max_qp_rd_atom).unwrap_or(0)),
            }
        };
        devices.push(device);
    }
    // SAFETY: the list was obtained above; no device of it is in use any more.
    unsafe { (library.ibv_free_device_list)(list) };
    Ok(devices)
}
