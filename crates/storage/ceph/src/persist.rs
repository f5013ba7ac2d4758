//! Reservations, and the record of a sanitize, in the metadata of an image: they are where the image
//! is, whichever gateway serves it. Knows nothing of their content.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use backing::StoreError;
use device::{Persist, Reload};
use rados::{Error, Image};
use runtime::Pooled;

use crate::live::{Instance, Live};

/// The keys of the image's metadata.
const RESERVATIONS: &str = "stag.reservations";
const SANITIZE: &str = "stag.sanitize";

/// What this daemon has read or written last, and who is told of what another one has written.
#[derive(Default)]
pub(crate) struct Kept {
    seen: Mutex<Seen>,
    /// Counts what others have written.
    epoch: AtomicU64,
}

#[derive(Default)]
struct Seen {
    digits: Option<String>,
    /// The most bytes; 0 before the first look.
    max: usize,
    told: Vec<Weak<dyn Reload>>,
}

impl Kept {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether another daemon has written by now, by the next instance of the image, before
    /// it is in service. Blocks.
    ///
    /// # Errors
    /// They cannot be read, or what is written cannot be used.
    pub(crate) fn look(&self, image: &Image) -> Result<(), String> {
        let max = self.seen().max;
        if max == 0 {
            return Ok(());
        }
        // Not under the lock, which cores take.
        let found = read(image, RESERVATIONS, max).map_err(|error| error.to_string())?;
        let mut seen = self.seen();
        if found == seen.digits {
            return Ok(());
        }
        let unusable = |error: io::Error| format!("its reservations cannot be used: {error}");
        let bytes = found.as_deref().map(parsed).transpose().map_err(unusable)?;
        seen.told.retain(|told| told.strong_count() > 0);
        for told in seen.told.iter().filter_map(Weak::upgrade) {
            told.reload(bytes.as_deref()).map_err(unusable)?;
        }
        seen.digits = found;
        self.epoch.fetch_add(1, Ordering::AcqRel);
        tracing::warn!("another daemon has changed the image's reservations: they are in force");
        Ok(())
    }
}

/// Keeps bytes as hexadecimal digits, since a value is a string.
pub struct ImagePersist(pub(crate) Arc<Live>);

impl Persist for ImagePersist {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        self.save_since(self.epoch(), bytes)
    }

    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        let image = self.0.serving().ok_or_else(|| io::Error::other(StoreError::Fenced))?;
        let mut seen = self.0.kept().seen();
        if seen.max == 0 {
            // No unit saves yet.
            seen.digits = read(&image, RESERVATIONS, max).map_err(io::Error::other)?;
            seen.max = max;
            return seen.digits.as_deref().map(parsed).transpose();
        }
        drop(seen);
        // For another unit over the same image. The one before may save meanwhile, on a core.
        read(&image, RESERVATIONS, max).map_err(io::Error::other)?.as_deref().map(parsed).transpose()
    }

    fn keeps_all(&self) -> bool {
        self.0.is_of_group()
    }

    fn epoch(&self) -> u64 {
        self.0.kept().epoch.load(Ordering::Acquire)
    }

    fn save_since(&self, epoch: u64, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let digits = digits(&bytes);
        let live = self.0.clone();
        Pooled::new(async move {
            let (image, generation) = live.instance().await.map_err(told)?;
            // Each later instance looks before it is in service.
            if live.kept().epoch.load(Ordering::Acquire) != epoch {
                return Err(told(StoreError::Fenced));
            }
            write(&live, (image, generation), RESERVATIONS, &digits).await?;
            live.kept().seen().digits = Some(digits);
            Ok(())
        })
    }

    fn on_replaced(&self, reload: Weak<dyn Reload>) {
        self.0.kept().seen().told.push(reload);
    }
}

/// Keeps the record of a sanitize. Only the daemon that executes it writes there.
pub(crate) struct SanitizeRecord(pub(crate) Arc<Live>);

impl Persist for SanitizeRecord {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let (live, digits) = (self.0.clone(), digits(&bytes));
        Pooled::new(async move {
            let instance = live.instance().await.map_err(told)?;
            write(&live, instance, SANITIZE, &digits).await
        })
    }

    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        let image = self.0.serving().ok_or_else(|| io::Error::other(StoreError::Fenced))?;
        let found = read(&image, SANITIZE, max).map_err(io::Error::other)?;
        found.as_deref().map(parsed).transpose()
    }
}

async fn write(live: &Live, (image, generation): Instance, key: &str, digits: &str) -> io::Result<()> {
    match image.set_metadata(key, digits).await {
        Ok(()) => Ok(()),
        Err(error) => Err(told(live.failed(generation, error, 0, true).await)),
    }
}

/// Maps a store's error to one of [`Persist::save`].
fn told(error: StoreError) -> io::Error {
    match error {
        StoreError::Fenced | StoreError::Unknown => io::Error::new(io::ErrorKind::NotConnected, error),
        error => io::Error::other(error),
    }
}

fn read(image: &Image, key: &str, max: usize) -> Result<Option<String>, Error> {
    image.metadata(key, max.saturating_mul(2))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parsed(digits: &str) -> io::Result<Vec<u8>> {
    bytes(digits).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let whole = digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    whole.then(|| digits.as_bytes().chunks(2).map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use backing::Health;
    use rados::model::{Cluster, OSDS};
    use rados::{Client, Login};
    use runtime::sim;

    use super::*;
    use crate::name::ImageName;

    /// The next instance, and a unit that is made anew, read reservations from silent OSDs.
    fn looks_at_silent_osds() {
        let cluster = Cluster::start(&[("image", 1 << 16)]).unwrap();
        let (login, limit) =
            (Login { user: None, conf: Some(cluster.conf().to_owned()) }, Duration::from_secs(30));
        let client = Client::connect(&login, Some(limit)).unwrap();
        let source = "pool/image".parse::<ImageName>().unwrap().source(login, limit);
        let image = Image::open_unlocked(&client, &source, Arc::new(|| {})).unwrap();
        let health = Health::new("rbd:pool/image".to_owned());
        let live = Live::of_group(image.clone(), limit, health, Box::new(|_| {}));
        assert_eq!(ImagePersist(live.clone()).load(100).unwrap(), None);
        let (looks, loads) = (live.clone(), live.clone());
        let calls: [Box<dyn FnOnce() + Send>; 2] = [
            Box::new(move || looks.kept().look(&image).unwrap()),
            Box::new(move || assert_eq!(ImagePersist(loads).load(100).unwrap(), None)),
        ];
        for call in calls {
            (0..OSDS).for_each(|osd| cluster.stop_osd(osd, Duration::from_secs(20)));
            let (tell, told) = runtime::channel();
            let reads = move || {
                call();
                tell.send(()).unwrap();
            };
            runtime::thread("reads", reads).unwrap();
            assert!(told.recv_timeout(Duration::from_secs(10)).is_err(), "it waits for the cluster");
            assert!(live.kept().seen.try_lock().is_ok(), "a core that saves would wait with it");
            told.recv().unwrap();
        }
    }

    #[test]
    fn no_lock_of_cores_is_held_while_the_cluster_is_read() {
        let _ran = sim::run(sim::Config::new(1), || async {
            runtime::thread("test", looks_at_silent_osds).unwrap();
        });
    }

    #[test]
    fn only_pairs_of_digits_are_bytes() {
        assert_eq!(bytes(""), Some(vec![]));
        assert_eq!(bytes("00fF10"), Some(vec![0, 255, 16]));
        for text in ["0", "0g", "+1", "é", "0x"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
