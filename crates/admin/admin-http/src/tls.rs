//! TLS 1.2 and 1.3 of the listener (RFC 5246, RFC 8446): its certificate and key, read again within
//! seconds after their files have changed. Connections of before keep what they have.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

/// Time between two looks at the files.
const LOOKS: Duration = Duration::from_secs(5);
/// The largest file that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// A certificate and its key, for [`crate::Http::start`].
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

/// The reason why the listener cannot speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

impl Tls {
    /// Reads a chain of certificates, the server's own first, and its private key. Both are PEM
    /// (RFC 7468); the key is PKCS #8, PKCS #1 or SEC 1, without a password.
    ///
    /// # Errors
    /// A file cannot be read, the two do not belong together, or this processor lacks instructions
    /// that the cryptography is made of.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        if let Some(missing) = missing_instructions() {
            return Err(TlsError(format!("TLS needs a processor with {missing}")));
        }
        let provider = Arc::new(rustls_graviola::default_provider());
        let files = Files { certificate: certificate.to_owned(), key: key.to_owned() };
        let seen = files.look();
        let pair = files.read(&provider).map_err(TlsError)?;
        let renewing = Renewing {
            files,
            provider: provider.clone(),
            now: Mutex::new(Now { pair, seen, looked: Instant::now() }),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(renewing));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config).into()))
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.0
    }
}

/// The instruction that the cryptography needs and this processor lacks. Without this check the
/// daemon would panic at its first client.
fn missing_instructions() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let has = [
        ("AES", is_x86_feature_detected!("aes")),
        ("PCLMULQDQ", is_x86_feature_detected!("pclmulqdq")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("ADX", is_x86_feature_detected!("adx")),
        ("AVX2", is_x86_feature_detected!("avx2")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let has: [(&str, bool); 0] = [];
    has.into_iter().find(|(_, is_there)| !is_there).map(|(name, _)| name)
}

/// Where certificate and key stand.
#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// A file's device, inode, time of change (seconds and nanoseconds) and length. A changed file has
/// others.
type Look = (u64, u64, i64, i64, u64);

impl Files {
    fn look(&self) -> [Option<Look>; 2] {
        [&self.certificate, &self.key].map(|path| {
            let it = std::fs::metadata(path).ok()?;
            Some((it.dev(), it.ino(), it.ctime(), it.ctime_nsec(), it.len()))
        })
    }

    fn read(&self, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
        let wrong = |path: &Path, error: &dyn Display| format!("{}: {error}", path.display());
        let text = contents(&self.certificate)?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let chain = chain.map_err(|error| wrong(&self.certificate, &error))?;
        if chain.is_empty() {
            return Err(wrong(&self.certificate, &"there is no certificate in it"));
        }
        let key = PrivateKeyDer::from_pem_slice(&contents(&self.key)?);
        let key = key.map_err(|error| wrong(&self.key, &error))?;
        let pair = CertifiedKey::from_der(chain, key, provider).map_err(|error| {
            format!(
                "{} and {} cannot be used together: {error}",
                self.certificate.display(),
                self.key.display()
            )
        })?;
        Ok(Arc::new(pair))
    }
}

/// The whole file. Its memory is cleared after use.
fn contents(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let read = || {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        if len > MAX_FILE {
            return Err(std::io::Error::other("it is larger than 1 MiB"));
        }
        // Room for all of it, so that no part of a key is left behind in a shorter buffer.
        let mut text = Zeroizing::new(Vec::with_capacity(len as usize + 1));
        file.take(len).read_to_end(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// The certificate in use, and where the next one will stand.
#[derive(Debug)]
struct Renewing {
    files: Files,
    provider: Arc<CryptoProvider>,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    pair: Arc<CertifiedKey>,
    seen: [Option<Look>; 2],
    looked: Instant,
}

impl Renewing {
    /// Reads the files again if they have changed. Until both fit, the old pair stays in use.
    fn renew(&self, now: &mut Now) {
        let seen = self.files.look();
        if seen == now.seen {
            return;
        }
        // What cannot be used is told once.
        now.seen = seen;
        match self.files.read(&self.provider) {
            Ok(pair) => {
                now.pair = pair;
                tracing::info!(path = %self.files.certificate.display(), "HTTP has a new certificate");
            }
            Err(error) => tracing::warn!(%error, "HTTP keeps its old certificate"),
        }
    }
}

impl ResolvesServerCert for Renewing {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.looked.elapsed() >= LOOKS {
            now.looked = Instant::now();
            self.renew(&mut now);
        }
        Some(now.pair.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pem");

    fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, String> {
        let files = Files { certificate: certificate.to_owned(), key: key.to_owned() };
        files.read(&rustls_graviola::default_provider())
    }

    #[test]
    fn what_cannot_be_used_is_told_by_its_path() {
        let [a, b, nothing] = ["a.pem", "b.pem", "gone.pem"].map(|name| Path::new(PEM).join(name));
        let keys = ["a.key", "b.key"].map(|name| Path::new(PEM).join(name));
        assert!(read(&a, &keys[0]).is_ok() && read(&b, &keys[1]).is_ok());
        assert!(read(&a, &keys[1]).unwrap_err().contains("cannot be used together"));
        assert!(read(&nothing, &keys[0]).unwrap_err().contains("gone.pem cannot be read"));
        assert!(read(&keys[0], &keys[0]).unwrap_err().contains("a.key: there is no certificate in it"));
        assert!(read(&a, &a).unwrap_err().contains("a.pem: "));
        assert!(Tls::read(&a, &nothing).err().unwrap().to_string().contains("gone.pem"));
    }

    #[test]
    fn a_new_certificate_is_used_once_its_key_is_there_too() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files { certificate: dir.path().join("pem"), key: dir.path().join("key") };
        let put = |from: &str, to: &Path| _ = std::fs::copy(Path::new(PEM).join(from), to).unwrap();
        put("a.pem", &files.certificate);
        put("a.key", &files.key);
        let provider = Arc::new(rustls_graviola::default_provider());
        let pair = files.read(&provider).unwrap();
        let seen = files.look();
        let renewing =
            Renewing { files, provider, now: Mutex::new(Now { pair, seen, looked: Instant::now() }) };
        let mut now = renewing.now.lock().unwrap();
        let first = now.pair.cert.clone();
        renewing.renew(&mut now);
        assert_eq!(now.pair.cert, first);
        put("b.pem", &renewing.files.certificate);
        renewing.renew(&mut now);
        assert_eq!(now.pair.cert, first, "its key has not come yet");
        assert_eq!(now.seen, renewing.files.look(), "the same files are not tried again");
        put("b.key", &renewing.files.key);
        renewing.renew(&mut now);
        assert_ne!(now.pair.cert, first);
    }
}
