//! Files and block devices.

mod device;
mod file;
mod options;

pub use file::File;
pub use options::OpenOptions;
