//! The types that other crates use: each is one of Ceph's libraries, or of the modelled cluster
//! in a simulated world.

use std::future::Future;
use std::io;
use std::time::Duration;

use runtime::{BufMut, Bytes};
use smallvec::SmallVec;

use crate::connection::Login;
use crate::error::Error;
use crate::image::{About, Changed, Source};
#[cfg(feature = "sim")]
use crate::model;
use crate::object::{Change, Content, Told};
use crate::{client, image, object};

/// The same for both.
macro_rules! each {
    ($this:expr, $it:ident => $then:expr) => {
        match $this {
            Self::Ceph($it) => $then,
            #[cfg(feature = "sim")]
            Self::Model($it) => $then,
        }
    };
}

/// One client of a cluster that images and objects share: one address, one OSD map. Clones share
/// it; it ends with the last of them, of its objects and of its images. Everything blocks.
#[derive(Clone)]
pub enum Client {
    Ceph(client::Client),
    #[cfg(feature = "sim")]
    Model(model::Client),
}

/// An object. Clones share it. Everything blocks.
#[derive(Clone)]
pub enum Object {
    Ceph(object::Object),
    #[cfg(feature = "sim")]
    Model(model::Object),
}

/// A watch of an object, until it is dropped; that blocks.
pub enum Watch {
    Ceph(object::Watch),
    #[cfg(feature = "sim")]
    Model(model::Watch),
}

/// An open image. Clones share it; the last one closes it.
#[derive(Clone)]
pub enum Image {
    Ceph(image::Image),
    #[cfg(feature = "sim")]
    Model(model::Image),
}

impl Client {
    /// Connects. Operations end with ETIMEDOUT some time after `op_timeout`, and may still be
    /// carried out; without one they wait for ever.
    ///
    /// # Errors
    /// An [`Error`].
    pub fn connect(login: &Login, op_timeout: Option<Duration>) -> Result<Self, Error> {
        #[cfg(feature = "sim")]
        if let Some(client) = model::Client::connect(login, op_timeout) {
            return client.map(Self::Model);
        }
        client::Client::connect(login, op_timeout).map(Self::Ceph)
    }

    /// The address by which the cluster knows this client, and no other.
    ///
    /// # Errors
    /// An [`Error`].
    pub fn address(&self) -> Result<String, Error> {
        each!(self, it => it.address())
    }

    /// Keeps the clients at these addresses from the cluster. Gives an epoch of the OSD map from
    /// which on OSDs refuse all of them.
    ///
    /// # Errors
    /// An [`Error`]: some of them may still write.
    pub fn blocklist(&self, addresses: &[String], lasts: Duration) -> Result<u32, Error> {
        each!(self, it => it.blocklist(addresses, lasts))
    }

    /// Waits for the newest OSD map. Gives an epoch that this client's map has reached: OSDs get a
    /// map at least as new before they carry out its next operation.
    ///
    /// # Errors
    /// An [`Error`].
    pub fn latest_map(&self) -> Result<u32, Error> {
        each!(self, it => it.latest_map())
    }

    /// An object of a pool, whether or not it is there.
    ///
    /// # Errors
    /// An [`Error`].
    pub fn object(&self, pool: &str, namespace: Option<&str>, name: &str) -> Result<Object, Error> {
        match self {
            Self::Ceph(client) => client.object(pool, namespace, name).map(Object::Ceph),
            #[cfg(feature = "sim")]
            Self::Model(client) => Ok(Object::Model(client.object(name))),
        }
    }
}

impl Object {
    /// The object's bytes and attributes as of one moment; `None` if there is none.
    ///
    /// # Errors
    /// Those of librados; EFBIG if it has more bytes than `most`.
    pub fn read(&self, most: usize) -> Result<Option<Content>, Error> {
        each!(self, it => it.read(most))
    }

    /// Sets an attribute of an object that is there.
    ///
    /// # Errors
    /// Those of librados; ENOENT if there is no object.
    pub fn set_attribute(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        each!(self, it => it.set_attribute(name, value))
    }

    /// Changes the object. Returns false if it was not as expected: then nothing has changed.
    ///
    /// # Errors
    /// Those of librados.
    pub fn change(&self, change: &Change<'_>) -> Result<bool, Error> {
        each!(self, it => it.change(change))
    }

    /// Watches the object. A watcher without a connection is forgotten after
    /// osd_client_watch_timeout.
    ///
    /// # Errors
    /// Those of librados; ENOENT if there is no object.
    pub fn watch(&self, told: Told) -> Result<Watch, Error> {
        match self {
            Self::Ceph(object) => object.watch(told).map(Watch::Ceph),
            #[cfg(feature = "sim")]
            Self::Model(object) => object.watch(told).map(Watch::Model),
        }
    }

    /// Notifies the watchers, and waits until all have heard of it, or for `limit`.
    ///
    /// # Errors
    /// Those of librados; ETIMEDOUT if some have not heard.
    pub fn notify(&self, limit: Duration) -> Result<(), Error> {
        each!(self, it => it.notify(limit))
    }
}

impl Watch {
    /// Whether the watch still stands, as far as this client knows.
    ///
    /// # Errors
    /// It is lost.
    pub fn check(&self) -> Result<(), Error> {
        each!(self, it => it.check())
    }
}

impl Image {
    /// Opens an image and, unless it is read-only, takes its exclusive lock. Blocks. A lock whose
    /// owner is dead is broken, and the owner kept from the cluster; a living owner keeps it.
    ///
    /// # Errors
    /// An [`Error`]. [`Error::Held`] comes after the time that it takes to see that an owner is
    /// dead.
    pub fn open(source: &Source, changed: Changed) -> Result<Self, Error> {
        image::Image::open(source, changed).map(Self::Ceph)
    }

    /// Opens an image by a client that others share, and takes no lock. Blocks.
    ///
    /// # Errors
    /// An [`Error`].
    pub fn open_unlocked(client: &Client, source: &Source, changed: Changed) -> Result<Self, Error> {
        match client {
            Client::Ceph(client) => image::Image::open_unlocked(client, source, changed).map(Self::Ceph),
            #[cfg(feature = "sim")]
            Client::Model(client) => model::Image::open_unlocked(client, source).map(Self::Model),
        }
    }

    /// The address of the client that has the exclusive lock. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub fn lock_owner(&self) -> Result<Option<String>, Error> {
        each!(self, it => it.lock_owner())
    }

    /// Takes the exclusive lock, which librbd then gives to nobody who asks. Returns false if
    /// another client has it. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub fn lock(&self) -> Result<bool, Error> {
        each!(self, it => it.lock())
    }

    /// Breaks the exclusive lock if the client at this address has it, and keeps that client from
    /// the cluster. Returns false if it had given the lock back. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub fn break_lock(&self, owner: &str) -> Result<bool, Error> {
        each!(self, it => it.break_lock(owner))
    }

    /// Breaks the exclusive lock if the client at this address has it. The caller has fenced that
    /// client: this call does not. Blocks.
    ///
    /// # Errors
    /// Those of librados.
    pub fn break_fenced_lock(&self, owner: &str) -> Result<(), Error> {
        each!(self, it => it.break_fenced_lock(owner))
    }

    /// Gives the exclusive lock back, after the operations in flight. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub fn release_lock(&self) -> Result<(), Error> {
        each!(self, it => it.release_lock())
    }

    pub fn about(&self) -> &About {
        each!(self, it => it.about())
    }

    /// The address by which the cluster knows this instance, and no other.
    pub fn address(&self) -> &str {
        each!(self, it => it.address())
    }

    /// Reads at `at` into all of `memory`. Gives the number of bytes that there were.
    ///
    /// # Errors
    /// Those of librbd, and of [`Source::op_timeout`].
    pub async fn read(
        &self,
        at: u64,
        memory: SmallVec<[BufMut; 2]>,
    ) -> io::Result<(usize, SmallVec<[BufMut; 2]>)> {
        each!(self, it => it.read(at, memory).await)
    }

    /// Writes `memory` at `at`. It is on all replicas when this ends.
    ///
    /// # Errors
    /// Those of librbd, and of [`Source::op_timeout`]: the write may have been done in part.
    pub async fn write(&self, at: u64, memory: SmallVec<[Bytes; 2]>) -> io::Result<()> {
        each!(self, it => it.write(at, memory).await)
    }

    /// Makes `len` bytes at `at` zeros. Whole objects give their space back, unless they shall
    /// `take_room`. (A discard would leave the ends of a range as they are.)
    ///
    /// # Errors
    /// Those of librbd, and of [`Source::op_timeout`]: it may have been done in part.
    pub async fn write_zeros(&self, at: u64, len: u64, take_room: bool) -> io::Result<()> {
        each!(self, it => it.write_zeros(at, len, take_room).await)
    }

    /// Waits for the writes in flight.
    ///
    /// # Errors
    /// Those of librbd, and of [`Source::op_timeout`].
    pub async fn flush(&self) -> io::Result<()> {
        each!(self, it => it.flush().await)
    }

    /// The image's size in bytes. Blocks if it has changed.
    ///
    /// # Errors
    /// Those of librbd.
    pub fn size(&self) -> Result<u64, Error> {
        each!(self, it => it.size())
    }

    /// How many of the `len` bytes at `at` lie in objects of which all are there, or none is; and
    /// whether they are. An object that is there may be zeros in part.
    ///
    /// # Errors
    /// Those of librbd, and of [`Source::op_timeout`].
    pub async fn run_of_objects(&self, at: u64, len: u64) -> io::Result<(u64, bool)> {
        match self {
            Self::Ceph(image) => image.run_of_objects(at, len).await,
            #[cfg(feature = "sim")]
            Self::Model(_) => Ok((len, true)),
        }
    }

    /// The bytes of the objects that there are; `None` if the image does not know. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub fn used(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Ceph(image) => image.used(),
            #[cfg(feature = "sim")]
            Self::Model(_) => Ok(None),
        }
    }

    /// The pool of the image's data.
    pub fn data_pool(&self) -> i64 {
        match self {
            Self::Ceph(image) => image.data_pool(),
            #[cfg(feature = "sim")]
            Self::Model(image) => image.about().pool_id,
        }
    }

    /// What the monitors tell of the pools' space, as JSON. Blocks.
    ///
    /// # Errors
    /// Those of librados.
    pub fn space_of_pools(&self) -> Result<String, Error> {
        match self {
            Self::Ceph(image) => image.space_of_pools(),
            #[cfg(feature = "sim")]
            Self::Model(_) => Ok("{}".into()),
        }
    }

    /// The value of a key of the image's metadata, at most `max` bytes; `None` if it has none.
    /// Blocks.
    ///
    /// # Errors
    /// Those of librbd; ERANGE if it is longer.
    pub fn metadata(&self, key: &str, max: usize) -> Result<Option<String>, Error> {
        each!(self, it => it.metadata(key, max))
    }

    /// Sets a key of the image's metadata. It is on all replicas when this ends. On a core it waits
    /// without blocking.
    pub fn set_metadata(&self, key: &str, value: &str) -> impl Future<Output = io::Result<()>> + use<> {
        let (this, key, value) = (self.clone(), key.to_owned(), value.to_owned());
        async move { each!(&this, it => it.set_metadata(&key, &value).await) }
    }
}
