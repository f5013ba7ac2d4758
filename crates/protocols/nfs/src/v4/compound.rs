//! COMPOUND and CB_COMPOUND as streams (RFC 8881 §16.2, §20.2). A receiver reads operations or
//! results one at a time; a sender writes them one at a time. No list of them is ever held.

use std::marker::PhantomData;
use std::ops::Range;

use rpc::xdr::{Malformed, Reader, Writer, Xdr, padding};

use super::table::{Answer, FIRST, ILLEGAL, Item, Program, Refused};
use super::{Fore, Located, Outcome, Status, Text};

/// A call, with its operations still to be read.
#[derive(Debug, Clone)]
pub struct Call<'a, P: Program = Fore> {
    /// The client's own; the reply repeats it.
    pub tag: Text<'a>,
    /// The minor version: 1 or 2, or else MINOR_VERS_MISMATCH.
    pub minor: u32,
    /// `callback_ident`, of no use since 4.1.
    pub ident: P::Ident,
    /// The operations.
    pub operations: Operations<'a, P>,
}

impl<'a, P: Program> Call<'a, P> {
    /// The call in `body`, the part of an RPC call behind its header.
    ///
    /// # Errors
    /// [`Malformed`]: the reply is GARBAGE_ARGS.
    pub fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let (tag, minor, ident) = (Xdr::read(&mut from)?, from.u32()?, Xdr::read(&mut from)?);
        let left = from.u32()?;
        let operations = Items { from, left, role: Asked { minor, program: PhantomData } };
        Ok(Call { tag, minor, ident, operations })
    }
}

/// The operations of a [`Call`]. The last one that is read is the first that is refused, if any.
pub type Operations<'a, P = Fore> = Items<'a, Asked<P>>;
/// The results of a [`Reply`].
pub type Answers<'a, P = Fore> = Items<'a, Answered<P>>;

/// Operations or results, read one at a time. Nothing follows an error.
#[derive(Debug, Clone)]
pub struct Items<'a, R: Role> {
    from: Reader<'a>,
    left: u32,
    role: R,
}

/// Kind of [`Items`]: operations or results.
pub trait Role {
    /// An operation or a result.
    type Item<'a>: Item<'a>;
    /// Why it cannot be read.
    type Error;

    /// Reads one up to its payload.
    ///
    /// # Errors
    /// As the role says.
    fn read<'a>(&self, from: &mut Reader<'a>) -> Result<Self::Item<'a>, Self::Error>;

    /// The error of one whose payload is cut short.
    fn cut(number: u32, error: Malformed) -> Self::Error;
}

/// Operations, of a minor version.
#[derive(Debug, Clone)]
pub struct Asked<P> {
    minor: u32,
    program: PhantomData<P>,
}

/// Results.
#[derive(Debug, Clone)]
pub struct Answered<P>(PhantomData<P>);

impl<P: Program> Role for Asked<P> {
    type Item<'a> = P::Arguments<'a>;
    type Error = Refused;

    fn read<'a>(&self, from: &mut Reader<'a>) -> Result<P::Arguments<'a>, Refused> {
        let refuse = |operation, status| Refused { operation, status };
        let number = from.u32().map_err(|_| refuse(ILLEGAL, Status::BadXdr))?;
        let minor = self.minor.checked_sub(1).and_then(|index| P::LAST.get(index as usize));
        if !minor.is_some_and(|last| (FIRST..=*last).contains(&number)) {
            return Err(refuse(ILLEGAL, Status::OpIllegal));
        }
        let arguments = P::Arguments::read_of(number, from).ok_or(refuse(number, Status::NotSupp))?;
        arguments.map_err(|_| refuse(number, Status::BadXdr))
    }

    fn cut(operation: u32, _: Malformed) -> Refused {
        Refused { operation, status: Status::BadXdr }
    }
}

impl<P: Program> Role for Answered<P> {
    type Item<'a> = P::Results<'a>;
    type Error = Malformed;

    fn read<'a>(&self, from: &mut Reader<'a>) -> Result<P::Results<'a>, Malformed> {
        let value = from.u32()?;
        let unknown = Malformed::Unknown { what: "COMPOUND", value };
        P::Results::read_of(value, from).ok_or(unknown)?
    }

    fn cut(_: u32, error: Malformed) -> Malformed {
        error
    }
}

impl<'a, R: Role> Items<'a, R> {
    /// Number of items left, as the sender declared it. A server compares it with the session's
    /// limit before the first operation.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Offset of the next item to read, bytes.
    pub fn position(&self) -> usize {
        self.from.position()
    }

    /// Reads the next one up to its payload, which need not have arrived. [`Self::payload`] or
    /// [`Self::resume`] follows; neither does if a transport carries the payload apart (RFC 8267).
    pub fn head(&mut self) -> Option<Result<R::Item<'a>, R::Error>> {
        self.left = self.left.checked_sub(1)?;
        let head = self.role.read(&mut self.from);
        if head.is_err() {
            self.left = 0;
        }
        Some(head)
    }

    /// Passes over the payload of what [`Self::head`] has read: `length` bytes and their padding.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]; nothing is left then.
    pub fn payload(&mut self, length: u32) -> Result<Range<usize>, Malformed> {
        self.from.payload(length as usize).inspect_err(|_| self.left = 0)
    }

    /// Reads on in `rest`: the bytes behind a payload and its padding, which lie elsewhere.
    pub fn resume(&mut self, rest: &'a [u8]) {
        self.from = Reader::new(rest);
    }
}

impl<'a, R: Role> Iterator for Items<'a, R> {
    type Item = Result<Located<R::Item<'a>>, R::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.from.remaining().first_chunk().map_or(ILLEGAL, |it| u32::from_be_bytes(*it));
        Some(self.head()?.and_then(|value| {
            let payload = self.payload(value.payload_length());
            payload.map(|payload| Located { value, payload }).map_err(|error| R::cut(number, error))
        }))
    }
}

/// Writes a call.
#[derive(Debug)]
pub struct CallWriter<'w, 'b, P: Program = Fore> {
    to: &'w mut Writer<'b>,
    count_at: usize,
    count: u32,
    program: PhantomData<P>,
}

impl<'w, 'b, P: Program> CallWriter<'w, 'b, P> {
    /// Begins a call without operations.
    pub fn new(to: &'w mut Writer<'b>, tag: Text<'_>, minor: u32, ident: P::Ident) -> Self {
        tag.write(to);
        to.u32(minor);
        ident.write(to);
        let count_at = to.position();
        to.u32(0);
        CallWriter { to, count_at, count: 0, program: PhantomData }
    }

    /// Appends an operation. The payload of a WRITE and its padding belong at [`Self::position`]
    /// then, whether the caller puts them into the buffer or sends them in between.
    pub fn push(&mut self, arguments: &P::Arguments<'_>) {
        arguments.write_all(self.to);
        self.count += 1;
        self.to.replace_u32(self.count_at, self.count);
    }

    /// Length of the whole buffer, bytes.
    pub fn position(&self) -> usize {
        self.to.position()
    }
}

/// A reply, with its results still to be read.
#[derive(Debug, Clone)]
pub struct Reply<'a, P: Program = Fore> {
    /// The status of the last result.
    pub outcome: Outcome<()>,
    /// The tag of the call.
    pub tag: Text<'a>,
    /// The results.
    pub results: Answers<'a, P>,
}

impl<'a, P: Program> Reply<'a, P> {
    /// The reply in `body`, the part of a successful RPC reply behind its header.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let (outcome, tag, left) = (Xdr::read(&mut from)?, Xdr::read(&mut from)?, from.u32()?);
        Ok(Reply { outcome, tag, results: Items { from, left, role: Answered(PhantomData) } })
    }
}

/// Writes a reply. After each result, the bytes written are a whole reply.
#[derive(Debug)]
pub struct ReplyWriter<'w, 'b, P: Program = Fore> {
    to: &'w mut Writer<'b>,
    status_at: usize,
    count_at: usize,
    /// Offset of the last result.
    last: usize,
    count: u32,
    /// Number of the status; 0 is OK.
    status: u32,
    program: PhantomData<P>,
}

impl<'w, 'b, P: Program> ReplyWriter<'w, 'b, P> {
    /// Begins a reply without results.
    pub fn new(to: &'w mut Writer<'b>, tag: Text<'_>) -> Self {
        let status_at = to.position();
        to.u32(0);
        tag.write(to);
        let count_at = to.position();
        to.u32(0);
        let last = to.position();
        ReplyWriter { to, status_at, count_at, last, count: 0, status: 0, program: PhantomData }
    }

    /// Appends a result. The payload of a READ and its padding belong at [`Self::position`] then,
    /// whether the caller puts them into the buffer or sends them in between.
    pub fn push(&mut self, results: &P::Results<'_>) {
        self.last = self.to.position();
        results.write_all(self.to);
        self.counted(self.count + 1, results.status());
    }

    /// Appends the payload of the last result, and its padding.
    pub fn payload(&mut self, bytes: &[u8]) {
        self.to.raw(bytes);
        self.to.raw(padding(bytes.len()));
    }

    /// Appends the result of an operation that was refused.
    pub fn refuse(&mut self, refused: Refused) {
        self.push(&P::Results::of_refused(refused));
    }

    /// Appends the result that `write` writes from its status on, such as a
    /// [`Listing`](super::readdir::Listing). `write` returns the status.
    pub fn in_place(&mut self, operation: u32, write: impl FnOnce(&mut Writer<'b>) -> Result<(), Status>) {
        self.last = self.to.position();
        self.to.u32(operation);
        let status = write(self.to).err();
        self.counted(self.count + 1, status);
    }

    /// Removes the last result, so that another one can be written: it was too long.
    pub fn pop(&mut self) {
        if self.count > 0 && self.to.position() > self.last {
            self.to.truncate(self.last);
            self.counted(self.count - 1, None);
        }
    }

    /// Gives the reply a status without a result of it: MINOR_VERS_MISMATCH.
    pub fn fail(&mut self, status: Status) {
        self.counted(self.count, Some(status));
    }

    fn counted(&mut self, count: u32, status: Option<Status>) {
        self.count = count;
        self.to.replace_u32(self.count_at, count);
        self.status = status.map_or(0, Status::code);
        self.to.replace_u32(self.status_at, self.status);
    }

    /// The number of the reply's status now: that of its last result.
    pub fn status(&self) -> u32 {
        self.status
    }

    /// Length of the whole buffer, bytes.
    pub fn position(&self) -> usize {
        self.to.position()
    }
}
