//! Random commands, each sent to the unit and done to the model; what both say is compared.

use std::collections::BTreeMap;

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

use crate::harness::{Answer, Client, Fault, Request};
use crate::model::{FIRST, Model, Tracked};

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

/// A unit and what it should hold.
pub struct Pair {
    /// None while the unit is not there.
    pub client: Option<Client>,
    pub model: Model,
    pub chance: Chance,
    /// The last commands, for whoever reads of a failure.
    pub log: Vec<String>,
    /// Commands that ended well, and how often.
    pub ended: BTreeMap<Action, u64>,
}

const IDS: [AttributeId; 2] = [current_command::PARTITION_ID, current_command::OBJECT_ID];

impl Pair {
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
            // One pointer and one length a list: what several of them do to each other is another test's.
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

    /// The ids that a creation tells of, which fit what was requested.
    #[track_caller]
    fn created(&self, answer: &Answer, partition: u64, requested: u64) -> u64 {
        assert_eq!(answer.number(0), partition);
        let id = answer.number(1);
        assert!(id >= FIRST && (requested == 0 || id == requested), "{id:#x} for {requested:#x}");
        assert!(requested != 0 || self.model.type_of(Id::new(partition, id)).is_err(), "{id:#x} is taken");
        id
    }

    /// One command.
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

    async fn create_partition(&mut self) {
        if self.model.partitions.len() > 8 {
            return;
        }
        let requested = match self.chance.below(5) {
            0 => self.chance.below(FIRST),
            1 | 2 => FIRST + self.chance.below(12),
            _ => 0,
        };
        let answer = self.send(Request::new(Osd::CreatePartition { requested }).get(&IDS)).await;
        let expected = self.model.may_create_partition(requested);
        if self.agree(&answer, expected) {
            let id = answer.number(0);
            assert!(id >= FIRST && (requested == 0 || id == requested) && answer.number(1) == 0);
            assert!(!self.model.partitions.contains_key(&id), "partition {id:#x} is taken");
            self.model.create_partition(id);
        }
    }

    async fn remove_partition(&mut self) {
        let partition = self.partition();
        let scope = if self.chance.one_in(2) { RemoveScope::Contents } else { RemoveScope::Empty };
        let mut request = Request::new(Osd::RemovePartition { partition, scope });
        if scope == RemoveScope::Contents {
            request.form = Form::Osd2Draft;
        }
        let answer = self.send(request).await;
        let expected = self.model.remove_partition(partition, scope == RemoveScope::Contents);
        self.agree(&answer, expected);
    }

    async fn create(&mut self) {
        let (partition, requested) = (self.partition(), self.requested());
        let count = if self.chance.one_in(3) { 1 + self.chance.below(5) } else { 1 };
        if self.model.partitions.get(&partition).is_some_and(|found| found.users.len() > 30) {
            return;
        }
        let mut request = Request::new(Osd::Create { partition, requested, count: count as u16 }).get(&IDS);
        if self.chance.one_in(2) {
            request.set = self.settings(ObjectType::User, partition);
            // An object that is being created is in no collection and has no length yet.
            request.set.retain(|(attribute, _)| {
                attribute.page.is_free() || attribute.number <= 9 && attribute.page.0 == 1
            });
        }
        let set = request.set.clone();
        let answer = self.send(request).await;
        if let Err(fault) = self.model.may_create(partition, requested, count) {
            self.agree(&answer, Err(fault));
            return;
        }
        let set: Vec<_> = set.iter().map(|(attribute, value)| (*attribute, value.as_slice())).collect();
        let ids = match answer.result {
            Ok(()) => {
                let last = self.created(&answer, partition, requested);
                (last + 1 - count..=last).collect()
            }
            // Any free one shows what is wrong.
            Err(_) => vec![if requested == 0 { u64::MAX } else { requested }],
        };
        let expected = self.model.create(partition, &ids, &set);
        self.agree(&answer, expected);
    }

    async fn create_and_write(&mut self) {
        let (partition, requested) = (self.partition(), self.requested());
        if self.model.partitions.get(&partition).is_some_and(|found| found.users.len() > 30) {
            return;
        }
        let (start, len) = (self.chance.below(9000), 1 + self.chance.below(9000));
        let data = self.chance.bytes(len);
        let range = ObjectRange { start, len };
        let request = Request::new(Osd::CreateAndWrite { partition, requested, range }).get(&IDS).data(&data);
        let answer = self.send(request).await;
        if let Err(fault) = self.model.may_create(partition, requested, 1) {
            self.agree(&answer, Err(fault));
            return;
        }
        let id = match answer.result {
            Ok(()) => self.created(&answer, partition, requested),
            Err(_) => u64::MAX,
        };
        let expected = self.model.create_and_write(Id::new(partition, id), start, &data);
        self.agree(&answer, expected);
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

    async fn write(&mut self) {
        let id = self.object(false);
        let len = 1 + [self.chance.below(200), self.chance.below(9000), 4095][self.chance.below(3) as usize];
        let data = self.chance.bytes(len);
        if self.chance.one_in(4) {
            // Scattered.
            let cut = self.chance.below(len + 1);
            let (one, other) = data.split_at(cut as usize);
            let pieces = [(self.place(id), one), (self.place(id), other)];
            let pieces: Vec<_> = pieces.into_iter().filter(|(_, data)| !data.is_empty()).collect();
            let ranges =
                pieces.iter().map(|(start, data)| ObjectRange { start: *start, len: data.len() as u64 });
            let request = Request::new(Osd::Write(id, ObjectRange { start: 0, len }))
                .data(&data)
                .with(Descriptor::ScatterGather(ranges.collect()));
            let answer = self.send(request).await;
            let expected = self.model.write(id, &pieces);
            self.agree(&answer, expected);
            return;
        }
        let start = self.place(id);
        let answer = self.send(Request::new(Osd::Write(id, ObjectRange { start, len })).data(&data)).await;
        let expected = self.model.write(id, &[(start, &data)]);
        self.agree(&answer, expected);
    }

    async fn append(&mut self) {
        let id = self.object(false);
        let len = 1 + self.chance.below(5000);
        let data = self.chance.bytes(len);
        let request =
            Request::new(Osd::Append { id, len }).data(&data).get(&[current_command::APPEND_ADDRESS]);
        let answer = self.send(request).await;
        match self.model.append(id, &data) {
            Ok(at) => {
                self.agree(&answer, Ok(()));
                assert_eq!(answer.number(0), at, "the address of an append");
            }
            Err(fault) => {
                self.agree(&answer, Err(fault));
            }
        }
    }

    async fn clear_or_punch(&mut self) {
        let id = self.object(false);
        let range = ObjectRange { start: self.place(id), len: 1 + self.chance.below(12_000) };
        let (command, expected) = if self.chance.one_in(2) {
            (Osd::Clear(id, range), self.model.clear(id, range.start, range.len))
        } else {
            (Osd::Punch(id, range), self.model.punch(id, range.start, range.len))
        };
        let answer = self.send(Request::new(command)).await;
        self.agree(&answer, expected);
    }

    async fn read(&mut self) {
        let id = self.object(false);
        let (start, len) = (self.place(id), 1 + self.chance.below(20_000));
        let answer = self.send(Request::new(Osd::Read(id, ObjectRange { start, len }))).await;
        let user = match self.model.user(id) {
            Ok(user) => user,
            Err(fault) => {
                self.agree(&answer, Err(fault));
                return;
            }
        };
        let length = user.data.len() as u64;
        if start > length {
            self.agree(&answer, Err(Fault::Cdb(40)));
            return;
        }
        let end = (start + len).min(length);
        assert!(
            answer.data == user.data[start as usize..end as usize],
            "data of {id}\n{}",
            self.log.join("\n")
        );
        let expected = if end < start + len { Err(Fault::PastEnd(end - start)) } else { Ok(()) };
        self.agree(&answer, expected);
    }

    async fn remove(&mut self) {
        let id = self.object(false);
        let answer = self.send(Request::new(Osd::Remove(id))).await;
        let expected = self.model.remove(id);
        self.agree(&answer, expected);
    }

    /// Any object.
    fn anything(&mut self) -> Id {
        match self.chance.below(10) {
            0 => Id::ROOT,
            1 | 2 => Id::partition(self.partition()),
            3 | 4 => self.object(true),
            _ => self.object(false),
        }
    }

    async fn set(&mut self) {
        let id = self.anything();
        let of_type = self.model.type_of(id);
        let mut request = Request::new(Osd::SetAttributes(id));
        request.set = self.settings(of_type.unwrap_or(ObjectType::User), id.partition);
        let set = request.set.clone();
        let answer = self.send(request).await;
        let set: Vec<_> = set.iter().map(|(attribute, value)| (*attribute, value.as_slice())).collect();
        let expected = self.model.set(id, &set, false);
        self.agree(&answer, expected);
    }

    async fn get(&mut self) {
        let id = self.anything();
        let of_type = self.model.type_of(id);
        if let (Ok(of_type), true) = (of_type, self.chance.one_in(5)) {
            let page = if self.chance.one_in(2) { ANY } else { Page::of(of_type, FREE.0) };
            let all = AttributeId::new(page, AttributeId::ALL);
            let answer = self.send(Request::new(Osd::GetAttributes(id)).get(&[all])).await;
            self.agree(&answer, Ok(()));
            let found: Vec<_> = answer.values().into_iter().map(|(a, v)| (a.number, v)).collect();
            assert_eq!(found, self.model.all_of(id, page).expect("it is there"), "{page} of {id}");
            return;
        }
        let wanted = self.wanted(of_type.unwrap_or(ObjectType::User));
        let answer = self.send(Request::new(Osd::GetAttributes(id)).get(&wanted)).await;
        if self.agree(&answer, of_type.map(drop)) {
            self.compare_values(id, &answer.values(), &wanted);
        }
    }

    async fn list(&mut self) {
        let partition = if self.chance.one_in(4) { 0 } else { self.partition() };
        let expected = match partition {
            0 => Ok(self.model.partitions.keys().copied().collect()),
            partition => self.model.partition(partition).map(|found| found.users.keys().copied().collect()),
        };
        let command = |allocation, initial, list_id, attributes| {
            Osd::List(List { partition, allocation, initial, list_id, attributes, sort: 0 })
        };
        let listed = if partition == 0 { ObjectType::Partition } else { ObjectType::User };
        self.pieces(expected, partition, listed, command).await;
    }

    async fn list_collection(&mut self) {
        let mut id = self.object(true);
        if self.chance.one_in(3) {
            id.object = 0;
        }
        let expected = match id.object {
            0 => self.model.partition(id.partition).map(|found| found.collections.keys().copied().collect()),
            _ => self
                .model
                .collection(id)
                .and_then(|_| Ok(self.model.partition(id.partition)?.members(id.object))),
        };
        let command = |allocation, initial, list_id, attributes| {
            Osd::ListCollection(ListCollection { id, allocation, initial, list_id, attributes })
        };
        let listed = if id.object == 0 { ObjectType::Collection } else { ObjectType::User };
        self.pieces(expected, id.partition, listed, command).await;
    }

    /// Takes a list in pieces, and compares it.
    async fn pieces(
        &mut self,
        expected: Result<Vec<u64>, Fault>,
        partition: u64,
        listed: ObjectType,
        command: impl Fn(u64, u64, u32, bool) -> Osd,
    ) {
        let attributes = self.chance.one_in(3);
        let allocation =
            if attributes { 2000 + self.chance.below(2000) } else { 32 + self.chance.below(200) };
        let wanted = self.wanted(listed);
        let (mut found, mut from, mut list_id) = (Vec::new(), 0, 0);
        loop {
            let mut request = Request::new(command(allocation, from, list_id, attributes));
            if attributes {
                request.get.clone_from(&wanted);
                request.listed = true;
            }
            let answer = self.send(request).await;
            let all = match &expected {
                Ok(all) => all,
                Err(fault) => {
                    self.agree(&answer, Err(*fault));
                    return;
                }
            };
            self.agree(&answer, Ok(()));
            let header = ListHeader::parse(&answer.data, answer.version).expect("a list");
            assert!(!header.changed, "nothing has changed\n{}", self.log.join("\n"));
            assert_eq!(header.continuation == 0, header.list_id == 0);
            let whole = header.additional_len as usize + 8;
            assert_eq!(whole > answer.data.len(), header.continuation != 0, "{header:?}");
            if attributes {
                for object in data::list_objects(&answer.data).expect("objects") {
                    found.push(object.id);
                    let id = match listed {
                        ObjectType::Partition => Id::partition(object.id),
                        _ => Id::new(partition, object.id),
                    };
                    assert_eq!(object.kind, Some(listed));
                    let values: Vec<_> =
                        object.values.iter().map(|value| (value.attribute, value.bytes.to_vec())).collect();
                    self.compare_values(id, &values, &wanted);
                }
            } else {
                if from == 0 {
                    assert_eq!(whole, LIST_HEADER_LEN + 8 * all.len(), "the length of the whole list");
                }
                found.extend(data::list_ids(&answer.data));
            }
            if header.continuation == 0 {
                assert_eq!(&found, all, "{}", self.log.join("\n"));
                return;
            }
            assert!(
                header.continuation > from && found.last().is_none_or(|last| header.continuation > *last)
            );
            (from, list_id) = (header.continuation, header.list_id);
        }
    }

    async fn create_collection(&mut self) {
        let (partition, requested) = (self.partition(), self.requested());
        if self.model.partitions.get(&partition).is_some_and(|found| found.collections.len() > 6) {
            return;
        }
        let tracks = self.chance.one_in(3);
        let mut source = 0;
        let mut expected = Ok(());
        let command = if tracks {
            if self.chance.one_in(2) {
                source = self.object(true).object;
                expected = self.model.partition(partition).and_then(|_| {
                    self.model.collection(Id::new(partition, source)).map(drop).map_err(|_| Fault::Cdb(40))
                });
            }
            Osd::CreateUserTrackingCollection { partition, requested, source }
        } else {
            Osd::CreateCollection { partition, requested }
        };
        let answer = self.send(Request::new(command).get(&IDS)).await;
        let expected = expected.and_then(|()| self.model.may_create(partition, requested, 1));
        if let Err(fault) = expected {
            self.agree(&answer, Err(fault));
            return;
        }
        let id = match answer.result {
            Ok(()) => self.created(&answer, partition, requested),
            Err(_) => u64::MAX,
        };
        let expected = self.model.create_collection(partition, id, tracks, source);
        self.agree(&answer, expected);
    }

    async fn remove_collection(&mut self) {
        let (id, force) = (self.object(true), self.chance.one_in(2));
        let answer = self.send(Request::new(Osd::RemoveCollection { id, force })).await;
        let expected = self.model.remove_collection(id, force);
        self.agree(&answer, expected);
    }

    async fn query(&mut self) {
        let mut id = self.object(true);
        if self.chance.one_in(3) {
            id.object = 0;
        }
        let all = self.chance.one_in(2);
        let mut criteria = Vec::new();
        for _ in 0..self.chance.below(4) {
            let attribute = match self.chance.below(6) {
                0 => of_user::LOGICAL_LENGTH,
                1 => AttributeId::new(ANY, 1),
                number => AttributeId::new(FREE, number as u32 - 1),
            };
            let (mut min, mut max) = (vec![self.chance.below(8) as u8], vec![2 + self.chance.below(8) as u8]);
            if attribute == of_user::LOGICAL_LENGTH {
                min = self.chance.below(5000).to_be_bytes().to_vec();
                max = (5000 + self.chance.below(30_000)).to_be_bytes().to_vec();
            }
            match self.chance.below(4) {
                0 => min.clear(),
                1 => max.clear(),
                _ => {}
            }
            criteria.push(Criterion { attribute, min, max });
        }
        let matches = if self.chance.one_in(3) {
            let found = self.model.partitions.get(&id.partition);
            let there: Vec<u64> =
                found.map_or(Vec::new(), |found| found.collections.keys().copied().collect());
            self.chance.of(&there).unwrap_or(FIRST + 38)
        } else {
            0
        };
        let allocation = if self.chance.one_in(4) { self.chance.below(60) } else { 4000 };
        let query = Query { all, criteria: criteria.clone() };
        let command = Osd::Query { id, immediate: false, allocation, matches };
        let answer = self.send(Request::new(command).with(Descriptor::Query(query))).await;
        let candidates = self.model.partition(id.partition).and_then(|found| {
            if id.object == 0 {
                return Ok(found.users.keys().copied().collect());
            }
            self.model.collection(id)?;
            Ok(found.members(id.object))
        });
        let candidates: Vec<u64> = match candidates {
            Ok(candidates) => candidates,
            Err(fault) => {
                self.agree(&answer, Err(fault));
                return;
            }
        };
        let fits = |object: u64| {
            let one = |criterion: &Criterion| {
                let value = self.model.value(Id::new(id.partition, object), criterion.attribute);
                let value = value.expect("it is there");
                !value.is_empty()
                    && (criterion.min.is_empty() || value >= criterion.min)
                    && (criterion.max.is_empty() || value <= criterion.max)
            };
            if all { criteria.iter().all(one) } else { criteria.iter().any(one) }
        };
        let found: Vec<u64> = candidates.iter().copied().filter(|object| fits(*object)).collect();
        if matches != 0 {
            let collection = Id::new(id.partition, matches);
            if matches == id.object || self.model.collection(collection).is_err() {
                self.agree(&answer, Err(Fault::Cdb(40)));
                return;
            }
            let expected = self.model.join(collection, &found, candidates.len() as u64);
            if !self.agree(&answer, expected) {
                return;
            }
        }
        self.agree(&answer, Ok(()));
        if allocation < 12 {
            assert_eq!(answer.data.len() as u64, allocation);
            return;
        }
        let (count, ids) = data::query_ids(&answer.data).expect("a query's reply");
        assert_eq!(count, found.len() as u64, "{}", self.log.join("\n"));
        let room = (allocation as usize - 12) / 8;
        assert_eq!(ids.collect::<Vec<_>>(), found[..found.len().min(room)]);
    }

    async fn members(&mut self) {
        let id = self.object(true);
        match self.chance.below(5) {
            0 => {
                let answer = self.send(Request::new(Osd::RemoveMemberObjects(id))).await;
                let expected = self.model.remove_members(id);
                self.agree(&answer, expected);
            }
            1 | 2 => {
                let mut request = Request::new(Osd::SetMemberAttributes(id));
                request.set = self.settings(ObjectType::User, id.partition);
                let set = request.set.clone();
                let answer = self.send(request).await;
                let set: Vec<_> =
                    set.iter().map(|(attribute, value)| (*attribute, value.as_slice())).collect();
                let expected = self.model.set_members(id, &set);
                self.agree(&answer, expected);
            }
            _ => {
                let wanted = self.wanted(ObjectType::User);
                let answer = self.send(Request::new(Osd::GetMemberAttributes(id)).get(&wanted)).await;
                let expected = self.model.collection(id).map(drop);
                if !self.agree(&answer, expected) {
                    return;
                }
                let listed = answer.data.get(answer.retrieved_at..).unwrap_or_default();
                let listed = list::parse_many(listed, answer.version).expect("a list of many");
                let ids: Vec<u64> = listed.iter().map(|object| object.id).collect();
                let members = self.model.partition(id.partition).map(|found| found.members(id.object));
                assert_eq!(Ok(ids), members);
                for object in listed {
                    let values: Vec<_> =
                        object.values.iter().map(|value| (value.attribute, value.bytes.to_vec())).collect();
                    self.compare_values(Id::new(id.partition, object.id), &values, &wanted);
                }
            }
        }
    }

    async fn snapshots(&mut self) {
        let partition = self.partition();
        match self.chance.below(7) {
            0..=2 => {
                if self.model.partitions.len() > 9 {
                    return;
                }
                let snapshot = self.chance.one_in(2);
                let requested = if self.chance.one_in(3) { FIRST + self.chance.below(14) } else { 0 };
                let (source, method) = (partition, 0);
                let command = match snapshot {
                    true => Osd::CreateSnapshot { requested, source, method },
                    false => Osd::CreateClone { requested, source, method },
                };
                let answer = self.send(Request::new(command).get(&IDS)).await;
                let expected = self.model.may_duplicate(requested, source);
                if self.agree(&answer, expected) {
                    let id = answer.number(0);
                    assert!(id >= FIRST && (requested == 0 || id == requested));
                    assert!(!self.model.partitions.contains_key(&id), "partition {id:#x} is taken");
                    self.model.duplicate(source, id, snapshot);
                }
            }
            3 => {
                let answer = self.send(Request::new(Osd::DetachClone { partition })).await;
                let expected = self.model.detach(partition);
                self.agree(&answer, expected);
            }
            4 => {
                let answer = self.send(Request::new(Osd::RefreshSnapshotOrClone { partition })).await;
                let expected = self.model.refresh(partition);
                self.agree(&answer, expected);
            }
            _ => {
                // Where it comes from, most of the time.
                let origin = self.model.partitions.get(&partition).and_then(|found| found.origin);
                let to = origin.map_or_else(|| self.partition(), |(source, _)| source);
                let command = Osd::RestorePartition { partition: to, snapshot: partition };
                let answer = self.send(Request::new(command)).await;
                let expected = self.model.restore(to, partition);
                self.agree(&answer, expected);
            }
        }
    }

    async fn map(&mut self) {
        let id = self.object(false);
        if self.chance.one_in(3) {
            return self.compare(id).await;
        }
        let start = self.place(id);
        let map_type = [0, 0, 1, 2][self.chance.below(4) as usize];
        let command = Osd::ReadMap { id, allocation: 1 << 16, start, map_type };
        let answer = self.send(Request::new(command)).await;
        let user = match self.model.user(id) {
            Ok(user) if start <= user.data.len() as u64 => user,
            Ok(_) => {
                self.agree(&answer, Err(Fault::Cdb(40)));
                return;
            }
            Err(fault) => {
                self.agree(&answer, Err(fault));
                return;
            }
        };
        self.agree(&answer, Ok(()));
        let (count, parts) = data::map(&answer.data).expect("a map");
        let parts: Vec<_> = parts.collect();
        assert_eq!(count, parts.len() as u64);
        let mut at = start;
        for part in parts {
            assert!(part.len > 0 && part.offset >= at && (map_type != 0 || part.offset == at), "{part:?}");
            assert!(map_type == 0 || part.kind as u16 == map_type, "{part:?}");
            at = part.offset + u64::from(part.len);
            let bytes = &user.data[part.offset as usize..at as usize];
            assert!(
                part.kind == MapType::Written || bytes.iter().all(|b| *b == 0),
                "a hole with data: {part:?}"
            );
        }
        assert!(map_type != 0 || at == user.data.len() as u64, "the map ends at {at}");
    }

    async fn compare(&mut self, id: Id) {
        // With what it was duplicated to or from, most of the time.
        let origin = self.model.partitions.get(&id.partition).and_then(|found| found.origin);
        let other = origin.map_or_else(|| self.partition(), |(source, _)| source);
        let command = Osd::ReadMapsAndCompare { id, allocation: 1 << 16, other, map_type: 0 };
        let answer = self.send(Request::new(command)).await;
        let both = self.model.user(id).and_then(|one| {
            self.model.partition(other).map_err(|_| Fault::Cdb(40))?;
            Ok((one, self.model.user(Id::new(other, id.object))?))
        });
        let (one, two) = match both {
            Ok(both) => both,
            Err(fault) => {
                self.agree(&answer, Err(fault));
                return;
            }
        };
        self.agree(&answer, Ok(()));
        let length = one.data.len().max(two.data.len());
        let mut differs = vec![false; length];
        let (_, parts) = data::map(&answer.data).expect("a map");
        for part in parts {
            differs[part.offset as usize..part.offset as usize + part.len as usize].fill(true);
        }
        for (at, told) in differs.into_iter().enumerate() {
            assert!(told || one.data.get(at) == two.data.get(at), "byte {at} of {id} differs, untold");
        }
    }

    async fn copy(&mut self) {
        let (partition, requested, from) = (self.partition(), self.requested(), self.object(false));
        if self.model.partitions.get(&partition).is_some_and(|found| found.users.len() > 30) {
            return;
        }
        let attributes = self.chance.one_in(2);
        let source = CopySource { id: from, attributes, freeze: false, time: 0 };
        let command = Osd::CopyUserObjects { partition, requested, method: 0 };
        let answer = self.send(Request::new(command).with(Descriptor::CopySource(source)).get(&IDS)).await;
        let may = self
            .model
            .may_create(partition, requested, 0)
            .and_then(|()| self.model.user(from).map(drop).map_err(|_| Fault::Parameter));
        if let Err(fault) = may {
            self.agree(&answer, Err(fault));
            return;
        }
        let id = match answer.result {
            Ok(()) => self.created(&answer, partition, requested),
            Err(_) => u64::MAX,
        };
        let expected = self.model.copy(from, Id::new(partition, id), attributes);
        self.agree(&answer, expected);
    }

    async fn flush(&mut self) {
        let scope = [FlushScope::Contents, FlushScope::Attributes, FlushScope::RangeOrAll];
        let scope = scope[self.chance.below(3) as usize];
        let (command, expected) = match self.chance.below(4) {
            0 => (Osd::FlushOsd { scope }, Ok(())),
            1 => {
                let partition = self.partition();
                (Osd::FlushPartition { partition, scope }, self.model.partition(partition).map(drop))
            }
            2 => {
                let id = self.object(true);
                (Osd::FlushCollection { id, scope }, self.model.collection(id).map(drop))
            }
            _ => {
                let id = self.object(false);
                (Osd::Flush { id, scope, range: ObjectRange::default() }, self.model.user(id).map(drop))
            }
        };
        let answer = self.send(Request::new(command)).await;
        self.agree(&answer, expected);
    }

    async fn tunnel_or_check(&mut self) {
        let (command, expected) = match self.chance.below(4) {
            // TEST UNIT READY, and a tunnel within a tunnel.
            0 => (Osd::PerformScsiCommand { cdb: [0; 16] }, Ok(())),
            1 => (Osd::PerformScsiCommand { cdb: [0x7F; 16] }, Err(Fault::Cdb(32))),
            2 => (Osd::ObjectStructureCheck(StructureScope::Root), Ok(())),
            _ => {
                let partition = self.partition().max(1);
                let found = self.model.partition(partition).map(drop);
                (Osd::ObjectStructureCheck(StructureScope::Partition(partition)), found)
            }
        };
        let answer = self.send(Request::new(command)).await;
        self.agree(&answer, expected);
    }

    /// Compares everything that the unit holds with the model.
    pub async fn compare_everything(&mut self) {
        let partitions: Vec<u64> = self.model.partitions.keys().copied().collect();
        let whole = 1 << 16;
        let ids = |answer: &Answer| data::list_ids(&answer.data).collect::<Vec<_>>();
        let list = |partition| {
            Osd::List(List {
                partition,
                allocation: whole,
                initial: 0,
                list_id: 0,
                attributes: false,
                sort: 0,
            })
        };
        let answer = self.send(Request::new(list(0))).await;
        self.agree(&answer, Ok(()));
        assert_eq!(ids(&answer), partitions);
        for partition in partitions {
            let answer = self.send(Request::new(list(partition))).await;
            let users: Vec<u64> = self.model.partitions[&partition].users.keys().copied().collect();
            assert_eq!(ids(&answer), users, "user objects of {partition:#x}");
            for object in users {
                let id = Id::new(partition, object);
                let length = self.model.user(id).map_or(0, |user| user.data.len() as u64);
                let range = ObjectRange { start: 0, len: length };
                let answer = self.send(Request::new(Osd::Read(id, range))).await;
                self.agree(&answer, Ok(()));
                assert!(self.model.user(id).is_ok_and(|user| user.data == answer.data), "data of {id}");
                let mut wanted = vec![of_user::LOGICAL_LENGTH, of_user::NAME, user_quotas::MAX_LENGTH];
                for number in 1..5 {
                    wanted.extend([FREE, ANY, collections::PAGE].map(|page| AttributeId::new(page, number)));
                }
                let answer = self.send(Request::new(Osd::GetAttributes(id)).get(&wanted)).await;
                self.agree(&answer, Ok(()));
                self.compare_values(id, &answer.values(), &wanted);
            }
            let collections: Vec<u64> =
                self.model.partitions[&partition].collections.keys().copied().collect();
            for object in collections {
                let id = Id::new(partition, object);
                let command = Osd::ListCollection(ListCollection {
                    id,
                    allocation: whole,
                    initial: 0,
                    list_id: 0,
                    attributes: false,
                });
                let answer = self.send(Request::new(command)).await;
                assert_eq!(
                    ids(&answer),
                    self.model.partitions[&partition].members(object),
                    "members of {id}"
                );
                let wanted =
                    [of_collection::TYPE, of_collection::NAME, tracking::MEMBERS, tracking::PROCESSED];
                let answer = self.send(Request::new(Osd::GetAttributes(id)).get(&wanted)).await;
                self.compare_values(id, &answer.values(), &wanted);
            }
        }
        let answer = self.send(Request::new(Osd::ObjectStructureCheck(StructureScope::Root))).await;
        self.agree(&answer, Ok(()));
    }
}
