//! Connects NFS clients with the command line's options, and lets a copy use an open file.

use std::cell::Cell;
use std::time::{Duration, Instant};

use nfs_client::{
    Attributes, Auth, Client, Error, File, FileType, Handle, Options, SetAttributes, Status, Sys, Url,
};
use runtime::Chain;

use crate::args::Connect;

/// Default mode of a new file.
const MODE: u32 = 0o644;

/// The client's options. Calls are made as the user who runs the command.
pub fn options(args: &Connect) -> Options {
    let gids = rustix::process::getgroups().unwrap_or_default();
    let sys = Sys {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        gids: gids.into_iter().map(rustix::process::Gid::as_raw).collect(),
    };
    let timeout = Duration::from_secs(args.timeout.into());
    let default = Options::default();
    Options {
        auth: Auth::Sys(sys),
        connect_timeout: timeout,
        call_timeout: timeout,
        give_up: args.reconnect_or(default.give_up),
        rdma_crc: args.rdma_crc.into(),
        rdma_provider: args.rdma.into(),
        ..default
    }
}

/// Connects to the server of `url`.
pub async fn connect(url: &Url, args: &Connect) -> Result<Client, Error> {
    Client::connect(url, options(args)).await
}

/// The directory of the last name of `url`, and that name.
///
/// # Errors
/// The server's errors, and [`Status::IsDir`] for the server's root.
pub async fn parent(client: &Client, url: &Url) -> Result<(Handle, Vec<u8>), Error> {
    let mut names: Vec<&[u8]> = url.components().collect();
    let name = names.pop().filter(|name| *name != b"..").ok_or(Error::Status(Status::IsDir))?;
    let above = url.with_path([b"/", names.join(&b'/').as_slice()].concat());
    Ok((client.find(&above, true).await?.0, name.to_vec()))
}

/// The way a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    Read,
    /// To be written in part; it is created if it is missing.
    Write,
    /// To be replaced as a whole.
    Replace,
}

/// An open file with what a copy asks of it.
pub struct OpenFile {
    place: String,
    client: Client,
    /// The client is this file's own.
    own: bool,
    file: File,
    bytes: u64,
    /// The file was empty: an unwritten range is a hole.
    empty: bool,
    /// Highest offset that a write has reached.
    written: Cell<u64>,
    flow: Flow,
}

/// Measures a path: the shortest duration of a call, and the highest rate.
#[derive(Default)]
struct Flow {
    /// `None` before the first call.
    shortest: Cell<Option<Duration>>,
    /// Start of the interval, and the bytes of the calls that have ended in it.
    interval: Cell<(Option<Instant>, u64)>,
    /// Bytes a second.
    rate: Cell<f64>,
}

/// Length of an interval in round trips: enough for added calls to show an effect.
const TRIPS: u32 = 4;

impl Flow {
    /// A call of so many bytes has ended.
    fn ended(&self, begun: Instant, bytes: usize, now: Instant) {
        let took = now.saturating_duration_since(begun);
        let shortest = self.shortest.get().map_or(took, |known| known.min(took));
        self.shortest.set(Some(shortest));
        let (since, before) = self.interval.get();
        let since = since.unwrap_or(begun);
        let (moved, time) = (before + bytes as u64, now.saturating_duration_since(since));
        if time < shortest * TRIPS || time.is_zero() {
            self.interval.set((Some(since), moved));
            return;
        }
        self.rate.set(self.rate.get().max(moved as f64 / time.as_secs_f64()));
        self.interval.set((Some(now), 0));
    }

    /// Wanted bytes in flight: twice the bandwidth-delay product. Grows as long as more bytes in
    /// flight raise the rate.
    fn under_way(&self) -> u64 {
        let shortest = self.shortest.get().unwrap_or_default();
        (2.0 * self.rate.get() * shortest.as_secs_f64()) as u64
    }
}

impl OpenFile {
    /// Connects, and opens the file of `url`. If that is a directory, opens the file `name` in it.
    pub async fn open(url: &Url, args: &Connect, intent: Intent, name: Option<&[u8]>) -> Result<Self, Error> {
        let client = connect(url, args).await?;
        let opened = Self::with(&client, url, intent, name).await;
        match opened {
            Ok(file) => Ok(Self { own: true, ..file }),
            Err(error) => {
                client.close().await;
                Err(error)
            }
        }
    }

    async fn with(client: &Client, url: &Url, intent: Intent, name: Option<&[u8]>) -> Result<Self, Error> {
        let inside;
        let (mut url, mut found) = (url, Self::find(client, url, intent).await?);
        if let (Some((_, of)), Some(name)) = (&found, name)
            && of.kind == FileType::Directory
        {
            inside = url.join(name);
            (url, found) = (&inside, Self::find(client, &inside, intent).await?);
        }
        match found {
            Some((_, of)) if of.kind == FileType::Directory => Err(Error::Status(Status::IsDir)),
            Some((_, of)) if of.kind != FileType::Regular => Err(Error::Status(Status::Inval)),
            Some((handle, of)) => {
                if intent == Intent::Replace {
                    let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
                    client.set_attributes(&handle, &set).await?;
                }
                let file = client.open(&handle, intent != Intent::Read).await?;
                let bytes = if intent == Intent::Replace { 0 } else { of.size };
                Ok(Self::new(client, file, bytes, intent == Intent::Replace, url.to_string()))
            }
            None => {
                let (directory, name) = parent(client, url).await?;
                Self::create(client, &directory, &name, MODE, url.to_string()).await
            }
        }
    }

    /// The file of `url`; `None` if there is none, and `intent` creates it.
    async fn find(client: &Client, url: &Url, intent: Intent) -> Result<Option<(Handle, Attributes)>, Error> {
        match client.find(url, true).await {
            Err(Error::Status(Status::NoEnt)) if intent != Intent::Read => Ok(None),
            found => found.map(Some),
        }
    }

    fn new(client: &Client, file: File, bytes: u64, empty: bool, place: String) -> Self {
        Self {
            place,
            client: client.clone(),
            own: false,
            file,
            bytes,
            empty,
            written: Cell::new(0),
            flow: Flow::default(),
        }
    }

    /// Opens a file of a known handle for reading.
    pub async fn known(
        client: &Client,
        handle: &Handle,
        of: &Attributes,
        place: String,
    ) -> Result<Self, Error> {
        let file = client.open(handle, false).await?;
        Ok(Self::new(client, file, of.size, false, place))
    }

    /// Creates a file, or truncates the one that is there.
    pub async fn create(
        client: &Client,
        directory: &Handle,
        name: &[u8],
        mode: u32,
        place: String,
    ) -> Result<Self, Error> {
        let set = SetAttributes { mode: Some(mode), size: Some(0), ..SetAttributes::default() };
        let file = client.create(directory, name, &set).await?;
        Ok(Self::new(client, file, 0, true, place))
    }

    /// Closes the file, and its client if that is its own.
    pub async fn close(&self) -> Result<(), Error> {
        let closed = self.file.close().await;
        if self.own {
            self.client.close().await;
        }
        closed
    }

    /// The server's handle of the file.
    pub fn handle(&self) -> &Handle {
        self.file.handle()
    }

    /// Its URL.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Its length when it was opened, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads exactly `len` bytes.
    pub async fn read(&self, at: u64, len: usize) -> Result<Chain, Error> {
        let begun = runtime::now();
        let data = self.file.read(at, len).await?;
        self.flow.ended(begun, len, runtime::now());
        if data.len() < len {
            return Err(Error::Nonsense("the file became shorter while it was read"));
        }
        Ok(data)
    }

    pub async fn write(&self, at: u64, data: Chain) -> Result<(), Error> {
        let (begun, len) = (runtime::now(), data.len());
        let end = at + len as u64;
        self.file.write(at, data).await?;
        self.flow.ended(begun, len, runtime::now());
        self.written.set(self.written.get().max(end));
        Ok(())
    }

    /// Wanted bytes in flight; 0 while unknown.
    pub fn under_way(&self) -> u64 {
        self.flow.under_way()
    }

    /// Whether unwritten ranges are holes.
    pub fn is_hole(&self) -> bool {
        self.empty
    }

    /// Sets the file's length to `end` if the copy ended with a hole.
    pub async fn end(&self, end: u64) -> Result<(), Error> {
        if self.empty && end > self.written.get() { self.file.set_size(end).await } else { Ok(()) }
    }

    /// Ends the file at `end`.
    pub async fn cut(&self, end: u64) -> Result<(), Error> {
        self.file.set_size(end).await
    }

    /// Waits until the server has made all of it stable.
    pub async fn sync(&self) -> Result<(), Error> {
        self.file.sync().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls in flight on a path of this rate and round trip, each begun when another one ends.
    fn after(seconds: u64, rate: f64, rtt: Duration, call: usize) -> u64 {
        let (flow, begun) = (Flow::default(), Instant::now());
        let mut flying = std::collections::VecDeque::new();
        // Time at which the path has sent everything given to it.
        let (mut now, mut free) = (begun, begun);
        while now < begun + Duration::from_secs(seconds) {
            let depth = (flow.under_way() as usize).div_ceil(call).max(4);
            while flying.len() < depth {
                free = free.max(now) + Duration::from_secs_f64(call as f64 / rate);
                flying.push_back((now, free + rtt));
            }
            let Some((began, ends)) = flying.pop_front() else { break };
            now = ends;
            flow.ended(began, call, now);
        }
        flow.under_way()
    }

    #[test]
    fn a_copy_comes_to_fill_its_path_and_not_much_more() {
        for (rate, ms) in [(125e6, 23), (125e6, 140), (12.5e6, 23), (1.25e9, 5)] {
            let rtt = Duration::from_millis(ms);
            let holds = rate * rtt.as_secs_f64();
            let found = after(20, rate, rtt, 65_536) as f64;
            assert!(
                (1.5 * holds..4.0 * holds + 1e6).contains(&found),
                "{rate} B/s, {ms} ms: {found}, {holds}"
            );
        }
    }
}
