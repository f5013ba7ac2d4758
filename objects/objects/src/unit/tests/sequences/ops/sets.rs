//! Lists, collections, queries, and commands on all members.

use super::*;

impl Pair {
    pub(super) async fn list(&mut self) {
        let partition = if self.chance.one_in(4) { 0 } else { self.partition() };
        let expected = match partition {
            0 => Ok(self.model.partitions.keys().copied().collect()),
            partition => self.model.partition(partition).map(|found| found.users.keys().copied().collect()),
        };
        let command = |allocation, initial, list_id, attributes| {
            Osd::List(List { initial, list_id, attributes, ..List::new(partition, allocation) })
        };
        let listed = if partition == 0 { ObjectType::Partition } else { ObjectType::User };
        self.pieces(expected, partition, listed, command).await;
    }

    pub(super) async fn list_collection(&mut self) {
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
            Osd::ListCollection(ListCollection {
                initial,
                list_id,
                attributes,
                ..ListCollection::new(id, allocation)
            })
        };
        let listed = if id.object == 0 { ObjectType::Collection } else { ObjectType::User };
        self.pieces(expected, id.partition, listed, command).await;
    }

    /// Takes a list in pieces, and compares it.
    pub(super) async fn pieces(
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

    pub(super) async fn create_collection(&mut self) {
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
        let Some(()) = self.granted(&answer, expected) else { return };
        let id = match answer.result {
            Ok(()) => self.created(&answer, partition, requested),
            Err(_) => u64::MAX,
        };
        let expected = self.model.create_collection(partition, id, tracks, source);
        self.agree(&answer, expected);
    }

    pub(super) async fn remove_collection(&mut self) {
        let (id, force) = (self.object(true), self.chance.one_in(2));
        self.both(Request::new(Osd::RemoveCollection { id, force }), |model| {
            model.remove_collection(id, force)
        })
        .await;
    }

    pub(super) async fn query(&mut self) {
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
        let Some(candidates) = self.granted::<Vec<u64>>(&answer, candidates) else { return };
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

    pub(super) async fn members(&mut self) {
        let id = self.object(true);
        match self.chance.below(5) {
            0 => {
                self.both(Request::new(Osd::RemoveMemberObjects(id)), |model| model.remove_members(id)).await;
            }
            1 | 2 => {
                let mut request = Request::new(Osd::SetMemberAttributes(id));
                request.set = self.settings(ObjectType::User, id.partition);
                let set = request.set.clone();
                self.both(request, |model| model.set_members(id, &set)).await;
            }
            _ => {
                let wanted = self.wanted(ObjectType::User);
                let answer = self.send(Request::new(Osd::GetMemberAttributes(id)).get(&wanted)).await;
                let expected = self.model.collection(id).map(drop);
                if !self.agree(&answer, expected) {
                    return;
                }
                let listed = answer.data.get(answer.retrieved..).unwrap_or_default();
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
}
