//! Versions 4.1 and 4.2 of NFS for checks: COMPOUNDs of any operations, a session, and set-up for
//! checks.

use nfs::v4::{
    self, Arguments, Attributes, Bitmap, CallWriter, Channel, Claim, ClientId, ClientOwner, CreateHow,
    CreateSession, CreateType, ExchangeId, Fattr, Fore, Handle, Item as _, Name, Open, OwnerId, Results,
    Sequence, SessionId, StateOwner, StateProtect, Stateid, Status, Text, Verifier, flags,
};
use rpc::xdr::{List, Opaque, Writer, padding};

use super::conn::Conn;
use super::lab::Lab;
use crate::finding::{Finding, Verdict, expect, setup, wrong};

/// Channel attributes that a session requests.
pub(crate) const CHANNEL: Channel = Channel {
    header_padding: 0,
    max_request: 1 << 20,
    max_response: 1 << 20,
    max_response_cached: 4096,
    max_operations: 16,
    max_requests: 8,
    rdma_ird: None,
};

/// Access to a file for reading and writing, without a delegation.
pub(crate) const BOTH: u32 = 3 | flags::want::NO_DELEG;
pub(crate) const READ: u32 = 1 | flags::want::NO_DELEG;
pub(crate) const WRITE: u32 = 2 | flags::want::NO_DELEG;

/// Pause before an operation is repeated that is delayed or in the grace period.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// A client of version 4 with a session, and a directory of its own.
pub(crate) struct Four<'l> {
    lab: &'l Lab,
    pub conn: Conn,
    pub minor: u32,
    pub client: ClientId,
    pub session: SessionId,
    /// The number of the last request in slot 0.
    pub sequence: u32,
    /// Attributes of the fore channel, as the server answered.
    pub channel: Channel,
    /// The directory of the check.
    pub dir: Vec<u8>,
    /// Whether requests ask the server to keep its reply.
    pub cache: bool,
}

/// A reply to COMPOUND.
pub(crate) struct Reply4(Vec<u8>);

/// A name as arguments have it.
pub(crate) fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap_or(Name::EMPTY)
}

/// PUTFH.
pub(crate) fn put(handle: &[u8]) -> Arguments<'_> {
    Arguments::PutFh(Handle::new(handle).unwrap_or(Handle::EMPTY))
}

/// The owner of an open or of locks.
pub(crate) fn owner(name: &str) -> StateOwner<'_> {
    StateOwner { client: ClientId(0), owner: OwnerId::new(name.as_bytes()).unwrap_or(OwnerId::EMPTY) }
}

/// OPEN of a name in the current directory, as owner `who`.
pub(crate) fn open<'a>(
    file: &'a str,
    who: &'a str,
    access: u32,
    deny: u32,
    create: Option<CreateHow<'a>>,
) -> Arguments<'a> {
    Arguments::Open(Open {
        seqid: 0,
        share_access: access,
        share_deny: deny,
        owner: owner(who),
        create,
        claim: Claim::Null(name(file)),
    })
}

/// GETATTR of these attributes.
pub(crate) fn get(numbers: &[u32]) -> Arguments<'static> {
    Arguments::GetAttr(Bitmap::of(numbers))
}

/// WRITE of so many bytes.
pub(crate) fn write(stateid: Stateid, offset: u64, length: usize) -> Arguments<'static> {
    let stable = v4::Stable::FileSync;
    Arguments::Write(v4::Write { stateid, offset, stable, length: length as u32 })
}

pub(crate) fn read(stateid: Stateid, offset: u64, count: u32) -> Arguments<'static> {
    Arguments::Read(v4::Read { stateid, offset, count })
}

/// The arguments of a COMPOUND; `data` is that of each WRITE.
pub(crate) fn compound(minor: u32, operations: &[Arguments<'_>], data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for one in operations {
        one.write_all(&mut Writer::new(&mut bytes));
        if one.payload() > 0 {
            bytes.extend_from_slice(data);
            bytes.extend_from_slice(padding(data.len()));
        }
    }
    raw_compound(minor, operations.len() as u32, &bytes)
}

/// The arguments of a COMPOUND with operations as they are on the wire.
pub(crate) fn raw_compound(minor: u32, count: u32, operations: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    CallWriter::<Fore>::new(&mut Writer::new(&mut bytes), Text::EMPTY, minor, ());
    let count_at = bytes.len() - 4;
    Writer::new(&mut bytes).replace_u32(count_at, count);
    bytes.extend_from_slice(operations);
    bytes
}

/// The value of the last result of a kind; otherwise the function returns a finding.
macro_rules! ok4 {
    ($reply:expr, $kind:ident) => {{
        let found = $reply.results()?.into_iter().rev().find_map(|one| match one {
            nfs::v4::Results::$kind(nfs::v4::Outcome::Ok(value)) => Some(value),
            _ => None,
        });
        match found {
            Some(value) if $reply.code() == 0 => value,
            _ => return $reply.refused(),
        }
    }};
}
pub(crate) use ok4;

impl Reply4 {
    /// The number of the COMPOUND's status.
    pub fn code(&self) -> u32 {
        self.0.first_chunk().map_or(u32::MAX, |code| u32::from_be_bytes(*code))
    }

    /// The COMPOUND's error.
    pub fn error(&self) -> Option<Status> {
        Status::from_code(self.code())
    }

    /// The bytes, to compare with those of another reply.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The results, whose last status must be that of the COMPOUND (RFC 8881 §16.2.3).
    pub fn results(&self) -> Verdict<Vec<Results<'_>>> {
        let garbled = |error| Finding::Wrong {
            seen: format!("a reply to COMPOUND that cannot be decoded: {error}"),
            expected: "results".to_owned(),
        };
        let reply = v4::Reply::<Fore>::read(&self.0).map_err(garbled)?;
        let results: Result<Vec<_>, _> = reply.results.map(|one| one.map(|one| one.value)).collect();
        let results = results.map_err(garbled)?;
        let last = results.last().and_then(Results::error).map_or(0, Status::code);
        expect(
            results.is_empty() || last == self.code(),
            "the status of the last result as that of all",
            || format!("the last result has {last}, the COMPOUND {}", self.code()),
        )?;
        Ok(results)
    }

    /// The data of the last READ.
    pub fn data(&self) -> Verdict<Vec<u8>> {
        let mut found = Vec::new();
        if let Ok(reply) = v4::Reply::<Fore>::read(&self.0) {
            for one in reply.results.flatten() {
                if matches!(one.value, Results::Read(_)) {
                    found = self.0.get(one.payload).unwrap_or_default().to_vec();
                }
            }
        }
        Ok(found)
    }

    /// The status as text, with the operation that it belongs to.
    pub fn told(&self) -> String {
        let last = self.results().ok().and_then(|all| all.last().map(Results::operation));
        let operation = match last.map(|number| (number, v4::Operation::from_code(number))) {
            Some((_, Some(operation))) => format!("{operation:?}"),
            Some((number, None)) => format!("operation {number}"),
            None => "COMPOUND".to_owned(),
        };
        match (self.code(), self.error()) {
            (0, _) => format!("{operation}: NFS4_OK"),
            (code, Some(status)) => format!("{operation}: {status:?} ({code})"),
            (code, None) => format!("{operation}: the unknown status {code}"),
        }
    }

    /// Fails because the COMPOUND did not succeed.
    pub fn refused<T>(&self) -> Verdict<T> {
        wrong(self.told(), "NFS4_OK")
    }

    /// Passes if every operation succeeded.
    pub fn good(&self) -> Verdict {
        self.results()?;
        if self.code() == 0 { Ok(()) } else { self.refused() }
    }

    /// Passes if the operation at `index` failed with one of these errors, those before it not.
    pub fn fails_at(&self, index: usize, with: &[Status]) -> Verdict {
        let count = self.results()?.len();
        let names: Vec<_> = with.iter().map(|status| format!("{status:?}")).collect();
        let right = self.error().is_some_and(|status| with.contains(&status)) && count == index + 1;
        expect(right, format!("{} of operation {}", names.join(" or "), index + 1), || {
            format!("{} as operation {count}", self.told())
        })
    }

    /// Passes if the last operation of `count` behind SEQUENCE failed with one of these errors.
    pub fn fails(&self, with: &[Status]) -> Verdict {
        self.results()?;
        let names: Vec<_> = with.iter().map(|status| format!("{status:?}")).collect();
        let right = self.error().is_some_and(|status| with.contains(&status));
        expect(right, names.join(" or "), || self.told())
    }
}

/// EXCHANGE_ID of a client without protection of state.
pub(crate) fn exchange_id(owner: &[u8], verifier: u64, flags: u32) -> Arguments<'_> {
    Arguments::ExchangeId(ExchangeId {
        client: ClientOwner {
            verifier: Verifier(verifier.to_be_bytes()),
            owner: Opaque::new(owner).unwrap_or(Opaque::EMPTY),
        },
        flags,
        protect: StateProtect::None(()),
        implementation: None,
    })
}

/// CREATE_SESSION without a back channel.
pub(crate) fn create_session(client: ClientId, sequence: u32, fore: Channel) -> Arguments<'static> {
    Arguments::CreateSession(CreateSession {
        client,
        sequence,
        flags: 0,
        fore,
        back: CHANNEL,
        program: 0x4000_0000,
        security: List::EMPTY,
    })
}

/// One COMPOUND without a session.
pub(crate) fn alone(conn: &mut Conn, minor: u32, operations: &[Arguments<'_>]) -> Verdict<Reply4> {
    send(conn, &compound(minor, operations, &[]))
}

/// One COMPOUND of these bytes.
pub(crate) fn send(conn: &mut Conn, compound: &[u8]) -> Verdict<Reply4> {
    let answer = conn.call((v4::PROGRAM, v4::VERSION, v4::COMPOUND), compound)?;
    Ok(Reply4(answer.body()?.to_vec()))
}

impl<'l> Four<'l> {
    /// A client with a session and a new directory.
    pub fn new(lab: &'l Lab) -> Verdict<Self> {
        let mut this = Self::client(lab, "first")?;
        let place = this.path(&[lab.place().as_bytes()])?;
        this.dir = this.folder(&place, &format!("c{}", lab.number()))?;
        Ok(this)
    }

    /// Another client, in the same directory.
    pub fn second(&self) -> Verdict<Four<'l>> {
        let mut other = Self::client(self.lab, "second")?;
        other.dir = self.dir.clone();
        Ok(other)
    }

    /// A client with a session that has nothing to reclaim. A client of the same name ends.
    pub fn client(lab: &'l Lab, name: &str) -> Verdict<Self> {
        let minor = lab.four.clone()?;
        setup(Self::begin(lab, minor, name), "into a session")
    }

    /// The same, for the search of the version.
    pub fn begin(lab: &'l Lab, minor: u32, name: &str) -> Verdict<Self> {
        let mut conn = lab.connect()?;
        let owner = lab.client(name);
        let reply = alone(&mut conn, minor, &[exchange_id(&owner, lab.number().into(), 0)])?;
        let found = ok4!(reply, ExchangeId);
        let (client, sequence) = (found.client, found.sequence);
        let reply = alone(&mut conn, minor, &[create_session(client, sequence, CHANNEL)])?;
        let made = ok4!(reply, CreateSession);
        let (session, channel) = (made.session, made.fore);
        let mut this =
            Self { lab, conn, minor, client, session, sequence: 0, channel, dir: Vec::new(), cache: false };
        this.run(&[Arguments::ReclaimComplete(false)])?.good()?;
        Ok(this)
    }

    /// SEQUENCE of slot 0 with this number.
    pub fn slot(&self, sequence: u32) -> Arguments<'static> {
        let (session, cache) = (self.session, self.cache);
        Arguments::Sequence(Sequence { session, sequence, slot: 0, highest_slot: 0, cache })
    }

    /// The next request in slot 0: SEQUENCE and these operations. It is repeated while the server
    /// delays it.
    pub fn run(&mut self, operations: &[Arguments<'_>]) -> Verdict<Reply4> {
        self.run_with(operations, &[])
    }

    /// The same, with the data of each WRITE.
    pub fn run_with(&mut self, operations: &[Arguments<'_>], data: &[u8]) -> Verdict<Reply4> {
        loop {
            self.sequence = self.sequence.wrapping_add(1);
            let all = [&[self.slot(self.sequence)], operations].concat();
            let reply = send(&mut self.conn, &compound(self.minor, &all, data))?;
            if !matches!(reply.error(), Some(Status::Delay | Status::Grace)) || self.lab.is_over() {
                return Ok(reply);
            }
            runtime::nap(PAUSE);
        }
    }

    /// The next request in slot 0, with operations as they are on the wire behind SEQUENCE.
    pub(crate) fn run_raw(&mut self, count: u32, operations: &[u8]) -> Verdict<Reply4> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        self.slot(self.sequence).write_all(&mut Writer::new(&mut bytes));
        bytes.extend_from_slice(operations);
        send(&mut self.conn, &raw_compound(self.minor, count + 1, &bytes))
    }

    // Set-up for checks: its failure is not that of the check.

    /// The handle of names below the export.
    pub fn path(&mut self, below: &[&[u8]]) -> Verdict<Vec<u8>> {
        let mut operations = vec![Arguments::PutRootFh(())];
        for part in [&self.lab.options.components(), below].concat() {
            operations.push(Arguments::Lookup(Name::new(part).unwrap_or(Name::EMPTY)));
        }
        operations.push(Arguments::GetFh(()));
        let found = (|| {
            let reply = self.run(&operations)?;
            Ok(ok4!(reply, GetFh).bytes().to_vec())
        })();
        setup(found, "to a directory")
    }

    /// The handle of a name.
    pub(crate) fn handle_of(&mut self, directory: &[u8], file: &str) -> Verdict<Vec<u8>> {
        let found = (|| {
            let reply = self.run(&[put(directory), Arguments::Lookup(name(file)), Arguments::GetFh(())])?;
            Ok(ok4!(reply, GetFh).bytes().to_vec())
        })();
        setup(found, "to a file")
    }

    pub fn folder(&mut self, directory: &[u8], file: &str) -> Verdict<Vec<u8>> {
        let attributes = Attributes { mode: Some(0o755), ..Attributes::default() };
        let create = v4::Create {
            kind: CreateType::Directory(()),
            name: name(file),
            attributes: Fattr::of(&attributes),
        };
        let made = (|| {
            let reply = self.run(&[put(directory), Arguments::Create(create), Arguments::GetFh(())])?;
            Ok(ok4!(reply, GetFh).bytes().to_vec())
        })();
        setup(made, "to a new directory")
    }

    /// Opens a file as owner `who`, and makes it if it is not there: its handle and the stateid.
    pub fn opened(&mut self, file: &str, who: &str, access: u32, deny: u32) -> Verdict<(Vec<u8>, Stateid)> {
        let attributes = Attributes { mode: Some(0o644), ..Attributes::default() };
        let how = CreateHow::Unchecked(Fattr::of(&attributes));
        let dir = self.dir.clone();
        let made = (|| {
            let reply =
                self.run(&[put(&dir), open(file, who, access, deny, Some(how)), Arguments::GetFh(())])?;
            let stateid = ok4!(reply, Open).stateid;
            Ok((ok4!(reply, GetFh).bytes().to_vec(), stateid))
        })();
        setup(made, "to an open file")
    }

    /// A new file with a content, open as owner `o`.
    pub fn filled(&mut self, file: &str, data: &[u8]) -> Verdict<(Vec<u8>, Stateid)> {
        let (handle, stateid) = self.opened(file, "o", BOTH, 0)?;
        let written = self.run_with(&[put(&handle), write(stateid, 0, data.len())], data);
        setup(written.and_then(|reply| reply.good()), "to written data")?;
        Ok((handle, stateid))
    }

    /// An attribute of a file that every server has.
    pub fn attribute<T>(
        &mut self,
        file: &[u8],
        number: u32,
        of: impl FnOnce(Attributes<'_>) -> Option<T>,
    ) -> Verdict<T> {
        let reply = self.run(&[put(file), get(&[number])])?;
        let found = ok4!(reply, GetAttr);
        let attributes = found.attributes().or_else(|status| {
            wrong(format!("attributes that cannot be decoded: {status:?}"), "the attribute")
        })?;
        of(attributes).map_or_else(|| wrong("no such attribute", format!("attribute {number}")), Ok)
    }

    /// Passes if a READ with the anonymous stateid returns this content.
    pub(crate) fn expect_content(&mut self, file: &[u8], content: &[u8]) -> Verdict {
        let reply = self.run(&[put(file), read(Stateid::ANONYMOUS, 0, content.len() as u32 + 1)])?;
        let _ = ok4!(reply, Read);
        let data = reply.data()?;
        expect(data == content, format!("the {} bytes that were written", content.len()), || {
            format!("{} bytes, others", data.len())
        })
    }

    /// Removes a directory and everything in it.
    pub fn remove_all(&mut self, parent: &[u8], file: &str) -> Verdict {
        let dir = self.handle_of(parent, file)?;
        loop {
            let list = Arguments::ReadDir(v4::ReadDir {
                cookie: 0,
                verifier: Verifier::default(),
                dir_count: 4096,
                max_count: 8192,
                requested: Bitmap::of(&[v4::attribute::TYPE]),
            });
            let reply = self.run(&[put(&dir), list])?;
            let listed = ok4!(reply, ReadDir);
            let entries: Vec<(String, bool)> = listed
                .entries
                .iter()
                .map(|entry| {
                    let kind = entry.attributes.attributes().ok().and_then(|of| of.kind);
                    let name = String::from_utf8_lossy(entry.name.bytes()).into_owned();
                    (name, kind == Some(v4::FileType::Directory))
                })
                .collect();
            if entries.is_empty() {
                break;
            }
            for (name, is_directory) in entries {
                if is_directory {
                    self.remove_all(&dir, &name)?;
                } else {
                    self.run(&[put(&dir), Arguments::Remove(self::name(&name))])?.good()?;
                }
            }
        }
        self.run(&[put(parent), Arguments::Remove(name(file))])?.good()
    }
}

impl Drop for Four<'_> {
    /// Ends the session and the client, as far as no state is left. The next client of the same
    /// name ends the rest.
    fn drop(&mut self) {
        let _ = alone(&mut self.conn, self.minor, &[Arguments::DestroySession(self.session)]);
        let _ = alone(&mut self.conn, self.minor, &[Arguments::DestroyClientId(self.client)]);
    }
}
