//! An NBD server of one export in memory, which does with each request what a test says. Written
//! from the document, without the client's code.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Bytes of the export.
pub const SIZE: usize = 16 << 20;
/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES.
pub const WRITE_COMMANDS: u16 = 0x6d;
pub const MULTI_CONN: u16 = 1 << 8;
/// The most data of a request.
const MAXIMUM: u32 = 1 << 20;

pub mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const ZEROES: u16 = 6;
    pub const STATUS: u16 = 7;
}

/// What the server does with a request.
pub enum Act {
    /// Carries it out and answers.
    Answer,
    /// Answers with this error.
    Fail(u32),
    /// Closes the connection instead.
    Close,
    /// Carries it out, answers, and closes the connection.
    AnswerAndClose,
    /// Answers another request than this.
    Lie,
    /// Does so, and closes the connection much later.
    LieAndStay,
}

#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub flags: u16,
    pub kind: u16,
    cookie: u64,
    at: usize,
    len: usize,
}

impl Request {
    pub fn is_fua(&self) -> bool {
        self.flags & 1 != 0
    }
}

type Script = Box<dyn Fn(&Request) -> Act + Send + Sync>;

struct Shared {
    flags: u16,
    structured: bool,
    script: Script,
    memory: Mutex<Vec<u8>>,
    seen: Mutex<Vec<Request>>,
    /// Connections: all, and those that are open.
    connections: Mutex<(usize, usize)>,
    ended: Condvar,
}

pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub fn start(
        flags: u16,
        structured: bool,
        script: impl Fn(&Request) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            flags,
            structured,
            script: Box::new(script),
            memory: Mutex::new(vec![0; SIZE]),
            seen: Mutex::default(),
            connections: Mutex::default(),
            ended: Condvar::new(),
        });
        let theirs = shared.clone();
        // Both threads end with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = theirs.clone();
                let mut connections = shared.connections.lock().unwrap();
                *connections = (connections.0 + 1, connections.1 + 1);
                drop(connections);
                std::thread::spawn(move || {
                    // An error is a client that has gone.
                    let _ = shared.serve(&mut stream.unwrap());
                    shared.connections.lock().unwrap().1 -= 1;
                    shared.ended.notify_all();
                });
            }
        });
        Self { address, shared }
    }

    pub fn uri(&self) -> String {
        format!("nbd://{}/disk", self.address)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.lock().unwrap().0
    }

    /// How many requests are like this.
    pub fn count(&self, like: impl Fn(&Request) -> bool) -> usize {
        self.shared.seen.lock().unwrap().iter().filter(|request| like(request)).count()
    }

    /// Waits until no connection is open.
    pub fn wait_for_end(&self) {
        let connections = self.shared.connections.lock().unwrap();
        drop(self.shared.ended.wait_while(connections, |(_, open)| *open > 0).unwrap());
    }
}

fn take<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_all(stream: &mut TcpStream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(stream: &mut TcpStream) -> io::Result<u32> {
    Ok(u32::from_be_bytes(take(stream)?))
}

impl Shared {
    fn serve(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        assert_eq!(number(stream)?, 3);
        while !self.option(stream)? {}
        while self.request(stream)? {}
        Ok(())
    }

    /// Answers an option; true after GO has succeeded.
    fn option(&self, stream: &mut TcpStream) -> io::Result<bool> {
        assert_eq!(&take::<8>(stream)?, b"IHAVEOPT");
        let (option, len) = (number(stream)?, number(stream)? as usize);
        let data = take_all(stream, len)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let head = [0x0003_e889u32, 0x0455_65a9, option, kind, data.len() as u32];
            let head = head.map(u32::to_be_bytes).concat();
            stream.write_all(&[&head, data].concat())
        };
        let unsupported = 1 << 31 | 1;
        match option {
            8 => reply(if self.structured { 1 } else { unsupported }, b"")?,
            10 => {
                reply(4, b"\0\0\0\x05base:allocation")?;
                reply(1, b"")?;
            }
            7 if data.starts_with(b"\0\0\0\x04disk\0") => {
                let sizes = [&[0, 3][..], &[1u32, 4096, MAXIMUM].map(u32::to_be_bytes).concat()].concat();
                reply(3, &sizes)?;
                let export = [&[0, 0][..], &(SIZE as u64).to_be_bytes(), &self.flags.to_be_bytes()].concat();
                reply(3, &export)?;
                reply(1, b"")?;
                return Ok(true);
            }
            7 => reply(1 << 31 | 6, b"which?")?,
            // The client goes.
            2 => return Err(io::ErrorKind::ConnectionAborted.into()),
            _ => reply(unsupported, b"")?,
        }
        Ok(false)
    }

    /// Takes a request; false ends the connection.
    fn request(&self, stream: &mut TcpStream) -> io::Result<bool> {
        let header: [u8; 28] = take(stream)?;
        assert_eq!(header[..4], [0x25, 0x60, 0x95, 0x13]);
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().unwrap());
        let len = u32::from_be_bytes(header[24..].try_into().unwrap()) as usize;
        let request = Request { flags: word(4), kind: word(6), cookie: long(8), at: long(16) as usize, len };
        let data = if request.kind == cmd::WRITE { take_all(stream, len)? } else { Vec::new() };
        self.seen.lock().unwrap().push(request);
        if request.kind == cmd::DISC {
            return Ok(false);
        }
        match (self.script)(&request) {
            Act::Answer => self.carry_out(stream, &request, &data)?,
            Act::Fail(value) if self.structured => {
                self.chunk(stream, &request, true, 0x8001, &[&value.to_be_bytes()[..], &[0, 0]].concat())?;
            }
            Act::Fail(value) => self.simple(stream, request.cookie, value, b"")?,
            Act::Close => return Ok(false),
            Act::AnswerAndClose => {
                self.carry_out(stream, &request, &data)?;
                return Ok(false);
            }
            Act::Lie => self.simple(stream, request.cookie + 1, 0, b"")?,
            Act::LieAndStay => {
                self.simple(stream, request.cookie + 1, 0, b"")?;
                std::thread::sleep(Duration::from_secs(3));
            }
        }
        Ok(true)
    }

    fn carry_out(&self, stream: &mut TcpStream, request: &Request, data: &[u8]) -> io::Result<()> {
        let Request { kind, at, len, cookie, .. } = *request;
        let mut memory = self.memory.lock().unwrap();
        assert!(at + len <= SIZE);
        assert!(len <= MAXIMUM as usize || ![cmd::READ, cmd::WRITE].contains(&kind));
        match kind {
            cmd::READ if self.structured => {
                // The second half first, then the first as a hole or as data.
                let half = len / 2;
                let (first, second) = memory[at..at + len].split_at(half);
                let place = |at: usize| (at as u64).to_be_bytes();
                self.chunk(stream, request, false, 1, &[&place(at + half)[..], second].concat())?;
                match first.iter().all(|byte| *byte == 0) {
                    true => {
                        let hole = [&place(at)[..], &(half as u32).to_be_bytes()].concat();
                        self.chunk(stream, request, false, 2, &hole)?;
                    }
                    false => self.chunk(stream, request, false, 1, &[&place(at)[..], first].concat())?,
                }
                self.chunk(stream, request, true, 0, b"")
            }
            cmd::READ => self.simple(stream, cookie, 0, &memory[at..at + len]),
            cmd::STATUS => {
                let is_zero = memory[at] == 0;
                let run = memory[at..at + len].iter().take_while(|byte| (**byte == 0) == is_zero).count();
                let flags = if is_zero { 3 } else { 0 };
                let status = [5u32, run as u32, flags].map(u32::to_be_bytes).concat();
                self.chunk(stream, request, true, 5, &status)
            }
            _ => {
                match kind {
                    cmd::WRITE => memory[at..at + len].copy_from_slice(data),
                    cmd::ZEROES => memory[at..at + len].fill(0),
                    cmd::FLUSH => {}
                    // What a trim leaves behind.
                    cmd::TRIM => memory[at..at + len].fill(0xee),
                    _ => panic!("an unknown request"),
                }
                self.simple(stream, cookie, 0, b"")
            }
        }
    }

    fn simple(&self, stream: &mut TcpStream, cookie: u64, error: u32, data: &[u8]) -> io::Result<()> {
        let head = [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat();
        stream.write_all(&[&head, data].concat())
    }

    fn chunk(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        last: bool,
        kind: u16,
        body: &[u8],
    ) -> io::Result<()> {
        let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
        bytes.extend(u16::from(last).to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(request.cookie.to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        stream.write_all(&[&bytes, body].concat())
    }
}
