//! Sends commands of random sequences as an initiator would, and says what sense data the model
//! foretells.

use super::*;

/// A clock that goes on whenever it is looked at.
#[derive(Default)]
pub struct Hands(AtomicU64);

impl Clock for Hands {
    fn now_ms(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub command: Osd,
    pub form: Form,
    pub fua: bool,
    pub get: Vec<AttributeId>,
    pub set: Vec<(AttributeId, Vec<u8>)>,
    pub data: Vec<u8>,
    pub descriptors: Vec<Descriptor>,
    /// LIST_ATTR: the attributes come with the list.
    pub listed: bool,
}

impl Request {
    pub fn new(command: Osd) -> Self {
        Self {
            command,
            form: Form::Osd2,
            fua: false,
            get: Vec::new(),
            set: Vec::new(),
            data: Vec::new(),
            descriptors: Vec::new(),
            listed: false,
        }
    }
    pub fn get(mut self, attributes: &[AttributeId]) -> Self {
        self.get.extend(attributes);
        self
    }
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }
    pub fn with(mut self, descriptor: Descriptor) -> Self {
        self.descriptors.push(descriptor);
        self
    }
}

/// Reasons to refuse a command, as far as sense data shows and the model predicts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Cdb(u16),
    Parameter,
    /// PARTITION OR COLLECTION CONTAINS USER OBJECTS.
    NotEmpty,
    Quota,
    Protected,
    /// WRITE ERROR or UNRECOVERED READ ERROR.
    Medium,
    /// READ PAST END, with the number of bytes that were there.
    PastEnd(u64),
}

#[derive(Debug)]
pub struct Answer {
    pub result: Result<(), Fault>,
    pub ran: Ran,
}

impl std::ops::Deref for Answer {
    type Target = Ran;
    fn deref(&self) -> &Ran {
        &self.ran
    }
}

impl Answer {
    /// The ids of the objects in a list of many, and the attributes of the first.
    pub fn of_many(&self) -> (Vec<u64>, Got) {
        let objects = self.objects();
        (objects.iter().map(|(id, _)| *id).collect(), objects[0].1.clone())
    }

    /// The attribute `at` of those that were retrieved, as a number.
    pub fn number(&self, at: usize) -> u64 {
        self.values()[at].1.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

fn fault(sense: &Sense) -> Fault {
    let code = (sense.additional.asc, sense.additional.ascq);
    match (sense.key, code, sense.key_specific) {
        (
            SenseKey::IllegalRequest,
            (0x24, 0),
            Some(KeySpecific::Field(FieldPointer { in_cdb: true, byte, .. })),
        ) => Fault::Cdb(byte),
        (
            SenseKey::IllegalRequest,
            (0x26, 0),
            Some(KeySpecific::Field(FieldPointer { in_cdb: false, .. })),
        ) => Fault::Parameter,
        (SenseKey::IllegalRequest, (0x2C, 0x0A), _) => Fault::NotEmpty,
        (SenseKey::DataProtect, (0x55, 0x07), _) => Fault::Quota,
        (SenseKey::DataProtect, (0x27, 0), _) => Fault::Protected,
        (SenseKey::MediumError, _, _) => Fault::Medium,
        (SenseKey::RecoveredError, (0x3B, 0x17), _) => {
            Fault::PastEnd(sense.command_specific.expect("how many bytes were there"))
        }
        _ => panic!("sense data that nothing calls for: {sense:?}"),
    }
}

/// A unit on a store, and an initiator's way to it.
pub struct Initiator(Client);

impl Initiator {
    pub fn new(store: Arc<dyn ObjectStore>, clock: Arc<Hands>) -> Self {
        let options = OsdOptions { clock, ..OsdOptions::default() }.with_identity("model");
        let unit = OsdUnit::new(store, options).expect("a unit");
        Self(Client::to(&unit, 1, Arc::default()))
    }

    pub async fn send(&self, request: &Request) -> Answer {
        let mut ask = self.0.ask(request.command);
        ask.cdb.form = request.form;
        ask.cdb.options.fua = request.fua;
        ask.data.clone_from(&request.data);
        ask.get.clone_from(&request.get);
        ask.set.clone_from(&request.set);
        ask.descriptors.clone_from(&request.descriptors);
        if request.listed {
            // They are in the list itself.
            ask.allocation = 0;
        }
        ask.room = request.command.data_in_len() as usize;
        if !request.get.is_empty() && !request.listed {
            ask.room =
                (1 << 20) + offset::round_up(ask.room as u64, request.form.version()).unwrap() as usize;
        }
        let ran = ask.run(1).await;
        let result = match (ran.outcome.status, &ran.outcome.sense) {
            (Status::Good, None) => Ok(()),
            (Status::CheckCondition, Some(_)) => {
                ran.functions();
                Err(fault(ran.sense()))
            }
            _ => panic!("{request:?} ended with {ran:?}"),
        };
        Answer { result, ran }
    }
}
