//! NFS version 3 (RFC 1813) as a load needs it: calls of one kind, many in flight on one
//! connection.
//!
//! As for iSCSI, all replies of one receive are answered with new calls in one send, and no payload
//! is looked at. A reply is judged by its status and by the number of bytes that it is about.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use load::cpu::Sample;
use load::{Engine, Random};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::args::{Args, Pattern};
use crate::outbox::{Outbox, SLICES};
use crate::report::{Report, Tally};
use crate::run::{PATIENCE, payload};
use crate::wire::{get32, put32};
use crate::{LoadError, socket};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// Procedures of NFS (RFC 1813 §3.3).
const NULL: u32 = 0;
const GETATTR: u32 = 1;
const LOOKUP: u32 = 3;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const READDIRPLUS: u32 = 17;
/// Bytes of a reply that are looked at, the record's mark included: no reply without payload is
/// longer, but a listing.
const HEAD: usize = 256;
/// Where a reply's results begin, if its verifier is empty (RFC 5531 §9), and the status's bytes.
const RESULTS: usize = 28;
/// Bytes of a file's attributes.
const FATTR: usize = 84;
/// Bytes of a listing, at most.
const LISTING: u32 = 256 << 10;

/// A file at a server.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    portal: String,
    /// The path that MOUNT gets.
    directory: String,
    name: String,
}

impl Place {
    /// Takes what follows `nfs://` apart: HOST:PORT/EXPORT/FILE.
    fn parse(rest: &str) -> Result<Self, LoadError> {
        let parts = rest.split_once('/').and_then(|(portal, path)| Some((portal, path.rsplit_once('/')?)));
        match parts {
            Some((portal, (directory, name))) if portal.contains(':') && !name.is_empty() => Ok(Self {
                portal: portal.to_owned(),
                directory: format!("/{directory}"),
                name: name.to_owned(),
            }),
            _ => Err(LoadError::Usage(format!(
                "'nfs://{rest}' is not of the form nfs://HOST:PORT/EXPORT/FILE"
            ))),
        }
    }
}

/// Runs the load that `args` describe; `rest` is their URL without its scheme.
///
/// # Errors
/// See [`LoadError`]. Calls that fail are counted in the report instead.
pub fn run(args: &Args, rest: &str) -> Result<Report, LoadError> {
    if args.connections != 1 || args.fill {
        return Err(LoadError::Usage("NFS is loaded over one connection, and a file is not filled".into()));
    }
    let place = Place::parse(rest)?;
    let (host, _) = place.portal.rsplit_once(':').unwrap_or((&place.portal, ""));
    let mut mount = match args.mount_port {
        Some(port) => connect(&format!("{host}:{port}"))?,
        None => connect(&place.portal)?,
    };
    let mnt = once(&mut mount, &call(MOUNT, 1, &opaque(place.directory.as_bytes())))?;
    drop(mount);
    let directory = handle(&mnt)?;
    let mut stream = connect(&place.portal)?;
    let mut named = opaque(&directory);
    named.extend(opaque(place.name.as_bytes()));
    let lookup = once(&mut stream, &call(NFS, LOOKUP, &named))?;
    let file = handle(&lookup)?;
    let attributes = once(&mut stream, &call(NFS, GETATTR, &opaque(&file)))?;
    // `size` is the sixth word of fattr3, behind the status.
    let size = u64::from(get32(&attributes, 24)) << 32 | u64::from(get32(&attributes, 28));
    let template = Template::new(args, &opaque(&file), &named, size)?;
    if args.pattern == Pattern::Readdirplus {
        let listing = once(&mut stream, &template.call[4..])?;
        if get32(&listing, listing.len() - 4) != 1 {
            return Err(LoadError::Usage("the directory is longer than one reply".into()));
        }
    }
    Loop {
        stream,
        template,
        engine: Engine::closed(args.depth),
        outbox: Outbox::default(),
        block: payload(args.block),
        buffer: vec![0; args.receive()],
        head: [0; HEAD],
        have: 0,
        skip: 0,
        tally: Tally::default(),
        spin: args.spin,
    }
    .measure(args)
}

fn connect(portal: &str) -> Result<TcpStream, LoadError> {
    let stream = socket::connect(portal)?;
    let set = |result: std::io::Result<()>| result.map_err(|e| LoadError::Io("setting a socket option", e));
    set(stream.set_nodelay(true))?;
    set(stream.set_read_timeout(Some(PATIENCE)))?;
    set(stream.set_write_timeout(Some(PATIENCE)))?;
    Ok(stream)
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

/// An opaque of variable length (RFC 4506 §4.10).
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut all = words(&[bytes.len() as u32]);
    all.extend_from_slice(bytes);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

/// A call of version 3 without its record's mark; its XID is 0. The caller is root (AUTH_SYS).
fn call(program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut call = words(&[0, 0, 2, program, 3, procedure]);
    let user = [words(&[0]), opaque(b"load"), words(&[0, 0, 0])].concat();
    call.extend(words(&[1]));
    call.extend(opaque(&user));
    call.extend(words(&[0, 0]));
    call.extend_from_slice(arguments);
    call
}

/// Makes one call, and returns its results.
fn once(stream: &mut TcpStream, call: &[u8]) -> Result<Vec<u8>, LoadError> {
    let mut record = words(&[call.len() as u32 | 1 << 31]);
    record.extend_from_slice(call);
    stream.write_all(&record).map_err(|e| LoadError::Io("sending", e))?;
    let (mut reply, mut last) = (Vec::new(), false);
    while !last {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).map_err(|e| LoadError::Io("receiving", e))?;
        let mark = u32::from_be_bytes(mark);
        last = mark >> 31 == 1;
        let from = reply.len();
        reply.resize(from + (mark & 0x7fff_ffff) as usize, 0);
        stream.read_exact(&mut reply[from..]).map_err(|e| LoadError::Io("receiving", e))?;
    }
    if reply.len() < RESULTS || (1..6).any(|word| get32(&reply, 4 * word) != u32::from(word == 1)) {
        return Err(LoadError::Protocol("a call was not accepted".into()));
    }
    match get32(&reply, RESULTS - 4) {
        0 => Ok(reply.split_off(RESULTS - 4)),
        status => Err(LoadError::Protocol(format!("a call before the load ended with status {status}"))),
    }
}

/// The file handle that follows a status.
fn handle(results: &[u8]) -> Result<Vec<u8>, LoadError> {
    let len = results.get(4..8).map_or(0, |word| get32(word, 0)) as usize;
    let handle = results.get(8..8 + len).filter(|_| (1..=64).contains(&len));
    handle.map(<[u8]>::to_vec).ok_or_else(|| LoadError::Protocol("a file handle is too long".into()))
}

/// The parts of a call that differ from the last one.
#[derive(Clone, Copy)]
enum Varies {
    Nothing,
    /// The offset, at this place of the call.
    Offset(usize),
    /// The last ten digits of a name, at this place.
    Name(usize),
}

/// All calls of a load, of which only a few bytes differ.
struct Template {
    /// With the record's mark, without payload.
    call: Vec<u8>,
    varies: Varies,
    procedure: u32,
    block: usize,
    slots: u64,
    random: Option<Random>,
    next: u64,
}

impl Template {
    /// `file` and `named` are encoded: the file's handle; its directory's, with its name.
    fn new(args: &Args, file: &[u8], named: &[u8], size: u64) -> Result<Self, LoadError> {
        let block = args.block as u32;
        // The offset, the count, and for a WRITE UNSTABLE and the length of its data.
        let (procedure, rest) = match args.pattern {
            Pattern::Rr | Pattern::Sr => (READ, words(&[0, 0, block])),
            Pattern::Rw | Pattern::Sw => (WRITE, words(&[0, 0, block, 0, block])),
            Pattern::Rm | Pattern::Sm => {
                return Err(LoadError::Usage("a load of NFS has calls of one kind".into()));
            }
            Pattern::Null => (NULL, Vec::new()),
            Pattern::Getattr => (GETATTR, Vec::new()),
            Pattern::Lookup => (LOOKUP, Vec::new()),
            Pattern::Readdirplus => (READDIRPLUS, words(&[0, 0, 0, 0, LISTING, LISTING])),
            // UNCHECKED, with a mode and nothing else.
            Pattern::Create => {
                let name = opaque(format!("f{:09}-{:010}", std::process::id(), 0).as_bytes());
                (CREATE, [name, words(&[0, 1, 0o644, 0, 0, 0, 0, 0])].concat())
            }
        };
        let arguments = match procedure {
            NULL => Vec::new(),
            LOOKUP => named.to_vec(),
            _ => [file, &rest].concat(),
        };
        let bytes = call(NFS, procedure, &arguments);
        let carried = if procedure == WRITE { args.block } else { 0 };
        let mut template = words(&[(bytes.len() + carried) as u32 | 1 << 31]);
        template.extend(bytes);
        let behind = template.len() - rest.len();
        let varies = match procedure {
            READ | WRITE => Varies::Offset(behind),
            CREATE => Varies::Name(behind + 4 + 11),
            _ => Varies::Nothing,
        };
        let slots = size / args.block as u64;
        if slots == 0 && matches!(varies, Varies::Offset(_)) {
            return Err(LoadError::Usage("the file is smaller than one I/O".into()));
        }
        let random = args.pattern.random().then(|| Random::new(0, 0));
        Ok(Self { call: template, varies, procedure, block: args.block, slots, random, next: 0 })
    }

    /// Queues the next call.
    fn push(&mut self, xid: u16, outbox: &mut Outbox) {
        put32(&mut self.call, 4, xid.into());
        match self.varies {
            Varies::Nothing => {}
            Varies::Offset(at) => {
                let slot = match &mut self.random {
                    Some(random) => random.below(self.slots),
                    None => self.next % self.slots,
                };
                let offset = slot * self.block as u64;
                self.call[at..at + 8].copy_from_slice(&offset.to_be_bytes());
            }
            Varies::Name(at) => {
                let mut left = self.next;
                for digit in self.call[at..at + 10].iter_mut().rev() {
                    *digit = b'0' + (left % 10) as u8;
                    left /= 10;
                }
            }
        }
        self.next += 1;
        outbox.push(&self.call, 0..if self.procedure == WRITE { self.block } else { 0 });
    }

    /// The error of a reply; `head` has its first bytes, of `len`.
    fn wrong(&self, head: &[u8], len: usize) -> Option<String> {
        if self.procedure == NULL {
            return None;
        }
        let status = if head.len() < RESULTS + 4 { u32::MAX } else { get32(head, RESULTS) };
        if status != 0 {
            return Some(format!("status {status}"));
        }
        let at = match self.procedure {
            READ => RESULTS + 8 + if get32(head, RESULTS + 4) == 1 { FATTR } else { 0 },
            // Then `stable` and the verifier.
            WRITE => len - 16,
            _ => return None,
        };
        let count = head.get(at..at + 4).map_or(0, |word| get32(word, 0)) as usize;
        (count != self.block).then(|| format!("{count} bytes of {}", self.block))
    }
}

struct Loop {
    stream: TcpStream,
    template: Template,
    /// A call's slot is its XID.
    engine: Engine,
    outbox: Outbox,
    block: Vec<u8>,
    buffer: Vec<u8>,
    /// The first bytes of the current reply, with its record's mark, and their number.
    head: [u8; HEAD],
    have: usize,
    /// Bytes of the current reply still to pass over.
    skip: usize,
    tally: Tally,
    spin: bool,
}

impl Loop {
    fn measure(mut self, args: &Args) -> Result<Report, LoadError> {
        self.issue(Instant::now())?;
        self.drive(Duration::from_secs_f64(args.warmup.clamp(0.0, 3600.0)))?;
        self.tally = Tally::default();
        let start = Sample::take(args.target_pid);
        self.drive(Duration::from_secs_f64(args.seconds.clamp(0.001, 86400.0)))?;
        Report::new(args, self.tally, &start)
    }

    fn drive(&mut self, time: Duration) -> Result<(), LoadError> {
        let from = Instant::now();
        while from.elapsed() < time {
            let waits = self.spin || !self.outbox.is_empty();
            let flags = if waits { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            self.tally.calls += 1;
            match rustix::net::recv(&self.stream, &mut self.buffer[..], flags) {
                Ok((0, _)) => return Err(LoadError::Protocol("the server closed the connection".into())),
                Ok((got, _)) => self.absorb(got, Instant::now())?,
                Err(Errno::AGAIN) if waits => {}
                Err(Errno::AGAIN) => return Err(LoadError::Protocol("the server said nothing".into())),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(LoadError::Io("receiving", errno.into())),
            }
            self.issue(Instant::now())?;
        }
        Ok(())
    }

    /// Begins as many calls as there is room for, and sends what the socket takes.
    fn issue(&mut self, now: Instant) -> Result<(), LoadError> {
        while let Some(xid) = self.engine.begin(now) {
            self.template.push(xid, &mut self.outbox);
        }
        while !self.outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.outbox.slices(&self.block, &mut slices);
            self.tally.calls += 1;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let slices = &slices[..count];
            match rustix::net::sendmsg(&self.stream, slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => self.outbox.consume(sent),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(LoadError::Io("sending", errno.into())),
            }
        }
        Ok(())
    }

    /// Takes the first `got` bytes of the buffer.
    fn absorb(&mut self, got: usize, now: Instant) -> Result<(), LoadError> {
        let mut at = 0;
        while at < got {
            if self.skip == 0 {
                let wanted = match self.have {
                    0..4 => 4,
                    _ => self.len()?.min(HEAD),
                };
                let more = (wanted - self.have).min(got - at);
                self.head[self.have..self.have + more].copy_from_slice(&self.buffer[at..at + more]);
                self.have += more;
                at += more;
                if self.have < wanted || wanted == 4 {
                    continue;
                }
                self.skip = self.len()? - wanted;
            }
            let passed = self.skip.min(got - at);
            self.skip -= passed;
            at += passed;
            if self.skip == 0 {
                self.ended(now)?;
                self.have = 0;
            }
        }
        Ok(())
    }

    /// Length of the current reply, with its record's mark.
    fn len(&self) -> Result<usize, LoadError> {
        let mark = get32(&self.head, 0);
        let len = 4 + (mark & 0x7fff_ffff) as usize;
        if mark >> 31 == 1 && len >= RESULTS {
            Ok(len)
        } else {
            Err(LoadError::Protocol("a reply is short, or in several fragments".into()))
        }
    }

    /// A reply is there.
    fn ended(&mut self, now: Instant) -> Result<(), LoadError> {
        let head = &self.head[..self.have];
        // REPLY, MSG_ACCEPTED, a verifier that is empty, SUCCESS.
        if (2..7).any(|word| get32(head, 4 * word) != u32::from(word == 2)) {
            return Err(LoadError::Protocol("a call was not accepted".into()));
        }
        let slot = u16::try_from(get32(head, 4)).unwrap_or(u16::MAX);
        let Some(ns) = self.engine.end(slot, now) else {
            return Err(LoadError::Protocol("a reply is of no call".into()));
        };
        self.tally.ios += 1;
        self.tally.latency.record(ns);
        if let Some(wrong) = self.template.wrong(head, self.len()?) {
            self.tally.errors += 1;
            self.tally.first_error.get_or_insert(wrong);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_file_below_an_export() {
        let place = |portal: &str, directory: &str, name: &str| Place {
            portal: portal.into(),
            directory: directory.into(),
            name: name.into(),
        };
        assert_eq!(Place::parse("h:1/a/b/c").unwrap(), place("h:1", "/a/b", "c"));
        assert_eq!(Place::parse("[::1]:2049/a/c").unwrap(), place("[::1]:2049", "/a", "c"));
        for bad in ["h:1", "h:1/", "h:1/a", "h:1/a/", "h/a/b"] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }
}
