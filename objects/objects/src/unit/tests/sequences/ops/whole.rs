//! Snapshots, maps, copies, flushes, checks, and the comparison of everything.

use super::*;

impl Pair {
    pub(super) async fn snapshots(&mut self) {
        let partition = self.partition();
        match self.chance.below(8) {
            7 => self.remake().await,
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
                self.both(Request::new(Osd::DetachClone { partition }), |model| model.detach(partition))
                    .await;
            }
            4 => {
                self.both(Request::new(Osd::RefreshSnapshotOrClone { partition }), |model| {
                    model.refresh(partition)
                })
                .await;
            }
            _ => {
                // Most of the time, the partition that it comes from.
                let origin = self.model.partitions.get(&partition).and_then(|found| found.origin);
                let to = origin.map_or_else(|| self.partition(), |origin| origin.source);
                let command = Osd::RestorePartition { partition: to, snapshot: partition };
                self.both(Request::new(command), |model| model.restore(to, partition)).await;
            }
        }
    }

    /// Makes another partition with the id of one that duplicates were made of: neither may get the
    /// other's content.
    async fn remake(&mut self) {
        let made = |(id, found): (&u64, &Partition)| Some((*id, found.origin?.source));
        let duplicates: Vec<(u64, u64)> = self.model.partitions.iter().filter_map(made).collect();
        let Some((duplicate, source)) = self.chance.of(&duplicates) else { return };
        if self.model.partition(source).is_ok() {
            let scope = RemoveScope::Contents;
            let mut request = Request::new(Osd::RemovePartition { partition: source, scope });
            request.form = Form::Osd2Draft;
            self.both(request, |model| model.remove_partition(source, true)).await;
        }
        let answer = self.send(Request::new(Osd::CreatePartition { requested: source }).get(&IDS)).await;
        let expected = self.model.may_create_partition(source);
        if !self.agree(&answer, expected) {
            return;
        }
        self.model.create_partition(source);
        self.namesakes += 1;
        self.both(Request::new(Osd::RefreshSnapshotOrClone { partition: duplicate }), |model| {
            model.refresh(duplicate)
        })
        .await;
        let command = Osd::RestorePartition { partition: source, snapshot: duplicate };
        self.both(Request::new(command), |model| model.restore(source, duplicate)).await;
    }

    pub(super) async fn map(&mut self) {
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

    pub(super) async fn compare(&mut self, id: Id) {
        // Most of the time, with the partition that it was duplicated from.
        let origin = self.model.partitions.get(&id.partition).and_then(|found| found.origin);
        let other = origin.map_or_else(|| self.partition(), |origin| origin.source);
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

    pub(super) async fn copy(&mut self) {
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
        let Some(()) = self.granted(&answer, may) else { return };
        let id = match answer.result {
            Ok(()) => self.created(&answer, partition, requested),
            Err(_) => u64::MAX,
        };
        let expected = self.model.copy(from, Id::new(partition, id), attributes);
        self.agree(&answer, expected);
    }

    pub(super) async fn flush(&mut self) {
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

    pub(super) async fn tunnel_or_check(&mut self) {
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
        let list = |partition| Osd::List(List::new(partition, whole));
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
                let command = Osd::ListCollection(ListCollection::new(id, whole));
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
