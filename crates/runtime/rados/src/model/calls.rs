//! The calls of Ceph's libraries, sent to a modelled cluster.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use runtime::sim::Machine;
use runtime::{BufMut, Bytes, Foreign, Sender, channel, timeout};
use smallvec::SmallVec;

use super::cluster::{Message, OBJECT, Place, Request, State, Stored, Watcher, find, osd};
use crate::connection::{Login, plain};
use crate::error::Error;
use crate::image::{About, Source};
use crate::object::{Change, Content, Told};

/// Timeout for monitors (`rados_mon_op_timeout`).
const MONITORS: Duration = Duration::from_secs(30);
/// Extra time before librados itself gives an operation up (`rados_osd_op_timeout`).
const LEFT_BEHIND: Duration = Duration::from_secs(30);
/// The OSD of all objects that are no image's.
const OBJECTS: Place = Place::Osd(0);

fn error(what: &str, errno: i32) -> Error {
    Error::Call { what: format!("the modelled cluster: {what}"), errno }
}

/// A client of a modelled cluster.
#[derive(Clone)]
pub struct Client(Arc<Peer>);

struct Peer {
    cluster: Sender<Message>,
    address: String,
    op_timeout: Option<Duration>,
}

impl Client {
    /// `None` if no modelled cluster has this ceph.conf.
    pub(crate) fn connect(login: &Login, op_timeout: Option<Duration>) -> Option<Result<Self, Error>> {
        let cluster = find(login.conf.as_deref())?;
        let machine = login.user.as_deref().and_then(|user| user.parse().ok()).unwrap_or_default();
        let (say, hear) = channel();
        let connects = move |state: &mut State| drop(say.send(state.connects(Machine(machine))));
        let sent = cluster.send(Message::Act(Box::new(connects)));
        let address = sent.ok().and_then(|()| hear.recv().ok());
        let Some(address) = address else { return Some(Err(error("connecting", libc::ENOTCONN))) };
        let this = Self(Arc::new(Peer { cluster, address, op_timeout }));
        Some(this.monitors("connecting", false, |_| ()).map(|()| this))
    }

    /// Sends a request, and has `reply` called with its result.
    fn send<T: Send + 'static>(
        &self,
        to: Place,
        learns: bool,
        act: impl FnOnce(&mut State) -> Result<T, i32> + Send + 'static,
        reply: impl FnOnce(Result<T, i32>) + Send + 'static,
    ) {
        let act = move |state: &mut State, verdict: Result<(), i32>| {
            let result = verdict.and_then(|()| act(state));
            Box::new(move || reply(result)) as Box<dyn FnOnce() + Send>
        };
        let request = Request { from: self.0.address.clone(), to, learns, act: Box::new(act) };
        // Without a cluster the reply is dropped, and who waits for it hears so.
        let _ = self.0.cluster.send(Message::Request(request));
    }

    /// Carries a request out, and waits for its result.
    fn wait<T: Send + 'static>(
        &self,
        what: &str,
        to: Place,
        limit: Option<Duration>,
        act: impl FnOnce(&mut State) -> Result<T, i32> + Send + 'static,
    ) -> Result<T, Error> {
        let (say, hear) = channel();
        self.send(to, false, act, move |result| drop(say.send(result)));
        let result = match limit {
            Some(limit) => hear.recv_timeout(limit).unwrap_or(Err(libc::ETIMEDOUT)),
            None => hear.recv().unwrap_or(Err(libc::ESHUTDOWN)),
        };
        result.map_err(|errno| error(what, errno))
    }

    fn monitors<T: Send + 'static>(
        &self,
        what: &str,
        learns: bool,
        act: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (say, hear) = channel();
        self.send(Place::Monitors, learns, |state| Ok(act(state)), move |result| drop(say.send(result)));
        hear.recv_timeout(MONITORS).unwrap_or(Err(libc::ETIMEDOUT)).map_err(|errno| error(what, errno))
    }

    /// Carries a request out for a core, which does not wait meanwhile.
    fn ask<T: Send + 'static>(
        &self,
        to: Place,
        act: impl FnOnce(&mut State) -> Result<T, i32> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let operation = Foreign::start((), |(), completer| {
            self.send(to, false, act, move |result| {
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                completer.complete(0);
            });
        });
        async move {
            operation.await;
            let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            result.unwrap_or(Err(libc::ESHUTDOWN)).map_err(io::Error::from_raw_os_error)
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as librados")]
    pub(crate) fn address(&self) -> Result<String, Error> {
        Ok(self.0.address.clone())
    }

    pub(crate) fn blocklist(&self, addresses: &[String], _lasts: Duration) -> Result<u32, Error> {
        let addresses = addresses.to_vec();
        self.monitors("the blocklist", false, move |state| state.blocklist(&addresses))
    }

    pub(crate) fn latest_map(&self) -> Result<u32, Error> {
        let epoch = self.monitors("the epoch", false, |state| state.epoch)?;
        self.monitors("the newest map", true, |_| ())?;
        Ok(epoch)
    }

    pub(crate) fn object(&self, name: &str) -> Object {
        Object { client: self.clone(), name: name.to_owned() }
    }
}

/// An object of a modelled cluster.
#[derive(Clone)]
pub struct Object {
    client: Client,
    name: String,
}

impl Object {
    fn wait<T: Send + 'static>(
        &self,
        what: &str,
        act: impl FnOnce(&mut State, &str) -> Result<T, i32> + Send + 'static,
    ) -> Result<T, Error> {
        let (name, limit) = (self.name.clone(), self.client.0.op_timeout);
        self.client.wait(what, OBJECTS, limit, move |state| act(state, &name))
    }

    pub(crate) fn read(&self, most: usize) -> Result<Option<Content>, Error> {
        self.wait("reading an object", move |state, name| {
            let content = |stored: &Stored| Content {
                bytes: stored.bytes.clone(),
                attributes: stored.attributes.clone(),
            };
            match state.objects.get(name).map(content) {
                Some(content) if content.bytes.len() > most => Err(libc::EFBIG),
                found => Ok(found),
            }
        })
    }

    pub(crate) fn set_attribute(&self, attribute: &str, value: &[u8]) -> Result<(), Error> {
        let (attribute, value) = (attribute.to_owned(), value.to_vec());
        self.wait("writing an attribute", move |state, name| {
            let stored = state.objects.get_mut(name).ok_or(libc::ENOENT)?;
            stored.attributes.insert(attribute, value);
            Ok(())
        })
    }

    pub(crate) fn change(&self, change: &Change<'_>) -> Result<bool, Error> {
        let owned = |(name, value): &(&str, &[u8])| ((*name).to_owned(), value.to_vec());
        let expect = change.expect.as_ref().map(owned);
        let set: Vec<(String, Vec<u8>)> = change.set.iter().map(owned).collect();
        let (bytes, remove) = (change.bytes.to_vec(), change.remove.to_vec());
        self.wait("changing an object", move |state, name| {
            let is_expected = match (state.objects.get(name), &expect) {
                (None, None) => true,
                (Some(stored), Some((name, value))) => stored.attributes.get(name) == Some(value),
                _ => false,
            };
            if is_expected {
                let stored = state.objects.entry(name.to_owned()).or_default();
                stored.bytes = bytes;
                stored.attributes.extend(set);
                remove.iter().for_each(|name| _ = stored.attributes.remove(name));
            }
            Ok(is_expected)
        })
    }

    pub(crate) fn watch(&self, told: Told) -> Result<Watch, Error> {
        let is_lost = Arc::new(AtomicBool::new(false));
        let (client, lost) = (self.client.0.address.clone(), is_lost.clone());
        let number = self.wait("watching an object", move |state, name| {
            if !state.objects.contains_key(name) {
                return Err(libc::ENOENT);
            }
            let (number, object) = (state.number(), name.to_owned());
            state.watchers.insert(number, Watcher { client, object, told, is_lost: lost });
            Ok(number)
        })?;
        Ok(Watch { client: self.client.clone(), number, is_lost })
    }

    pub(crate) fn notify(&self, _limit: Duration) -> Result<(), Error> {
        self.wait("notifying", |state, name| {
            state.notify(name);
            Ok(())
        })
    }
}

/// A watch of an object of a modelled cluster.
pub struct Watch {
    client: Client,
    number: u64,
    is_lost: Arc<AtomicBool>,
}

impl Watch {
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.is_lost.load(Ordering::Acquire) {
            true => Err(error("the watch is lost", libc::ENOTCONN)),
            false => Ok(()),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let number = self.number;
        let ends = move |state: &mut State| drop(state.watchers.remove(&number));
        let _ = self.client.0.cluster.send(Message::Act(Box::new(ends)));
    }
}

/// An open image of a modelled cluster.
#[derive(Clone)]
pub struct Image(Arc<Opened>);

struct Opened {
    client: Client,
    name: String,
    about: About,
    op_timeout: Duration,
    is_locked: AtomicBool,
}

impl Image {
    pub(crate) fn open_unlocked(client: &Client, source: &Source) -> Result<Self, Error> {
        let name = source.image.clone();
        let limit = source.op_timeout + LEFT_BEHIND;
        let size = client.wait("opening an image", Place::Osd(osd(&name, None)), Some(limit), {
            let name = name.clone();
            move |state| state.images.get(&name).map(|image| image.bytes.len() as u64).ok_or(libc::ENOENT)
        })?;
        let about = About {
            fsid: "model".into(),
            pool_id: 1,
            id: name.clone(),
            snapshot_id: None,
            size,
            object_size: OBJECT,
            fast_diff: false,
            encrypted: false,
        };
        let (client, op_timeout) = (client.clone(), source.op_timeout);
        Ok(Self(Arc::new(Opened { client, name, about, op_timeout, is_locked: AtomicBool::new(false) })))
    }

    fn header(&self) -> Place {
        Place::Osd(osd(&self.0.name, None))
    }

    /// Carries something out at the image's header, and waits.
    fn wait<T: Send + 'static>(
        &self,
        what: &str,
        act: impl FnOnce(&mut super::cluster::ImageState) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (name, limit) = (self.0.name.clone(), self.0.op_timeout + LEFT_BEHIND);
        let act = move |state: &mut State| state.images.get_mut(&name).map(act).ok_or(libc::ENOENT);
        self.0.client.wait(what, self.header(), Some(limit), act)
    }

    pub(crate) fn lock_owner(&self) -> Result<Option<String>, Error> {
        self.wait("the owner of a lock", |image| image.lock.clone())
    }

    pub(crate) fn lock(&self) -> Result<bool, Error> {
        let own = self.0.client.0.address.clone();
        let is_locked = self
            .wait("locking an image", move |image| image.lock.get_or_insert_with(|| own.clone()) == &own)?;
        self.0.is_locked.store(is_locked, Ordering::Release);
        Ok(is_locked)
    }

    pub(crate) fn break_lock(&self, owner: &str) -> Result<bool, Error> {
        let owner = plain(owner).to_owned();
        self.wait("breaking a lock", move |image| image.lock.take_if(|lock| *lock == owner).is_some())
    }

    pub(crate) fn break_fenced_lock(&self, owner: &str) -> Result<(), Error> {
        self.break_lock(owner).map(drop)
    }

    pub(crate) fn release_lock(&self) -> Result<(), Error> {
        if self.0.is_locked.load(Ordering::Acquire) {
            let own = self.0.client.0.address.clone();
            self.wait("releasing a lock", move |image| _ = image.lock.take_if(|lock| *lock == own))?;
            self.0.is_locked.store(false, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn about(&self) -> &About {
        &self.0.about
    }

    pub(crate) fn address(&self) -> &str {
        &self.0.client.0.address
    }

    #[expect(clippy::unnecessary_wraps, reason = "as librbd")]
    pub(crate) fn size(&self) -> Result<u64, Error> {
        Ok(self.0.about.size)
    }

    pub(crate) async fn read(
        &self,
        at: u64,
        mut memory: SmallVec<[BufMut; 2]>,
    ) -> io::Result<(usize, SmallVec<[BufMut; 2]>)> {
        let len = memory.iter().map(BufMut::len).sum::<usize>();
        let mut found = Vec::with_capacity(len);
        let operations: Vec<_> = pieces(at, len)
            .map(|(at, len)| {
                let (name, from) = (self.0.name.clone(), self.0.client.0.address.clone());
                let place = Place::Osd(osd(&name, Some(at / OBJECT)));
                self.0.client.ask(place, move |state| state.reads(&name, &from, at, len))
            })
            .collect();
        let all = async {
            for operation in operations {
                found.extend(operation.await?);
            }
            Ok::<(), io::Error>(())
        };
        timeout(self.0.op_timeout, all).await.map_err(late)??;
        let mut rest = &found[..];
        for buf in &mut memory {
            let (now, later) = rest.split_at(buf.len().min(rest.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok((found.len(), memory))
    }

    pub(crate) async fn write(&self, at: u64, memory: SmallVec<[Bytes; 2]>) -> io::Result<()> {
        let data: Vec<u8> = memory.iter().flat_map(|piece| piece.iter().copied()).collect();
        self.land(at, data).await
    }

    pub(crate) async fn write_zeros(&self, at: u64, len: u64, _take_room: bool) -> io::Result<()> {
        self.land(at, vec![0; len as usize]).await
    }

    async fn land(&self, at: u64, data: Vec<u8>) -> io::Result<()> {
        // A process may be stopped between a look at its lease and this.
        runtime::yield_now().await;
        if !self.0.is_locked.load(Ordering::Acquire) {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        let operations: Vec<_> = pieces(at, data.len())
            .map(|(piece, len)| {
                let (name, from) = (self.0.name.clone(), self.0.client.0.address.clone());
                let start = (piece - at) as usize;
                let data = data[start..start + len].to_vec();
                self.0.client.ask(Place::Osd(osd(&self.0.name, Some(piece / OBJECT))), move |state| {
                    state.lands(&name, &from, piece, &data)
                })
            })
            .collect();
        let all = async {
            for operation in operations {
                operation.await?;
            }
            Ok(())
        };
        timeout(self.0.op_timeout, all).await.map_err(late)?
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        timeout(self.0.op_timeout, self.0.client.ask(self.header(), |_| Ok(()))).await.map_err(late)?
    }

    pub(crate) fn metadata(&self, key: &str, max: usize) -> Result<Option<String>, Error> {
        let (key, from) = (key.to_owned(), self.0.client.0.address.clone());
        let value = self.wait("reading metadata", move |image| image.look_up(&from, &key))?;
        match value {
            Some(value) if value.len() > max => Err(error("reading metadata", libc::ERANGE)),
            value => Ok(value),
        }
    }

    pub(crate) async fn set_metadata(&self, key: &str, value: &str) -> io::Result<()> {
        let (key, value) = (key.to_owned(), value.to_owned());
        if !runtime::is_running() {
            let set = self.wait("writing metadata", move |image| _ = image.metadata.insert(key, value));
            return set.map_err(io::Error::other);
        }
        let name = self.0.name.clone();
        let set = self.0.client.ask(self.header(), move |state| {
            let image = state.images.get_mut(&name).ok_or(libc::ENOENT)?;
            image.metadata.insert(key, value);
            Ok(())
        });
        timeout(self.0.op_timeout, set).await.map_err(late)?
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            let (name, own) = (self.name.clone(), self.client.0.address.clone());
            let releases = move |state: &mut State| {
                let image = state.images.get_mut(&name).ok_or(libc::ENOENT)?;
                image.lock.take_if(|lock| *lock == own);
                Ok(())
            };
            self.client.send(Place::Osd(osd(&self.name, None)), false, releases, |_| {});
        }
    }
}

fn late(_: runtime::Elapsed) -> io::Error {
    io::Error::from_raw_os_error(libc::ETIMEDOUT)
}

/// The parts of a range in one object each.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = at + len as u64;
    let ends: BTreeSet<u64> =
        (at / OBJECT + 1..=end.div_ceil(OBJECT)).map(|object| (object * OBJECT).min(end)).collect();
    let mut from = at;
    ends.into_iter().filter(move |end| *end > at).map(move |end| {
        let piece = (from, (end - from) as usize);
        from = end;
        piece
    })
}
