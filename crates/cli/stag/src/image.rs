//! Recognises disk images in a format of their own by their first bytes. If such a file is served
//! or copied as it is, its reader does not find the disk in it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Formats: the name that qemu-img uses, and the offset and bytes of the signature.
const FORMATS: [(&str, usize, &[u8]); 9] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("qed", 0, b"QED\0"),
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"COWD"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vhdx", 0, b"vhdxfile"),
    ("vpc", 0, b"conectix"),
    ("vdi", 64, b"\x7f\x10\xda\xbe"),
    ("parallels", 0, b"WithouFreSpacExt"),
];

/// The format of an image whose first bytes these are, by qemu-img's name.
fn recognise(bytes: &[u8]) -> Option<&'static str> {
    let is = |at: usize, mark: &[u8]| bytes.get(at..at + mark.len()) == Some(mark);
    FORMATS.iter().find(|(_, at, mark)| is(*at, mark)).map(|(name, ..)| *name)
}

/// The reason not to use the file or device at `path` as it is, and how to convert it. `None` if it
/// is raw, or cannot be read, which another check reports. `otherwise`: advice for using it all the
/// same.
pub fn mistaken(path: &Path, otherwise: &str) -> Option<String> {
    let mut bytes = [0; 512];
    let len = File::open(path).and_then(|file| file.read_at(&mut bytes, 0)).ok()?;
    let format = recognise(&bytes[..len])?;
    let name = match format {
        "vpc" => "VHD".to_owned(),
        "qcow2" => "qcow2".to_owned(),
        other => other.to_ascii_uppercase(),
    };
    let raw = path.with_extension("raw");
    let (path, raw) = (path.display(), raw.display());
    Some(format!(
        "{path} is a {name} image, not the disk in it. Convert it: qemu-img convert -f {format} -O raw {path} {raw}; or {otherwise}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_recognised_and_disks_are_not() {
        for (name, at, mark) in FORMATS {
            let mut bytes = vec![0; 512];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(recognise(&bytes), Some(name));
            assert_eq!(recognise(&bytes[..at + mark.len() - 1]), None);
        }
        assert_eq!(recognise(b""), None);
        assert_eq!(recognise(&[0; 512]), None);
    }
}
