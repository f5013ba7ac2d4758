//! Files and block devices.

mod blocking;
mod device;
mod file;
mod options;
mod registered;
mod threads;

pub use blocking::Patience;
pub use file::File;
pub use options::OpenOptions;
pub(crate) use registered::Registered;
pub(crate) use threads::{Call, Direction, Threads};
