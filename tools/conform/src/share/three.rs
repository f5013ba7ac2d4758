//! Version 3 of NFS for checks: calls of any arguments, and set-up for checks.

use nfs::v3::{
    self, Arguments, Attributes, Create, CreateHow, DirOp, Handle, Located, MkDir, Name, Outcome, Procedure,
    Read, Results, SetAttributes, Stable, Status, Write, WriteOk,
};
use rpc::xdr::{Writer, padding};

use super::conn::Conn;
use super::lab::Lab;
use crate::finding::{Finding, Verdict, expect, setup, wrong};

/// Attempts of a call that the server answers with JUKEBOX.
const ATTEMPTS: u32 = 100;

/// A client of version 3, and a directory of its own.
pub(crate) struct Three {
    pub conn: Conn,
    /// The directory of the check.
    pub dir: Vec<u8>,
}

/// A reply of NFS.
pub(crate) struct Reply3 {
    procedure: Procedure,
    body: Vec<u8>,
}

/// A handle for arguments; empty if the bytes are too long.
pub(crate) fn fh(bytes: &[u8]) -> Handle<'_> {
    Handle::new(bytes).unwrap_or(Handle::EMPTY)
}

pub(crate) fn at<'a>(directory: &'a [u8], name: &'a str) -> DirOp<'a> {
    DirOp { directory: fh(directory), name: Name::new(name.as_bytes()).unwrap_or(Name::EMPTY) }
}

/// A directory and a name of any length, as they are on the wire.
pub(crate) fn raw_at(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut bytes = rpc::xdr::encode(&fh(directory));
    let mut to = Writer::new(&mut bytes);
    to.u32(name.len() as u32);
    to.raw(name);
    to.raw(padding(name.len()));
    bytes
}

/// The results of a successful call; otherwise the function returns a finding.
macro_rules! ok3 {
    ($reply:expr, $kind:ident) => {
        match $reply.located()?.value {
            nfs::v3::Results::$kind(nfs::v3::Outcome::Ok(value)) => value,
            _ => return $reply.refused(),
        }
    };
}
pub(crate) use ok3;

impl Reply3 {
    pub fn located(&self) -> Verdict<Located<Results<'_>>> {
        v3::results(self.procedure, &self.body).or_else(|error| {
            wrong(format!("results of {:?} that cannot be decoded: {error}", self.procedure), "results")
        })
    }

    /// The payload of a READ.
    pub fn payload(&self) -> Verdict<&[u8]> {
        let range = self.located()?.payload;
        Ok(self.body.get(range).unwrap_or_default())
    }

    /// Bytes of the results, the status included.
    pub fn length(&self) -> usize {
        self.body.len()
    }

    /// The number of the status.
    fn code(&self) -> u32 {
        self.body.first_chunk().map_or(u32::MAX, |code| u32::from_be_bytes(*code))
    }

    pub fn error(&self) -> Option<Status> {
        Status::from_code(self.code())
    }

    /// The status as text.
    pub fn told(&self) -> String {
        match (self.code(), self.error()) {
            (0, _) => format!("{:?}: NFS3_OK", self.procedure),
            (_, Some(status)) => format!("{:?}: {status:?} ({})", self.procedure, status.code()),
            (code, None) => format!("{:?}: the unknown status {code}", self.procedure),
        }
    }

    /// Fails because the call did not succeed.
    pub fn refused<T>(&self) -> Verdict<T> {
        wrong(self.told(), "NFS3_OK")
    }

    /// Passes if the call succeeded, with results that can be decoded.
    pub fn good(&self) -> Verdict {
        self.located()?;
        if self.code() == 0 { Ok(()) } else { self.refused() }
    }

    /// Passes if the call failed with one of these errors.
    pub fn fails(&self, with: &[Status]) -> Verdict {
        self.located()?;
        let names: Vec<_> = with.iter().map(|status| format!("{status:?}")).collect();
        expect(self.error().is_some_and(|status| with.contains(&status)), names.join(" or "), || self.told())
    }
}

impl Three {
    /// A client with a new directory.
    pub fn new(lab: &Lab) -> Verdict<Self> {
        let root = lab.three.clone()?;
        let mut this = Self { conn: lab.connect()?, dir: Vec::new() };
        let place = this.handle_of(&root, &lab.place())?;
        this.dir = this.folder(&place, &format!("c{}", lab.number()))?;
        Ok(this)
    }

    /// Another connection, as another user.
    pub fn other(&self, lab: &Lab) -> Verdict<Self> {
        let mut conn = lab.connect()?;
        conn.ids = lab.other_ids();
        Ok(Self { conn, dir: self.dir.clone() })
    }

    /// A call with arguments as they are on the wire.
    pub fn raw(&mut self, procedure: Procedure, arguments: &[u8]) -> Verdict<Reply3> {
        for attempt in 1.. {
            let answer = self.conn.call((v3::PROGRAM, v3::VERSION, procedure.code()), arguments)?;
            let reply = Reply3 { procedure, body: answer.body()?.to_vec() };
            if reply.error() != Some(Status::Jukebox) || attempt == ATTEMPTS {
                return Ok(reply);
            }
            runtime::nap(std::time::Duration::from_millis(50));
        }
        wrong("JUKEBOX again and again", "a result")
    }

    pub fn call(&mut self, arguments: &Arguments<'_>) -> Verdict<Reply3> {
        self.raw(arguments.procedure(), &encoded(arguments, &[]))
    }

    pub(crate) fn call_write(
        &mut self,
        file: &[u8],
        offset: u64,
        data: &[u8],
        stable: Stable,
    ) -> Verdict<Reply3> {
        let length = data.len() as u32;
        let write = Arguments::Write(Write { file: fh(file), offset, count: length, stable, length });
        self.raw(Procedure::Write, &encoded(&write, data))
    }

    pub(crate) fn call_read(&mut self, file: &[u8], offset: u64, count: u32) -> Verdict<Reply3> {
        self.call(&Arguments::Read(Read { file: fh(file), offset, count }))
    }

    // Set-up for checks: its failure is not that of the check.

    pub(crate) fn handle_of(&mut self, directory: &[u8], name: &str) -> Verdict<Vec<u8>> {
        let found = (|| {
            let reply = self.call(&Arguments::Lookup(at(directory, name)))?;
            let found = ok3!(reply, Lookup);
            Ok(found.object.bytes().to_vec())
        })();
        setup(found, "to a file")
    }

    /// A new empty file of mode 644.
    pub fn file(&mut self, directory: &[u8], name: &str) -> Verdict<Vec<u8>> {
        let how = CreateHow::Guarded(SetAttributes { mode: Some(0o644), ..SetAttributes::default() });
        let made = self.call(&Arguments::Create(Create { place: at(directory, name), how }));
        setup(made.and_then(|reply| reply.good()), "to a new file")?;
        self.handle_of(directory, name)
    }

    /// A new file with a content.
    pub fn filled(&mut self, directory: &[u8], name: &str, data: &[u8]) -> Verdict<Vec<u8>> {
        let file = self.file(directory, name)?;
        self.write(&file, 0, data)?;
        Ok(file)
    }

    /// A new directory of mode 755.
    pub fn folder(&mut self, directory: &[u8], name: &str) -> Verdict<Vec<u8>> {
        let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let made = self.call(&Arguments::MkDir(MkDir { place: at(directory, name), attributes }));
        setup(made.and_then(|reply| reply.good()), "to a new directory")?;
        self.handle_of(directory, name)
    }

    pub fn write(&mut self, file: &[u8], offset: u64, data: &[u8]) -> Verdict<WriteOk> {
        let written = (|| {
            let reply = self.call_write(file, offset, data, Stable::FileSync)?;
            let written = ok3!(reply, Write);
            expect(written.count as usize == data.len(), "all of it", || "a short write".to_owned())?;
            Ok(written)
        })();
        setup(written, "to written data")
    }

    pub fn attributes(&mut self, file: &[u8]) -> Verdict<Attributes> {
        let found = (|| {
            let reply = self.call(&Arguments::GetAttr(fh(file)))?;
            Ok(ok3!(reply, GetAttr))
        })();
        setup(found, "to a file's attributes")
    }

    /// Checks that the name exists (`whether`), or does not.
    pub(crate) fn expect_name(&mut self, directory: &[u8], name: &str, whether: bool) -> Verdict {
        let reply = self.call(&Arguments::Lookup(at(directory, name)))?;
        if whether { reply.good() } else { reply.fails(&[Status::NoEnt]) }
    }

    /// Passes if the file has this content.
    pub(crate) fn expect_content(&mut self, file: &[u8], content: &[u8]) -> Verdict {
        let reply = self.call_read(file, 0, content.len() as u32 + 1)?;
        let read = ok3!(reply, Read);
        let data = reply.payload()?;
        expect(data == content && read.eof, format!("{} bytes as written, and eof", content.len()), || {
            let eof = if read.eof { "eof" } else { "no eof" };
            format!("{} bytes, {}, {eof}", data.len(), if data == content { "the same" } else { "others" })
        })
    }

    /// Removes a directory and everything in it.
    pub fn remove_all(&mut self, parent: &[u8], name: &str) -> Verdict {
        let dir = self.handle_of(parent, name)?;
        let list = v3::ReadDir { directory: fh(&dir), cookie: 0, verifier: [0; 8], count: 8192 };
        loop {
            let reply = self.call(&Arguments::ReadDir(list))?;
            let listed = ok3!(reply, ReadDir);
            let names: Vec<String> = listed
                .entries
                .iter()
                .map(|entry| String::from_utf8_lossy(entry.name.bytes()).into_owned())
                .filter(|name| name != "." && name != "..")
                .collect();
            if names.is_empty() {
                break;
            }
            for name in names {
                let found = self.handle_of(&dir, &name)?;
                if self.attributes(&found)?.kind == v3::FileType::Directory {
                    self.remove_all(&dir, &name)?;
                } else {
                    self.call(&Arguments::Remove(at(&dir, &name)))?.good()?;
                }
            }
        }
        self.call(&Arguments::RmDir(at(parent, name)))?.good()
    }
}

/// Arguments and the payload as they are on the wire.
pub(crate) fn encoded(arguments: &Arguments<'_>, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    arguments.write(&mut Writer::new(&mut bytes));
    if !data.is_empty() {
        bytes.extend_from_slice(data);
        bytes.extend_from_slice(padding(data.len()));
    }
    bytes
}

/// The outcome of MNT: the handle, or why there is none.
pub(crate) fn mounted(mount: &mut Conn, path: &[u8]) -> Verdict<Vec<u8>> {
    use nfs::mount;
    let path = mount::Path::new(path).unwrap_or(mount::Path::EMPTY);
    let number = (mount::PROGRAM, mount::VERSION, mount::Procedure::Mnt.code());
    let answer = mount.call(number, &rpc::xdr::encode(&path))?;
    let mut from = rpc::xdr::Reader::new(answer.body()?);
    match mount::Results::read(mount::Procedure::Mnt, &mut from) {
        Ok(mount::Results::Mnt(Outcome::Ok(mounted))) => Ok(mounted.handle.bytes().to_vec()),
        Ok(mount::Results::Mnt(Outcome::Err(status, ()))) => {
            wrong(format!("MNT: {status:?} ({})", status.code()), "MNT3_OK")
        }
        _ => Err(Finding::Wrong {
            seen: "results of MNT that cannot be decoded".to_owned(),
            expected: "a handle".to_owned(),
        }),
    }
}
