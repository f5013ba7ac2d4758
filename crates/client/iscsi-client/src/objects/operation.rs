//! One command to an object-based storage device: its function, the attributes that it also sets
//! and gets, and the layout of the CDB, Data-Out and Data-In.

use osd::attributes::list::{self, ValueList};
use osd::attributes::numbers::current_command;
use osd::cdb::{AttributeParameters, Effect, Isolation, Options, Region, Timestamps};
use osd::{AttributeId, Cdb, Command, ObjectType, Version, offset};
use runtime::{Buf, Chain};
use scsi::{AdditionalSense, SenseKey};

use super::authority::Proof;
use super::error::ObjectError;
use super::{Attribute, Objects};
use crate::error::{Error, ScsiError};
use crate::session::{self, MAX_READ, Patience, Response, Ticket};

/// Default room per requested attribute, in bytes.
const ROOM: usize = 256;
/// Default room for all attributes of a page, or of all pages, in bytes.
const MUCH_ROOM: usize = 64 << 10;
/// Bytes for the proof of an answer among the attributes.
const PROOF: usize = 16 + 32;
/// A forged answer.
const FORGED: ObjectError = ObjectError::Data("its integrity check value is not the device's");
/// READ PAST END OF USER OBJECT: Data-In has the bytes up to the end.
const PAST_END: AdditionalSense = AdditionalSense::new(0x3b, 0x17);

/// A command under construction.
#[derive(Clone, Debug)]
pub struct Operation {
    command: Command,
    options: Options,
    timestamps: Timestamps,
    get: Vec<AttributeId>,
    set: Vec<Attribute>,
    continuation: Vec<u8>,
    data: Chain,
    data_in: u64,
    room: usize,
    in_list: bool,
    first_is_enough: bool,
}

impl Operation {
    /// The command without options.
    pub fn new(command: Command) -> Self {
        Self {
            data_in: command.data_in_len(),
            command,
            options: Options::default(),
            timestamps: Timestamps::Update,
            get: Vec::new(),
            set: Vec::new(),
            continuation: Vec::new(),
            data: Chain::new(),
            room: 0,
            in_list: false,
            first_is_enough: false,
        }
    }

    /// Its effect is on the medium when it ends (FUA).
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.options.fua = true;
        self
    }

    /// Sets its isolation from concurrent commands.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.options.isolation = isolation;
        self
    }

    /// Leaves the objects' timestamps unchanged.
    #[must_use]
    pub fn bypass_timestamps(mut self) -> Self {
        self.timestamps = Timestamps::Bypass;
        self
    }

    /// Also returns attributes: see [`Reply::attributes`].
    #[must_use]
    pub fn get(mut self, ids: impl IntoIterator<Item = AttributeId>) -> Self {
        self.get.extend(ids);
        self
    }

    /// Also sets an attribute. A value without bytes removes it.
    #[must_use]
    pub fn set(mut self, id: AttributeId, value: impl Into<Vec<u8>>) -> Self {
        self.set.push(Attribute { id, value: value.into() });
        self
    }

    /// Also sets attributes.
    #[must_use]
    pub fn set_all(mut self, attributes: impl IntoIterator<Item = Attribute>) -> Self {
        self.set.extend(attributes);
        self
    }

    /// Sets the data to write.
    #[must_use]
    pub fn writing(mut self, data: impl Into<Chain>) -> Self {
        self.data = data.into();
        self
    }

    /// Returns the attributes within the command's own data, for each object of its list.
    #[must_use]
    pub(super) fn in_list(mut self) -> Self {
        self.in_list = true;
        self
    }

    /// Of many objects, requires only the attributes of the first one.
    #[must_use]
    pub(super) fn of_first(mut self) -> Self {
        self.first_is_enough = true;
        self
    }

    /// Sets the CDB continuation, including its header.
    #[must_use]
    pub(super) fn continuing(mut self, continuation: Vec<u8>) -> Self {
        self.continuation = continuation;
        self
    }

    /// Sets the room for the returned attributes in bytes, if the default is too small.
    #[must_use]
    pub fn room(mut self, bytes: usize) -> Self {
        self.room = bytes;
        self
    }

    /// Sets the Data-In bytes besides attributes, if the CDB has no field for them.
    #[must_use]
    pub fn reading(mut self, bytes: u64) -> Self {
        self.data_in = bytes;
        self
    }

    /// Builds CDB and data.
    fn prepare(&self, device: &Objects) -> Result<Prepared, ObjectError> {
        let impossible = |what: &str| ObjectError::Argument(what.to_owned());
        let mut cdb = Cdb::new(self.command);
        cdb.options = self.options;
        cdb.timestamps = self.timestamps;
        cdb.continuation =
            u32::try_from(self.continuation.len()).map_err(|_| impossible("too long a continuation"))?;
        let proof = device.authorize(&mut cdb, &self.get, &self.set)?;
        let mut out = Chain::new();
        if !self.continuation.is_empty() {
            let mut continuation = self.continuation.clone();
            if let Some(proof) = &proof {
                proof.continuation(&mut continuation);
            }
            out.push(Buf::from(continuation));
        }
        if !self.data.is_empty() {
            out.append(self.data.clone());
        }
        let own = out.len() as u64;
        // An attribute of the command proves that the device returned GOOD. Lists use other
        // attributes.
        let proves = proof.as_ref().is_some_and(Proof::is_of_commands) && !self.in_list;
        let mut wanted = self.get.clone();
        if proves {
            wanted.push(current_command::RESPONSE_ICV);
        }
        let get = push_list(&mut out, get_list(&wanted))?;
        let set = push_list(&mut out, set_list(&self.set)?)?;
        let retrieved = match get {
            Some(_) if !self.in_list => {
                let at = offset::round_up(self.data_in, Version::Osd2)
                    .ok_or_else(|| impossible("the read is too long"))?;
                let len = self.retrieved_len() + if proves { PROOF * self.listed() } else { 0 };
                let len = u32::try_from(len).map_err(|_| impossible("too much room for attributes"))?;
                Some(Region { offset: at, len })
            }
            _ => None,
        };
        let mut data_in = retrieved.map_or(self.data_in, |region| region.offset + u64::from(region.len));
        if get.is_some() || set.is_some() {
            cdb.attributes = AttributeParameters::List { get, retrieved, set };
        }
        if let Some(proof) = &proof {
            let len = |region: Option<Region>| region.map_or(0, |region| u64::from(region.len));
            proof.data_out(&mut cdb, &mut out, [own, len(set), len(get)])?;
            data_in = proof.data_in(&mut cdb, data_in)?;
            proof.command(&mut cdb)?;
        }
        let read_len = u32::try_from(data_in)
            .ok()
            .filter(|len| *len <= MAX_READ)
            .ok_or_else(|| impossible("one command reads 64 MiB at most"))?;
        let bytes = cdb.encode().map_err(|error| ObjectError::Argument(error.to_string()))?;
        let mut command = device.unit().command(&bytes);
        if !out.is_empty() {
            command = command.writing(out);
        }
        if read_len > 0 {
            command = command.reading(read_len);
        }
        // A nonce is valid once.
        if !repeatable(&self.command) || proof.as_ref().is_some_and(Proof::is_of_commands) {
            command = command.once();
        }
        Ok(Prepared {
            command,
            name: self.command.action().name(),
            makes: makes(&self.command),
            own: usize::try_from(self.data_in).unwrap_or(usize::MAX),
            retrieved,
            sealed_at: cdb.security.data_in_icv,
            first_is_enough: self.first_is_enough,
            proves,
            proof,
        })
    }

    fn retrieved_len(&self) -> usize {
        if self.room > 0 {
            return self.room;
        }
        if self.get.is_empty() {
            return 8;
        }
        let many = self.get.iter().any(|id| id.number == AttributeId::ALL || id.page == osd::Page::ALL);
        // A list of many objects includes the id of each object.
        8 + self.listed() * (16 + if many { MUCH_ROOM } else { self.get.len() * (16 + ROOM) })
    }

    /// Number of objects whose attributes are returned: a CREATE of many returns those of each.
    fn listed(&self) -> usize {
        match self.command {
            Command::Create { count, .. } if !self.first_is_enough => usize::from(count.max(1)),
            _ => 1,
        }
    }
}

fn get_list(ids: &[AttributeId]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    list::write_get(&mut bytes, Version::Osd2, ids.iter().copied());
    (!ids.is_empty()).then_some(bytes)
}

fn set_list(attributes: &[Attribute]) -> Result<Option<Vec<u8>>, ObjectError> {
    if attributes.is_empty() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let values = attributes.iter().map(|one| (one.id, Some(&one.value[..])));
    list::write_values(&mut bytes, Version::Osd2, values)
        .map_err(|error| ObjectError::Argument(error.to_string()))?;
    Ok(Some(bytes))
}

/// Appends a list at an offset that a CDB can encode.
fn push_list(out: &mut Chain, list: Option<Vec<u8>>) -> Result<Option<Region>, ObjectError> {
    let Some(list) = list else { return Ok(None) };
    let at = offset::round_up(out.len() as u64, Version::Osd2);
    let at = at.ok_or_else(|| ObjectError::Argument("the write is too long".into()))?;
    let gap = usize::try_from(at).unwrap_or(usize::MAX) - out.len();
    if gap > 0 {
        out.push(Buf::from(vec![0; gap]));
    }
    let len = u32::try_from(list.len()).map_err(|_| ObjectError::Argument("too many attributes".into()))?;
    out.push(Buf::from(list));
    Ok(Some(Region { offset: at, len }))
}

/// Whether running the command twice has the same effect as once.
fn repeatable(command: &Command) -> bool {
    let tunnels = matches!(command, Command::PerformScsiCommand { .. } | Command::PerformTmf { .. });
    matches!(command.effect(), Effect::Looks | Effect::Keeps | Effect::Sets) && !tunnels
}

/// The CDB byte of the id that the command creates.
fn makes(command: &Command) -> Option<u16> {
    let at = if command.object_type() == Some(ObjectType::Partition) { 16 } else { 24 };
    (command.effect() == Effect::Creates).then_some(at)
}

/// A command ready to send, and the layout of its answer.
struct Prepared {
    command: session::Command,
    name: &'static str,
    /// The CDB byte of the id that the command creates.
    makes: Option<u16>,
    /// Bytes of Data-In before the attributes.
    own: usize,
    retrieved: Option<Region>,
    /// Offset of the seal in Data-In.
    sealed_at: Option<u64>,
    /// The list of attributes may be truncated after the first object's.
    first_is_enough: bool,
    /// The attributes include the proof that the device returned GOOD.
    proves: bool,
    proof: Option<Proof>,
}

/// The result of a command.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Its data. For a READ, fewer bytes than requested at the end of the object.
    pub data: Chain,
    /// The returned attributes, in the requested order. A missing one has no bytes. For many
    /// objects, those of the first one.
    pub attributes: Vec<Attribute>,
    /// For a command on many objects (CREATE of several, GET MEMBER ATTRIBUTES, SET MEMBER
    /// ATTRIBUTES): the attributes of each, by its id.
    pub objects: Vec<(u64, Vec<Attribute>)>,
}

impl Reply {
    /// The value of an attribute, if it exists.
    pub fn value(&self, id: AttributeId) -> Option<&[u8]> {
        let found = self.attributes.iter().find(|one| one.id == id)?;
        Some(found.value.as_slice()).filter(|value| !value.is_empty())
    }

    /// The same for a number of up to 8 bytes.
    pub fn number(&self, id: AttributeId) -> Option<u64> {
        number(self.value(id)?)
    }
}

/// A big-endian number of up to 8 bytes.
pub fn number(value: &[u8]) -> Option<u64> {
    (value.len() <= 8).then(|| osd::attributes::number(value))
}

/// An outstanding command.
pub struct Pending {
    device: Objects,
    operation: Operation,
    prepared: Prepared,
    ticket: Ticket,
}

impl Pending {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn finish(self) -> Result<Reply, ObjectError> {
        let Self { device, operation, prepared, ticket } = self;
        let response = ticket.await?;
        device.conclude(operation, prepared, response).await
    }
}

impl Objects {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`ObjectError`]. After [`Error::Lost`] it is unknown whether a non-repeatable command ran.
    pub async fn run(&self, operation: Operation) -> Result<Reply, ObjectError> {
        self.start(operation).await?.finish().await
    }

    /// Starts a command. Start many before waiting for the first to have them all outstanding.
    ///
    /// # Errors
    /// As [`Self::run`], before it is sent.
    pub async fn start(&self, operation: Operation) -> Result<Pending, ObjectError> {
        let prepared = operation.prepare(self)?;
        let ticket = self.unit().session().start(prepared.command.clone()).await?;
        Ok(Pending { device: self.clone(), operation, prepared, ticket })
    }

    async fn conclude(
        &self,
        mut operation: Operation,
        mut prepared: Prepared,
        mut response: Response,
    ) -> Result<Reply, ObjectError> {
        let mut patience = Patience::default();
        loop {
            let short = match response.status {
                0x00 | 0x04 => None,
                status => {
                    let sense = scsi::Sense::parse(&response.sense);
                    let past_end = sense.as_ref().filter(|sense| {
                        sense.key == SenseKey::RecoveredError && sense.additional == PAST_END
                    });
                    match past_end {
                        // Success, with fewer bytes because the object ended.
                        Some(sense) => {
                            let known = |proof: &Proof| proof.is_answered_by(status, &response.sense);
                            if !prepared.proof.as_ref().is_none_or(known) {
                                return Err(FORGED);
                            }
                            Some(sense.command_specific.unwrap_or(0))
                        }
                        None => {
                            let error = ScsiError { status, sense };
                            match patience.wait(Error::Scsi(Box::new(error))).await {
                                // The command did not run: the unit was busy, or reported a unit
                                // attention first.
                                Ok(()) => {
                                    prepared = operation.prepare(self)?;
                                    response =
                                        self.unit().session().execute(prepared.command.clone()).await?;
                                    continue;
                                }
                                Err(Error::Scsi(error)) => {
                                    return Err(ObjectError::of(prepared.name, prepared.makes, *error));
                                }
                                Err(error) => return Err(error.into()),
                            }
                        }
                    }
                }
            };
            if let Some(proof) = &prepared.proof {
                proof.verify_data_in(&response.data, prepared.sealed_at)?;
            }
            let (mut reply, needed) = read_reply(&prepared, response.data, short)?;
            if prepared.proves && needed.is_none() {
                let icv = reply.attributes.pop_if(|last| last.id == current_command::RESPONSE_ICV);
                let good =
                    prepared.proof.as_ref().zip(icv).is_some_and(|(proof, icv)| proof.is_good(&icv.value));
                if short.is_none() && !good {
                    return Err(FORGED);
                }
                for (_, attributes) in &mut reply.objects {
                    attributes.retain(|one| one.id != current_command::RESPONSE_ICV);
                }
            }
            match needed {
                // The attributes needed more room; repeating the command has no further effect.
                Some(needed) if repeatable(&operation.command) && needed > operation.retrieved_len() => {
                    operation.room = needed;
                    prepared = operation.prepare(self)?;
                    response = self.unit().session().execute(prepared.command.clone()).await?;
                }
                Some(_) => {
                    return Err(ObjectError::Data("there are more attributes than there was room for"));
                }
                None => return Ok(reply),
            }
        }
    }
}

/// Decodes Data-In. Also returns the bytes that the list of attributes needs, if it was truncated.
fn read_reply(
    prepared: &Prepared,
    mut data: Chain,
    short: Option<u64>,
) -> Result<(Reply, Option<usize>), ObjectError> {
    let Some(region) = prepared.retrieved else {
        let most = short.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        data.truncate(most);
        return Ok((Reply { data, ..Reply::default() }, None));
    };
    let at = usize::try_from(region.offset).unwrap_or(usize::MAX);
    let mut list = data.clone();
    if list.len() < at {
        return Err(ObjectError::Data("the attributes that were asked for are missing"));
    }
    list.advance(at);
    let list = list.to_vec();
    let wrong = |_| ObjectError::Data("a list of attributes");
    let of = |values: ValueList<'_>| values.iter().map(Attribute::from).collect::<Vec<_>>();
    let (attributes, objects) = if list.first().is_some_and(|kind| kind & 0x0F == list::TYPE_MANY) {
        let found = list::parse_many(&list, Version::Osd2).map_err(wrong)?;
        let objects: Vec<_> = found.into_iter().map(|object| (object.id, of(object.values))).collect();
        (objects.first().map(|(_, first)| first.clone()).unwrap_or_default(), objects)
    } else {
        (of(ValueList::parse_retrieved(&list, Version::Osd2).map_err(wrong)?), Vec::new())
    };
    // The header has the full length, whatever room there was.
    let said = list.get(4..8).and_then(|said| said.try_into().ok()).map_or(0, u32::from_be_bytes);
    let needed = usize::try_from(said).unwrap_or(usize::MAX).saturating_add(list::header_len(Version::Osd2));
    let most = short.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(prepared.own);
    data.truncate(most.min(prepared.own));
    Ok((
        Reply { data, attributes, objects },
        (needed > list.len() && !prepared.first_is_enough).then_some(needed),
    ))
}
