//! CHAP secrets that the daemon makes: 16 characters of 96 random bits, which every initiator
//! takes. Windows takes 12 to 16, and RFC 7143 §9.2.1 wants 96 bits.

use zeroize::Zeroizing;

/// 64 characters that mean nothing to a shell.
const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._";

/// A secret that nobody has seen yet.
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// A new secret.
    ///
    /// # Errors
    /// The system has no random bits.
    pub fn new() -> Result<Self, String> {
        let mut random = Zeroizing::new([0; 16]);
        runtime::random(&mut *random).map_err(|error| format!("there are no random bits: {error}"))?;
        // 64 divides 256: no character is more likely than others.
        let text = random.iter().map(|byte| char::from(CHARACTERS[usize::from(byte % 64)])).collect();
        Ok(Self(Zeroizing::new(text)))
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_16_characters_that_no_shell_minds() {
        let [one, two] = [(); 2].map(|()| Secret::new().unwrap());
        assert_ne!(one.text(), two.text());
        assert_eq!(one.text().len(), 16);
        assert!(one.text().bytes().all(|byte| CHARACTERS.contains(&byte)));
        let mut all = CHARACTERS.to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 64);
    }
}
