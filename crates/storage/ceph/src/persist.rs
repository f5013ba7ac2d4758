//! Reservations in the metadata of an image: they are where the image is, whichever gateway serves
//! it. Knows nothing of their content.

use std::io;
use std::sync::Arc;

use backing::StoreError;
use device::Persist;
use runtime::Pooled;

use crate::live::Live;

/// The key of the image's metadata.
const KEY: &str = "stag.reservations";

/// Keeps bytes as hexadecimal digits, since a value is a string.
pub struct ImagePersist(pub(crate) Arc<Live>);

impl Persist for ImagePersist {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let live = self.0.clone();
        Pooled::new(async move {
            let (image, generation) = live.instance().await.map_err(io::Error::other)?;
            match image.set_metadata(KEY, &digits).await {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::other(live.failed(generation, error, 0, true).await)),
            }
        })
    }

    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        let image = self.0.serving().ok_or_else(|| io::Error::other(StoreError::Fenced))?;
        let found = image.metadata(KEY, max.saturating_mul(2)).map_err(io::Error::other)?;
        found.map(|digits| bytes(&digits).ok_or_else(|| io::ErrorKind::InvalidData.into())).transpose()
    }

    fn keeps_all(&self) -> bool {
        self.0.is_of_group()
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let whole = digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    whole.then(|| digits.as_bytes().chunks(2).map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pairs_of_digits_are_bytes() {
        assert_eq!(bytes(""), Some(vec![]));
        assert_eq!(bytes("00fF10"), Some(vec![0, 255, 16]));
        for text in ["0", "0g", "+1", "é", "0x"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
