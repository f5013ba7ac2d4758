//! Random commands, each sent to the unit and done to the model; the results are compared. Here are
//! the choice of commands and the comparison of answers; each kind of command has a file of its
//! own.

mod objects;
mod sets;
mod whole;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use osd::attributes::numbers::{
    collection_information as of_collection, collections, command_tracking as tracking, current_command,
    partition_information as of_partition, partition_quotas, root_information, user_information as of_user,
    user_quotas,
};
use osd::attributes::{AttributeId, Page, list};
use osd::cdb::{FlushScope, List, ListCollection, ObjectRange, RemoveScope, StructureScope};
use osd::continuation::{CopySource, Criterion, Descriptor, Query};
use osd::data::{self, LIST_HEADER_LEN, ListHeader, MapType};
use osd::{Action, Command as Osd, Form, Id, ObjectType, Version};

use super::harness::{Answer, Fault, Initiator, Request};
use super::model::{FIRST, Model, Partition, Tracked};

/// Numbers that a seed makes (xorshift64*).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn of<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len() as u64);
        from.get(at as usize).copied()
    }
    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let start = self.next();
        (0..len).map(|at| (start.wrapping_add(at.wrapping_mul(7)) % 251 + 1) as u8).collect()
    }
}

const FREE: Page = Page(0x1_0000);
const ANY: Page = Page(0xF000_0001);

/// A unit and the contents that it should hold.
pub struct Pair {
    /// None while the unit is not there.
    pub client: Option<Initiator>,
    pub model: Model,
    pub chance: Chance,
    /// The last commands, for the report of a failure.
    pub log: Vec<String>,
    /// Commands that ended well, and how often.
    pub ended: BTreeMap<Action, u64>,
    /// Number of times that a duplicate's source was gone, and another partition had the source's
    /// id.
    pub namesakes: u64,
    /// Whether the last command that ended well has promised that its changes are on the medium.
    pub promised: bool,
    /// The medium has failed, which a test may have it do: nothing comes of the command any more.
    pub failed: Option<Rc<Cell<bool>>>,
}

const IDS: [AttributeId; 2] = [current_command::PARTITION_ID, current_command::OBJECT_ID];
impl Pair {
    pub fn new(client: Initiator, chance: Chance) -> Self {
        Self {
            client: Some(client),
            model: Model::default(),
            chance,
            log: Vec::new(),
            ended: BTreeMap::new(),
            namesakes: 0,
            promised: false,
            failed: None,
        }
    }

    fn form(&mut self, command: &Osd) -> Form {
        let both = command.action().code(Version::Osd1).is_some();
        match self.chance.below(4) {
            0 if both => Form::Osd1,
            1 => Form::Osd2Draft,
            _ => Form::Osd2,
        }
    }

    async fn send(&mut self, mut request: Request) -> Answer {
        if request.form == Form::Osd2 && request.descriptors.is_empty() && !request.listed {
            request.form = self.form(&request.command);
        }
        request.fua |= self.chance.one_in(8);
        let mut said = format!("{request:?}");
        said.truncate(600);
        self.log.push(said);
        if self.log.len() > 12 {
            self.log.remove(0);
        }
        let answer = self.client.as_ref().expect("a unit").send(&request).await;
        if let (Err(Fault::Medium), Some(failed)) = (&answer.result, &self.failed) {
            failed.set(true);
            // The test that made it fail drops this future.
            std::future::pending::<()>().await;
        }
        self.promised = answer.result.is_ok()
            && (request.fua
                || matches!(request.command, Osd::FlushOsd { scope } if scope != FlushScope::Attributes));
        if answer.result.is_ok() {
            *self.ended.entry(request.command.action()).or_default() += 1;
        }
        answer
    }

    /// Sends what both must end with the same way.
    #[track_caller]
    fn agree(&self, answer: &Answer, expected: Result<(), Fault>) -> bool {
        let mut expected = expected;
        // STARTING BYTE ADDRESS stands elsewhere in OSD-1.
        if let (Err(Fault::Cdb(byte @ 40)), Version::Osd1) = (&mut expected, answer.version) {
            *byte = 44;
        }
        assert_eq!(
            answer.result,
            expected,
            "the unit's answer (left) is not the model's\n{}",
            self.log.join("\n")
        );
        expected.is_ok()
    }

    /// Sends what both must end with the same way.
    async fn both(
        &mut self,
        request: Request,
        of_model: impl FnOnce(&mut Model) -> Result<(), Fault>,
    ) -> bool {
        let answer = self.send(request).await;
        let expected = of_model(&mut self.model);
        self.agree(&answer, expected)
    }

    /// The model's result. If the model refuses the command, the unit has to refuse it too.
    #[track_caller]
    fn granted<T>(&self, answer: &Answer, expected: Result<T, Fault>) -> Option<T> {
        expected.map_err(|fault| self.agree(answer, Err(fault))).ok()
    }

    fn partition(&mut self) -> u64 {
        let there: Vec<u64> = self.model.partitions.keys().copied().collect();
        match self.chance.below(40) {
            0 => FIRST + self.chance.below(12),
            1 => self.chance.below(FIRST),
            _ => self.chance.of(&there).unwrap_or(FIRST),
        }
    }

    /// An object of a kind, or something that is none.
    fn object(&mut self, collection: bool) -> Id {
        let partition = self.partition();
        let found = self.model.partitions.get(&partition);
        let there: Vec<u64> = found.map_or(Vec::new(), |found| match collection {
            true => found.collections.keys().copied().collect(),
            false => found.users.keys().copied().collect(),
        });
        let object = match self.chance.below(30) {
            0 => FIRST + self.chance.below(40),
            _ => self.chance.of(&there).unwrap_or(FIRST + 39),
        };
        Id::new(partition, object)
    }

    fn requested(&mut self) -> u64 {
        match self.chance.below(10) {
            0 => self.chance.below(FIRST),
            1..=4 => FIRST + self.chance.below(40),
            _ => 0,
        }
    }

    /// Values to set of an object of a type; now and then one that cannot be set.
    fn settings(&mut self, of_type: ObjectType, partition: u64) -> Vec<(AttributeId, Vec<u8>)> {
        let mut set: Vec<(AttributeId, Vec<u8>)> = Vec::new();
        for _ in 0..1 + self.chance.below(3) {
            let number = 1 + self.chance.below(4) as u32;
            let len = [0, 1, 1, 2, 4, 40, 300][self.chance.below(7) as usize];
            let value = self.chance.bytes(len);
            let free = AttributeId::new(Page::of(of_type, FREE.0), number);
            let short = |value: &[u8]| value.iter().take(1).map(|b| b % 10).collect::<Vec<u8>>();
            let one = match (self.chance.below(24), of_type) {
                (0..=9, _) => (free, short(&value)),
                (10..=14, _) => (free, value),
                (15..=17, _) => (AttributeId::new(ANY, number), value),
                (18, _) => (AttributeId::new(Page::of(of_type, 1), 9), value),
                (19, _) if self.chance.one_in(4) => (AttributeId::new(Page::of(of_type, 1), 1), value),
                (20, ObjectType::User) => {
                    (of_user::LOGICAL_LENGTH, self.chance.below(30_000).to_be_bytes().to_vec())
                }
                (21, ObjectType::User) if self.chance.one_in(3) => {
                    (user_quotas::MAX_LENGTH, self.chance.below(60_000).to_be_bytes().to_vec())
                }
                (21, ObjectType::Partition) if self.chance.one_in(3) => match self.chance.below(4) {
                    0 => (partition_quotas::OBJECTS, self.chance.below(40).to_be_bytes().to_vec()),
                    1 => (partition_quotas::OBJECTS, Vec::new()),
                    2 => (partition_quotas::DEFAULT_MAX_OBJECT_LENGTH, 50_000u64.to_be_bytes().to_vec()),
                    _ => (partition_quotas::DEFAULT_MAX_OBJECT_LENGTH, Vec::new()),
                },
                (22.., ObjectType::User) => {
                    let pointer = AttributeId::new(collections::PAGE, number);
                    let found = self.model.partitions.get(&partition);
                    let there: Vec<u64> =
                        found.map_or(Vec::new(), |found| found.collections.keys().copied().collect());
                    match self.chance.below(8) {
                        0 => (pointer, Vec::new()),
                        1 => (pointer, (FIRST + self.chance.below(40)).to_be_bytes().to_vec()),
                        _ => (pointer, self.chance.of(&there).unwrap_or(FIRST).to_be_bytes().to_vec()),
                    }
                }
                _ => (free, value),
            };
            // One pointer and one length a list: another test covers several of them.
            let twice = set.iter().any(|(attribute, _)| attribute.page == one.0.page && one.0.page.0 < 0x100);
            if !twice {
                set.push(one);
            }
        }
        set
    }

    /// Attributes of an object of a type, some of which do not exist.
    fn wanted(&mut self, of_type: ObjectType) -> Vec<AttributeId> {
        let page = |number| Page::of(of_type, number);
        let mut wanted = Vec::new();
        for _ in 0..1 + self.chance.below(6) {
            let number = 1 + self.chance.below(5) as u32;
            wanted.push(match (self.chance.below(9), of_type) {
                (0..=2, _) => AttributeId::new(page(FREE.0), number),
                (3, _) => AttributeId::new(ANY, number),
                (4, ObjectType::User) => AttributeId::new(collections::PAGE, number),
                (4, ObjectType::Partition) => of_partition::OBJECTS,
                (5, ObjectType::User) => of_user::LOGICAL_LENGTH,
                (5, ObjectType::Collection) => of_collection::TYPE,
                (6, ObjectType::User) => of_user::ID,
                (6, ObjectType::Collection) => {
                    let numbers = [0x1, 0x2, 0x3, 0x10, 0x11, 0x12, 0x13];
                    AttributeId::new(tracking::PAGE, self.chance.of(&numbers).unwrap_or(1))
                }
                (6, ObjectType::Root) => root_information::PARTITIONS,
                (7, ObjectType::User) => user_quotas::MAX_LENGTH,
                (7, ObjectType::Partition) => partition_quotas::OBJECTS,
                (8, _) => AttributeId::new(page(1), 9),
                _ => AttributeId::new(Page(0x3000_0001), 0x1),
            });
        }
        wanted
    }

    /// Whether a value is worth comparing: how far a command came that failed is not foretold.
    fn foretold(&self, id: Id, attribute: AttributeId) -> bool {
        attribute.page != tracking::PAGE
            || attribute == tracking::MEMBERS
            || !self.model.collection(id).is_ok_and(|found| found.tracked == Tracked::Failed)
    }

    #[track_caller]
    fn compare_values(&self, id: Id, found: &[(AttributeId, Vec<u8>)], wanted: &[AttributeId]) {
        assert_eq!(found.len(), wanted.len(), "{id}");
        for ((attribute, value), wanted) in found.iter().zip(wanted) {
            assert_eq!(attribute, wanted);
            if self.foretold(id, *attribute) {
                let expected = self.model.value(id, *attribute).expect("it is there");
                assert_eq!(*value, expected, "{attribute} of {id}\n{}", self.log.join("\n"));
            }
        }
    }

    /// The ids that a creation reports, which fit the request.
    #[track_caller]
    fn created(&self, answer: &Answer, partition: u64, requested: u64) -> u64 {
        assert_eq!(answer.number(0), partition);
        let id = answer.number(1);
        assert!(id >= FIRST && (requested == 0 || id == requested), "{id:#x} for {requested:#x}");
        assert!(requested != 0 || self.model.type_of(Id::new(partition, id)).is_err(), "{id:#x} is taken");
        id
    }

    pub async fn step(&mut self) {
        match self.chance.below(100) {
            0..=3 => self.create_partition().await,
            4 => self.remove_partition().await,
            5..=13 => self.create().await,
            14..=16 => self.create_and_write().await,
            17..=25 => self.write().await,
            26..=28 => self.append().await,
            29..=31 => self.clear_or_punch().await,
            32..=38 => self.read().await,
            39..=41 => self.remove().await,
            42..=55 => self.set().await,
            56..=62 => self.get().await,
            63..=66 => self.list().await,
            67..=69 => self.list_collection().await,
            70..=73 => self.create_collection().await,
            74 => self.remove_collection().await,
            75..=79 => self.query().await,
            80..=83 => self.members().await,
            84..=88 => self.snapshots().await,
            89..=91 => self.map().await,
            92..=94 => self.copy().await,
            95..=97 => self.flush().await,
            98 => self.tunnel_or_check().await,
            _ if self.chance.one_in(12) => {
                let answer = self.send(Request::new(Osd::Format { capacity: 0 })).await;
                if self.agree(&answer, Ok(())) {
                    self.model = Model::default();
                }
            }
            _ => self.get().await,
        }
    }

    fn place(&mut self, id: Id) -> u64 {
        let length = self.model.user(id).map_or(0, |user| user.data.len() as u64);
        match self.chance.below(4) {
            0 => length,
            1 => self.chance.below(length + 5000).min(60_000),
            2 => self.chance.below(12) * 4096,
            _ => self.chance.below(length + 1),
        }
    }

    fn anything(&mut self) -> Id {
        match self.chance.below(10) {
            0 => Id::ROOT,
            1 | 2 => Id::partition(self.partition()),
            3 | 4 => self.object(true),
            _ => self.object(false),
        }
    }
}
