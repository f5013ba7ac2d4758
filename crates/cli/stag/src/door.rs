//! Where clients of the control socket that speak HTTP go on. Stands apart, since both the control
//! socket and HTTP know it.

#[cfg(feature = "http")]
pub use admin_http::Door;

/// Never exists: this program was built without HTTP.
#[cfg(not(feature = "http"))]
pub enum Door {}

#[cfg(not(feature = "http"))]
impl Door {
    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn enter(
        &self,
        _: std::os::unix::net::UnixStream,
        _: u32,
        _: bool,
        _: Box<dyn Send>,
    ) -> std::io::Result<()> {
        match *self {}
    }
}
