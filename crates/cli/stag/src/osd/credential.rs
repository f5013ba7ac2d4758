//! Credentials for devices with security: a file with one a line, in hexadecimal, as `stag osd
//! grant` prints them.

use std::rc::Rc;

use iscsi_client::objects::{Credentials, Objects};
use osd::security::credential::Credential;

use super::error::OsdError;
use crate::args::osd::Reach;
use crate::secret;

/// Gives the device the configured credentials, if any.
///
/// # Errors
/// A file that cannot be read or used.
pub async fn attach(device: Objects, reach: &Reach) -> Result<Objects, OsdError> {
    let Some(path) = &reach.credential else { return Ok(device) };
    // A credential holds the capability key, which signs commands.
    secret::forbid_core_dumps();
    let text = std::fs::read_to_string(path).map_err(OsdError::io(path))?;
    let credentials = parse(&text).map_err(|line| {
        OsdError::wrong(
            format!("{}: line {line} is no credential", path.display()),
            "write the output of stag osd grant into the file",
        )
    })?;
    let place = path.display();
    device.with_authority(Rc::new(Credentials(credentials))).await.map_err(OsdError::at(place))
}

/// Reads credentials; the number of the first line that is none otherwise. Empty lines and those
/// that begin with `#` are skipped.
fn parse(text: &str) -> Result<Vec<Credential>, usize> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(line, number)| {
            let bytes = super::names::value(&format!("hex:{line}")).ok();
            bytes.and_then(|bytes| Credential::from_bytes(&bytes)).ok_or(number)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use osd::security::Key;
    use osd::{Capability, Id, ObjectType, Version};

    use super::*;

    #[test]
    fn a_file_has_a_credential_a_line() {
        let mut capability = Capability::all(Version::Osd2, ObjectType::User, Id::new(0x10000, 0));
        capability.integrity_algorithm = 2;
        let key = Key::new(&[7; 32]).unwrap();
        let credential = Credential::sign(Version::Osd2, capability, [1; 20], &key).unwrap();
        let line: String = credential.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(parse(&format!("# mine\n\n  {line}\n{line}\n")), Ok(vec![credential.clone(), credential]));
        assert_eq!(parse("\n0011\n"), Err(2));
        assert_eq!(parse(""), Ok(vec![]));
    }
}
