//! iSCSI names as people write them: checked by the protocol's own rules, and the names that Stag uses when it is given none.

/// The target that `stag serve` serves if no name is given.
pub const DEFAULT_TARGET: &str = "iqn.2026-01.org.stag:disk";
/// What to write where a name is wrong.
pub const EXAMPLE: &str = "write a name such as iqn.2026-01.org.example:disks (RFC 7143 §4.2.7)";

/// Whether `name` is an iSCSI name.
///
/// # Errors
/// What is wrong with it.
pub fn check(name: &str) -> Result<(), String> {
    iscsi::name::check(name).map_err(|error| error.to_string())
}
