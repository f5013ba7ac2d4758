//! Files and block devices.

mod blocking;
mod device;
mod file;
mod handle;
pub mod names;
mod options;
mod registered;
mod threads;

pub use blocking::Patience;
pub use file::File;
pub use handle::FileHandle;
pub use options::OpenOptions;
pub(crate) use registered::Registered;
pub(crate) use threads::{Call, Threads};
